"""Finds the last signal before every wait, and the critical path, which determines the duration of a launch."""

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
    """Yield (record of a wait, record of the last signal that it needed) if both are recorded.

    A barrier's signal and wait share one record. A wait ends when a counter reaches a target, so signal number `target`
    to this counter ends it. A signal takes effect at an unknown moment of its execution. This function assumes that
    signals take effect in the order in which they began.
    """
    script, records = timeline.plan.script, timeline.records
    opcodes = script[records["position"]] & 0xFFFF
    signals = np.flatnonzero(np.isin(opcodes, _SIGNAL))
    first = np.searchsorted(records["vp"][signals], records["vp"][signals])
    # At equal times, the n-th signals of all virtual processors precede their next signals.
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
    """A segment of the path: the activity of a virtual processor from `start` to `end` (nanoseconds)."""

    name: str
    cell: str
    vp: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The critical path of a launch. Its segments have no gaps and together last as long as the launch.

    Attributes:
        segments: segments of the path, in order of time.
        awaited: for each virtual processor, the number of others' waits that it ended by arriving last.
        delayed: for each virtual processor, the total seconds of these waits.
    """

    segments: tuple[Segment, ...]
    awaited: list[int]
    delayed: list[float]


def critical_path(timeline: Timeline) -> CriticalPath:
    """Trace the critical path of a launch back from the instruction that ended last.

    Follow its virtual processor's instructions back to a wait that another virtual processor ended. Continue with the
    other's instructions before its signal, and so on.
    """
    records, activities, of = timeline.records, timeline.activities, timeline.activity_of.tolist()
    vps, starts, ends = (records[name].tolist() for name in ("vp", "start", "end"))
    released = dict(releases(timeline))
    awaited, delayed = [0] * timeline.n_vps, [0.0] * timeline.n_vps
    for wait, signal in released.items():
        if vps[wait] != vps[signal] and starts[signal] > starts[wait]:
            awaited[vps[signal]] += 1
            delayed[vps[signal]] += (ends[wait] - starts[wait]) * 1e-9
    path: list[Segment] = []
    reached = [len(vps)] * timeline.n_vps  # earliest record of each on the path; prevents cycles at equal times
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
