"""Finds the origin of non-finite values or gradients, for messages; runs the (slow) reference implementation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vpps.graph.graph import Graph
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops import Form
from vpps.ops.operand import Expression
from vpps.ops.philox import LaunchKey
from vpps.reference import Reference, ReferenceBatch

LARGEST = float(np.finfo(np.float32).max)
SQUARABLE = 2.0**60  # bound for gradients, the same as in templates/guard.cuh


def where_it_began(
    graph: Graph,
    loss: Expression,
    weights: Mapping[str, NDArray[np.float32]],
    key: LaunchKey | None = None,
    precisions: Precisions = ALL_EXACT,
) -> str:
    """Return a sentence that names the cell and the call; "" if float64 arithmetic finds nothing wrong.

    Args:
        key: key of dropout's random numbers; None if dropout is off.
        precisions: precisions of products with parameters; rounding can make values infinite.
    """
    with np.errstate(all="ignore"):
        reference = Reference(graph, weights, key, precisions=precisions)
        return _in_forward(reference) or _in_backward(reference, loss)


def _in_forward(reference: Reference) -> str:
    for batch in reference.batches:
        for node, values in zip(batch.block.cell.nodes, batch.nodes, strict=True):
            if node.op.form in (Form.ARGUMENT, Form.INDEX) or node.domain:
                continue
            if (bad := _first(values, LARGEST)) is not None:
                value = values[bad].reshape(-1)
                value = value[~(np.abs(value) <= LARGEST)][0]
                return f"The first such value is {value:.6g}, of op {node.op.name!r} of {_call(batch, bad)}."
    return ""


def _in_backward(reference: Reference, loss: Expression) -> str:
    gradients = reference.backward(loss)
    for batch in reversed(reference.batches):
        given, taken = reference.gradients_of(batch)
        if _first(given, LARGEST) is None:
            for gradient in taken:
                if (bad := _first(gradient, LARGEST)) is not None:
                    each = len(gradient) == len(batch.rows)  # else the rows are list elements
                    where = _call(batch, bad) if each else f"cell {batch.block.cell.name!r}"
                    return f"The first such gradient comes from backward of {where}."
    named = [repr(name) for name, g in gradients.items() if not (np.abs(g) < SQUARABLE).all()]
    return f"Such gradients are those of {', '.join(named)}." if named else ""


def _call(batch: ReferenceBatch, vertex: int) -> str:
    return f"cell {batch.block.cell.name!r}, call {batch.block.calls[batch.rows[vertex]]}"


def _first(rows: NDArray[np.float64], bound: float) -> int | None:
    """Return the first row with a value that is not finite or exceeds the bound."""
    if not rows.size:
        return None
    bad = np.flatnonzero(~(np.abs(rows.reshape(len(rows), -1)) <= bound).all(axis=1))
    return int(bad[0]) if len(bad) else None
