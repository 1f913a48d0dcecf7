"""Timeline: what the virtual processors and the host did for one launch, and where the time went."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.engine.activity import Activity, activities
from vpps.errors import KernelError
from vpps.planner.plan import Plan
from vpps.planner.reader import BARRIERS, Placed, places
from vpps.planner.sections import Phase
from vpps.runtime.recording import Recording, Records
from vpps.script.instructions import TABLE
from vpps.text import counted

# What the host does for a launch, in this order: order, memory and index lists of the graph; its instructions; waiting
# for the launch before; a larger pool if it takes one, and weights that the model changed.
HOST_SPANS = ("planning", "encoding", "waiting", "launching")

WAITING, LOAD = "waiting", "load"
PHASES = (*(phase.value for phase in Phase), WAITING, LOAD)

NOT_BEGUN, ENDED = "not begun", "at the end of its script"

_FORMS = np.array([i.form for i in TABLE])


class HostSpan(NamedTuple):
    """Something that the host did for the launch, from `start` to `end` (nanoseconds of `time.perf_counter_ns`)."""

    name: str
    start: int
    end: int

    @classmethod
    def between(cls, *times: int) -> tuple[HostSpan, ...]:
        """The spans of HOST_SPANS, one after the other."""
        return tuple(map(cls, HOST_SPANS, times, times[1:]))

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.start) * 1e-9


class Idle(NamedTuple):
    """When a virtual processor had nothing to execute while others did, in nanoseconds."""

    vp: int
    why: str
    start: int
    end: int


class Timeline:
    """One launch; made by `Handle.timeline`.

    Attributes:
        plan: of the launch; `plan.origin(position)` is an instruction in the user's words.
        host: what the host did before it.
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
        """A record for every executed instruction, by virtual processor and then in order.

        Its fields are those of `vpps.runtime.recording.RECORD`. A virtual processor begins one where another has ended.
        """
        return self._recording.records()

    @cached_property
    def lost(self) -> list[int]:
        """For each virtual processor, executed instructions whose record found no room."""
        return self._recording.lost

    @property
    def n_vps(self) -> int:
        """Number of virtual processors."""
        return len(self.lost)

    @cached_property
    def forms(self) -> NDArray[np.str_]:
        """Form of every record's instruction: Matvec, Outer, Wait ... (`vpps.script.instructions.FORMS`)."""
        opcodes = self.plan.script[self.records["position"]] & 0xFFFF
        found: NDArray[np.str_] = _FORMS[np.minimum(opcodes, len(_FORMS) - 1)]  # one that does not exist ends a launch
        return found

    @cached_property
    def phases(self) -> NDArray[np.intp]:
        """Phase of every record, as an index into PHASES.

        Barriers are "waiting", whatever they separate; "load" is what takes weights onto the chip (cuda, simt).
        """
        found = np.array([PHASES.index(place.phase) for place in self._places], np.intp)[self.activity_of]
        found[np.isin(self.forms, BARRIERS)] = PHASES.index(WAITING)
        found[self.forms == "Load"] = PHASES.index(LOAD)
        return found

    @cached_property
    def activities(self) -> list[Activity]:
        """What the executed instructions are for, in the order of the script; `activity_of` says which is whose."""
        return activities(self.plan, self._places)

    @property
    def activity_of(self) -> NDArray[np.intp]:
        """Number of every record's activity in `activities`."""
        return self._positions[1]

    @cached_property
    def _places(self) -> list[Placed]:
        return places(self.plan, self._positions[0].tolist())

    @cached_property
    def _positions(self) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
        """Positions of the executed instructions, each once, and for every record which of them is its own."""
        return np.unique(self.records["position"], return_inverse=True)

    @cached_property
    def start(self) -> int:
        """When the first virtual processor began (nanoseconds)."""
        return int(self.records["start"].min())

    @cached_property
    def end(self) -> int:
        """When the last one ended (nanoseconds)."""
        return int(self.records["end"].max())

    @property
    def duration(self) -> float:
        """Seconds from the first beginning to the last end."""
        return (self.end - self.start) * 1e-9

    def idle(self) -> list[Idle]:
        """When virtual processors had not begun yet, or had come to the end of their script; by virtual processor, in
        order of time. With these the records of each cover the launch.
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
        """Seconds of every virtual processor by phase: forward, backward, gradients, update, waiting, load.

        Waiting is the time at barriers, before the own beginning and after the own end: the phases of a virtual
        processor add up to `duration`.

        Raises:
            KernelError: records are missing, so that the sums would mean nothing.
        """
        self.check_complete()
        vp, n = self.records["vp"], self.n_vps
        took = self.records["end"] - self.records["start"]  # whole nanoseconds, which sums of floats keep exact
        found = {
            name: np.asarray(np.bincount(vp, took * (self.phases == k), n), np.float64) for k, name in enumerate(PHASES)
        }
        found[WAITING] += self.end - self.start - np.sum(list(found.values()), axis=0)
        return {name: by_vp * 1e-9 for name, by_vp in found.items()}

    def check_complete(self) -> None:
        """Raises KernelError if records are missing."""
        if any(self.lost):
            raise KernelError(
                f"the timeline lacks {sum(self.lost)} executed instructions, for which its memory had no room "
                f"(by virtual processor: {self.lost})"
            )
