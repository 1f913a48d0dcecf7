"""Renders the kernel source: one text, made of `templates/kernel.cu.j2` and the headers it includes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import vpps
from vpps.errors import CompileError
from vpps.optim import HYPER
from vpps.script.instructions import (
    FORMS,
    HEAD_WORDS,
    HEADER_WORDS,
    INDEXED,
    OFFSET_MASK,
    SCALAR,
    TABLE,
    Flag,
)
from vpps.script.slices import TILE_COLUMNS


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of a pass of the matrix routines over a panel, for one instruction set.

    Attributes:
        isa: "avx512", "avx2" or "portable".
        panel: rows of a packed panel; also the granule in which units are dealt to virtual processors.
        vectors: vectors multiplied per pass; panel * vectors sums stay in registers.
        lanes: floats of a vector register.
    """

    isa: str
    panel: int
    vectors: int
    lanes: int


# Measured on one core of an AVX-512 processor (ARCHITECTURE.md): larger passes spill, smaller ones wait for loads.
TILES: dict[str, Tile] = {
    t.isa: t for t in (Tile("avx512", 32, 8, 16), Tile("avx2", 16, 6, 8), Tile("portable", 8, 4, 4))
}

C_TYPES = {"operand": "Operand", "list": "const Word*", "word": "Word", "floating": "float", "segments": "Segments"}

HEADERS = ("host/prelude.h", "math.cuh", "script.cuh")
TIMELINE = ("host/timeline.h",)
TIMELINE_LINE = "VP_TIMELINE("  # begins a line of the templates that is left out of a kernel that records no timeline
ROUTINES = (
    "host/sync.h",
    "elementwise.cuh",
    "random.cuh",
    "host/dropout.h",
    "rowwise.cuh",
    "lists.cuh",
    "ops/elementwise.cuh",
    "ops/rowwise.cuh",
    "ops/lists.cuh",
    "optimizers.cuh",
    "host/matrix.cuh",
    "host/matmul.cuh",
)
MACHINE = ("host/machine.h",)


def template_dir() -> Path:
    """The templates: inside an installed package, or beside it in a checkout. Raises CompileError if in neither."""
    package = Path(vpps.__file__).parent
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "kernel.cu.j2").is_file():
            return folder
    raise CompileError(f"the kernel templates are missing from {package}; reinstall vpps")


def _joined(folder: Path, names: tuple[str, ...]) -> str:
    return "\n".join(f"{(folder / n).read_text(encoding='utf-8').strip()}\n" for n in names)


@lru_cache(maxsize=8)
def render_cpu(tile: Tile, timeline: bool = False) -> str:
    """Source of the cpu target's kernel.

    The kernel depends on the instruction set only: on a CPU the weights live in memory, so shapes come with the script
    and one binary serves every model.

    Args:
        timeline: whether the kernel records what every virtual processor does when (runtime/recording.py).
    """
    import jinja2

    folder = template_dir()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template("kernel.cu.j2").render(
        version=vpps.__version__,
        target="cpu",
        timeline=timeline,
        tile_comment=f"{tile.isa}, {tile.vectors} vectors by {tile.panel} rows a pass",
        panel=tile.panel,
        vectors=tile.vectors,
        lanes=tile.lanes,
        tile_columns=TILE_COLUMNS,
        header_words=HEADER_WORDS,
        head_words=HEAD_WORDS,
        indexed=INDEXED,
        scalar=SCALAR,
        offset_mask=OFFSET_MASK,
        flags=Flag.__members__,
        hyper=HYPER,
        headers=_joined(folder, (*HEADERS, *TIMELINE) if timeline else HEADERS),
        routines=_joined(folder, ROUTINES),
        machine=_joined(folder, MACHINE),
        forms=FORMS,
        table=TABLE,
        ctype=C_TYPES,
    )
    if timeline:
        return text
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith(TIMELINE_LINE))
