"""Renders kernel sources from `templates/kernel.cu.j2` and its headers, and libraries of cells' tails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from vpps._version import __version__
from vpps.errors import CompileError
from vpps.kernel.chip import PLACES, SCRIPT_WORDS, THREADS
from vpps.kernel.spec import KernelSpec
from vpps.model.optim import HYPER
from vpps.script.instructions import (
    COUNTERS,
    FIRST_SLICED,
    FORMS,
    HEAD_WORDS,
    HEADER_WORDS,
    INDEXED,
    OFFSET_MASK,
    SCALAR,
    TABLE,
    Flag,
)
from vpps.script.slices import GRADIENT_ROWS, MOST_SEGMENTS, SEGMENT, SHARED_TILES, TILE_COLUMNS
from vpps.script.tails import NONE, Load, Step, Tail, ViewUse


@dataclass(frozen=True, slots=True)
class Tile:
    """Shape of the matrix routines' passes over a panel, for one instruction set.

    Attributes:
        isa: "avx512", "avx2", "neon" or "portable".
        panel: rows of a packed panel; units are dealt to virtual processors in multiples of it.
        vectors: vectors multiplied per pass; panel * vectors sums stay in registers.
        lanes: number of floats in a vector register.
    """

    isa: str
    panel: int
    vectors: int
    lanes: int

    @property
    def name(self) -> str:
        """Instruction set, panel and vectors, such as "avx512-32x8"."""
        return f"{self.isa}-{self.panel}x{self.vectors}"


# Measured on one core of Zen 5: smaller passes wait for loads. Larger passes are faster only for a few numbers of
# vectors (9, 17), and in no network. Neon's tile has not been measured; its sums stay in registers.
TILES: dict[str, Tile] = {
    t.isa: t
    for t in (Tile("avx512", 32, 8, 16), Tile("avx2", 16, 6, 8), Tile("neon", 16, 6, 4), Tile("portable", 8, 4, 4))
}

ALWAYS = frozenset({"end", "signal", "wait", "barrier", "loss"})  # instructions that every kernel has

C_TYPES = {
    "operand": "Operand",
    "list": "const Word*",
    "word": "Word",
    "floating": "float",
    "segments": "Segments",
    "views": "Segments",
}

HOST_HEADERS = ("host/prelude.h", "math.cuh", "script.cuh", "host/timeline.h")
CUDA_HEADERS = ("cuda/ptx.cuh", "cuda/prelude.h", "math.cuh", "script.cuh")
CUDA_SYNC = ("cuda/sync.h",)
CUDA_TIMELINE = ("cuda/timeline.h",)
TIMELINE_LINE = "VP_TIMELINE("  # start of lines that are removed from a GPU's kernel without a timeline

ROUTINES = (  # for host and GPU
    "elementwise.cuh", "ops/elementwise.cuh", "ops/rowwise.cuh", "ops/lists.cuh", "random.cuh", "guard.cuh",
    "optimizers.cuh",
)  # fmt: skip
HOST_ROUTINES = ("host/sync.h", *ROUTINES, "host/dropout.h", "host/lanes.h")
HOST_PAIRS = ("host/pairs.h",)  # only if products round
HOST_MATRICES = ("host/products.cuh", "host/matrix.cuh", "host/matmul.cuh")
CUDA_FRAGMENTS = "cuda/fragments.cuh"
CUDA_DENSE = ("cuda/windows.cuh", "cuda/dense.cuh")  # only if some matrices are in windows
CUDA_PUBLISHED = "cuda/published.cuh"  # only if weights are in slots
CUDA_ROUTINES = (
    *ROUTINES, "cuda/dropout.cuh", "cuda/held.cuh", CUDA_FRAGMENTS, *CUDA_DENSE, CUDA_PUBLISHED, "cuda/matrix.cuh",
    "cuda/tiles.cuh", "cuda/matmul.cuh",
)  # fmt: skip
HOST_TAILS = ("ops/elementwise.cuh", "tails.cuh", "host/tails.h")
CUDA_TAILS = ("tails.cuh", "cuda/tails.cuh")
# Up to this many registers of weights per thread, a tail can load all its operands at once. With more, in the published
# scheme, that spills; loads just before the first use do not.
FEW_REGISTERS = 128


def template_dir() -> Path:
    """Folder of the templates: in an installed package, or next to it in a checkout. Raises CompileError if missing."""
    package = Path(__file__).parents[1]
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "kernel.cu.j2").is_file():
            return folder
    raise CompileError(f"the kernel templates are missing from {package}; reinstall vpps")


def header_text(name: str) -> str:
    """Text of a header, without the lines that let editors and compilers read it by itself."""
    lines = (template_dir() / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith(('#include "', "#pragma once"))).strip() + "\n"


def _joined(names: tuple[str, ...], named: bool = False) -> str:
    if named:
        return "\n".join(f'#include "{name}"' for name in names) + "\n"
    return "\n".join(map(header_text, names))


def _render(timeline: bool, template: str = "kernel.cu.j2", **values: Any) -> str:
    """Render a template with the given values and the values that all targets share."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template(template).render(
        version=__version__,
        timeline=timeline,
        header_words=HEADER_WORDS,
        head_words=HEAD_WORDS,
        indexed=INDEXED,
        scalar=SCALAR,
        offset_mask=OFFSET_MASK,
        counters=COUNTERS,
        flags=Flag.__members__,
        first_sliced=FIRST_SLICED,
        hyper=HYPER,
        uses=tuple(ViewUse),
        ctype=C_TYPES,
        **values,
    )
    if timeline:
        return text
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith(TIMELINE_LINE))


