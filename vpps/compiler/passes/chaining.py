"""Chaining: a product passes its result on the chip to the tail that follows, if nothing else reads the result.

A product from a window adds up its sums in the shared memory of the block that owns the units, and the tail reads the
same units. So the product leaves the sums there, and the block executes the tail at once. This saves a store, a load,
a dispatch and the result's slab. Backward has no chains: every block needs all gates, so the level's barrier comes
between a tail and the transposed product of its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from vpps.compiler.instr import Instr, TailView, View
from vpps.kernel.chip import MOST_CHAINED_ROWS
from vpps.script.slices import most_units
from vpps.script.tails import Load, ViewUse

if TYPE_CHECKING:
    from vpps.compiler.lower import LoweredCell


def chain(cell: LoweredCell, n_vps: int) -> None:
    """Chain products and tails of a lowered cell, after its instructions have been assigned to groups.

    Args:
        n_vps: number of virtual processors that divide an instruction.
    """
    for instrs in (cell.forward, cell.backward):
        for i, j in list(_neighbours(instrs)):
            product, tail = instrs[i], instrs[j]
            if _fits(product, n_vps) and _takes(product, tail) and not _is_read_elsewhere(cell, product, tail):
                nowhere = View(-1, None, 0, 0, product.width, product.domain)
                instrs[i] = replace(product, chained=True, operands={**product.operands, "dst": nowhere})
                instrs[j] = _taking(product, tail)


def _neighbours(instrs: list[Instr]) -> Iterator[tuple[int, int]]:
    """Yield the positions of each two consecutive instructions of a group."""
    last: dict[int, int] = {}
    for j, instr in enumerate(instrs):
        if instr.group in last:
            yield last[instr.group], j
        last[instr.group] = j


def _fits(product: Instr, n_vps: int) -> bool:
    """Return True for a product from a window if shared memory has room for its results for at least some vectors."""
    if product.name != "matvec" or not product.values["matrix"]:
        return False
    if product.rows or product.alone or product.turns or product.for_all or product.accumulate:
        return False
    return most_units(product.width, product.parts, n_vps) <= MOST_CHAINED_ROWS


def _takes(product: Instr, tail: Instr) -> bool:
    """Return True if the tail works on one part's units in the product's result, in the same rows."""
    if tail.name != "tail" or tail.rows or tail.alone or tail.parts != 1 or tail.domain != product.domain:
        return False
    if tail.width * product.parts != product.width:
        return False
    dst = product.operands["dst"]
    read = [view for use, view in tail.operands["views"] if use is ViewUse.READ and view.slab == dst.slab]
    return bool(read) and all(_part_of(product, view, tail.width) is not None for view in read)


def _part_of(product: Instr, view: View, width: int) -> int | None:
    """Return the number of the part of the product's result that a view covers; None if it covers no such part."""
    part, rest = divmod(view.offset - product.operands["dst"].offset, width)
    return part if not rest and view.width == width and 0 <= part < product.parts else None


def _is_read_elsewhere(cell: LoweredCell, product: Instr, tail: Instr) -> bool:
    """Return True if anything except the product and the tail touches the slab of the product's result."""
    slab = product.operands["dst"].slab
    others = [i for i in (*cell.forward, *cell.backward) if i is not product and i is not tail]
    touched = [view for i in others for _, view in i.views()]
    touched += [view for use, view in tail.operands["views"] if use is ViewUse.WRITE]
    touched += [view for _, view in product.views() if view is not product.operands["dst"]]
    return any(view.slab == slab for view in (*touched, *tail.gathers, *cell.read_at_the_end()))


def _taking(product: Instr, tail: Instr) -> Instr:
    """Return the tail, changed to read the product's result on the chip."""
    assert tail.tail is not None
    slab = product.operands["dst"].slab
    views: list[TailView] = []
    loads = list(tail.tail.loads)
    for k, (use, what) in enumerate(tail.operands["views"]):
        if use is ViewUse.READ and what.slab == slab:
            part = _part_of(product, what, tail.width)
            assert part is not None
            views.append((ViewUse.RESULT, part))
            loads[k - tail.tail.sums] = Load.RESULT
        else:
            views.append((use, what))
    program = replace(tail.tail, loads=tuple(loads))
    values = {**tail.values, "number": program.number}
    return replace(tail, operands={"views": views}, values=values, tail=program)
