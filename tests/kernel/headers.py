"""Generated headers that let editors and compilers read each header in templates/ by itself.

`python -m tests.kernel.headers` writes them to build/headers, where templates/*/compile_flags.txt find them.
"""

from __future__ import annotations

from pathlib import Path

from vpps.kernel.chip import Chip, DenseMatrix, KernelMatrix, KernelSlot, ProductTile
from vpps.kernel.render import TILES, render_cpu, render_cuda
from vpps.kernel.spec import KernelSpec
from vpps.ops.element import BFLOAT16
from vpps.script.instructions import TABLE
from vpps.script.tails import Load, Tail

FOLDER = Path(__file__).parents[2] / "build" / "headers"
CHIP = Chip(
    slots=(KernelSlot(1, 1, 0),),
    matrices=(KernelMatrix(0, 1, "W"),),
    dense=(DenseMatrix(1, 8, 512, BFLOAT16, 256, 0, 0, 1, (0, 0, 0), "V"),),
    product_tiles=(ProductTile(8, 1, 1, BFLOAT16),),
    registers=32,
)
"""Holds matrices in all ways, so that every header has what it needs."""


def write(folder: Path) -> None:
    """Write configuration.h and instructions.h for each target, with all instructions, rounding and timelines."""
    tails = frozenset({Tail(1, (Load.RESULT,), 0, (), (0,))})
    spec = KernelSpec(frozenset(i.name for i in TABLE), CHIP, tails, rounds=True, timeline=True)
    for target, source in {
        "host": render_cpu(TILES["portable"], named=True, rounds=True),
        "cuda": render_cuda(spec, named=True),
    }.items():
        configuration, _, rest = source.partition("\n#include")
        _, _, forms = rest.partition("// ---- decoded instructions")
        (folder / target).mkdir(parents=True, exist_ok=True)
        (folder / target / "configuration.h").write_text(f"#pragma once\n{configuration}\n")
        forms = forms.partition("\n")[2].partition("#include")[0]
        (folder / target / "instructions.h").write_text(f'#pragma once\n#include "script.cuh"\n{forms}')


if __name__ == "__main__":
    write(FOLDER)
