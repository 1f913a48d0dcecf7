"""Dropout (Srivastava et al. 2014), inverted: kept values are scaled by 1 / (1 - rate). Form DROPOUT."""

from __future__ import annotations

import numpy as np

from vpps.ops.philox import LaunchKey, random_words
from vpps.ops.table import Array, Attrs, Form, Shape, first_shape, register, size


def threshold(rate: float) -> int:
    """Return the threshold for random words: a unit is dropped if its word is below it."""
    return min(round(rate * 2**32), 2**32 - 1)


def factors(key: LaunchKey | None, attrs: Attrs, shape: Shape, draws: Array, positions: Array) -> Array:
    """Return the factor for each element of a batch: 0 or 1 / (1 - rate); 1 without a key, in inference.

    Args:
        shape: shape of a row.
        draws, positions: number of each row's vertex (`first_draw`), and its position in the vertex's list (else 0).
    """
    if key is None:
        return np.ones((len(draws), *shape))
    words = random_words(key, draws, positions, attrs["number"], size(shape))
    scaled: Array = (words >= threshold(attrs["rate"])) / (1 - attrs["rate"])
    return scaled.reshape(len(draws), *shape)


def _times(x: Array, factor: Array) -> Array:
    """Return the product, 0 wherever the factor is 0: a dropped infinity disappears."""
    return np.where(factor == 0, 0.0, x * factor)


register(
    name="dropout",
    form=Form.DROPOUT,
    arity=1,
    shape=first_shape,
    forward=lambda attrs, x, factor: _times(x, factor),
    backward=lambda attrs, xs, y, dy: (_times(dy, xs[1]), None),
    attrs=("rate", "number"),
    doc="in training, zero with probability `rate`, else x / (1 - rate); x itself in inference",
)
