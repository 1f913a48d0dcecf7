"""Reads results of a launch from the pool: expression values and input gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import GraphError
from vpps.ops.operand import Expression
from vpps.placement.distribution import ZERO, Pool
from vpps.planner.native.interface import NOWHERE
from vpps.planner.plan import Plan
from vpps.record.rows import Rows, value_ids

_NOWHERE = np.array([NOWHERE], np.uint32)


def addresses_of(plan: Plan, expression: Expression | Rows, what: str) -> NDArray[np.uint32]:
    """Return the pool addresses of an expression's values. Raises GraphError if they are not in the pool."""
    try:
        addresses = places_of(plan, expression)
    except IndexError:  # recorded after the plan was made
        addresses = _NOWHERE
    if len(addresses) and int(np.maximum.reduce(addresses)) == NOWHERE:
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


def places_of(plan: Plan, expression: Expression | Rows) -> NDArray[np.uint32]:
    """Return the pool addresses of an expression's values, without a check."""
    return plan.places.take(expression.ids if isinstance(expression, Rows) else (expression.ref,))


def read_value(pool: Pool, addresses: NDArray[np.uint32], expression: Expression | Rows) -> NDArray[np.float32]:
    """Return a copy of an expression's value at these addresses; for rows, of all their values, (n, ...)."""
    found = read_rows(pool, addresses, expression.shape)
    return found if isinstance(expression, Rows) else found.reshape(expression.shape)


def read_rows(pool: Pool, addresses: NDArray[np.integer[Any]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the values at some addresses, (n, ...)."""
    n, width = len(addresses), math.prod(shape)
    if not n:
        return np.zeros((0, *shape), np.float32)
    # Read in one piece if possible: on a GPU, every read is a copy to the host.
    first, last = int(addresses[0]), int(addresses[-1])
    found: NDArray[np.float32]
    in_order = last - first == (n - 1) * width
    if in_order and addresses.tobytes() == np.arange(first, last + 1, width, dtype=addresses.dtype).tobytes():
        found = pool[first : last + width].copy()  # values of one step are contiguous
    else:  # read pieces of the greatest length that divides both rows and gaps
        first, last = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        offsets = addresses - first
        piece = int(np.gcd.reduce(offsets, initial=width))
        pieces = pool[first : last + width].reshape(-1, piece)
        found = pieces.take((offsets // piece)[:, None] + np.arange(width // piece), axis=0)
    return found.reshape(n, *shape)


def gradient_addresses(plan: Plan, expression: Expression | Rows) -> NDArray[np.int64]:
    """Return the addresses of the gradients of an input, or of rows of inputs; ZERO if no gradient flows there.

    Raises:
        GraphError: the expression is not an input, recorded with `grad=True`.
    """
    ids = np.atleast_1d(value_ids(expression))
    address_of = np.full(max(len(plan.places), int(ids.max(initial=0)) + 1), -1)
    address_of[plan.input_gradients[:, 0]] = plan.input_gradients[:, 1]
    addresses: NDArray[np.int64] = address_of[ids]
    if (addresses < 0).any():
        raise GraphError(
            f"input_gradient: {expression!r} is not a graph.input(array, grad=True) or graph.rows(array, grad=True)"
        )
    return addresses


def input_gradient(plan: Plan, pool: Pool, expression: Expression | Rows) -> NDArray[np.float32]:
    """Return the loss's gradient with respect to an input, or rows of inputs (n, ...), recorded with `grad=True`.

    Raises:
        GraphError: the expression is not such an input.
    """
    addresses = gradient_addresses(plan, expression)
    found = np.zeros((len(addresses), *expression.shape), np.float32)
    learns = addresses != ZERO  # other gradients are zero
    found[learns] = read_rows(pool, addresses[learns], expression.shape)
    return found if isinstance(expression, Rows) else found[0]
