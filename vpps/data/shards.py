"""A mini-batch divided among shards, so that all have about as much to do."""

from __future__ import annotations

from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray


def shards_of(work: NDArray[np.int64], shards: int) -> NDArray[np.int64]:
    """Which shard each item goes to: the longest first, each to the shard that has least (Graham 1969, "Bounds on
    multiprocessing timing anomalies": the largest sum is at most 4/3 - 1/(3 shards) of the least possible).

    It follows from the arguments alone: of equal items the first goes first, of equal shards the first is taken. No
    shard is empty where there are as many items.

    Args:
        work: (n,) of every item, at least 1.
        shards: how many there are.
    """
    shard = np.empty(len(work), np.int64)
    heap = [(0, k) for k in range(shards)]
    order = np.argsort(-work, kind="stable")
    for item, own in zip(order.tolist(), work[order].tolist(), strict=True):
        load, k = heap[0]
        shard[item] = k
        heapreplace(heap, (load + own, k))
    return shard
