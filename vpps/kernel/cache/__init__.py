"""Disk cache of compiled kernels, keyed by content and private to the user.

`obtain.py` finds a binary, or builds it once for all processes that need it. `entries.py` defines entries on disk,
which are either complete or absent at any time. `places.py` chooses the directory, and a fallback if it is untrusted or
not writable. `eviction.py` enforces the size limit. Locks come from `vpps/locks.py`; a lock ends with its process.
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