@lru_cache(maxsize=8)
def render_cpu(tile: Tile, named: bool = False, rounds: bool = False) -> str:
    """Source of the cpu target's kernel.

    The kernel depends only on the instruction set: on a CPU, the weights are in memory and shapes come with the script,
    so one binary serves every model.

    Args:
        named: write `#include` lines instead of the headers' text.
        rounds: products may round their operands. This is a separate kernel, because few models need it.
    """
    return _render(
        True,
        target=f"cpu: {tile.isa}, {tile.vectors} vectors by {tile.panel} rows a pass",
        configuration=_configuration(tile) | (_ROUNDS if rounds else {}),
        chip=None,
        headers=_joined(HOST_HEADERS, named),
        routines=_joined(HOST_ROUTINES + HOST_PAIRS * rounds + HOST_MATRICES, named),
        bounds="",
        parameter="Vp vp",
        enter="vp.position = entry_point(vp);",
        recorded="vp",
        machine=_joined(("host/machine.h",), named),
        forms=FORMS,
        table=[i for i in TABLE if not i.on_chip],
        merged={},
        tails=(),
    )


def render_tails(tails: Sequence[Tail], tile: Tile) -> str:
    """Source of a library of tails for the cpu target's kernel."""
    return _render(
        True,
        "tails.cpp.j2",
        target=f"cpu: {tile.isa}",
        configuration=_configuration(tile),
        headers=_joined(HOST_HEADERS),
        routines=_joined(HOST_TAILS),
        forms={"Tail": FORMS["Tail"]},
        tails=sorted(tails, key=lambda t: t.number),
        lines_of=partial(lines_of, loads_first=False),
    )


_ROUNDS = {"VP_ROUNDS": (1, "products round their operands if an instruction has the flag; undefined: never")}


def _configuration(tile: Tile) -> dict[str, tuple[int, str]]:
    return {
        "VP_PANEL": (tile.panel, "rows of a packed panel = units of a slice"),
        "VP_VECTORS": (tile.vectors, "vectors that one pass over a panel multiplies"),
        "VP_LANES": (tile.lanes, "floats of a vector register; panels hold a whole number of them"),
        "VP_TILE_COLUMNS": (TILE_COLUMNS, "columns of a tile of a packed matrix"),
    }


