"""Which rows of a table a batch uses: those that vertices look up on which the loss depends. A vertex depends on all of
its arguments.

An update touches only these: weight decay, momentum and averages leave others alone. So what counts is what the user
wrote, not what becomes of it: a row whose gradient is known to be zero is used, too - nothing reads the result that it
leads to, or a pass has taken it out. A lookup that leads to no result of its cell, or only through `stop_gradient`,
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.instr import RowNumber, UsedLookup
from vpps.compiler.passes.lazy_batching import CellPart
from vpps.model.model import Lookup
from vpps.ops import Form
from vpps.record.trace import Int, TracedCell


def used_lookups(cell: TracedCell) -> list[UsedLookup]:
    """The lookups of a program, as it was traced, that count; each once."""
    leads = [False] * len(cell.nodes)  # to a result, by what has gradients
    for o in cell.outputs:
        leads[o] = True
    found: dict[UsedLookup, None] = {}
    columns = _columns(cell)
    for i in reversed(range(len(cell.nodes))):
        node = cell.nodes[i]
        if not leads[i] or not node.op.differentiable:
            continue
        if node.op.form is Form.LOOKUP:
            assert isinstance(node.parameter, Lookup)
            if node.parameter.trainable:
                found[UsedLookup(node.parameter, _row_number(cell, node.inputs[0], columns))] = None
        for j in node.inputs:
            leads[j] = True
    return list(found)


def note_lookups_without_gradient(
    cell: TracedCell, encoded: Sequence[EncodedCell], ints: Sequence[Sequence[int]]
) -> None:
    """Tell encoded cells of the lookups that count though nothing in them has their gradient.

    Args:
        cell: as it was traced.
        encoded: the cell, or its parts.
        ints: of each, which int arguments of the whole it takes.
    """
    with_gradient = set()
    for one, taken in zip(encoded, ints, strict=True):
        columns = _columns(one.cell)
        for g in one.lowered.table_gradients:
            row = _row_number(one.cell, g.ids.node, columns)
            with_gradient.add(UsedLookup(g.table, _in_whole(row, taken)))
    for used in used_lookups(cell):
        if used not in with_gradient:
            k = next(k for k, taken in enumerate(ints) if used.row.column < 0 or used.row.column in taken)
            column = ints[k].index(used.row.column) if used.row.column >= 0 else -1
            encoded[k].without_gradient.append(replace(used, row=used.row._replace(column=column)))


def with_row_numbers(cell: TracedCell, parts: tuple[CellPart, ...]) -> tuple[CellPart, ...]:
    """The parts of a cell, such that each row number that counts is an int of one: a pass may have taken it out."""
    taken = {k for part in parts for k in part.ints}
    missing = dict.fromkeys(u.row.column for u in used_lookups(cell) if u.row.column >= 0 and u.row.column not in taken)
    if not parts or not missing:
        return parts
    return (replace(parts[0], ints=(*parts[0].ints, *missing)), *parts[1:])


def _columns(cell: TracedCell) -> dict[int, int]:
    """Place among the int arguments, by position."""
    return {p: k for k, p in enumerate(p for p, kind in enumerate(cell.kinds) if isinstance(kind, Int))}


def _row_number(cell: TracedCell, index: int, columns: dict[int, int]) -> RowNumber:
    attrs = cell.nodes[index].attrs
    return RowNumber(-1, attrs["constant"]) if "constant" in attrs else RowNumber(columns[attrs["position"]], 0)


def _in_whole(row: RowNumber, taken: Sequence[int]) -> RowNumber:
    return row if row.column < 0 else row._replace(column=taken[row.column])
