"""Layouts of batches of sequences: where their steps are in a matrix of rows, and which step precedes which.

A layer takes a tensor, a PackedSequence, a list of tensors or a nested tensor. Each holds the steps as rows of a matrix
in some order, which stays as it is: the graph says what follows what.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import PackedSequence

from vpps.errors import DtypeError, ShapeError
from vpps.record.ranges import running_sum

Ints = NDArray[np.int64]


class Direction(NamedTuple):
    """One direction through the steps of a batch.

    Attributes:
        before: (n, 1) row of the step before; -1 at the start of a sequence or of a piece of it.
        levels: (n,) number of steps before in the same piece.
        enters: (n,) True if the step before is the initial state.
        last: row of each sequence's last step, for the sequences with steps.
    """

    before: NDArray[np.int32]
    levels: NDArray[np.int32]
    enters: NDArray[np.bool_]
    last: NDArray[np.int32]


class Layout:
    """Sequences whose steps are rows of a matrix.

    Args:
        lengths: (batch,) int64, number of steps of each sequence.
        rows: (n,) int32, rows of the steps, sequence by sequence; None if they are in this order.
        cuts: (n,) True at each row whose state before is zero; None if no state is.

    Attributes:
        present: the sequences with steps.
        key: equal for equal layouts.
    """

    rows: NDArray[np.int32] | None = None

    def __init__(
        self, lengths: Ints, rows: NDArray[np.int32] | None = None, cuts: NDArray[np.bool_] | None = None
    ) -> None:
        self.lengths, self.cuts = lengths, cuts
        if rows is not None:
            self.rows = rows
        self.n, self.batch = int(lengths.sum()), len(lengths)
        self.present = np.flatnonzero(lengths)
        self.all_present = len(self.present) == self.batch
        self.key = tuple(None if a is None else a.tobytes() for a in (lengths, rows, cuts))

    @cached_property
    def numbers(self) -> Ints:
        """(n,) the number of each row's sequence."""
        found = np.arange(self.batch).repeat(self.lengths)
        return found if self.rows is None else _placed(found, self.rows)

    def direction(self, backward: bool) -> Direction:
        """Return one direction. A cut separates the two steps beside it in both."""
        n, ends = self.n, running_sum(self.lengths)
        firsts = ends[:-1].take(self.present)
        enters = np.zeros(n, np.bool_)
        enters[firsts] = True
        rows = np.arange(n, dtype=np.int32) if self.rows is None else self.rows
        ending = ends[1:].take(self.present) - 1
        begins = enters if self.cuts is None else enters | self.cuts[rows]
        if backward:  # each piece begins at its other end
            enters, begins = (np.append(flags[1:], True)[::-1] for flags in (enters, begins))
            rows, ending = rows[::-1], n - 1 - firsts
        elif self.cuts is not None:
            enters = enters & ~self.cuts[rows]
        at = np.flatnonzero(begins).astype(np.int32)
        levels = np.arange(n, dtype=np.int32)
        before = np.empty(n, np.int32)
        before[1:] = rows[:-1]
        before[at] = -1
        levels -= at.repeat(np.diff(at, append=np.int32(n)))
        if self.rows is not None or backward:
            before, levels, enters = (_placed(a, rows) for a in (before, levels, enters))
        return Direction(before[:, None], levels, enters, rows.take(ending))

    @cached_property
    def firsts(self) -> NDArray[np.integer[Any]]:
        """Row of each sequence's first step, for the sequences with steps."""
        at = running_sum(self.lengths)[:-1].take(self.present)
        return at if self.rows is None else self.rows.take(at)

    def with_cuts(self, cuts: NDArray[np.bool_] | None) -> Layout:
        """Return the layout with cuts. Cuts that change nothing are dropped."""
        return self if cuts is None or not cuts.any() else Layout(self.lengths, self.rows, cuts)


def _placed(values: Any, rows: Any) -> Any:
    found = np.empty_like(values)
    found[rows] = values
    return found


