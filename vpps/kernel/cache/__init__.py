"""The cache of compiled kernels on disk: keyed by content, private to the user.

`obtain.py` finds a binary or has it made, once for all processes that want it. `entries.py` is what an entry is on
disk: complete or absent at any time. `places.py` says in which directory, and in which other one if that cannot be
trusted or written. `eviction.py` keeps the limit. Locks are those of `vpps/locks.py`, which die with their process.
"""

from vpps.kernel.cache.entries import Entry, Label
from vpps.kernel.cache.obtain import BinaryRequest, cached, key_of, load_library, loaded, obtain, read_binary

__all__ = [
    "BinaryRequest",
    "Entry",
    "Label",
    "cached",
    "key_of",
    "load_library",
    "loaded",
    "obtain",
    "read_binary",
]
