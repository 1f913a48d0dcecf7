"""Where parameters live in the pool: packed weights, their transposes, gradients and moments.

On a CPU every virtual processor sees all of memory; ownership only says who computes and updates what. A matrix of
shape (R, C) is packed as [panel][column][PANEL rows], the last panel padded with zeros; so is its transpose.
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
"""Columns of a panel that are unpacked at a time: every row reads all of their cache lines, which stay in L1."""

# The first floats of the pool are constants and results.
ZERO = 0
ONE = 1
LOSS_SLOTS = 2  # and 3: by parity of the launch
LEFT_OUT = 2  # floats behind the loss: whether the launch has left its step out
FIRST_FREE = ALIGN


def aligned(address: int) -> int:
    """The next address at the start of a cache line."""
    return -(-address // ALIGN) * ALIGN


class Pool(Protocol):
    """Floats that kernels work on. Where they are in the memory of a device, reading copies them."""

    @property
    def nbytes(self) -> int:
        """Bytes."""
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
        transposed: packed transpose of a matrix, else 0; of a member of a stack, where the stack's begins.
        rounded: of a matrix that products read in bf16 from memory, its packed pairs, else 0; its transpose lies right
            behind them, and in pairs, too.
        gradient: laid out like the weights; of a table only where gradients accumulate, else 0: a batch's gradient of
            it is sparse and lives with the batch.
        moments: laid out like the weights, one per moment of the optimizer.
        average: laid out like the weights; 0 where none is made.
        floats: number of floats of each of them.
        on_chip: how the chip holds the matrix during a launch; None: not at all, and nothing else is special about it.
        precision: of products with it.
        tiled: its gradient is summed up in tiles, in memory.
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
        """Of each of them."""
        return self.floats * WORD_BYTES

    @property
    def rounds(self) -> Flag:
        """Flags of the instructions that multiply by it, or make its gradient."""
        flag = _ROUNDS.get(self.precision.name, NO_FLAGS)
        return flag | Flag.PAIRS if self.rounded else flag

    @property
    def factor(self) -> int:
        """Where products find the weights."""
        return self.rounded or self.weights


_ROUNDS = {"bf16": Flag.BF16, "tf32": Flag.TF32}


@dataclass(frozen=True, slots=True)
class Partition:
    """How the rows of a matrix on the chip are dealt to virtual processors.

    Attributes:
        number: of the matrix among those on the chip, from 1.
        parts: each owns the same units of every one of so many equal parts.
        turn: or so many rows, one virtual processor after the other; 0: by parts.
        first: who begins the turns.
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
        """The flags of an instruction that is dealt so."""
        return Flag.TURNS if self.turn else NO_FLAGS


@dataclass(frozen=True, slots=True)
class OnChipPlace:
    """A matrix that virtual processors hold on the chip.

    Attributes:
        rows: how it is dealt; None: it is in memory, at most its transpose is on the chip.
        transposed: how its transpose is, where that is held as well; else it is in memory, or
        atomic: transposed products are made from the rows of the matrix itself, with atomic additions.
    """

    rows: Partition | None
    transposed: Partition | None
    atomic: bool


@dataclass(frozen=True, slots=True)
class HeldGradients:
    """Gradients of earlier batches that the pool holds because no update has used them yet.

    Attributes:
        dense: parameters that have one; stacks, not their members.
        rows: of lookup tables, the numbers of the rows that have one, sorted.
    """

    dense: frozenset[Parameter] = frozenset()
    rows: Mapping[Parameter, NDArray[np.int64]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dense or self.rows)


NOTHING_HELD = HeldGradients()


