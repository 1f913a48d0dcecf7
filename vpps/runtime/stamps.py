"""Timelines of thread blocks: stamps in cycles of many clocks, made into records on the host's clock.

The memory that a launch writes begins with a track for every virtual processor; then come their first stamps, side by
side, their second ones, and so on. Mirrors templates/cuda/timeline.cuh.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpps.ops.element import WORD_BYTES
from vpps.runtime.recording import RECORD, Recording, Records

# Where an instruction begins, and the one before it ends: when, by the multiprocessor's clock; its place in the script;
# floats that the one before has moved.
STAMP = np.dtype([("cycles", "i8"), ("position", "u4"), ("floats", "u4")])

# One moment by two clocks: that of the GPU, which all multiprocessors share, and that of the multiprocessor.
_CLOCKS = np.dtype([("nanoseconds", "i8"), ("cycles", "i8")])
TRACK = np.dtype({"names": ["begun", "ended", "stamps"], "formats": [_CLOCKS, _CLOCKS, "i8"], "itemsize": 128})

Words = NDArray[np.uint32]


class StampedRecording(Recording):
    """The records of one launch, made of stamps."""

    def __init__(self, n_vps: int, capacity: int) -> None:
        self.n_vps = n_vps
        self.capacity = capacity
        self.room = capacity + 1  # in stamps: the end of a launch is one, too
        self._tracks = np.zeros(n_vps, TRACK)
        self._stamps = np.zeros((0, n_vps), STAMP)
        self._offset = 0

    @property
    def words(self) -> int:
        """Size of the memory."""
        return (self.track_bytes + self.room * self.n_vps * STAMP.itemsize) // WORD_BYTES

    @property
    def track_bytes(self) -> int:
        """Bytes of the tracks, which must be zero before a launch."""
        return self.n_vps * TRACK.itemsize

    def used_bytes(self, tracks: Words) -> int:
        """Bytes of the memory that a launch wrote to, tracks and stamps, by what it left in the tracks."""
        written = int(tracks.view(TRACK)["stamps"].max())
        return self.track_bytes + min(written, self.room) * self.n_vps * STAMP.itemsize

    def fill(self, memory: Words) -> None:
        """Take what a launch left in memory, all of it or what it wrote to."""
        end = self.track_bytes // WORD_BYTES
        self._tracks = memory[:end].view(TRACK)
        self._stamps = memory[end:].view(STAMP).reshape(-1, self.n_vps)

    def align(self, offset: int) -> None:
        """The host's time is the GPU's plus so many nanoseconds."""
        self._offset = offset

    @property
    def span(self) -> tuple[int, int] | None:
        """From the first beginning to the last end, by the GPU's clock. None if the launch did nothing."""
        there = self._tracks[self._tracks["stamps"] > 0]
        if not len(there):
            return None
        return int(there["begun"]["nanoseconds"].min()), int(there["ended"]["nanoseconds"].max())

    @cached_property
    def lost(self) -> list[int]:
        return [max(0, n - 1 - self.capacity) for n in self._tracks["stamps"].tolist()]

    def records(self) -> Records:
        return np.concatenate([self._of(vp)[: self.capacity] for vp in range(self.n_vps)])

    def _of(self, vp: int) -> Records:
        """Those of one virtual processor."""
        track = self._tracks[vp]
        stamps = self._stamps[: track["stamps"], vp]
        times = _nanoseconds(stamps["cycles"], track["begun"], track["ended"]) + self._offset
        records = np.zeros(max(0, len(stamps) - 1), RECORD)
        records["start"], records["end"] = times[:-1], times[1:]
        records["bytes"] = WORD_BYTES * stamps["floats"][1:].astype(np.uint64)
        records["position"] = stamps["position"][:-1]
        records["vp"] = vp
        return records


def _nanoseconds(cycles: NDArray[np.int64], begun: np.void, ended: np.void) -> NDArray[np.int64]:
    """The GPU's time at some moments of a launch, whose beginning and end both clocks have seen.

    The rate is that of the whole launch: a multiprocessor that changes it meanwhile shifts what lies between.
    """
    passed = int(ended["cycles"]) - int(begun["cycles"])
    rate = (int(ended["nanoseconds"]) - int(begun["nanoseconds"])) / passed if passed > 0 else 0.0
    since = np.rint((cycles - begun["cycles"]) * rate).astype(np.int64)
    found: NDArray[np.int64] = since + begun["nanoseconds"]
    return found


class SharedClock:
    """How far the host's clock is ahead of a GPU's, found out from launches alone.

    A launch begins after the host asked for it, and ends before the host sees that. The tightest of all such bounds
    holds until one contradicts it: the two clocks drift apart by some microseconds a second.
    """

    def __init__(self) -> None:
        self._least = self._most = 0
        self._known = False

    def offset(self, begun: int, ended: int, asked: int, seen: int) -> int:
        """Nanoseconds to add to the GPU's time.

        Args:
            begun, ended: of a launch, by the GPU's clock.
            asked, seen: when the host asked for it, and when it saw the end.
        """
        least, most = asked - begun, seen - ended
        if self._known and max(least, self._least) <= min(most, self._most):
            least, most = max(least, self._least), min(most, self._most)
        self._least, self._most, self._known = least, most, True
        return least
