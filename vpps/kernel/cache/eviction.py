"""Limits the cache's size: the least recently used entries are removed first."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from vpps import locks
from vpps.config import CACHE_SIZE
from vpps.errors import CompileError
from vpps.kernel.cache import entries

_log = logging.getLogger(__name__)

IN_USE = 600.0  # seconds after its last use during which an entry is kept: a process may be about to load it
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def limit() -> int:
    """Maximum bytes of all entries; 0: no limit. Raises CompileError if VPPS_CACHE_SIZE is not a size."""
    text = CACHE_SIZE.get()
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise CompileError(f"{CACHE_SIZE.name}={text}: expected a size such as 500M or 2G, or 0 for no limit")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def make_room(place: Path, keep: Path) -> None:
    """Remove the least recently used entries until the remaining entries fit into the limit.

    Keeps `keep`, and entries used in the last ten minutes, even if they exceed the limit. Also removes leftovers of
    killed processes.
    """
    locks.sweep(place)
    most = limit()
    if not most:
        return
    found = sorted(entries.usages(place), key=lambda usage: usage.used)
    total, recent = sum(usage.size for usage in found), time.time() - IN_USE
    for usage in found:
        if total <= most or usage.used > recent:
            break
        if usage.folder != keep and entries.discard(usage.folder):
            _log.info("%s was removed: %s may hold %d bytes", usage.folder.name, place, most)
        total -= usage.size
