"""Chooses windows in shared memory for matrices, and tiles for their products.

Rows are dealt by units. A window is a part of shared memory that holds a thread block's rows of a matrix. If not all
matrices fit, a matrix and its transpose share a window: forward needs the matrix, and backward copies the transpose
from L2. If that is not enough, the largest matrices share one window, which is refilled when a product needs another
matrix. As a last resort, this window holds only a chunk of columns, and is refilled for each chunk. Registers hold as
many of the refilled matrices as fit; the others are read from L2 each time. A matrix is kept in memory if not even a
chunk of a block's rows fits into shared memory.

A cost model of a multiprocessor chooses tiles for one vector, for eight, and for the maximum number per pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import NamedTuple

from vpps.kernel.chip import (
    MMA_VECTORS,
    MOST_CHAINED_ROWS,
    RESULT_FLOATS,
    THREADS,
    WARPS,
    Chip,
    DenseMatrix,
    ProductTile,
    padded,
    step_of,
)
from vpps.ops.element import BFLOAT16, FLOAT32, TF32, TF32_PAIR, WORD_BYTES, ElementType
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.holding import MatrixRole, Place
from vpps.script.slices import most_units
from vpps.text import KIB

# (Maximum vectors per pass, minimum number of whole vectors that must fit into shared memory.)
VECTORS = ((32, 8), (24, 8), (16, 8), (16, 0), (8, 0))
FEWEST_VECTORS = ((4, 0), (1, 0))
CHUNKS = (256, 128)  # columns per chunk of a matrix in a window
MOST_ROWS, MOST_SUMS = 12, 48  # maximum per lane
MOST_FRAGMENTS = {BFLOAT16: 4, TF32: 4, TF32_PAIR: 2}  # maximum groups of 8 vectors per lane
FEW_VECTORS = 8  # separate tiles are chosen for one vector, for this many vectors, and for a full pass
# Code space is scarce, so a matrix reuses another matrix's tile if that takes at most this many times the best tile's
# clocks: for few vectors, for many in several groups, for many in one group (which waits for L2).
CLOSE_FOR_FEW, CLOSE_IN_GROUPS, CLOSE_IN_ONE = 1.5, 1.1, 1.35
CLOSE_IN_CHUNKS = 3.0  # for any number of vectors, if windows hold chunks
MOST_HOMES = 80  # maximum registers per thread for refilled matrices: with 104 a Tree-LSTM of 256 units spilled
PASS_CLOCKS = 700  # clocks per pass besides those of products: barriers, addresses, latency
L2_BYTES = 25  # bytes per clock that each multiprocessor reads from L2 if all do (measured on an H100)
# Scheduler clocks of an mma.sync for 16 rows, 8 vectors and 32 columns (NVIDIA A100 white paper).
FRAGMENT_CLOCKS = {BFLOAT16: 16, TF32: 32, TF32_PAIR: 96}

Layout = Sequence[Sequence[str]]  # for each window, names of the matrices that share it


def place_windows(
    roles: Sequence[MatrixRole], device: Device, vps: int, groups: int, registers: int
) -> tuple[Chip, dict[str, Place]]:
    """Choose windows for as many matrices as fit.

    Args:
        roles: matrices and transposes that may be on the chip.
        device: the GPU.
        vps: blocks per group.
        groups: number of groups.
        registers: registers per thread available for refilled matrices.

    Returns:
        The Chip, without matrix numbers, and the place of each role.
    """
    registers = min(registers, MOST_HOMES)
    rows = {role.name: most_units(role.rows, role.parts, vps) for role in roles}
    places: dict[str, Place] = {}
    matrices = {
        r.name: DenseMatrix(
            0, rows[r.name], r.columns, r.matrix.element, 0, 0, 0, DenseMatrix.IN_WINDOW, (0, 0, 0),
            f"{r.name} {r.rows}x{r.columns}",
        )
        for r in roles
    }  # fmt: skip
    pairs = [(r.matrix.name, r.name) for r in roles if r.transposed and r.matrix.name in rows]
    while matrices:
        there = [pair for pair in pairs if pair[0] in matrices and pair[1] in matrices]
        known: dict[tuple[int, int, frozenset[str]], tuple[tuple[ProductTile, ...], dict[str, DenseMatrix]]] = {}
        for attempt in _attempts(matrices, there):
            kind = attempt.vectors, attempt.chunk, attempt.in_chunks
            if kind not in known:
                known[kind] = _with_tiles(matrices, attempt, groups)
            tiles, found = known[kind]
            dense = _lay_out(found, attempt.layout, registers)
            chip = Chip(
                dense=tuple(dense.values()),
                product_tiles=tiles,
                whole_vectors=attempt.whole,
                registers=sum(m.registers for m in dense.values() if m.is_at_home),
            )
            if WORD_BYTES * chip.held_floats <= device.shared:
                return chip, places | {name: _place(m, attempt.layout[m.window]) for name, m in dense.items()}
        largest = max(matrices, key=lambda name: matrices[name].rows)
        why = f"a block's {rows[largest]} rows are too many for {device.shared // KIB} KiB of shared memory"
        places[largest] = Place("L2", why, rows[largest])
        del matrices[largest]
    return Chip(), places


def _with_tiles(
    matrices: Mapping[str, DenseMatrix], attempt: Attempt, groups: int
) -> tuple[tuple[ProductTile, ...], dict[str, DenseMatrix]]:
    """An attempt's tiles, and the matrices with the numbers of their tiles."""
    found = {n: replace(m, chunk=attempt.chunk * (n in attempt.in_chunks)) for n, m in matrices.items()}
    tiles, numbers = _choose_tiles(list(found.values()), attempt.vectors, groups, bool(attempt.in_chunks))
    return tiles, {name: replace(m, tiles=n) for (name, m), n in zip(found.items(), numbers, strict=True)}