class Sequences(NamedTuple):
    """A batch of sequences as a layer gets it.

    Attributes:
        x: (n, width), the steps.
        layout: the steps' places.
        restored: callback that brings a result (n, width) into the form of the layer's input.
        order: for a PackedSequence, the places of the given sequences in the batch, and back; else None.
        batched: False if the input is one sequence without a dimension for the batch.
        fresh: (batch,) True for sequences whose first step is reset, and which get zeros as their initial state. So
            resets in a rollout do not change its layout. None if there are none.
    """

    x: Any
    layout: Layout
    restored: Callable[[Any], Any]
    order: tuple[Any, Any] | None = None
    batched: bool = True
    fresh: NDArray[np.bool_] | None = None


_MOST_LAYOUTS = 128
_layouts: dict[Any, Layout] = {}  # layouts without cuts, by the arguments of the functions below


def _reused(key: Any, make: Callable[[], Layout]) -> Layout:
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) >= _MOST_LAYOUTS:
            _layouts.clear()
        found = _layouts[key] = make()
    return found


def equal_layout(batch: int, steps: int, batch_first: bool) -> Layout:
    """Return the layout of sequences of equal lengths, in a tensor (steps, batch, width) or (batch, steps, width)."""

    def make() -> Layout:
        in_order = batch_first or batch == 1
        rows = None if in_order else np.arange(batch * steps, dtype=np.int32).reshape(steps, batch).T.ravel()
        return Layout(np.full(batch, steps), rows)

    return _reused((batch, steps, batch_first), make)


def packed_layout(sizes: Ints) -> Layout:
    """Return the layout of a PackedSequence with these batch sizes."""
    key = sizes.tobytes()
    return _reused(key, lambda: PackedLayout(np.frombuffer(key, np.int64)))


class PackedLayout(Layout):
    """The layout of a PackedSequence. Sequences are in the order of their lengths, longest first.

    Args:
        sizes: number of sequences at each step.
    """

    def __init__(self, sizes: Ints) -> None:
        # A step ends as many sequences as the next one has less.
        ends = sizes - np.append(sizes[1:], 0)
        self._sizes, self._starts = sizes, running_sum(sizes)
        super().__init__(np.arange(len(sizes), 0, -1).repeat(ends[::-1]))
        self.key = (b"packed", sizes.tobytes(), None)

    @cached_property
    def rows(self) -> NDArray[np.int32]:  # type: ignore[override]
        """(n,) rows of the steps, sequence by sequence."""
        offsets, lengths = running_sum(self.lengths), self.lengths
        rows = self._starts.take(np.arange(self.n) - offsets[:-1].repeat(lengths))
        return (rows + np.arange(self.batch).repeat(lengths)).astype(np.int32)

    def direction(self, backward: bool) -> Direction:
        if backward:
            return super().direction(backward)
        sizes, n, batch = self._sizes, self.n, self.batch
        before = np.arange(n, dtype=np.int32)
        before[batch:] -= sizes[:-1].repeat(sizes[1:])
        before[:batch] = -1
        levels = np.arange(len(sizes), dtype=np.int32).repeat(sizes)
        last = self._starts.take(self.lengths - 1) + np.arange(batch)
        return Direction(before[:, None], levels, before < 0, last.astype(np.int32))


def sequences(given: Any, resets: Any, batch_first: bool, width: int, what: str) -> Sequences:
    """Return the sequences that a layer was given.

    Args:
        given: tensor, PackedSequence, list of tensors or nested tensor.
        resets: True where the state is zero before the step: in the form of `given`, without its last dimension.
        width: the layer's input_size.
        what: name of the layer for messages.

    Raises:
        ShapeError, DtypeError: the input does not fit.
    """
    if isinstance(given, PackedSequence):
        found = _of_packed(given)
    elif isinstance(given, list | tuple):
        found = _of_list(given, width, what)
    elif not isinstance(given, torch.Tensor):
        raise DtypeError(f"{what}: expected a tensor, PackedSequence, nested tensor or list of tensors, got {given!r}")
    elif given.is_nested:
        found = _of_nested(given, width, what)
    else:
        found = _of_tensor(given, batch_first, what)
    if found.x.dim() != 2 or found.x.shape[1] != width:
        raise ShapeError(f"{what}: each step has {found.x.shape[-1]} numbers; input_size is {width}")
    if resets is None:
        return found
    cuts, layout = _cuts(given, resets, what), found.layout
    if not (at_first := cuts.take(layout.firsts)).any():
        return found._replace(layout=layout.with_cuts(cuts))
    fresh = np.zeros(layout.batch, np.bool_)
    fresh[layout.present] = at_first
    cuts = cuts.copy()
    cuts[layout.firsts] = False
    return found._replace(layout=layout.with_cuts(cuts), fresh=fresh)


