"""Timelines of thread blocks: converts time stamps of each multiprocessor's clock into records on the host's clock.

A launch writes memory that begins with one track per virtual processor. The first stamps of all virtual processors
follow, then their second stamps, and so on. Mirrors templates/cuda/timeline.h.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpps.ops.element import WORD_BYTES
from vpps.runtime.recording import RECORD, Recording, Records

# A stamp, at the start of an instruction and the end of the previous one: time on the multiprocessor's clock;
# position of the instruction in the script; number of floats that the previous instruction read and wrote.
STAMP = np.dtype([("cycles", "i8"), ("position", "u4"), ("floats", "u4")])

# One moment on two clocks: the GPU's, which all multiprocessors share, and the multiprocessor's own.
_CLOCKS = np.dtype([("nanoseconds", "i8"), ("cycles", "i8")])
TRACK = np.dtype({"names": ["begun", "ended", "stamps"], "formats": [_CLOCKS, _CLOCKS, "i8"], "itemsize": 128})

Words = NDArray[np.uint32]


class StampedRecording(Recording):
    """The records of one launch, computed from stamps."""

    def __init__(self, n_vps: int, capacity: int) -> None:
        self.n_vps = n_vps
        self.capacity = capacity
        self.room = capacity + 1  # number of stamps: the end of a launch is also stamped
        self._tracks = np.zeros(n_vps, TRACK)
        self._stamps = np.zeros((0, n_vps), STAMP)
        self._offset = 0

    @property
    def words(self) -> int:
        """Size of the memory in words."""
        return (self.track_bytes + self.room * self.n_vps * STAMP.itemsize) // WORD_BYTES

    @property
    def track_bytes(self) -> int:
        """Bytes of the tracks, which must be zero before a launch."""
        return self.n_vps * TRACK.itemsize

    def used_bytes(self, tracks: Words) -> int:
        """Return the number of bytes that a launch wrote, tracks and stamps, according to its tracks."""
        written = int(tracks.view(TRACK)["stamps"].max())
        return self.track_bytes + min(written, self.room) * self.n_vps * STAMP.itemsize

    def fill(self, memory: Words) -> None:
        """Take over the memory that a launch wrote; the unwritten rest may be missing."""
        end = self.track_bytes // WORD_BYTES
        self._tracks = memory[:end].view(TRACK)
        self._stamps = memory[end:].view(STAMP).reshape(-1, self.n_vps)

    def align(self, offset: int) -> None:
        """Set the nanoseconds by which the host's clock is ahead of the GPU's."""
        self._offset = offset

    @property
    def span(self) -> tuple[int, int] | None:
        """Earliest start and latest end, on the GPU's clock. None if the launch did nothing."""
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
        """Return the records of one virtual processor."""
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
    """Convert cycles to the GPU's time, from the readings of both clocks at the start and end of a launch.

    This assumes a constant clock rate; if it changes during the launch, the times in between are shifted.
    """
    passed = int(ended["cycles"]) - int(begun["cycles"])
    rate = (int(ended["nanoseconds"]) - int(begun["nanoseconds"])) / passed if passed > 0 else 0.0
    since = np.rint((cycles - begun["cycles"]) * rate).astype(np.int64)
    found: NDArray[np.int64] = since + begun["nanoseconds"]
    return found


class SharedClock:
    """Estimates the offset between the host's clock and a GPU's from launch times only.

    A launch begins after the host has requested it, and ends before the host notices the end. The tightest bounds are
    kept until a launch contradicts them: the two clocks drift apart by some microseconds a second.
    """

    def __init__(self) -> None:
        self._least = self._most = 0
        self._known = False

    def offset(self, begun: int, ended: int, asked: int, seen: int) -> int:
        """Return the nanoseconds to add to the GPU's time.

        Args:
            begun, ended: start and end of a launch on the GPU's clock.
            asked, seen: times on the host's clock when it requested the launch and noticed the end.
        """
        least, most = asked - begun, seen - ended
        if self._known and max(least, self._least) <= min(most, self._most):
            least, most = max(least, self._least), min(most, self._most)
        self._least, self._most, self._known = least, most, True
        return least
