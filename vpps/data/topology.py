"""Ranges of rows of many graphs at once, in flat arrays. Levels: `vpps.record.levels`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ragged(starts: NDArray[np.int64], sizes: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ranges `starts[k]:starts[k] + sizes[k]` one after the other.

    Args:
        offsets: (k + 1,) where each range begins in the result: 0 and the running sum of `sizes`.
    """
    rows = (starts - offsets[:-1]).repeat(sizes)
    rows += np.arange(len(rows))
    return rows


def running_sum(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, sizes[0], sizes[0] + sizes[1], ..."""
    offsets = np.empty(len(sizes) + 1, np.int64)
    offsets[0] = 0
    sizes.cumsum(0, None, offsets[1:])
    return offsets
