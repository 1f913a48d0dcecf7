"""How the pool of a machine grows, and how far."""

from __future__ import annotations

import os

from vpps.errors import CapacityError
from vpps.ops.element import WORD_BYTES
from vpps.runtime.machine import Machine

MAX_POOL_FLOATS = 2**32  # addresses are 32-bit element offsets
_GROWTH = 1.25  # the pool grows by at least a quarter, so that growing batches do not copy it every time


def half_of_memory() -> int:
    """Half of the machine's memory, in bytes, and no more than addresses reach."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        memory = 8 * 2**30
    return min(memory // 2, WORD_BYTES * MAX_POOL_FLOATS)


def grow(machine: Machine, floats: int, keep: int, pool_limit: int) -> None:
    """Make the pool at least `floats` long, keeping its first `keep` floats.

    Args:
        pool_limit: bytes that it may grow to.

    Raises:
        CapacityError: that is not enough.
    """
    if floats <= len(machine.pool):
        return
    limit = min(pool_limit // WORD_BYTES, MAX_POOL_FLOATS)
    if floats > limit:
        reach = " (addresses reach no further)" if limit == MAX_POOL_FLOATS else "; raise pool_limit="
        raise CapacityError(
            f"the graph needs a pool of {floats * WORD_BYTES / 2**20:.1f} MiB and it may grow to "
            f"{limit * WORD_BYTES / 2**20:.1f} MiB{reach}, or use smaller batches"
        )
    machine.reserve(min(max(floats, int(len(machine.pool) * _GROWTH)), limit), keep)
