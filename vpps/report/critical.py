"""The critical path of a launch: what would have had to be faster for the launch to end earlier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vpps.engine.timeline import Timeline
from vpps.report.barriers import releases

BARRIERS = "passing barriers"
BEGINNING = "before the first instruction"
BETWEEN = "between instructions"


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
