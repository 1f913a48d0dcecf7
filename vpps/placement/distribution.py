"""Assigns pool addresses to parameters: packed weights, their transposes, gradients and moments.

On a CPU, every virtual processor sees all of memory; ownership only divides computation and updates. A matrix of shape
(R, C) is packed as [panel][column][PANEL rows], with the last panel padded with zeros. Its transpose is packed, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from vpps.model.model import Lookup, Parameter
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops import size
from vpps.ops.element import BFLOAT16, WORD_BYTES
from vpps.ops.precision import EXACT, Precision
from vpps.placement.stacks import NO_STACKS, Stacks
from vpps.script.instructions import NO_FLAGS, Flag
from vpps.script.slices import TURN_BITS
from vpps.script.wellformed import MatrixWords

ALIGN = 64 // WORD_BYTES  # one cache line

CACHED_COLUMNS = 128
"""Columns of a panel that are unpacked at a time: every row reads all their cache lines, so these must fit into L1."""

# The first floats of the pool are constants and results.
ZERO = 0
ONE = 1
LOSS_SLOTS = 2  # addresses 2 and 3, between which launches alternate
LEFT_OUT = 2  # offset, from the loss, of the word that says that the launch skipped its step
FIRST_FREE = ALIGN


def aligned(address: int) -> int:
    """The next address that starts a cache line."""
    return -(-address // ALIGN) * ALIGN


class Pool(Protocol):
    """The floats that kernels use. If they are in a device's memory, a read copies them."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, place: int, /) -> Any: ...
    @overload
    def __getitem__(self, place: slice, /) -> NDArray[Any]: ...

    def __setitem__(self, place: Any, values: Any, /) -> None: ...


@dataclass(frozen=True, slots=True)
class ParameterPlace:
    """Addresses of one parameter, in floats from the start of the pool.

    Attributes:
        weights: its values; packed panels for a matrix, rows for a table.
        transposed: packed transpose of a matrix, else 0; for a member of a stack, the start of the stack's transpose.
        rounded: packed bf16 pairs of a matrix that products read in bf16 from memory, else 0. The transpose follows
            them, also in pairs.
        gradient: gradient with the layout of the weights. For a table, 0 unless gradients accumulate: a batch's
            gradient is sparse and is stored with the batch.
        moments: one address per moment of the optimizer, with the layout of the weights.
        average: moving average with the layout of the weights; 0 if there is no average.
        floats: number of floats in each of these.
        on_chip: the matrix's place on the chip during a launch; None if it has none.
        precision: precision of products with the parameter.
        tiled: True if its gradient is summed in tiles, in memory.
    """

    weights: int
    transposed: int
    gradient: int
    moments: tuple[int, ...]
    average: int
    floats: int
    on_chip: OnChipPlace | None = None
    rounded: int = 0
    precision: Precision = EXACT
    tiled: bool = False

    @property
    def bytes(self) -> int:
        """Number of bytes in each of these."""
        return self.floats * WORD_BYTES

    @property
    def rounds(self) -> Flag:
        """Flags for instructions that multiply the parameter or compute its gradient."""
        flag = _ROUNDS.get(self.precision.name, NO_FLAGS)
        return flag | Flag.PAIRS if self.rounded else flag

    @property
    def factor(self) -> int:
        """Address from which products read the weights."""
        return self.rounded or self.weights


_ROUNDS = {"bf16": Flag.BF16, "tf32": Flag.TF32}


@dataclass(frozen=True, slots=True)
class Partition:
    """Division of an on-chip matrix's rows among virtual processors.

    Attributes:
        number: number of the matrix among those on the chip, from 1.
        parts: number of equal parts; each virtual processor owns the same units of every part.
        turn: rows per turn if rows are dealt round-robin; 0: by parts.
        first: virtual processor of the first turn.
    """

    number: int
    parts: int
    turn: int = 0
    first: int = 0

    @property
    def word(self) -> int:
        """The instruction word for `parts`."""
        return self.turn | self.first << TURN_BITS if self.turn else self.parts

    @property
    def flags(self) -> Flag:
        """Flags for an instruction with this division."""
        return Flag.TURNS if self.turn else NO_FLAGS


