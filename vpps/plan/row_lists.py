"""How the rows of arguments are found: at an even stride where a plan has put them so, else through an index list.

Rows of one step are even if each lies as far behind the one before it as all others do. An operand says so in its
words, at no cost to the kernel; the list has words for the other steps alone. Where an instruction works on all rows
of a cell at once - the gradient of a matrix - it needs the whole list, and steps that are not even point into that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.graph.arrays import Ints
from vpps.plan.instr import RowOperand
from vpps.plan.rows import BlockPlan
from vpps.script.instructions import INDEXED, OFFSET_MASK

UNEVEN = -1  # stride of rows that need a list


class Runs(NamedTuple):
    """Rows of addresses, by run: where the first one lies, and the stride between them or `UNEVEN`."""

    address: Ints
    stride: Ints


def runs(addresses: Ints, first: Ints, count: Ints) -> Runs:
    """Where `count[i]` addresses from `first[i]` on lie, for runs that follow one another. One row is even, and so are
    none."""
    n = len(addresses)
    if not n:
        return Runs(np.zeros_like(first), np.zeros_like(first))
    gaps = np.diff(addresses)
    begin = np.minimum(first, n - 1)
    address = np.where(count > 0, addresses[begin], 0)
    if len(first) == 1:
        gap = int(gaps[0]) if n > 1 else 0
        even = 0 <= gap <= OFFSET_MASK and not (gaps != gap).any()
        return Runs(address, np.array([gap if even else UNEVEN]))
    several = count > 1
    stride = np.where(several, gaps[np.minimum(begin, n - 2)], 0) if n > 1 else np.zeros_like(first)
    differs = np.zeros(n, np.int64)  # how many gaps before each row are not the stride of their run
    np.cumsum(gaps != np.repeat(stride, count)[:-1], out=differs[1:])
    last = np.where(several, first + count - 1, begin)
    odd = (differs[last] != differs[begin]) | (stride < 0) | (stride > OFFSET_MASK)
    return Runs(address, np.where(odd, UNEVEN, stride))


def place_row_lists(block: BlockPlan, place_list: Callable[[Ints], int], training: bool) -> None:
    """Put the index lists that a block's operands need into the script, and set the operands' words."""
    for key, operands in block.cell.row_lists(training):
        domain = block.cell.domain_of(key)
        addresses = block.list_values(key)
        position = UNEVEN  # of the whole list
        whole = [operand for operand in operands if operand.whole]
        if whole:
            n = np.array([len(addresses)])
            found = runs(addresses, np.zeros_like(n), n)
            if found.stride[0] == UNEVEN:
                position = place_list(addresses)
            _set(block, whole, found, np.array([position]))
        by_step = [operand for operand in operands if not operand.whole]
        if by_step:
            first, count = block.first[:, domain], block.count[:, domain]
            found = runs(addresses, first, count)
            at = first + position
            if position == UNEVEN:
                at = _place_uneven(found.stride == UNEVEN, addresses, count, place_list)
            _set(block, by_step, found, at)


def _set(block: BlockPlan, operands: list[RowOperand], found: Runs, position: Ints) -> None:
    """Set the words of operands, given where the rows of each step lie, and the position of its part of the list."""
    uneven = found.stride == UNEVEN
    for operand in operands:
        address, mode = block.operand_words(operand)
        address[:] = np.where(uneven, position, found.address + operand.offset)
        mode[:] = np.where(uneven, INDEXED | operand.offset, found.stride)


def _place_uneven(uneven: NDArray[np.bool_], addresses: Ints, count: Ints, place_list: Callable[[Ints], int]) -> Ints:
    """Place what some steps need of a list; returns the position of each step's part."""
    if not uneven.any():
        return np.zeros_like(count)
    words = np.where(uneven, count, 0)
    return place_list(addresses[np.repeat(uneven, count)]) + np.cumsum(words) - words
