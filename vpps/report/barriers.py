"""Who waited for whom: the signal that ended each wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vpps.engine.timeline import Timeline
from vpps.planner.reader import executions
from vpps.script.instructions import BY_NAME, COUNTERS, FORMS, HEAD_WORDS

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
    # Where a plan takes two launches of its script, the second one counts anew.
    second = min((x.entry for x in executions(timeline.plan) if x.launch > 1), default=len(script))
    counters = script[records["position"][order] + _COUNTER] + COUNTERS * (records["position"][order] >= second)
    by_counter = {int(c): order[counters == c] for c in np.unique(counters)}
    for wait in np.flatnonzero(np.isin(opcodes, _WAIT)).tolist():
        position = int(records["position"][wait])
        given = by_counter.get(int(script[position + _COUNTER]) + COUNTERS * (position >= second))
        target = int(script[position + _TARGET])
        if given is not None and 0 < target <= len(given):
            yield wait, int(given[target - 1])
