"""Attention: a mean of values, weighted by the scores of their keys for a query."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import vpps

Score = Callable[[vpps.Expression, vpps.Expression], vpps.Expression]


def scaled_dot(query: vpps.Expression, key: vpps.Expression) -> vpps.Expression:
    """Return two vectors' inner product, divided by the square root of their length (Vaswani et al. 2017, 3.2.1)."""
    return vpps.dot(query, key) * (1 / math.sqrt(query.shape[0]))


def attend(
    query: vpps.Expression,
    keys: Sequence[vpps.Expression],
    values: Sequence[vpps.Expression],
    score: Score = scaled_dot,
) -> vpps.Expression:
    """Return Σ_k w_k value_k, with w the softmax over k of score(query, key_k).

    Call it inside cells, on list arguments of any length (an empty list gives zeros), or on nonempty Python lists of
    expressions.

    Args:
        keys, values: lists of equal length, or one list for both.
        score: function that returns a scalar. For other kinds of attention, it can use the cell's parameters, as in
            `lambda q, k: vpps.bilinear(q, W, k)` or `lambda q, k: vpps.dot(v, vpps.tanh(W @ q + U @ k))`
            (Bahdanau et al. 2015).

    Raises:
        ShapeError: the lists have different lengths, or shapes do not fit.
    """
    weights = vpps.softmax(vpps.each(lambda key: score(query, key), keys))
    return vpps.sum(vpps.each(lambda weight, value: weight * value, weights, values))
