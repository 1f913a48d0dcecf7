"""What spills with this NVRTC, beside what vpps/kernel/fitting.py expects: `python -m tests.kernel.spills` prints what
LEAST is made of. A folder of PYTHONPATH names another NVRTC; every line takes some seconds."""

from __future__ import annotations

import vpps
from tests.kernel.programs import bilstm_tagger, rvnn, tree_lstm
from vpps.engine.ahead import specs
from vpps.engine.options import Example
from vpps.kernel.fitting import expects_spills
from vpps.kernel.nvrtc import compile_cubin, compiler_version, library_version
from vpps.kernel.render import render_cuda
from vpps.placement.onchip import known_device
from vpps.placement.update import Update

PROGRAMS = {
    **{f"Tree-LSTM {h}, words {e}": (tree_lstm, h, e) for h in (512, 384, 640) for e in (128, 256)},
    "RvNN 1024": (rvnn, 1024),
    "BiLSTM 512": (bilstm_tagger, 512),
}


def tried(name: str, program: tuple[vpps.Model, Example]) -> None:
    """Compile arrangements, best first, until one fits."""
    update = Update(vpps.SGD(lr=0.1), 1, 1, None)
    options = vpps.ChipOptions()
    for spec, _, _ in specs(*program, known_device("H200"), 132, update, 0, options, passes=vpps.Passes()):
        cubin = compile_cubin(render_cuda(spec.of(132)), "sm_90", spec.chip.registers)
        found = cubin.resources
        expected = "to spill" if expects_spills(spec, library_version()) else "to fit"
        rows = max((slot.rows for slot in spec.chip.slots if slot.in_registers), default=0)
        print(
            f"{compiler_version()}, {name}: {spec.chip.registers} registers of weights, {rows * spec.chip.tile} sums, "
            f"{spec.chip.shared_units} KiB of slots in shared memory: {found.registers} registers, "
            f"{found.spill_stores} bytes spilled, expected {expected}",
            flush=True,
        )
        if not found.spill_stores + found.stack:
            return


if __name__ == "__main__":
    for title, (make, *sizes) in PROGRAMS.items():
        tried(title, make(*sizes))
