"""handle.trace: only a block's launches, files, what remains after an error, each launch's kernel."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import pytest

import vpps
from tests.classifier import new, same_bits
from tests.processes import run
from vpps.report.summary import KINDS

pytestmark = pytest.mark.cpu


def test_records_the_launches_of_the_block_alone_and_changes_no_bit(tmp_path: Path) -> None:
    traced, plain = new(), new()
    with vpps.Handle(traced.model, vpps.Adam(), target="cpu", vps=2) as handle:
        losses = traced.train(handle, range(2))
        with handle.trace(tmp_path / "step.json") as trace:
            losses += traced.train(handle, range(2, 4))
            graph, loss = traced.batch(9)
            handle.forward(graph, [loss])
            handle.gradients(*traced.batch(9))
        losses += traced.train(handle, range(4, 6))
        with pytest.raises(vpps.HandleError, match="records none"):
            handle.timeline()
    assert len(trace.timelines) == 4
    assert all(t.end <= u.start for t, u in zip(trace.timelines, trace.timelines[1:], strict=False))
    phases = [set(t.phases[t.phases < 4].tolist()) for t in trace.timelines]
    assert [p - {3} for p in phases] == [{0, 1, 2}, {0, 1, 2}, {0}, {0, 1, 2}]
    assert launches_of(tmp_path / "step.json") == ["launch 1", "launch 2", "launch 3", "launch 4"]
    with vpps.Handle(plain.model, vpps.Adam(), target="cpu", vps=2) as handle:
        assert losses == plain.train(handle, range(6))
    assert same_bits(traced.model.numpy(), plain.model.numpy())


def launches_of(path: Path) -> list[str]:
    """Return the names of the launches in a file."""
    return [e["name"] for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "launch"]


def test_of_no_launch_is_told(tmp_path: Path) -> None:
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=1) as handle:
        net.train(handle, range(1))
        with (
            pytest.warns(RuntimeWarning, match="no launch was recorded") as told,
            handle.trace(tmp_path / "x") as trace,
        ):
            pass
        with pytest.raises(vpps.HandleError, match="no launch was recorded"):
            trace.summary()
    assert [w.filename for w in told] == [__file__]


def test_a_handle_that_records_anyway_goes_on_doing_so() -> None:
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=2, timeline=True) as handle:
        net.train(handle, range(1))
        with handle.trace() as trace:
            net.train(handle, range(1))
            assert handle.timeline() is trace.timelines[0]
        net.train(handle, range(1))
        assert handle.timeline() is not trace.timelines[0]
        assert len(trace.timelines) == 1


def test_what_the_latest_call_computed_can_still_be_read_behind_the_block() -> None:
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=2) as handle:
        graph, loss = net.batch(1)
        with handle.trace():
            handle.fb(graph, loss)
        assert handle.value(loss) == handle.sync_get_latest_loss()
        handle.fb(graph, loss)
        with pytest.raises(vpps.GraphError, match="or since a trace was begun"), handle.trace():
            handle.value(loss)


def test_times_lie_within_the_call_and_cover_the_launch() -> None:
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=3) as handle, handle.trace() as trace:
        net.train(handle, range(1))
        begin = time.perf_counter_ns()
        net.train(handle, range(1))
        end = time.perf_counter_ns()
    timeline = trace.timelines[1]
    assert begin <= timeline.host[0].start <= timeline.host[-1].end <= timeline.start <= timeline.end <= end
    summary = trace.summary()
    for vp in summary.vps:
        assert sum(getattr(vp, kind) for kind in KINDS) == pytest.approx(sum(t.duration for t in trace.timelines))


class TestErrors:
    def test_within_the_block_leave_a_file_of_what_has_ended(self, tmp_path: Path) -> None:
        net = new()
        path = tmp_path / "step.json"

        def train_and_fail() -> None:
            net.train(handle, range(2))
            handle.fb(vpps.Graph(), net.batch(1)[1])

        with vpps.Handle(net.model, target="cpu", vps=2) as handle:
            with pytest.raises(vpps.GraphError, match="empty"), handle.trace(path):
                train_and_fail()
            assert len(launches_of(path)) == 2
            net.train(handle, range(1))
            assert not handle._engine.records

    def test_come_before_anything_runs(self, tmp_path: Path) -> None:
        """Covers errors about paths, nested blocks and closed handles."""
        net, paths = new(), {"nowhere/x": "there is no folder", ".": "is a folder", "page.html": r"name it \.json, and"}
        with vpps.Handle(net.model, target="cpu", vps=2) as handle:
            for path, message in paths.items():
                with pytest.raises(vpps.HandleError, match=message), handle.trace(tmp_path / path):
                    raise AssertionError
            with handle.trace():
                net.train(handle, range(1))
                with pytest.raises(vpps.HandleError, match="records one already"), handle.trace():
                    raise AssertionError
        with pytest.raises(vpps.HandleError, match="closed"), handle.trace():
            raise AssertionError
        assert list(tmp_path.iterdir()) == []


def test_a_forked_child_that_leaves_the_block_waits_for_nothing_and_writes_nothing(tmp_path: Path) -> None:
    out = run(
        f"""
        import os, sys
        from pathlib import Path
        import vpps
        from tests.classifier import new
        net, path = new(), Path({str(tmp_path / "step.json")!r})
        with vpps.Handle(net.model, target="cpu", vps=2) as handle:
            with handle.trace(path) as trace:
                net.train(handle, range(1))
                graph, loss = net.batch(1)
                handle.fb(graph, loss)  # in flight: the child has no threads that would end it
                child = os.fork()
            if not child:
                print(path.exists(), flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        print(len(trace.timelines), path.exists())
        """
    )
    assert out.splitlines() == ["False", "2 True"]


EDGES = ["_tracing.begin", "_configurator.exchange", "_configurator.make_engine", "_tracing.end"]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("where", EDGES)
def test_ctrl_c_at_the_edges_of_a_block_leaves_it(where: str, behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later Ctrl-C, while machines are exchanged again, also leaves the block; no recording remains on."""
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=1) as handle:
        net.train(handle, range(1))

        def interrupt(*unused: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        def interrupt_next() -> None:
            owner, _, method = where.partition(".")
            monkeypatch.setattr(getattr(handle, owner), method, interrupt)

        if behind:
            with handle.trace():
                net.train(handle, range(1))
            interrupt_next()
            with suppress(KeyboardInterrupt):
                net.train(handle, range(1))
            monkeypatch.undo()
        else:
            interrupt_next()
            with pytest.raises(KeyboardInterrupt), handle.trace():
                pass
        net.train(handle, range(1))
        assert not handle._engine.records
        with handle.trace() as trace:
            net.train(handle, range(1))
        assert len(trace.timelines) == 1