class Distribution:
    """Places of a model's parameters, for one number of virtual processors.

    Args:
        parameters: what to place.
        n_vps: virtual processors of a group.
        panel: rows of a packed panel, and granule of unit slices.
        n_moments: moments that the optimizer keeps; 0 also for inference, which has no gradients either.
        train: whether gradients are needed.
        accumulates: whether tables, too, have memory for gradients that outlive a batch.
        averages: whether moving averages of the weights are made.
        held: matrices that the chip holds.
        groups: of virtual processors; all use the same places.
        stacks: of parameters that are one to the kernel.
        precisions: of products with them.

    Attributes:
        places: of the user's parameters; of a member of a stack, where it lies in there.
        physical: of the parameters as kernels know them: stacks in place of their members.
        gradients: the span of those of everything but tables.
        end: the batch's memory begins here.
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
        """The place of a member of a stack: a range of the stack's."""
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
        """Where a member begins in its stack."""
        stack = self.stacks.of[p]
        return stack.members.index(p) * p.shape[0]

    @property
    def all_vps(self) -> int:
        """Virtual processors of all groups."""
        return self.n_vps * self.groups

    def spans(self, held: HeldGradients) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(spans of everything placed, spans of the gradients that hold nothing from one launch to the next)."""
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
        """Spans of a table's gradient without the given rows, which are sorted."""
        start, width = self.places[table].gradient, size(table.shape[1:])
        first = start + np.concatenate([[0], rows + 1]) * width
        last = start + np.append(rows, table.shape[0]) * width
        return [(int(a), int(b)) for a, b in zip(first, last, strict=True) if a < b]

    def _floats(self, p: Parameter) -> int:
        """Of its weights."""
        return self.packed_size(p.shape) if self.is_packed(p) else size(p.shape)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Floats of a packed matrix."""
        return -(-shape[0] // self.panel) * self.panel * shape[1]

    def packed_pairs(self, shape: tuple[int, ...]) -> int:
        """Words of a packed matrix of pairs of bf16; a last column without another one beside it has zeros there."""
        return self.packed_size((shape[0], -(-shape[1] // 2)))

    def copies(self, p: Parameter) -> tuple[int, int]:
        """Bytes of what products read beside a parameter's weights, or in their place: pairs of it, and a transpose."""
        place = self.places[p]
        words = self.packed_pairs if place.rounded else self.packed_size
        return (
            WORD_BYTES * words(p.shape) if place.rounded else 0,
            WORD_BYTES * words(p.shape[::-1]) if place.transposed else 0,
        )

    def unpack(self, flat: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """The matrix (R, C) of some panels; a copy."""
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
        """Whether the parameter is a matrix kept as panels."""
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
        """Write a parameter's weights, and its packed transpose and pairs where there are any."""
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
        """Write rows of weights, those from `first` on of `height`, as pairs, and into the transpose, likewise."""
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
    """Columns side by side, rounded to bf16, as words that are no floats: the first one has the lower half.

    Args:
        matrix: (rows, columns).
        precision: bf16.

    Returns:
        (rows, half of the columns, rounded up); beside a last column there are zeros.
    """
    tiny = np.finfo(np.float32).tiny  # below it products take all for zero, and so do kernels that write pairs
    normal = np.where(np.abs(matrix) < tiny, np.copysign(np.float32(0), matrix), matrix)
    rounded = precision.round(normal).view(np.uint32) >> np.uint32(16)
    if matrix.shape[1] % 2:
        rounded = np.pad(rounded, ((0, 0), (0, 1)))
    return np.ascontiguousarray(rounded[:, 0::2] | rounded[:, 1::2] << np.uint32(16)).view(np.float32)


@contextmanager
def _written(pool: Pool, address: int, floats: int, whole: bool = True) -> Iterator[NDArray[np.float32]]:
    """Floats of the pool to be written: themselves, or what is copied there afterwards where they are on a device.

    Args:
        whole: whether all of them are; else the others stay.
    """
    place = slice(address, address + floats)
    if isinstance(pool, np.ndarray):
        yield pool[place]
        return
    copy = np.empty(floats, np.float32) if whole else pool[place]
    yield copy
    pool[place] = copy


def held_matrices(distribution: Distribution) -> dict[int, MatrixWords]:
    """What the chip holds, by number: matrices and transposes of some."""
    found = {}
    for p, place in distribution.physical.items():
        if place.on_chip is not None:
            for dealt, shape in ((place.on_chip.rows, p.shape), (place.on_chip.transposed, p.shape[::-1])):
                if dealt is not None:
                    found[dealt.number] = MatrixWords(shape[0], shape[1], dealt.word, dealt.flags)
    return found