@lru_cache(maxsize=64)
def render_cuda(spec: KernelSpec, named: bool = False) -> str:
    """Source of a cuda (or simt) kernel, for the instructions that a model needs and the places of its weights.

    Args:
        named: write `#include` lines instead of the headers' text; the rest is the part that depends on the model.
    """
    chip = spec.chip
    table = [i for i in TABLE if i.name in spec.instructions or i.name in ALWAYS]
    used = {i.form for i in table}
    maps = sorted(form for form in used if form.startswith("Map"))
    configuration = {
        "VP_PANEL": (1, "units are dealt one by one"),
        "VP_TILE_COLUMNS": (TILE_COLUMNS, "columns of a tile of a matrix in memory"),
        "VP_SCRIPT_WORDS": (SCRIPT_WORDS, "words of the script in shared memory at a time"),
        "VP_GROUPS": (chip.groups, "groups of virtual processors, of equal size"),
        "VP_COUNT": (chip.vps, "virtual processors; 0: any number, given by the launch"),
        "VP_SLOTS": (len(chip.slots), "slots of weights in registers"),
        "VP_CACHED": (chip.registers, "words of weights in the registers of every thread"),
        "VP_TILE": (chip.tile, "vectors that a thread multiplies by a slot at a time"),
        "VP_STAGE": (chip.stage, "stride in floats of such vectors in shared memory"),
        "VP_STAGED": (chip.staged, "floats of shared memory for vectors"),
        "VP_SUMS": (chip.sums, "floats of partial sums"),
        "VP_RESULTS": (chip.results, "floats for results of products with a chained tail"),
        "VP_HOMES": (len(chip.homes), "matrices in registers that a product copies to a window"),
        "VP_CHANGING_WINDOWS": (int(chip.changes_windows), "1: the content of windows changes during a launch"),
        "VP_WINDOWS_OF_CHUNKS": (int(chip.has_chunks), "1: some windows hold only a chunk of their matrix"),
        "VP_FRAGMENTS": (int(chip.has_fragments), "1: tensor cores multiply some windows"),
        "VP_WINDOWS_AT": (chip.windows_at, "floats of shared memory before the windows"),
        "VP_WINDOW_FLOATS": (chip.window_floats, "floats of all windows"),
        "VP_PRODUCT_TILES": (len(chip.product_tiles), "shapes of a warp's tile of a product with a window"),
        "VP_MOST_VECTORS": (chip.most_vectors, "maximum vectors that a window multiplies at a time"),
        "VP_CHUNKS": (chip.chunk_floats, "floats of shared memory for the vectors of such products"),
        "VP_CHUNK_COLUMNS": (chip.chunk_columns, "columns of a chunk of vectors"),
        "VP_PLACES": (PLACES, "segment addresses of vectors that are looked up together"),
        "VP_GRADIENT_ROWS": (GRADIENT_ROWS, "rows of a gradient's tile, VP_TILE_COLUMNS columns wide"),
        "VP_GRADIENT_VERTICES": (chip.gradient_vertices, "vertices per step of a gradient sum"),
        "VP_SEGMENT": (SEGMENT, "a gradient sum has one segment per so many vertices"),
        "VP_MOST_SEGMENTS": (MOST_SEGMENTS, "maximum number of segments"),
        "VP_SHARED_TILES": (SHARED_TILES, "partial tiles of a gradient in memory; with more, segments are not divided"),
        "VP_TURNS": (int(bool(chip.slots)), "1: rows of matrices are dealt in turns, not by parts"),
    }
    if spec.rounds:
        configuration |= _ROUNDS
    if spec.tails:
        configuration["VP_MOST_SUMS"] = max(t.sums for t in spec.tails), "maximum sums of listed rows in a tail"
    configuration["VP_CHAINS"] = int(any(t.is_chained for t in spec.tails)), "1: some tails are chained to products"
    routines = CUDA_SYNC + (CUDA_TIMELINE if spec.timeline else ())
    without = {
        *((CUDA_FRAGMENTS,) * (not chip.has_fragments)),
        *((CUDA_PUBLISHED,) * (not chip.slots)),
        *(CUDA_DENSE * (not chip.dense)),
    }
    routines += tuple(name for name in CUDA_ROUTINES if name not in without)
    routines += CUDA_TAILS if spec.tails else ()
    return _render(
        spec.timeline,
        target=f"cuda: {chip.describe()}",
        configuration=configuration,
        chip=chip,
        headers=_joined(CUDA_HEADERS, named),
        routines=_joined(routines, named),
        bounds=f"__launch_bounds__({THREADS}, 1) ",
        parameter="const Launch launch",
        enter="Vp vp;\n    if (!enter(vp, launch)) return;",
        recorded="vp, launch",
        machine="",
        # Headers need all forms. Without their text, only the forms of this model's instructions matter to a reader.
        forms={form: FORMS[form] for form in FORMS if not named or form in used},
        table=table,
        # Elementwise ops with equal operand counts share a loop: code space is scarce, and a uniform branch is cheap.
        merged={form: [i for i in table if i.form == form] for form in maps},
        tails=sorted(spec.tails, key=lambda t: t.number),
        lines_of=partial(lines_of, loads_first=chip.registers <= FEW_REGISTERS),
    )


# ---- source of tails: each value is a constant in a C++ function, and each step calls device code

_LOADS = {  # members of Unit
    Load.UNIT: "load",
    Load.ROW: "one",
    Load.RESULT: "result",
    Load.LISTED_UNIT: "load_listed",
    Load.LISTED_ROW: "one_listed",
}


def lines_of(tail: Tail, loads_first: bool) -> Iterator[str]:
    """Lines of the body of `unit` (templates/tails.j2). Each result is stored as soon as it is computed, to free a
    register.

    Args:
        loads_first: all loads come first and are in flight together. Otherwise each value is loaded just before its
            first use, which needs fewer registers.
    """
    known: set[int] = set()
    waiting = [(tail.first_store + k, v) for k, v in enumerate(tail.stores)]

    def load(values: tuple[int, ...]) -> Iterator[str]:
        for value in values:
            if value not in known and value != NONE:
                known.add(value)
                yield f"const float v{value} = at.{_source(tail, value)};"

    def store() -> Iterator[str]:
        for view, value in list(waiting):
            if value in known or value == NONE:
                waiting.remove((view, value))
                yield f"at.store({view}, {_shown(value)});"

    if loads_first:
        yield from load(tuple(range(tail.first_step)))
    for value, step in enumerate(tail.steps, tail.first_step):
        yield from load(step.inputs)
        known.add(value)
        yield f"const float v{value} = {_call(step)};"
        yield from store()
    yield from load(tail.stores)
    yield from store()


def _source(tail: Tail, value: int) -> str:
    if value < tail.sums:
        return f"sum({value})"
    return f"{_LOADS[tail.loads[value - tail.sums]]}({value})"


def _call(step: Step) -> str:
    constant = "0.f" if step.constant == NONE else f"at.constant({step.constant})"
    return f"{step.code}({', '.join(map(_shown, step.inputs))}, {constant})"


def _shown(value: int) -> str:
    return "0.f" if value == NONE else f"v{value}"
