"""Finds the parameters and table rows that a loss depends on through ops that have gradients.

An update, including weight decay, momentum and averages, changes only these. The recorded program decides, not the
program after the passes: a parameter or row counts even if its gradient is known to be zero. Values that reach no read
output, or only through `stop_gradient`, do not count. The planner follows the dependencies between the outputs of
the graph's vertices (planner/native/reach.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.records import LookupRecord, OutputReachRecord
from vpps.model.model import Lookup, Parameter
from vpps.ops import Form
from vpps.record.trace import TracedCell


def reach_of(cell: TracedCell, output: int, numbers: Mapping[Parameter, int]) -> OutputReachRecord:
    """Return the dependencies of a traced cell's output.

    Args:
        output: number of the output's node.
        numbers: numbers of the parameters.
    """
    leads = [i == output for i in range(len(cell.nodes))]
    parameters: dict[int, None] = {}
    lookups: dict[LookupRecord, None] = {}
    for i in reversed(range(len(cell.nodes))):
        node, p = cell.nodes[i], cell.nodes[i].parameter
        leads[i] = leads[i] and node.op.differentiable
        if not leads[i]:
            continue
        if p is not None and p.trainable:
            if not isinstance(p, Lookup):
                parameters[numbers[p]] = None
            elif node.op.form is Form.LOOKUP:
                lookups[_lookup(cell, numbers[p], node.inputs[0])] = None
        for j in node.inputs[node.op.conditions :]:
            leads[j] = True
    operands = [k for k, p in enumerate(cell.operands) if leads[cell.arguments[p]]]
    return OutputReachRecord(operands, list(parameters), list(lookups))


def lookups_with_gradient(
    encoded: Iterable[EncodedCell], ints: Iterable[Sequence[int]], numbers: Mapping[Parameter, int]
) -> set[LookupRecord]:
    """Return the lookups that get gradients.

    Args:
        encoded: the encoded cell, or its parts.
        ints: for each of these parts, its int arguments by their numbers in the whole cell.
    """
    found = [
        (_lookup(one.cell, numbers[g.table], g.ids.node), taken)
        for one, taken in zip(encoded, ints, strict=True)
        for g in one.lowered.table_gradients
    ]
    return {u if u.column < 0 else u._replace(column=taken[u.column]) for u, taken in found}


def _lookup(cell: TracedCell, table: int, index: int) -> LookupRecord:
    """Return the record of a lookup whose row number is the value of an index node."""
    attrs = cell.nodes[index].attrs
    if "constant" in attrs:
        return LookupRecord(table, -1, attrs["constant"])
    return LookupRecord(table, cell.place(attrs["position"]), 0)
