"""A page to look at timelines: one file that needs nothing else, see page.html."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.files import replacing
from vpps.inspection.activity import Activity
from vpps.inspection.critical import BARRIERS, critical_path
from vpps.inspection.summary import Summary, group_of
from vpps.inspection.timeline import ENDED, Timeline

KINDS = ("forward", "backward", "gradients", "update", "load", "waiting", "host")
"""Colours of bars, in the order of the page's own list."""

_TICKS = 1 << 32  # times are words of 32 bits


@dataclass(slots=True)
class _Bars:
    """Bars of a row, in order of time; nanoseconds since the beginning of the file."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    what: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def add(self, start: int, end: int, what: int, n_bytes: int = 0) -> None:
        self.start.append(start)
        self.end.append(end)
        self.what.append(what)
        self.bytes.append(n_bytes)


class _Activities:
    """What bars are about, each once, as the page wants them."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, entry: dict[str, Any]) -> int:
        """Number of an entry; equal keys have equal ones."""
        if key not in self._numbers:
            self._numbers[key] = len(self.listed)
            self.listed.append(entry)
        return self._numbers[key]

    def of(self, activity: Activity) -> int:
        """Number of what an instruction does."""
        kind = activity.kind if activity.kind in ("load", "waiting") else activity.phase
        shown = ("name", "cell", "phase", "instruction", "rows", "width", "stage", "position", "words")
        entry = {name: getattr(activity, name) for name in shown} | {"kind": KINDS.index(kind)}
        group = BARRIERS if activity.kind == "waiting" else group_of(activity)
        return self.number(activity, entry | {"group": group})

    def named(self, name: str, kind: str, words: str) -> int:
        """Number of what is no instruction."""
        return self.number((name, kind), {"name": name, "kind": KINDS.index(kind), "words": words, "stage": -1})


def write_page(path: Path, timelines: Sequence[Timeline], summary: Summary, title: str = "") -> None:
    """Write the page, which appears complete or not at all.

    Raises:
        KernelError: a timeline lacks records.
        OSError: the file cannot be written.
    """
    text = page(timelines, summary, title)
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files may be no UTF-8


def page(timelines: Sequence[Timeline], summary: Summary, title: str = "") -> str:
    """The page as text. Raises KernelError if a timeline lacks records."""
    title = title or f"vpps on {summary.target}"
    data = json.dumps(page_data(timelines, summary) | {"title": title}, ensure_ascii=False, separators=(",", ":"))
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    # Within a script element nothing but "<" could end it.
    return template.replace("@TITLE@", html.escape(title)).replace("@DATA@", data.replace("<", "\\u003c"))


def page_data(timelines: Sequence[Timeline], summary: Summary) -> dict[str, Any]:
    """What the page shows, as JSON types; long columns of numbers as base64 of little-endian words."""
    zero = min(min(t.start, *(span.start for span in t.host)) for t in timelines)
    n_vps = timelines[0].n_vps
    activities, rows = _Activities(), [_Bars() for _ in range(1 + n_vps)]
    path: list[tuple[int, int, int]] = []
    for timeline in timelines:
        timeline.check_complete()
        for span in timeline.host:
            number = activities.named(span.name, "host", "what the host does for the next launch")
            rows[0].add(span.start - zero, span.end - zero, number)
        _add_records(timeline, zero, activities, rows)
        path += [(1 + s.vp, s.start - zero, s.end - zero) for s in critical_path(timeline).segments]
    end = max(t.end for t in timelines) - zero
    tick = max(1, -(-end // (_TICKS - 1)))
    starts = np.concatenate([np.array(bars.start, np.int64) for bars in rows]) // tick
    ends = np.concatenate([np.array(bars.end, np.int64) for bars in rows]) // tick
    segments = np.array(path, np.int64).reshape(-1, 3)
    return {
        "tick": tick,
        "ticks": end // tick,
        "rows": ["host", *(f"VP {vp}" for vp in range(n_vps))],
        "first": np.cumsum([0, *(len(bars.start) for bars in rows)]).tolist(),
        "start": _packed(starts, "<u4"),
        "length": _packed(ends - starts, "<u4"),
        "what": _packed(np.array([k for bars in rows for k in bars.what], np.int64), "<u4"),
        "bytes": _packed(np.array([n for bars in rows for n in bars.bytes], np.int64), "<f8"),
        "activities": activities.listed,
        "path": {
            "row": _packed(segments[:, 0], "<u4"),
            "start": _packed(segments[:, 1] // tick, "<u4"),
            "end": _packed(segments[:, 2] // tick, "<u4"),
        },
        "launches": [
            {
                "before": (t.host[0].start - zero) // tick,
                "start": (t.start - zero) // tick,
                "end": (t.end - zero) // tick,
            }
            for t in timelines
        ],
        "summary": summary.as_json(),
    }


def _add_records(timeline: Timeline, zero: int, activities: _Activities, rows: list[_Bars]) -> None:
    """Add what the virtual processors of a launch did to their rows."""
    number = [activities.of(activity) for activity in timeline.activities]
    records, of = timeline.records, timeline.activity_of.tolist()
    idle = timeline.idle()
    before = {(i.vp, i.end): i for i in idle if i.why != ENDED}  # an instruction begins there
    columns = (records[name].tolist() for name in ("vp", "start", "end", "bytes"))
    for k, (vp, start, end, n_bytes) in enumerate(zip(*columns, strict=True)):
        if (until := before.pop((vp, start), None)) is not None:
            what = activities.named(until.why, "waiting", "its next instruction comes later")
            rows[1 + vp].add(until.start - zero, until.end - zero, what)
        rows[1 + vp].add(start - zero, end - zero, number[of[k]], n_bytes)
    for after in (i for i in idle if i.why == ENDED):
        what = activities.named(after.why, "waiting", "others are still at work")
        rows[1 + after.vp].add(after.start - zero, after.end - zero, what)


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode()
