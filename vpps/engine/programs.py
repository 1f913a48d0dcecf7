"""Tracks the programs that a handle knows. Tables of programs only grow, so the handle sometimes starts new tables;
otherwise short-lived programs (for one shape, static keyword or batch) would fill memory. Results do not change.
"""

from __future__ import annotations

from collections.abc import Collection

from vpps.record.trace import TracedCell, digest_of

LEAST = 256
"""Number of programs that a handle may know before it starts new tables."""

MOST = 4096
"""Upper bound of that number. It doubles when most of the forgotten programs come back."""


class KnownPrograms:
    """The programs that a handle has seen since its tables were started, and digests of earlier ones."""

    def __init__(self) -> None:
        self._known: set[TracedCell] = set()
        self._most = LEAST
        self._digests: set[str] = set()
        self._returned: list[bool] = []  # for each of the latest programs: True if it was known before

    def note(self, programs: Collection[TracedCell]) -> bool:
        """Add a graph's programs. Return True if there are too many: the caller must then start new tables."""
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
