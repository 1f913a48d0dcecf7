"""Writes timelines in the trace-event format (JSON), for ui.perfetto.dev.

A process "vpps TARGET" has a thread for the host, one for launches, one for their critical path (`critical.py`), and
one per virtual processor. Instructions are complete events (`ph` X). Waits are events of a separate category, and
include the time before a virtual processor's first and after its last instruction. So its events cover the whole
launch, and so do the events of the critical path. Arrows (flows) lead from the last virtual processor at a barrier to
the next event of those that waited for it. A counter shows the number of working virtual processors.

The format is the Chromium project's "Trace Event Format". Times are microseconds, with nanosecond resolution.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from vpps.engine.activity import Activity
from vpps.engine.timeline import Timeline
from vpps.files import replacing
from vpps.report.critical import critical_path, releases

Event = dict[str, Any]

PROCESS = 1
HOST, LAUNCHES, PATH, FIRST_VP = 1, 2, 3, 4
"""Thread numbers. Thread 0 is not used because readers treat it as an idle thread."""


def write_perfetto(path: str | Path, timelines: Sequence[Timeline], target: str) -> None:
    """Write launches to a file. The file appears complete or not at all.

    Raises:
        KernelError: a timeline lacks records.
        OSError: the file cannot be written.
    """
    facts = json.dumps({"producer": "vpps", "target": target})
    with replacing(Path(path)) as new, open(new, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f'{{"displayTimeUnit":"ns","otherData":{facts},"traceEvents":[')
        for k, event in enumerate(events(timelines, target)):
            file.write(",\n" if k else "\n")
            json.dump(event, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n]}\n")


def events(timelines: Sequence[Timeline], target: str) -> Iterator[Event]:
    """Yield all events, one launch after another."""
    yield from _names(max((t.n_vps for t in timelines), default=0), target)
    zero = min((min(t.start, *(span.start for span in t.host)) for t in timelines), default=0)
    flows = count(1)
    for number, timeline in enumerate(timelines, 1):
        timeline.check_complete()
        for span in timeline.host:
            yield _complete(span.name, "host", HOST, span.start - zero, span.end - zero, {"launch": number})
        yield from _launch(timeline, number, zero)
        yield from _arrows(timeline, zero, flows)
        yield from _counter(timeline, zero)


def _names(n_vps: int, target: str) -> Iterator[Event]:
    """Yield metadata: names of the process and its threads, and the order of threads."""
    yield _metadata("process_name", HOST, name=f"vpps {target}")
    named = [(HOST, "host"), (LAUNCHES, "launches"), (PATH, "critical path")]
    named += [(FIRST_VP + vp, f"VP {vp}") for vp in range(n_vps)]
    for thread, name in named:
        yield _metadata("thread_name", thread, name=name)
        yield _metadata("thread_sort_index", thread, sort_index=thread)


def _metadata(what: str, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": args}


def _complete(name: str, category: str, thread: int, start: int, end: int, args: Event) -> Event:
    """Return a complete event; start and end are nanoseconds since the start of the file."""
    return {
        "ph": "X", "name": name, "cat": category, "pid": PROCESS, "tid": thread, "ts": microseconds(start),
        "dur": microseconds(end - start), "args": args,
    }  # fmt: skip


def microseconds(nanoseconds: int) -> float:
    """Convert to microseconds. Their decimal form is exact for traces shorter than three months."""
    return nanoseconds / 1000


def _launch(timeline: Timeline, number: int, zero: int) -> Iterator[Event]:
    """Yield the events of the whole launch, of its critical path and of every virtual processor."""
    begin, end = timeline.start - zero, timeline.end - zero
    facts = {"instructions": len(timeline.records), "barriers": timeline.plan.n_barriers}
    yield _complete(f"launch {number}", "launch", LAUNCHES, begin, end, facts)
    for s in critical_path(timeline).segments:
        where = {"launch": number, "VP": s.vp} | ({"cell": s.cell} if s.cell else {})
        yield _complete(s.name, "critical path", PATH, s.start - zero, s.end - zero, where)
    args = [_args(activity, number) for activity in timeline.activities]
    records, of = timeline.records, timeline.activity_of.tolist()
    columns = (records[name].tolist() for name in ("vp", "start", "end", "bytes"))
    for k, (vp, start, stop, n_bytes) in enumerate(zip(*columns, strict=True)):
        activity = timeline.activities[of[k]]
        category = "wait" if activity.kind == "waiting" else activity.phase
        shown = args[of[k]] | {"bytes": n_bytes}
        yield _complete(activity.name, category, FIRST_VP + vp, start - zero, stop - zero, shown)
    for idle in timeline.idle():
        begin, end = idle.start - zero, idle.end - zero
        yield _complete(idle.why, "wait", FIRST_VP + idle.vp, begin, end, {"launch": number})


def _args(activity: Activity, launch: int) -> Event:
    """Return the details that a click on an event shows."""
    found: Event = {"launch": launch, "phase": activity.phase, "instruction": activity.instruction}
    if activity.cell:
        found["cell"] = activity.cell
    if activity.stage >= 0:
        found["stage"] = activity.stage
    if activity.width:
        found |= {"rows": activity.rows, "width": activity.width}
    return found | {"position": activity.position, "what": activity.words}


def _arrows(timeline: Timeline, zero: int, flows: Iterator[int]) -> Iterator[Event]:
    """Yield arrows from the last signal of a barrier to the next event of each virtual processor that waited."""
    records = timeline.records
    for wait, signal in releases(timeline):
        came, left = int(records["start"][signal]), int(records["end"][wait])
        if records["vp"][wait] == records["vp"][signal] or came <= records["start"][wait]:
            continue
        start, end = FIRST_VP + int(records["vp"][signal]), FIRST_VP + int(records["vp"][wait])
        common = {"name": "released by the last", "cat": "barrier", "pid": PROCESS, "id": next(flows)}
        yield common | {"ph": "s", "tid": start, "ts": microseconds(came - zero)}
        yield common | {"ph": "f", "tid": end, "ts": microseconds(left - zero), "bp": "e"}


def _counter(timeline: Timeline, zero: int) -> Iterator[Event]:
    """Yield the number of virtual processors that are not waiting, at each change."""
    waiting = np.array([a.kind == "waiting" for a in timeline.activities])[timeline.activity_of]
    busy = timeline.records[~waiting]
    times, where = np.unique(np.concatenate([busy["start"], busy["end"]]), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, where[: len(busy)], 1)
    np.add.at(change, where[len(busy) :], -1)
    for time, n in zip(times[change != 0].tolist(), change.cumsum()[change != 0].tolist(), strict=True):
        yield {"ph": "C", "name": "VPs", "pid": PROCESS, "ts": microseconds(time - zero), "args": {"working": n}}
