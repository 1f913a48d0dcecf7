"""Attention: the mean of some values, weighted by how well their keys fit a query."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import vpps

Score = Callable[[vpps.Expression, vpps.Expression], vpps.Expression]


def scaled_dot(query: vpps.Expression, key: vpps.Expression) -> vpps.Expression:
    """Inner product of two vectors, over the square root of their length (Vaswani et al. 2017, section 3.2.1)."""
    return vpps.dot(query, key) * (1 / math.sqrt(query.shape[0]))


def attend(
    query: vpps.Expression,
    keys: Sequence[vpps.Expression],
    values: Sequence[vpps.Expression],
    score: Score = scaled_dot,
) -> vpps.Expression:
    """Σ_k w_k value_k, with w the softmax over k of score(query, key_k).

    For use inside cells, on list arguments of any length (an empty one gives zeros), and on Python lists of expressions
    (not empty).

    Args:
        keys, values: of equal length; may be the same list.
        score: gives a scalar; a function of the cell's parameters for the other kinds of attention, such as
            `lambda q, k: vpps.bilinear(q, W, k)` or `lambda q, k: vpps.dot(v, vpps.tanh(W @ q + U @ k))`
            (Bahdanau et al. 2015).

    Raises:
        ShapeError: the lists have different lengths, or shapes do not fit.
    """
    weights = vpps.softmax(vpps.each(lambda key: score(query, key), keys))
    return vpps.sum(vpps.each(lambda weight, value: weight * value, weights, values))
