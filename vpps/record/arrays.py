"""One block's vertices as arrays. Only this module knows how `vpps.record.vertices` stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.kernel.shared_types import address
from vpps.record.chunks import NO_DATA, Chunk, Lists, merged
from vpps.record.ranges import Ints, running_sum
from vpps.record.trace import TracedCell
from vpps.record.vertices import ARGS, CALL, FIRST, LEVEL, Block

__all__ = ["BlockArrays", "Ints", "Lists"]


def _array(ints: list[int]) -> Ints:
    """Copy a list, or the compiled recorder's list type, to an array."""
    # For a list, fromiter is faster than array. The other type supports the buffer protocol and is copied directly.
    return np.fromiter(ints, np.int64, len(ints)) if type(ints) is list else np.array(ints, np.int64)


def _addresses(*found: NDArray[Any]) -> Sequence[int]:
    return [address(numbers) if numbers.size else 0 for numbers in found]


addresses: Callable[..., Sequence[int]] = _addresses
"""Return the address of each array, 0 for an array without elements. `vpps.record.native` replaces this function.
Raises TypeError or ValueError if an array is not contiguous, or, in the Python version, if it is read-only."""


def _one_by_one(block: Block) -> Chunk:
    """Return the vertices of a block that were recorded one by one."""
    rows = _array(block.rows).reshape(-1, block.width)  # columns are copied to be contiguous
    return Chunk(
        rows[:, CALL].copy(),
        rows[:, FIRST].copy(),
        rows[:, LEVEL].copy(),
        rows[:, ARGS : ARGS + block.n_args].copy(),
        rows[:, ARGS + block.n_args :].copy(),
        [Lists(running_sum(_array(n)), _array(e)) for n, e in zip(block.lengths, block.elements, strict=True)],
        np.concatenate(block.data).reshape(len(rows), -1) if block.data else NO_DATA,
    )


class BlockArrays:
    """One cell's vertices as arrays in the user's order: the fields of `Chunk`, and `values`: value ids by output.

    Args:
        n_calls: keep only vertices with a recording index below this.
        since: skip vertices with a recording index below this.
    """

    __slots__ = ("args", "block", "calls", "cell", "data", "ints", "levels", "lists", "values")

    def __init__(self, block: Block, n_calls: int | None = None, since: int = 0) -> None:
        self.block = block
        self.cell: TracedCell = block.cell
        if len(block.bulk) == 1 and not len(block.rows):
            vertices = block.bulk[0][1]
        else:
            vertices = _one_by_one(block)
            if block.bulk:
                vertices = merged(vertices, block.bulk)
        if since or n_calls is not None:
            stop = len(vertices) if n_calls is None else int(vertices.calls.searchsorted(n_calls))
            vertices = vertices.between(int(vertices.calls.searchsorted(since)), stop)
        first = vertices.first
        self.calls = vertices.calls
        self.values: list[Ints] = [first + k if k else first for k in range(len(block.cell.outputs))]
        self.levels = vertices.levels
        self.args = vertices.args
        self.ints = vertices.ints
        self.lists = vertices.lists
        self.data = vertices.data

    def operands(self) -> Iterable[tuple[Ints, Ints]]:
        """Yield (vertex rows, value ids) for each argument of all the vertices (`TracedCell.operands`)."""
        rows = np.arange(len(self.calls))
        for k in range(self.args.shape[1]):
            yield rows, self.args[:, k]
        for xs in self.lists:
            yield np.repeat(rows, np.diff(xs.ends)), xs.elements