class Attempt(NamedTuple):
    """One combination that the planner tries.

    Attributes:
        vectors: maximum vectors per pass.
        whole: minimum number of whole vectors that must fit into shared memory.
        layout: matrices in each window.
        in_chunks: names of matrices whose window holds only a chunk.
        chunk: columns per chunk.
    """

    vectors: int
    whole: int
    layout: Layout
    in_chunks: frozenset[str] = frozenset()
    chunk: int = 0


def _attempts(matrices: Mapping[str, DenseMatrix], pairs: Sequence[tuple[str, str]]) -> Iterator[Attempt]:
    """Attempts, best first."""
    pairs = sorted(pairs, key=lambda pair: -min(matrices[name].size for name in pair))
    in_pairs = [_merged(matrices, pairs[:some]) for some in range(len(pairs) + 1)]
    windows = sorted(in_pairs[-1], key=lambda names: max(matrices[name].size for name in names))
    in_one = [[*windows[:alone], [n for w in windows[alone:] for n in w]] for alone in range(len(windows) - 2, -1, -1)]
    for layouts in (in_pairs, in_one):
        for vectors, whole in VECTORS:
            yield from (Attempt(vectors, whole, layout) for layout in layouts)
    for vectors, whole in VECTORS:
        for chunk in CHUNKS:
            yield from (Attempt(vectors, whole, *one, chunk) for one in _in_chunks(matrices, pairs, chunk))
    for vectors, whole in FEWEST_VECTORS:
        yield from (Attempt(vectors, whole, layout) for layout in (*in_pairs, *in_one))
        yield from (Attempt(vectors, whole, *one, CHUNKS[-1]) for one in _in_chunks(matrices, pairs, CHUNKS[-1]))


def _in_chunks(
    matrices: Mapping[str, DenseMatrix], pairs: Sequence[tuple[str, str]], chunk: int
) -> Iterator[tuple[Layout, frozenset[str]]]:
    """Layouts in which the largest matrices share a window that holds a chunk of one matrix."""
    wide = sorted((n for n, m in matrices.items() if m.columns > chunk), key=lambda n: -matrices[n].size)
    for some in range(1, len(wide) + 1):
        rest = {name: m for name, m in matrices.items() if name not in wide[:some]}
        own = _merged(rest, [pair for pair in pairs if rest.keys() >= set(pair)])
        for layout in ([*own, wide[:some]], [[*rest, *wide[:some]]]):
            yield layout, frozenset(wide[:some])