def _of_tensor(x: Any, batch_first: bool, what: str) -> Sequences:
    if x.dim() == 2:
        return Sequences(x, equal_layout(1, len(x), True), lambda y: y, batched=False)
    if x.dim() != 3:
        form = "(batch, steps, input_size)" if batch_first else "(steps, batch, input_size)"
        raise ShapeError(f"{what}: expected an input {form}, or (steps, input_size); got shape {tuple(x.shape)}")
    first, second, width = x.shape
    batch, steps = (first, second) if batch_first else (second, first)
    layout = equal_layout(batch, steps, batch_first)
    return Sequences(x.reshape(-1, width), layout, lambda y: y.reshape(first, second, -1))


def _of_packed(given: Any) -> Sequences:
    sizes, order = given.batch_sizes, given.sorted_indices
    restored = lambda y: PackedSequence(y, sizes, order, given.unsorted_indices)  # noqa: E731
    layout = packed_layout(sizes.numpy())
    return Sequences(given.data, layout, restored, None if order is None else (order, given.unsorted_indices))


def _of_list(given: Sequence[Any], width: int, what: str) -> Sequences:
    if not given:
        raise ShapeError(f"{what}: the list holds no sequence; it needs at least one tensor (steps, {width})")
    for k, x in enumerate(given):
        if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.shape[1] != width:
            form = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise ShapeError(f"{what}: sequence {k} of the list is {form}; expected a tensor (steps, {width})")
    lengths = [len(x) for x in given]
    return Sequences(torch.cat(list(given)), Layout(np.array(lengths)), lambda y: list(y.split(lengths)))


def _of_nested(given: Any, width: int, what: str) -> Sequences:
    if given.layout != torch.jagged or given.dim() != 3 or given.lengths() is not None or given._ragged_idx != 1:
        raise ShapeError(
            f"{what}: expected a contiguous nested tensor (batch, ragged, {width}) with layout=torch.jagged; "
            "torch.nested.as_nested_tensor(list, layout=torch.jagged) makes one"
        )
    offsets = given.offsets()
    lengths = np.diff(offsets.cpu().numpy())
    restored = lambda y: torch.nested.nested_tensor_from_jagged(y, offsets)  # noqa: E731
    return Sequences(given.values(), Layout(lengths), restored)


def _cuts(given: Any, resets: Any, what: str) -> NDArray[np.bool_]:
    """Return the resets of all rows."""
    if isinstance(given, PackedSequence):
        resets = resets.data if isinstance(resets, PackedSequence) else resets
        expected = given.data.shape[:1]
    elif isinstance(given, list | tuple):
        if not isinstance(resets, list | tuple) or [len(r) for r in resets] != [len(x) for x in given]:
            raise ShapeError(f"{what}: resets: expected a list of tensors, as long as those of the input")
        resets = torch.cat(list(resets))
        expected = resets.shape[:1]
    elif given.is_nested:
        resets = resets.values() if isinstance(resets, torch.Tensor) and resets.is_nested else resets
        expected = given.values().shape[:1]
    else:
        expected = given.shape[:-1]
    if not isinstance(resets, torch.Tensor) or resets.dtype != torch.bool or resets.shape != expected:
        form = f"{resets.dtype} {tuple(resets.shape)}" if isinstance(resets, torch.Tensor) else repr(resets)
        raise ShapeError(f"{what}: resets: expected a tensor of torch.bool of shape {tuple(expected)}, got {form}")
    flags: NDArray[np.bool_] = resets.detach().cpu().numpy().reshape(-1)
    return flags
