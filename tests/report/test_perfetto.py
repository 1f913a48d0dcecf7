"""Trace-event files follow the format, keep the timeline's times, and lose nothing."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import vpps
from tests.report.made import made_timeline, timelines
from vpps.engine.timeline import HOST_SPANS, Timeline
from vpps.report.perfetto import FIRST_VP, HOST, PATH, events, write_perfetto

pytestmark = pytest.mark.host

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
}


def written(found: Sequence[Timeline], tmp_path: Path) -> list[dict[str, Any]]:
    """Return the events of a file."""
    write_perfetto(tmp_path / "trace.json", found, "cpu")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["displayTimeUnit"] == "ns"
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


@given(timelines())
@settings(max_examples=40, deadline=None)
def test_events_are_as_the_format_asks_and_cover_every_launch(found: list[Timeline]) -> None:
    made = list(events(found, "cpu"))
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in made:
        assert event.keys() == REQUIRED[event["ph"]] | {"ph"}
        assert min(event["pid"], event.get("tid", 1)) > 0
        assert min(event.get("ts", 0), event.get("dur", 0)) >= 0
        assert event == json.loads(json.dumps(event))
        if event["ph"] == "X" and event["tid"] >= FIRST_VP:
            start = nanoseconds(event["ts"])
            spans[event["tid"]].append((start, start + nanoseconds(event["dur"])))
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
    assert len(spans) <= found[0].n_vps
    zero = found[0].host[0].start
    for of_vp in map(sorted, spans.values()):
        assert sum(end - start for start, end in of_vp) == sum(t.end - t.start for t in found)
        breaks = [(a, b) for (_, a), (b, _) in itertools.pairwise(of_vp) if a != b]
        assert breaks == [(t.end - zero, u.start - zero) for t, u in itertools.pairwise(found)]
    for first, last in arrows.values():
        assert (first["ph"], last["ph"]) == ("s", "f")
        assert first["tid"] != last["tid"]
        assert first["ts"] <= last["ts"]
    counted = [event["args"]["working"] for event in made if event["ph"] == "C"]
    assert all(0 <= n <= found[0].n_vps for n in counted)
    assert all(a != b for a, b in itertools.pairwise(counted))
    assert not counted or counted[-1] == 0


def test_an_arrow_leads_from_the_last_to_what_it_kept_waiting(tmp_path: Path) -> None:
    made = written([made_timeline([[5, 900], [100, 100]], [0, 0])], tmp_path)
    start, end = (e for e in made if e["ph"] in "sf")
    zero = 40  # the host's nanoseconds
    assert (start["tid"], nanoseconds(start["ts"]) - zero) == (FIRST_VP + 1, 900)
    assert (end["tid"], nanoseconds(end["ts"]) - zero) == (FIRST_VP, 900)


def test_waiting_idle_ends_and_the_critical_path_are_shown(tmp_path: Path) -> None:
    made = written([made_timeline([[5, 900], [100, 20]], [7, 0])], tmp_path)
    waits = {(e["tid"] - FIRST_VP, e["name"]): nanoseconds(e["dur"]) for e in made if e.get("cat") == "wait"}
    assert waits[0, "not begun"] == 7
    assert waits[0, "wait at barrier 1"] == 900 - 12
    assert waits[1, "at the end of its script"] == 79
    path = [(e["args"]["VP"], e["name"], nanoseconds(e["dur"])) for e in made if e.get("cat") == "critical path"]
    assert path == [(1, "zero of 'p0'", 900), (0, "passing barriers", 0), (0, "zero of 'p1'", 100)]


def test_the_host_has_a_thread_of_its_own(tmp_path: Path) -> None:
    made = written([made_timeline([[5]], [0])], tmp_path)
    spans = [(e["name"], e["ts"], e["dur"]) for e in made if e.get("cat") == "host"]
    assert spans == [(name, k / 100, 0.01) for k, name in enumerate(HOST_SPANS)]
    assert {e["args"]["name"]: e["tid"] for e in made if e["name"] == "thread_name"} == {
        "host": HOST, "launches": 2, "critical path": PATH, "VP 0": FIRST_VP,
    }  # fmt: skip


def test_a_timeline_that_lacks_records_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("before")
    with pytest.raises(vpps.KernelError, match="lacks 3 executed instructions"):
        write_perfetto(path, [made_timeline([[5]], [0], lost=3)], "cpu")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
