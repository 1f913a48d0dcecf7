"""What a launch left in the pool: values of expressions, gradients of inputs and of parameters."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError
from vpps.model.model import Parameter
from vpps.ops.operand import Expression
from vpps.placement.distribution import Distribution, Pool
from vpps.planner.plan import Plan
from vpps.record.rows import Rows, value_ids

LONG_ROW = 64
"""Rows from so many floats on are copied one by one; of shorter ones the place of every float is found first."""


def addresses_of(plan: Plan, expression: Expression | Rows, what: str) -> NDArray[np.int64]:
    """Where in the pool its value is, or its values are. Raises GraphError: it has none there."""
    ids = np.atleast_1d(value_ids(expression))
    late = len(ids) and int(ids.max()) >= len(plan.addresses)
    addresses = np.full(1, -1) if late else plan.addresses[ids]
    if len(addresses) and int(addresses.min()) < 0:
        if plan.loss_slot < 0:
            raise GraphError(
                f"{what}: {expression!r} was not computed by the latest call, forward, or not kept: "
                "ask for it there, forward(graph, [..., expression])"
            )
        raise GraphError(
            f"{what}: {expression!r} was not computed by the latest call: it was recorded later; call fb or "
            "forward again"
        )
    return addresses


def read_rows(pool: Pool, addresses: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values that begin at some addresses, (n, ...)."""
    n, width = len(addresses), math.prod(shape)
    if not n:
        return np.zeros((0, *shape), np.float32)
    # In one piece, where it is: on a GPU every read is a copy to the host.
    first, last = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
    floats: NDArray[np.float32] = pool[first : last + width]
    offsets = addresses - first
    found: NDArray[np.float32]
    if width < LONG_ROW:
        found = floats[offsets[:, None] + np.arange(width)]
    elif (step := last - first) == (n - 1) * width and bool((offsets == np.arange(0, step + 1, width)).all()):
        found = floats.copy()  # as those of one step lie: one behind the other
    else:
        found = np.empty((n, width), np.float32)
        for row, at in enumerate(offsets.tolist()):
            found[row] = floats[at : at + width]
    return found.reshape(-1, *shape)


def input_gradient(plan: Plan, pool: Pool, expression: Expression | Rows) -> NDArray[np.float32]:
    """The loss's gradient with respect to an input, or rows of inputs (n, ...), that wanted one.

    Raises:
        GraphError: it is no such input, or the launch computed no gradients.
    """
    if plan.loss_slot < 0:
        raise GraphError("input_gradient: the latest call was forward, which computes no gradients")
    ids = np.atleast_1d(value_ids(expression))
    found = np.zeros((len(ids), *expression.shape), np.float32)
    known = np.zeros(len(ids), bool)
    for block in plan.blocks:
        view = block.cell.lowered.input_gradient
        if view is None:
            continue
        row_of = np.full(len(plan.addresses), -1)
        row_of[block.arrays.values[0][block.order]] = np.arange(len(block.order))
        rows = np.where(ids < len(row_of), row_of[np.minimum(ids, len(row_of) - 1)], -1)
        known |= rows >= 0
        learns = (rows >= 0) & (rows < block.n_needed)  # nothing flows into the others
        stride = block.cell.lowered.slabs[view.slab].width
        addresses = block.bases[0, view.slab] + rows[learns] * stride + view.offset
        found[learns] = read_rows(pool, addresses, expression.shape)
    if not known.all():
        raise GraphError(
            f"input_gradient: {expression!r} is no graph.input(array, grad=True) or graph.rows(array, grad=True)"
        )
    return found if isinstance(expression, Rows) else found[0]


def parameter_gradient(plan: Plan, pool: Pool, distribution: Distribution, p: Parameter) -> NDArray[np.float32]:
    """Dense; zeros where the loss does not depend on the parameter."""
    if p in plan.tables:
        used = plan.tables[p]
        dense = np.zeros(p.shape, np.float32)
        compact = pool[used.gradient : used.gradient + len(used.rows) * dense[0].size]
        dense[used.rows] = compact.reshape(len(used.rows), *p.shape[1:])
        return dense
    if p in plan.touched:
        return distribution.fetch(pool, p, distribution.places[p].gradient)
    return np.zeros(p.shape, np.float32)
