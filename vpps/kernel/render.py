"""Renders the kernel source, one text made of `templates/kernel.cu.j2` and what it includes, and cells' tails."""

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
    """Shape of a pass of the matrix routines over a panel, for one instruction set.

    Attributes:
        isa: "avx512", "avx2", "neon" or "portable".
        panel: rows of a packed panel; also the granule in which units are dealt to virtual processors.
        vectors: vectors multiplied per pass; panel * vectors sums stay in registers.
        lanes: floats of a vector register.
    """

    isa: str
    panel: int
    vectors: int
    lanes: int

    @property
    def name(self) -> str:
        """Such as "avx512-32x8": panel and vectors."""
        return f"{self.isa}-{self.panel}x{self.vectors}"


# Measured on one core of Zen 5: smaller passes wait for loads, larger ones are faster for few numbers of vectors (9,
# 17), which shows in no network. That of neon has not been measured; its sums stay in registers.
TILES: dict[str, Tile] = {
    t.isa: t
    for t in (Tile("avx512", 32, 8, 16), Tile("avx2", 16, 6, 8), Tile("neon", 16, 6, 4), Tile("portable", 8, 4, 4))
}

ALWAYS = frozenset({"end", "signal", "wait", "barrier", "loss"})  # instructions of every kernel

C_TYPES = {
    "operand": "Operand",
    "list": "const Word*",
    "word": "Word",
    "floating": "float",
    "segments": "Segments",
    "views": "Segments",
}

HOST_HEADERS = ("host/prelude.h", "math.cuh", "script.cuh", "host/timeline.h")
CUDA_HEADERS = ("cuda/ptx.cuh", "cuda/prelude.cuh", "math.cuh", "script.cuh")
CUDA_SYNC = ("cuda/sync.cuh",)
CUDA_TIMELINE = ("cuda/timeline.cuh",)
TIMELINE_LINE = "VP_TIMELINE("  # begins a line that is left out of a GPU's kernel that records no timeline

ROUTINES = (  # of both
    "elementwise.cuh", "ops/elementwise.cuh", "ops/rowwise.cuh", "ops/lists.cuh", "random.cuh", "guard.cuh",
    "optimizers.cuh",
)  # fmt: skip
HOST_ROUTINES = ("host/sync.h", *ROUTINES, "host/dropout.h", "host/lanes.h")
HOST_PAIRS = ("host/pairs.h",)  # where products round
HOST_MATRICES = ("host/products.cuh", "host/matrix.cuh", "host/matmul.cuh")
CUDA_FRAGMENTS = "cuda/fragments.cuh"
CUDA_DENSE = ("cuda/windows.cuh", "cuda/dense.cuh")  # where some matrices are in windows
CUDA_PUBLISHED = "cuda/published.cuh"  # where weights are in slots
CUDA_ROUTINES = (
    *ROUTINES, "cuda/dropout.cuh", "cuda/held.cuh", CUDA_FRAGMENTS, *CUDA_DENSE, CUDA_PUBLISHED, "cuda/matrix.cuh",
    "cuda/tiles.cuh", "cuda/matmul.cuh",
)  # fmt: skip
HOST_TAILS = ("ops/elementwise.cuh", "tails.cuh", "host/tails.h")
CUDA_TAILS = ("tails.cuh", "cuda/tails.cuh")
# Of weights in a thread, up to which there is room to load all that a tail reads at once. With more, in the published
# scheme, that spills, where loads before first uses do not.
FEW_REGISTERS = 128


def template_dir() -> Path:
    """The templates: inside an installed package, or beside it in a checkout. Raises CompileError if in neither."""
    package = Path(__file__).parents[1]
    for folder in (package / "templates", package.parent / "templates"):
        if (folder / "kernel.cu.j2").is_file():
            return folder
    raise CompileError(f"the kernel templates are missing from {package}; reinstall vpps")


def _joined(names: tuple[str, ...], named: bool = False) -> str:
    if named:
        return "\n".join(f'#include "{name}"' for name in names) + "\n"
    folder = template_dir()
    return "\n".join(f"{(folder / n).read_text(encoding='utf-8').strip()}\n" for n in names)


def _render(timeline: bool, template: str = "kernel.cu.j2", **values: Any) -> str:
    """A template, filled in with what all targets have in common and the values given."""
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
        ctype=C_TYPES,
        **values,
    )
    if timeline:
        return text
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith(TIMELINE_LINE))


