"""The programs that a handle knows. Its tables of them only grow, so it starts new tables at times: programs that come
and go (a shape, a static keyword, a cell of each batch's own) would fill the memory. Results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Collection

from vpps.record.trace import TracedCell, digest_of

LEAST = 256
"""Programs that a handle may know before tables are begun anew."""

MOST = 4096
"""If most programs come back after they were forgotten, twice as many are kept, up to this many."""


class KnownPrograms:
    """The programs of a handle's graphs since tables were begun anew, and digests of earlier ones."""

    def __init__(self) -> None:
        self._known: set[TracedCell] = set()
        self._most = LEAST
        self._digests: set[str] = set()
        self._returned: list[bool] = []  # of the latest programs, whether each was known before

    def note(self, programs: Collection[TracedCell]) -> bool:
        """Note those of a graph. Returns True if there are too many: the caller starts new tables before it plans."""
        known = self._known
        if known.issuperset(programs):
            return False
        self._returned += [digest_of(p) in self._digests for p in programs if p not in known]
        known.update(programs)
        if len(known) <= self._most:
            return False
        too_early = self._most < MOST and 2 * sum(self._returned) > len(self._returned)
        self._returned.clear()
        if too_early:
            self._most = 2 * len(known)
            return False
        if len(self._digests) > MOST:
            self._digests.clear()
        self._digests.update(map(digest_of, known))
        self._known = set(programs)
        return True
