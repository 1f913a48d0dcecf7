"""Who waited for whom, and the critical path of a launch: what would have had to be faster for it to end earlier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vpps.engine.timeline import Timeline
from vpps.script.instructions import BY_NAME, FORMS, HEAD_WORDS

BARRIERS = "passing barriers"
BEGINNING = "before the first instruction"
BETWEEN = "between instructions"

_SIGNAL, _WAIT = ([BY_NAME[name].opcode for name in (half, "barrier")] for half in ("signal", "wait"))
_COUNTER = HEAD_WORDS
_TARGET = HEAD_WORDS + [f.name for f in FORMS["Wait"]].index("target")


def releases(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """(record of a wait, record of the signal that was the last it needed), where both are recorded. The record of a
    barrier is of both.

    A wait ends when a counter has reached a target: with the signal to it that came as the so-many-th. Signals count at
    some moment of their execution; they are taken to do so in the order in which they began.
    """
    script, records = timeline.plan.script, timeline.records
    opcodes = script[records["position"]] & 0xFFFF
    signals = np.flatnonzero(np.isin(opcodes, _SIGNAL))
    first = np.searchsorted(records["vp"][signals], records["vp"][signals])
    # Where a clock is too coarse to tell, everybody's n-th signal comes before anybody's next one.
    order = signals[np.lexsort((np.arange(len(signals)) - first, records["start"][signals]))]
    counters = script[records["position"][order] + _COUNTER]
    by_counter = {int(c): order[counters == c] for c in np.unique(counters)}
    for wait in np.flatnonzero(np.isin(opcodes, _WAIT)).tolist():
        position = int(records["position"][wait])
        given = by_counter.get(int(script[position + _COUNTER]))
        target = int(script[position + _TARGET])
        if given is not None and 0 < target <= len(given):
            yield wait, int(given[target - 1])


class Segment(NamedTuple):
    """A stretch of the path: what a virtual processor did from `start` to `end` (nanoseconds)."""

    name: str
    cell: str
    vp: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The path, first segment first. The segments follow each other without gaps: together they last as long as the
    launch.

    Attributes:
        segments: of the path.
        awaited: for each virtual processor, at how many waits of others it was the last to come.
        delayed: seconds that these others waited, in all.
    """

    segments: tuple[Segment, ...]
    awaited: list[int]
    delayed: list[float]


def critical_path(timeline: Timeline) -> CriticalPath:
    """Walk back from the last end: through the instructions of that virtual processor to a wait that another one ended,
    on with the instructions of that one before it gave the signal, and so on."""
    records, activities, of = timeline.records, timeline.activities, timeline.activity_of.tolist()
    vps, starts, ends = (records[name].tolist() for name in ("vp", "start", "end"))
    released = dict(releases(timeline))
    awaited, delayed = [0] * timeline.n_vps, [0.0] * timeline.n_vps
    for wait, signal in released.items():
        if vps[wait] != vps[signal] and starts[signal] > starts[wait]:
            awaited[vps[signal]] += 1
            delayed[vps[signal]] += (ends[wait] - starts[wait]) * 1e-9
    path: list[Segment] = []
    reached = [len(vps)] * timeline.n_vps  # earliest record of each on the path: equal times must not lead in a circle
    k = max(range(len(ends)), key=ends.__getitem__)
    time = ends[k]
    while True:
        vp, activity = vps[k], activities[of[k]]
        reached[vp] = k
        signal = released.get(k, k)
        if vps[signal] != vp and starts[k] < starts[signal] <= time and signal < reached[vps[signal]]:
            path.append(Segment(BARRIERS, "", vp, starts[signal], time))
            k, time = signal, starts[signal]
        else:
            waits = activity.kind == "waiting"
            path.append(Segment(BARRIERS if waits else activity.name, activity.cell, vp, starts[k], time))
            time = starts[k]
        if k == 0 or vps[k - 1] != vps[k]:
            break
        k -= 1
        if ends[k] < time:
            path.append(Segment(BETWEEN, "", vps[k], ends[k], time))
            time = ends[k]
    if timeline.start < time:
        path.append(Segment(BEGINNING, "", vps[k], timeline.start, time))
    return CriticalPath(tuple(reversed(path)), awaited, delayed)