@lru_cache(maxsize=8)
def render_cpu(tile: Tile, named: bool = False, rounds: bool = False) -> str:
    """Source of the cpu target's kernel.

    The kernel depends on the instruction set only: on a CPU the weights live in memory, so shapes come with the script
    and one binary serves every model.

    Args:
        named: name the headers instead of putting their text in.
        rounds: products may round what they multiply: a kernel of its own, as few need it.
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
        uses=(),
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
        uses=tuple(ViewUse),
        tails=sorted(tails, key=lambda t: t.number),
        lines_of=partial(lines_of, loads_first=False),
    )


_ROUNDS = {"VP_ROUNDS": (1, "products round what they multiply, where an instruction says so; undefined: never")}


def _configuration(tile: Tile) -> dict[str, tuple[int, str]]:
    return {
        "VP_PANEL": (tile.panel, "rows of a packed panel = units of a slice"),
        "VP_VECTORS": (tile.vectors, "vectors that one pass over a panel multiplies"),
        "VP_LANES": (tile.lanes, "floats of a vector register; panels hold a whole number of them"),
        "VP_TILE_COLUMNS": (TILE_COLUMNS, "columns of a tile of a packed matrix"),
    }


@lru_cache(maxsize=64)
def render_cuda(spec: KernelSpec, named: bool = False) -> str:
    """Source of a cuda (and simt) kernel, for the instructions that a model needs and for where its weights are.

    Args:
        named: name the headers instead of putting their text in: what is left is what depends on the model.
    """
    chip = spec.chip
    table = [i for i in TABLE if i.name in spec.instructions or i.name in ALWAYS]
    used = {i.form for i in table}
    maps = sorted(form for form in used if form.startswith("Map"))
    configuration = {
        "VP_PANEL": (1, "units are dealt one by one"),
        "VP_TILE_COLUMNS": (TILE_COLUMNS, "columns of a tile of a matrix in memory"),
        "VP_SCRIPT_WORDS": (SCRIPT_WORDS, "of the script are in shared memory at a time"),
        "VP_GROUPS": (chip.groups, "of virtual processors, as many in each"),
        "VP_COUNT": (chip.vps, "virtual processors; 0: any number, as the launch says"),
        "VP_SLOTS": (len(chip.slots), "that hold weights in registers"),
        "VP_CACHED": (chip.registers, "words of weights in the registers of every thread"),
        "VP_TILE": (chip.tile, "vectors that a thread multiplies by a slot at a time"),
        "VP_STAGE": (chip.stage, "floats from such a vector in shared memory to the next"),
        "VP_STAGED": (chip.staged, "floats of shared memory for vectors"),
        "VP_SUMS": (chip.sums, "floats of partial sums"),
        "VP_RESULTS": (chip.results, "floats of products that wait for a tail"),
        "VP_HOMES": (len(chip.homes), "matrices that registers hold until a window takes them"),
        "VP_CHANGING_WINDOWS": (int(chip.changes_windows), "windows have one matrix, or chunk of one, after the other"),
        "VP_WINDOWS_OF_CHUNKS": (int(chip.has_chunks), "some have room for a chunk of their matrix"),
        "VP_FRAGMENTS": (int(chip.has_fragments), "tensor cores multiply by some of them"),
        "VP_WINDOWS_AT": (chip.windows_at, "floats of shared memory in front of the windows"),
        "VP_WINDOW_FLOATS": (chip.window_floats, "of all windows"),
        "VP_PRODUCT_TILES": (len(chip.product_tiles), "shapes of what a warp computes of products with them"),
        "VP_MOST_VECTORS": (chip.most_vectors, "that are multiplied by a matrix in a window at a time"),
        "VP_CHUNKS": (chip.chunk_floats, "floats of shared memory for chunks of vectors that are multiplied by them"),
        "VP_CHUNK_COLUMNS": (chip.chunk_columns, "of a chunk"),
        "VP_PLACES": (PLACES, "of segments of vectors that are looked up together"),
        "VP_GRADIENT_ROWS": (GRADIENT_ROWS, "of a tile of a gradient, VP_TILE_COLUMNS columns wide"),
        "VP_GRADIENT_VERTICES": (chip.gradient_vertices, "that are brought together to add up gradients"),
        "VP_SEGMENT": (SEGMENT, "vertices for which a gradient's sum has one more segment"),
        "VP_MOST_SEGMENTS": (MOST_SEGMENTS, "of such segments"),
        "VP_SHARED_TILES": (SHARED_TILES, "partial tiles of a gradient in memory; with more, segments are not divided"),
        "VP_TURNS": (int(bool(chip.slots)), "rows of matrices are dealt in turns, not by parts"),
    }
    if spec.rounds:
        configuration |= _ROUNDS
    if spec.tails:
        configuration["VP_MOST_SUMS"] = max(t.sums for t in spec.tails), "of listed rows, that a tail begins with"
    configuration["VP_CHAINS"] = int(any(t.is_chained for t in spec.tails)), "tails take the results of products"
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
        # Headers take all forms. Where they are only named, those of other models' instructions say nothing.
        forms={form: FORMS[form] for form in FORMS if not named or form in used},
        table=table,
        # One loop for all elementwise ops with as many operands: code is scarce, and a branch that all take is cheap.
        merged={form: [i for i in table if i.form == form] for form in maps},
        uses=tuple(ViewUse) if spec.tails else (),
        tails=sorted(spec.tails, key=lambda t: t.number),
        lines_of=partial(lines_of, loads_first=chip.registers <= FEW_REGISTERS),
    )


# ---- the text of tails: each value of a program is a constant of a C++ function, each step a call of device code

_LOADS = {  # members of Unit
    Load.UNIT: "load",
    Load.ROW: "one",
    Load.RESULT: "result",
    Load.LISTED_UNIT: "load_listed",
    Load.LISTED_ROW: "one_listed",
}


def lines_of(tail: Tail, loads_first: bool) -> Iterator[str]:
    """Body of `unit` (templates/tails.j2): what is stored is stored as soon as it is known, and need not stay in a
    register.

    Args:
        loads_first: everything is loaded at the beginning, in flight together; else each value just before its first
            use, which takes fewer registers.
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