@dataclass(frozen=True, slots=True)
class OnChipPlace:
    """A matrix that virtual processors hold on the chip.

    Attributes:
        rows: division of its rows; None if the matrix is in memory and only its transpose is on the chip.
        transposed: division of the transpose's rows; None if the transpose is not on the chip.
        atomic: True if transposed products use the rows of the matrix itself, with atomic additions.
    """

    rows: Partition | None
    transposed: Partition | None
    atomic: bool


@dataclass(frozen=True, slots=True)
class HeldGradients:
    """Gradients of earlier batches in the pool that no update has used yet.

    Attributes:
        dense: parameters with such a gradient; stacks, not their members.
        rows: for each lookup table, the sorted numbers of the rows with such a gradient.
    """

    dense: frozenset[Parameter] = frozenset()
    rows: Mapping[Parameter, NDArray[np.int64]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dense or self.rows)


NOTHING_HELD = HeldGradients()


class Distribution:
    """Places of a model's parameters, for one number of virtual processors.

    Args:
        parameters: parameters to place.
        n_vps: virtual processors per group.
        panel: rows of a packed panel; units are sliced in multiples of it.
        n_moments: moments that the optimizer keeps; 0 also for inference, which has no gradients either.
        train: True if gradients are needed.
        accumulates: True if tables also need memory for gradients that outlive a batch.
        averages: True if moving averages of the weights are kept.
        held: matrices that the chip holds.
        groups: number of groups of virtual processors; all groups use the same places.
        stacks: stacks of parameters that the kernel treats as one.
        precisions: precisions of products.

    Attributes:
        places: places of the user's parameters; a member of a stack has a place within the stack.
        physical: places of the kernel's parameters: stacks instead of their members.
        gradients: span of all gradients except table gradients.
        end: start of the batch's memory.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        n_vps: int,
        panel: int,
        n_moments: int,
        train: bool,
        accumulates: bool = False,
        averages: bool = False,
        held: Mapping[Parameter, OnChipPlace] | None = None,
        groups: int = 1,
        stacks: Stacks = NO_STACKS,
        precisions: Precisions = ALL_EXACT,
    ) -> None:
        self.n_vps = n_vps
        self.groups = groups
        self.panel = panel
        self.accumulates = accumulates
        self.stacks = stacks
        self.places: dict[Parameter, ParameterPlace] = {}
        self.physical: dict[Parameter, ParameterPlace] = {}
        cursor = FIRST_FREE
        self.gradients = (FIRST_FREE, FIRST_FREE)

        def take(floats: int) -> int:
            nonlocal cursor
            start = cursor
            cursor = aligned(cursor + floats)
            return start

        parameters = list(parameters)
        gradients: dict[Parameter, int] = {}
        for p in dict.fromkeys(stacks.of.get(own, own) for own in parameters):
            if train and p.trainable and not isinstance(p, Lookup):
                gradients[p] = take(self._floats(p))
                self.gradients = FIRST_FREE, cursor
        for own in parameters:
            p = stacks.of.get(own, own)
            if p not in self.physical:
                matrix, floats = self.is_packed(p), self._floats(p)
                precision = precisions.of(own)
                is_transposed = matrix and (train or p.is_transposed)
                rounded = transposed = 0
                if matrix and precision.element is BFLOAT16 and panel > 1:
                    before = self.packed_pairs(p.shape)
                    rounded = take(before + (self.packed_pairs(p.shape[::-1]) if is_transposed else 0))
                    transposed = rounded + before if is_transposed else 0
                elif is_transposed:
                    transposed = take(self.packed_size(p.shape[::-1]))
                weights = take(floats)
                updated = train and p.trainable
                gradient = gradients.get(p) or (take(floats) if updated and accumulates else 0)
                moments = tuple(take(floats) for _ in range(n_moments if updated else 0))
                average = take(floats) if updated and averages else 0
                on_chip = None if held is None else held.get(p)
                self.physical[p] = ParameterPlace(
                    weights,
                    transposed,
                    gradient,
                    moments,
                    average,
                    floats,
                    on_chip,
                    rounded,
                    precision,
                    matrix and panel == 1,
                )
            self.places[own] = self.physical[p] if own is p else self._within(self.physical[p], own)
        self.end = cursor

    def _within(self, place: ParameterPlace, p: Parameter) -> ParameterPlace:
        """The place of a stack's member, within the stack's place."""
        before = self.first_row(p) * size(p.shape[1:])

        def moved(address: int) -> int:
            return address + before if address else 0

        return ParameterPlace(
            moved(place.weights),
            place.transposed,
            moved(place.gradient),
            tuple(map(moved, place.moments)),
            moved(place.average),
            size(p.shape),
            rounded=place.rounded,
            precision=place.precision,
        )

    def first_row(self, p: Parameter) -> int:
        """A member's first row in its stack."""
        stack = self.stacks.of[p]
        return stack.members.index(p) * p.shape[0]

    @property
    def all_vps(self) -> int:
        """Virtual processors of all groups."""
        return self.n_vps * self.groups

    def spans(self, held: HeldGradients) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(spans of everything placed, spans of gradients that are empty between launches)."""
        placed, empty = [(ZERO, FIRST_FREE)], []
        for p, place in self.physical.items():
            if place.gradient:
                placed.append((place.gradient, place.gradient + place.floats))
                if p in held.rows:
                    empty.extend(self._rows_between(p, held.rows[p]))
                elif p not in held.dense:
                    empty.append(placed[-1])
            if place.rounded:
                placed.append((place.rounded, place.rounded + self.packed_pairs(p.shape)))
            if place.transposed:
                words = self.packed_pairs if place.rounded else self.packed_size
                placed.append((place.transposed, place.transposed + words(p.shape[::-1])))
            starts = (place.weights, *place.moments, *([place.average] if place.average else []))
            placed.extend((start, start + place.floats) for start in starts)
        return placed, empty

    def _rows_between(self, table: Parameter, rows: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Spans of a table's gradient, without the given (sorted) rows."""
        start, width = self.places[table].gradient, size(table.shape[1:])
        first = start + np.concatenate([[0], rows + 1]) * width
        last = start + np.append(rows, table.shape[0]) * width
        return [(int(a), int(b)) for a, b in zip(first, last, strict=True) if a < b]

    def _floats(self, p: Parameter) -> int:
        """Number of floats in a parameter's weights."""
        return self.packed_size(p.shape) if self.is_packed(p) else size(p.shape)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Number of floats in a packed matrix."""
        return -(-shape[0] // self.panel) * self.panel * shape[1]

    def packed_pairs(self, shape: tuple[int, ...]) -> int:
        """Number of words in a packed matrix of bf16 pairs; an odd last column is paired with zeros."""
        return self.packed_size((shape[0], -(-shape[1] // 2)))

    def copies(self, p: Parameter) -> tuple[int, int]:
        """Bytes of a parameter's copies for products: (bf16 pairs, transpose)."""
        place = self.places[p]
        words = self.packed_pairs if place.rounded else self.packed_size
        return (
            WORD_BYTES * words(p.shape) if place.rounded else 0,
            WORD_BYTES * words(p.shape[::-1]) if place.transposed else 0,
        )

    def unpack(self, flat: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Unpack panels to a matrix (R, C); return a copy."""
        rows, columns = shape
        panels = flat.reshape(-1, columns, self.panel).transpose(0, 2, 1)
        matrix = np.empty(panels.shape, np.float32)
        for first in range(0, columns, CACHED_COLUMNS):
            block = slice(first, first + CACHED_COLUMNS)
            matrix[:, :, block] = panels[:, :, block]
        return matrix.reshape(-1, columns)[:rows]

    def _pack(self, panels: NDArray[np.float32], matrix: NDArray[np.float32]) -> None:
        """Fill panels, (panels, columns, PANEL), from a matrix (rows, columns): each element is copied once."""
        rows, columns = matrix.shape
        full, rest = divmod(rows, self.panel)
        panels[:full] = matrix[: rows - rest].reshape(full, self.panel, columns).transpose(0, 2, 1)
        if rest:
            panels[full, :, :rest] = matrix[rows - rest :].T
            panels[full, :, rest:] = 0

    def is_packed(self, p: Parameter) -> bool:
        """True if the parameter is a matrix stored as panels."""
        return len(p.shape) == 2 and not isinstance(p, Lookup)

    def store(self, pool: Pool, p: Parameter, address: int, value: NDArray[np.float32]) -> None:
        """Write an array of the parameter's shape (weights or a moment) at `address`, in the parameter's layout."""
        if self.is_packed(p):
            with _written(pool, address, self.packed_size(p.shape)) as floats:
                self._pack(floats.reshape(-1, p.shape[1], self.panel), value)
        else:
            pool[address : address + value.size] = value.reshape(-1)

    def fetch(self, pool: Pool, p: Parameter, address: int) -> NDArray[np.float32]:
        """Read an array of the parameter's shape from `address`; a copy."""
        flat = pool[address : address + self.places[p].floats]
        return self.unpack(flat, p.shape) if self.is_packed(p) else flat.reshape(p.shape).copy()

    def store_weights(self, pool: Pool, p: Parameter, value: NDArray[np.float32]) -> None:
        """Write a parameter's weights, and its packed transpose and pairs if it has them."""
        place = self.places[p]
        self.store(pool, p, place.weights, value)
        if not self.is_packed(p):
            return
        stack = self.stacks.of.get(p)
        height, first = (p.shape[0], 0) if stack is None else (stack.shape[0], self.first_row(p))
        if place.rounded:
            self._store_pairs(pool, place, value, height, first)
        elif place.transposed:
            n_floats = self.packed_size((p.shape[1], height))
            with _written(pool, place.transposed, n_floats, whole=stack is None) as floats:
                panels = floats.reshape(-1, height, self.panel)
                self._pack(panels[:, first : first + p.shape[0]], value.T)

    def _store_pairs(
        self, pool: Pool, place: ParameterPlace, value: NDArray[np.float32], height: int, first: int
    ) -> None:
        """Write rows of weights as pairs, here and in the transpose. They start at row `first` of `height`."""
        n_columns = -(-value.shape[1] // 2)
        with _written(pool, place.rounded, self.packed_size((height, n_columns)), whole=len(value) == height) as words:
            panels = words.reshape(-1, n_columns, self.panel)
            own = panels[first // self.panel :][: -(-len(value) // self.panel)]
            self._pack(own, pairs(value, place.precision))
        if place.transposed:
            n_rows = -(-height // 2)
            n_words = self.packed_size((value.shape[1], n_rows))
            with _written(pool, place.transposed, n_words, whole=len(value) == height) as words:
                panels = words.reshape(-1, n_rows, self.panel)
                own = panels[:, first // 2 :][:, : -(-len(value) // 2)]
                self._pack(own, pairs(value.T, place.precision))


def pairs(matrix: NDArray[np.float32], precision: Precision) -> NDArray[np.float32]:
    """Round to bf16 and pack pairs of adjacent columns into words, which are not floats; the first is the lower half.

    Args:
        matrix: (rows, columns).
        precision: bf16.

    Returns:
        (rows, half of the columns, rounded up); an odd last column is paired with zeros.
    """
    tiny = np.finfo(np.float32).tiny  # smaller values are zero in products, and in kernels that write pairs
    normal = np.where(np.abs(matrix) < tiny, np.copysign(np.float32(0), matrix), matrix)
    rounded = precision.round(normal).view(np.uint32) >> np.uint32(16)
    if matrix.shape[1] % 2:
        rounded = np.pad(rounded, ((0, 0), (0, 1)))
    return np.ascontiguousarray(rounded[:, 0::2] | rounded[:, 1::2] << np.uint32(16)).view(np.float32)


@contextmanager
def _written(pool: Pool, address: int, floats: int, whole: bool = True) -> Iterator[NDArray[np.float32]]:
    """Yield a range of the pool for writing. If the pool is on a device, it is a copy, written back at the end.

    Args:
        whole: True if the caller writes all floats; if False, the other floats keep their values.
    """
    place = slice(address, address + floats)
    if isinstance(pool, np.ndarray):
        yield pool[place]
        return
    copy = np.empty(floats, np.float32) if whole else pool[place]
    yield copy
    pool[place] = copy


def held_matrices(distribution: Distribution) -> dict[int, MatrixWords]:
    """Matrices and transposes on the chip, by number."""
    found = {}
    for p, place in distribution.physical.items():
        if place.on_chip is not None:
            for dealt, shape in ((place.on_chip.rows, p.shape), (place.on_chip.transposed, p.shape[::-1])):
                if dealt is not None:
                    found[dealt.number] = MatrixWords(shape[0], shape[1], dealt.word, dealt.flags)
    return found
