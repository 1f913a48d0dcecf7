"""Timeline of one launch: the work of the virtual processors and the host, with times."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.engine.activity import Activity, activities
from vpps.errors import KernelError
from vpps.planner.native import interface
from vpps.planner.plan import Plan
from vpps.planner.reader import BARRIERS, Placed, places
from vpps.runtime.recording import Recording, Records
from vpps.script.instructions import TABLE
from vpps.text import counted

# Phases of the host's work for a launch, in order. Planning: order, memory and index lists of the graph. Encoding: its
# instructions. Waiting: for the previous launch. Launching includes growing the pool and uploading changed weights.
HOST_SPANS = ("planning", "encoding", "waiting", "launching")

WAITING, LOAD = "waiting", "load"
PHASES = (*interface.PHASES, WAITING, LOAD)

NOT_BEGUN, ENDED = "not begun", "at the end of its script"

_FORMS = np.array([i.form for i in TABLE])


class HostSpan(NamedTuple):
    """Work that the host does for the launch, from `start` to `end` (nanoseconds of `time.perf_counter_ns`)."""

    name: str
    start: int
    end: int

    @classmethod
    def between(cls, *times: int) -> tuple[HostSpan, ...]:
        """Return consecutive spans with the names in HOST_SPANS, given their boundaries."""
        return tuple(map(cls, HOST_SPANS, times, times[1:]))

    @property
    def seconds(self) -> float:
        """Duration of the span in seconds."""
        return (self.end - self.start) * 1e-9


class Idle(NamedTuple):
    """A period, in nanoseconds, during which a virtual processor had nothing to execute while others did."""

    vp: int
    why: str
    start: int
    end: int


class Timeline:
    """Timeline of one launch; see `Handle.timeline`.

    Attributes:
        plan: plan of the launch; `plan.origin(position)` describes an instruction in the user's words.
        host: the host's work before the launch.
    """

    def __init__(self, plan: Plan, recording: Recording, host: tuple[HostSpan, ...]) -> None:
        self.plan = plan
        self.host = host
        self._recording = recording

    def __repr__(self) -> str:
        instructions = counted(len(self.records), "instruction")
        return f"<vpps.Timeline of {counted(self.n_vps, 'VP')}: {instructions} in {self.duration:.3g} s>"

    @cached_property
    def records(self) -> Records:
        """One record per executed instruction, ordered by virtual processor and then by time.

        The fields are those of `vpps.runtime.recording.RECORD`. A virtual processor's records leave no gaps in time.
        """
        return self._recording.records()

    @cached_property
    def lost(self) -> list[int]:
        """Number of executed instructions, per virtual processor, whose records did not fit into memory."""
        return self._recording.lost

    @property
    def n_vps(self) -> int:
        """Number of virtual processors."""
        return len(self.lost)

    @cached_property
    def forms(self) -> NDArray[np.str_]:
        """Form of every record's instruction: Matvec, Outer, Wait ... (`vpps.script.instructions.FORMS`)."""
        opcodes = self.plan.script[self.records["position"]] & 0xFFFF
        found: NDArray[np.str_] = _FORMS[np.minimum(opcodes, len(_FORMS) - 1)]  # an unknown opcode ends a launch
        return found

    @cached_property
    def phases(self) -> NDArray[np.intp]:
        """Phase of every record, as an index into PHASES.

        Barriers are always "waiting". "load" marks instructions that bring weights onto the chip (cuda, simt).
        """
        found = np.array([PHASES.index(place.phase) for place in self._places], np.intp)[self.activity_of]
        found[np.isin(self.forms, BARRIERS)] = PHASES.index(WAITING)
        found[self.forms == "Load"] = PHASES.index(LOAD)
        return found

    @cached_property
    def activities(self) -> list[Activity]:
        """Activities of the executed instructions, in the order of the script; `activity_of` maps records to them."""
        return activities(self.plan, self._places)

    @property
    def activity_of(self) -> NDArray[np.intp]:
        """Index into `activities` for every record."""
        return self._positions[1]

    @cached_property
    def _places(self) -> list[Placed]:
        return places(self.plan, self._positions[0].tolist())

    @cached_property
    def _positions(self) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
        """Unique positions of the executed instructions, and for every record the index of its position among these."""
        return np.unique(self.records["position"], return_inverse=True)

    @cached_property
    def start(self) -> int:
        """Time when the first virtual processor began (nanoseconds)."""
        return int(self.records["start"].min())

    @cached_property
    def end(self) -> int:
        """Time when the last virtual processor ended (nanoseconds)."""
        return int(self.records["end"].max())

    @property
    def duration(self) -> float:
        """Seconds from when the first virtual processor starts until the last one ends."""
        return (self.end - self.start) * 1e-9

    def idle(self) -> list[Idle]:
        """Return the times before each virtual processor began and after it ended, ordered by virtual processor, then
        by time. Together with these, the records of each virtual processor cover the launch.
        """
        found = []
        for vp in range(self.n_vps):
            own = self.records[self.records["vp"] == vp]
            begin, end = (int(own["start"][0]), int(own["end"][-1])) if len(own) else (self.start, self.start)
            if self.start < begin:
                found.append(Idle(vp, NOT_BEGUN, self.start, begin))
            if end < self.end:
                found.append(Idle(vp, ENDED, end, self.end))
        return found

    def seconds(self) -> dict[str, NDArray[np.float64]]:
        """Return seconds per phase and virtual processor: forward, backward, gradients, update, waiting, load.

        Waiting is the time at barriers, and before a virtual processor begins and after it ends. The phases of a
        virtual processor add up to `duration`.

        Raises:
            KernelError: records are missing, so the sums would be wrong.
        """
        self.check_complete()
        vp, n = self.records["vp"], self.n_vps
        took = self.records["end"] - self.records["start"]  # whole nanoseconds, so sums of floats are exact
        found = {
            name: np.asarray(np.bincount(vp, took * (self.phases == k), n), np.float64) for k, name in enumerate(PHASES)
        }
        found[WAITING] += self.end - self.start - np.sum(list(found.values()), axis=0)
        return {name: by_vp * 1e-9 for name, by_vp in found.items()}

    def check_complete(self) -> None:
        """Raise KernelError if records are missing."""
        if any(self.lost):
            raise KernelError(
                f"the timeline lacks {sum(self.lost)} executed instructions, for which its memory had no room "
                f"(by virtual processor: {self.lost})"
            )
