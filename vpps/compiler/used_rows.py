"""Dependencies of a loss by ops that have gradients: parameters, and rows of tables.

An update touches only these; weight decay, momentum and averages leave all others alone. The recorded program decides,
not what passes make of it: a parameter or row counts even if its gradient is known to be zero. Values that lead to no
output that is read, or only through `stop_gradient`, do not count. The planner follows the dependencies from vertex to
vertex and output to output (planner/native/reach.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.records import LookupRecord, OutputReachRecord
from vpps.model.model import Lookup, Parameter
from vpps.ops import Form
from vpps.record.trace import TracedCell


def reach_of(cell: TracedCell, output: int, numbers: Mapping[Parameter, int]) -> OutputReachRecord:
    """The dependencies of an output of a traced cell.

    Args:
        output: number of its node.
        numbers: of parameters.
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
    """The lookups to which gradients come back.

    Args:
        encoded: a cell, or its parts.
        ints: of each, which int arguments of the whole it takes.
    """
    found = [
        (_lookup(one.cell, numbers[g.table], g.ids.node), taken)
        for one, taken in zip(encoded, ints, strict=True)
        for g in one.lowered.table_gradients
    ]
    return {u if u.column < 0 else u._replace(column=taken[u.column]) for u, taken in found}


def _lookup(cell: TracedCell, table: int, index: int) -> LookupRecord:
    """A lookup of the row whose number an index node has."""
    attrs = cell.nodes[index].attrs
    if "constant" in attrs:
        return LookupRecord(table, -1, attrs["constant"])
    return LookupRecord(table, cell.place(attrs["position"]), 0)
