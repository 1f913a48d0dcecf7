"""Which rows of a table a batch uses: those that vertices look up on which the loss depends. A vertex depends on all of
its arguments.

An update touches only these: weight decay, momentum and averages leave others alone. So what counts is what the user
wrote, not what becomes of it: a row whose gradient is known to be zero is used, too - nothing reads the result that it
leads to, or a pass has taken it out. A lookup that leads to no result of its cell, or only through `stop_gradient`,
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from vpps.compiler.encoded_cell import EncodedCell, places_of_kind
from vpps.compiler.instr import UsedLookup
from vpps.compiler.passes.lazy_batching import CellPart
from vpps.model.model import Lookup, Parameter
from vpps.ops import Form
from vpps.record.trace import Int, Node, TracedCell


def used_lookups(cell: TracedCell) -> list[UsedLookup]:
    """The lookups of a program, as it was traced, that count; each once."""
    found: dict[UsedLookup, None] = {}
    for node in _leading(cell, cell.outputs):
        if node.op.form is Form.LOOKUP and isinstance(node.parameter, Lookup) and node.parameter.trainable:
            found[_lookup(cell, node.parameter, node.inputs[0])] = None
    return list(found)


def reached_parameters(cell: TracedCell, unread: Collection[int]) -> list[Parameter]:
    """The trainable dense parameters that the outputs that are read depend on, in the program as it was traced.

    Args:
        unread: numbers of the outputs that nothing reads.
    """
    nodes = _leading(cell, [o for k, o in enumerate(cell.outputs) if k not in unread])
    found = dict.fromkeys(n.parameter for n in nodes if n.parameter is not None and n.parameter.trainable)
    return [p for p in found if not isinstance(p, Lookup)]


def _leading(cell: TracedCell, outputs: Iterable[int]) -> Iterator[Node]:
    """The nodes that outputs depend on by ops that have gradients."""
    leads = [False] * len(cell.nodes)
    for o in outputs:
        leads[o] = True
    for i in reversed(range(len(cell.nodes))):
        node = cell.nodes[i]
        if leads[i] and node.op.differentiable:
            yield node
            for j in node.inputs:
                leads[j] = True


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
        for g in one.lowered.table_gradients:
            found = _lookup(one.cell, g.table, g.ids.node)
            with_gradient.add(found if found.column < 0 else found._replace(column=taken[found.column]))
    for used in used_lookups(cell):
        if used not in with_gradient:
            k = next(k for k, taken in enumerate(ints) if used.column < 0 or used.column in taken)
            column = ints[k].index(used.column) if used.column >= 0 else -1
            encoded[k].without_gradient.append(used._replace(column=column))


def with_row_numbers(cell: TracedCell, parts: tuple[CellPart, ...]) -> tuple[CellPart, ...]:
    """The parts of a cell, such that each row number that counts is an int of one: a pass may have taken it out."""
    taken = {k for part in parts for k in part.ints}
    missing = dict.fromkeys(u.column for u in used_lookups(cell) if u.column >= 0 and u.column not in taken)
    if not parts or not missing:
        return parts
    return (replace(parts[0], ints=(*parts[0].ints, *missing)), *parts[1:])


def _lookup(cell: TracedCell, table: Lookup, index: int) -> UsedLookup:
    """A lookup of the row whose number an index node has."""
    attrs = cell.nodes[index].attrs
    if "constant" in attrs:
        return UsedLookup(table, -1, attrs["constant"])
    return UsedLookup(table, places_of_kind(cell, Int)[attrs["position"]], 0)