def _merged(matrices: Mapping[str, DenseMatrix], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """A layout with a window for each matrix, except that the matrices of a pair share a window."""
    transposes = dict(pairs)
    second = set(transposes.values())
    return [[name, *([transposes[name]] if name in transposes else [])] for name in matrices if name not in second]


def _lay_out(matrices: Mapping[str, DenseMatrix], layout: Layout, registers: int) -> dict[str, DenseMatrix]:
    """Set windows, addresses and homes. Registers go to the largest refilled matrices. When a launch starts, each
    window holds its first matrix that has no registers, unless it holds chunks."""
    refilled = {name for names in layout for name in names if matrices[name].chunk or not _is_pair(names)}
    homes: dict[str, int] = {}
    taken = 0
    for name in sorted(refilled, key=lambda name: (-matrices[name].registers, name)):
        if taken + matrices[name].registers <= registers:
            homes[name] = taken
            taken += matrices[name].registers
    found: dict[str, DenseMatrix] = {}
    at = 0
    for window, names in enumerate(layout):
        waiting = [name for name in names if name not in homes and not matrices[name].chunk]
        first = min(waiting, key=lambda name: name.endswith("^T"), default="")  # forward comes first
        for name in names:
            home = homes.get(name, DenseMatrix.IN_WINDOW if name == first else DenseMatrix.IN_MEMORY)
            found[name] = replace(matrices[name], window=window, at=at, home=home)
        at += max(matrices[name].size for name in names)
    return {name: found[name] for name in matrices}


def _is_pair(names: Sequence[str]) -> bool:
    """True if a window holds only a matrix and its transpose; each is then copied into it once per launch."""
    return len({name.removesuffix("^T") for name in names}) == 1


def _place(m: DenseMatrix, names: Sequence[str]) -> Place:
    """Describe the place of a matrix; `names` lists all matrices in its window."""
    is_refilled = m.chunk > 0 or not _is_pair(names)
    what = "chunks of it" if m.chunk else "it"
    if m.is_at_home:
        return Place("registers", f"in registers; products copy {what} to a window", m.rows, m)
    if is_refilled:
        return Place("shared", f"in L2; each product copies {what} to a window", m.rows, m, refilled=True)
    if m.home == DenseMatrix.IN_MEMORY:
        return Place("shared", "copied to its matrix's window when backward begins", m.rows, m)
    return Place("shared", "shares a window with its transpose" if names[1:] else "has a window of its own", m.rows, m)


def _choose_tiles(
    matrices: Sequence[DenseMatrix], most: int, groups: int, in_chunks: bool
) -> tuple[tuple[ProductTile, ...], list[tuple[int, int, int]]]:
    """Tiles, and for each matrix the numbers of its tiles for few, some and many vectors. If windows hold chunks, there
    are few tiles, because each tile has its own copy of the code that refills windows from registers."""
    close = CLOSE_IN_GROUPS if groups > 1 else CLOSE_IN_ONE
    close, close_for_few = (CLOSE_IN_CHUNKS, CLOSE_IN_CHUNKS) if in_chunks else (close, CLOSE_FOR_FEW)
    chosen: list[ProductTile] = []
    of_matrix: list[tuple[int, int, int]] = []
    for m in matrices:
        vectors = min(most, RESULT_FLOATS // m.rows) if m.rows <= MOST_CHAINED_ROWS else most
        suits: list[ProductTile] = []
        for n, bound in ((1, close_for_few), (FEW_VECTORS, close_for_few), (most, close)):
            clocks = _all_clocks(m.rows, m.columns, m.element, m.chunk, vectors, n, n < most)
            best = min(clocks, key=lambda t: (clocks[t], t[:3]))
            near = (tile for tile in chosen if clocks.get(tile, inf) <= bound * clocks[best])
            suits.append(next(near, best))
            chosen += [suits[-1]] * (suits[-1] not in chosen)
        few, some, many = (chosen.index(tile) for tile in sorted(suits, key=lambda t: t.all_vectors))
        of_matrix.append((few, some, many))
    return tuple(chosen), of_matrix


@lru_cache(maxsize=4096)
def _all_clocks(
    rows: int, columns: int, element: ElementType, chunk: int, vectors: int, n: int, whole: bool
) -> dict[ProductTile, float]:
    """Clocks for products with n vectors, by tile. With `whole`, only for tiles with all rows, if such tiles exist."""
    every = list(_tiles(vectors, element))
    high = [tile for tile in every if tile.all_rows >= rows] if whole else []
    return {tile: _clocks(tile, rows, columns, chunk, n) for tile in high or every}


def _tiles(most: int, element: ElementType) -> Iterator[ProductTile]:
    if element != FLOAT32:
        for vectors in range(1, max(1, min(most // MMA_VECTORS, MOST_FRAGMENTS[element])) + 1):
            for rows in range(1, MOST_SUMS // (4 * vectors) + 1):
                yield ProductTile(MMA_VECTORS, rows, vectors, element)
        return
    for lanes, vectors in product((1, 2, 4, 8, 16, 32), (1, 2, 3, 4)):
        if lanes * vectors <= most:
            for rows in range(1, min(MOST_ROWS, MOST_SUMS // vectors) + 1):
                yield ProductTile(lanes, rows, vectors)


def _clocks(tile: ProductTile, rows: int, columns: int, chunk: int, n: int) -> float:
    """A multiprocessor's clocks for products with n vectors. In a step, all warps load their lanes' parts of vectors
    and rows, eight different quads at a time, and multiply, with two warps per scheduler. Each pass and each tile of
    rows copies a matrix's chunks again."""
    passes = -(-n // tile.all_vectors) * -(-rows // tile.all_rows)
    across = padded(columns, tile.element)
    steps = -(-across // (step_of(tile.element) * WARPS))
    if tile.element == FLOAT32:
        loads = 2 * WARPS * (tile.vectors * -(-tile.lanes // 8) + tile.rows * -(-(32 // tile.lanes) // 8))
        issued = 4 * (4 * tile.rows * tile.vectors + tile.vectors + tile.rows + 2)
    else:
        loads = 4 * WARPS * (2 * tile.vectors + tile.rows * (2 if tile.element == BFLOAT16 else 4))
        issued = 2 * tile.rows * tile.vectors * FRAGMENT_CLOCKS[tile.element]
    finishing = 40 * -(-tile.all_vectors * min(rows, tile.all_rows) // THREADS)
    refill = rows * across * FLOAT32.bytes / L2_BYTES if chunk else 0.0
    return passes * (steps * max(loads, issued) + finishing + PASS_CLOCKS + refill)
