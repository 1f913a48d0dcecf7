"""Deals the eager part of a recurrence to the pauses between its levels (Cavs, section 4.3, streaming).

What is eager could all run before the first level, while the recurrence waits. But only the first levels need their
share of it then. The rest goes, in chunks that keep instructions long, to where virtual processors wait for each other:
a chunk for level l and those after it is executed between the signal and the wait of the barrier that ends level l - 2,
and so is complete, for everyone, behind the barrier that ends level l - 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

CHUNK_ROWS = 128  # at least; enough for products at full speed on every target
BEFORE = -1  # the first chunk runs before level 0


def pauses(level: Ints) -> Ints:
    """For each vertex of an eager part, the level in whose pause it runs, or BEFORE.

    Args:
        level: of each vertex, from 0.
    """
    rows = np.bincount(level)
    pause_of_level = np.full(len(rows), BEFORE, np.int64)
    pause, done = BEFORE, 0
    for at, n in enumerate(rows.tolist()):
        if at >= 2 and done >= CHUNK_ROWS:
            pause, done = at - 2, 0
        pause_of_level[at] = pause
        done += n
    if 0 < done < CHUNK_ROWS and pause != BEFORE:  # too few for a chunk of their own
        chunks = np.unique(pause_of_level)
        pause_of_level[pause_of_level == pause] = chunks[-2]
    found: Ints = pause_of_level[level]
    return found
