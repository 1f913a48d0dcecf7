"""Launch summaries: times add up, and the critical path is right for launches with a known path."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import vpps
from tests.report.made import made_timeline, timelines
from vpps.engine.timeline import Timeline
from vpps.report.critical import BARRIERS, BEGINNING, critical_path
from vpps.report.summary import KINDS, Summary

pytestmark = pytest.mark.host


@given(timelines())
@settings(max_examples=40, deadline=None)
def test_times_add_up(found: list[Timeline]) -> None:
    summary = Summary(found, "cpu")
    whole = sum(t.duration for t in found)
    assert summary.seconds == pytest.approx(whole)
    for vp in summary.vps:
        assert sum(getattr(vp, kind) for kind in KINDS) == pytest.approx(whole)
        assert vp.waiting >= 0
    if whole:
        assert sum(summary.shares.values()) == pytest.approx(1)
        assert sum(p.share for p in summary.critical) == pytest.approx(1)
    busy = sum(vp.compute + vp.load + vp.update for vp in summary.vps)
    assert sum(c.seconds for c in summary.cells.values()) == pytest.approx(busy)
    by_phase = np.sum([t.seconds()["waiting"] for t in found], axis=0)
    np.testing.assert_allclose([vp.waiting for vp in summary.vps], by_phase, atol=1e-12)


@given(timelines())
@settings(max_examples=40, deadline=None)
def test_the_critical_path_is_one_chain_and_who_is_waited_for_came_last(found: list[Timeline]) -> None:
    for timeline in found:
        path = critical_path(timeline)
        assert (path.segments[0].start, path.segments[-1].end) == (timeline.start, timeline.end)
        assert all(a.end == b.start for a, b in itertools.pairwise(path.segments))
        assert all(segment.start <= segment.end for segment in path.segments)
        signals, allowed = timeline.records[timeline.forms == "Wait"], set[int]()
        for position in np.unique(signals["position"]):
            came = signals[signals["position"] == position]
            allowed.update(came["vp"][came["start"] == came["start"].max()].tolist())
        assert {vp for vp, n in enumerate(path.awaited) if n} <= allowed
        assert sum(path.delayed) <= sum(timeline.seconds()["waiting"]) + 1e-9


def test_the_critical_path_of_two_steps_is_the_slower_one_of_each() -> None:
    """VP 1 is slow first, then VP 0: the path switches from one to the other."""
    path = critical_path(made_timeline([[5, 900], [100, 20]], [7, 0]))
    assert [(s.name, s.vp, s.end - s.start) for s in path.segments if s.end > s.start] == [
        ("zero of 'p0'", 1, 900), ("zero of 'p1'", 0, 100),
    ]  # fmt: skip
    assert path.awaited == [0, 1]
    assert path.delayed == pytest.approx([0, (900 - 12) * 1e-9])


def test_a_late_beginning_is_on_the_path() -> None:
    path = critical_path(made_timeline([[5, 5], [5, 5]], [100, 0]))
    assert path.segments[0] == (BEGINNING, "", 0, path.segments[0].start, path.segments[0].start + 100)
    assert path.awaited == [1, 0]


def test_the_way_from_the_last_signal_to_the_end_of_the_wait_is_the_barriers() -> None:
    timeline = made_timeline([[100, 0, 50], [10, 10, 400]], [0, 0, 0])  # 2 ns after VP 0 arrives
    path = critical_path(timeline)
    assert [(s.name, s.end - s.start) for s in path.segments if s.name == BARRIERS and s.end > s.start] == [
        (BARRIERS, 2)
    ]


def test_text_has_the_figures_and_times_between_launches() -> None:
    first = made_timeline([[5, 900 * 1000], [100, 20]], [7, 0])
    text = str(Summary([first], "cpu"))
    assert text.startswith("1 launch on cpu, 2 virtual processors: 0.900 ms each, 1 barrier, ")
    assert max(map(len, text.splitlines())) <= 110
    summary = Summary([first, made_timeline([[10**6] * 2], [0, 0], first.end + 2 * 10**6)], "cpu")
    assert summary.idle == pytest.approx(2e-3)
    assert "between one launch and the next: 2.000 ms" in str(summary)


def test_no_waiting_is_no_negative_zero() -> None:
    """One virtual processor never waits, and the sum of its times in seconds exceeds the launch's time."""
    summary = Summary([made_timeline([[723], [830], [617]], [0])], "cpu")
    assert summary.vps[0].compute > summary.seconds
    assert "-0.0" not in str(summary)


def test_missing_records_are_told() -> None:
    with pytest.raises(vpps.KernelError, match="lacks"):
        Summary([made_timeline([[5]], [0], lost=1)], "cpu")
