"""Concatenated ranges of an array's rows: CSR structures, and joining the graphs of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

compiled: Callable[[Any, Any, Any, Any, bool], bool] | None = None
"""The compiled `join`, without a list of rows; returns False if it cannot. `vpps.record.native` sets it."""


def running_sum(sizes: Ints) -> Ints:
    """Return 0, sizes[0], sizes[0] + sizes[1], ..."""
    offsets = np.empty(len(sizes) + 1, np.int64)
    offsets[0] = 0
    sizes.cumsum(0, None, offsets[1:])
    return offsets


def ragged(starts: Ints, sizes: Ints, offsets: Ints) -> Ints:
    """Return the ranges `starts[k]:starts[k] + sizes[k]`, concatenated.

    Args:
        offsets: (k + 1,) position in the result where each range begins: 0 and the running sum of `sizes`.
    """
    rows = (starts - offsets[:-1]).repeat(sizes)
    rows += np.arange(len(rows))
    return rows


def join(source: NDArray[Any], starts: Ints, sizes: Ints, total: int, shift: bool = False) -> NDArray[Any] | None:
    """Return the rows `starts[k]:starts[k] + sizes[k]` of an array, concatenated; None if NumPy must do it.

    Args:
        total: the sum of `sizes`.
        shift: True if elements are int32 children, numbered within their graph. The result row where the range begins
            is added to each non-negative element; negative elements become -1.
    """
    if compiled is None:
        return None
    to = np.empty((total, *source.shape[1:]), source.dtype)
    return to if compiled(source, starts, sizes, to, shift) else None
