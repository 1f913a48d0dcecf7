"""What is in the cache, for whoever wants to look at it or to clear it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vpps import locks
from vpps.errors import CompileError
from vpps.kernel.cache import entries, eviction, places
from vpps.kernel.cache.entries import DamagedError, Record, Usage


@dataclass(frozen=True, slots=True)
class Item(Usage):
    """An entry, sound or not.

    Attributes:
        record: what is known of it; None where that cannot be read.
        damage: why it would not be used; None if it is sound.
    """

    record: Record | None
    damage: str | None

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def kind(self) -> str:
        return self.record.label.kind if self.record else "unknown"


@dataclass(frozen=True, slots=True)
class CacheSummary:
    """The cache as a whole.

    Attributes:
        directory: the one that was asked for.
        refused: why it is not used or cannot be made, and what to do; None if it is.
        in_use: where entries are looked for, best first.
        items: all of them.
        limit: bytes that they may take in each place; 0 for any number.
    """

    directory: Path
    refused: str | None
    in_use: tuple[Path, ...]
    items: tuple[Item, ...]
    limit: int

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(item.size for item in self.items)


def summary() -> CacheSummary:
    """The cache as it is; it is not created. Raises CompileError: VPPS_CACHE_SIZE is no size."""
    root = places.configured()
    refused = places.why_refused(root) or places.why_refused(root / places.ENTRIES) or places.why_impossible(root)
    in_use = tuple(place for place in places.usable(create=False) if os.path.isdir(place))
    return CacheSummary(root, refused, in_use, tuple(items()), eviction.limit())


def items() -> Iterator[Item]:
    """All entries, each compared with its digests, the last used first."""
    found = []
    for place in places.usable(create=False):
        found += [item for folder in entries.folders(place) if (item := _item(folder)) is not None]
    yield from sorted(found, key=lambda item: -item.used)


def keys() -> set[str]:
    """Keys of all entries, sound or not."""
    found = (folder for place in places.usable(create=False) for folder in entries.folders(place))
    return {folder.name for folder in found if entries.usage(folder) is not None}


def _item(folder: Path) -> Item | None:
    """The entry in a folder; None if it is going just now."""
    usage = entries.usage(folder)
    if usage is None:
        return None
    record, damage = None, None
    try:
        entry = entries.read(folder)
        if entry is None:
            return None
        record = entry.record
        entries.check(entry)
    except (DamagedError, FileNotFoundError) as error:
        damage = str(error) if isinstance(error, DamagedError) else "a file of it is missing"
    return Item(folder, usage.size, usage.used, record, damage)


def remove(item: Item) -> None:
    """Remove an entry. Processes that have it loaded keep it. Raises CompileError: the directory cannot be written."""
    if not entries.discard(item.folder) and item.folder.exists():
        raise CompileError(f"{item.folder} cannot be removed: is {item.folder.parent} read-only?")


def sweep() -> None:
    """Remove what killed processes left behind."""
    for place in places.usable(create=False):
        locks.sweep(place)
    eviction.sweep_temporary()
