"""handle.trace: the launches of a block and no others, files, what an error leaves, which kernel runs when."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import vpps
from tests.classifier import Classifier, new, same_bits
from tests.processes import run
from tests.report.made import made_timeline
from vpps.report.summary import KINDS
from vpps.report.trace import Trace

pytestmark = pytest.mark.cpu


def test_records_the_launches_of_the_block_alone(tmp_path: Path) -> None:
    net = new()
    with vpps.Handle(net.model, vpps.Adam(), target="cpu", vps=2) as handle:
        net.train(handle, range(2))
        with handle.trace(tmp_path / "step.json") as trace:
            net.train(handle, range(2, 4))
            graph, loss = net.batch(9)
            handle.forward(graph, [loss])
            handle.gradients(*net.batch(9))
        net.train(handle, range(1))
    assert len(trace.timelines) == 4
    assert all(t.end <= u.start for t, u in zip(trace.timelines, trace.timelines[1:], strict=False))
    phases = [set(t.phases[t.phases < 4].tolist()) for t in trace.timelines]
    assert [p - {3} for p in phases] == [{0, 1, 2}, {0, 1, 2}, {0}, {0, 1, 2}]
    launches = [e for e in json.loads((tmp_path / "step.json").read_text())["traceEvents"] if e.get("cat") == "launch"]
    assert [e["name"] for e in launches] == ["launch 1", "launch 2", "launch 3", "launch 4"]


def test_paths_are_checked_before_anything_runs(tmp_path: Path) -> None:
    trace = Trace("cpu")
    with pytest.raises(vpps.HandleError, match="no launch was recorded"):
        trace.summary()
    trace.timelines.append(made_timeline([[10, 40], [10, 10]], [0, 0]))
    with pytest.raises(vpps.HandleError, match="there is no folder"):
        trace.write_perfetto(tmp_path / "nowhere" / "step.json")
    with pytest.raises(vpps.HandleError, match=r"name it \.json, and print trace\.summary"):
        trace.write_perfetto(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_changes_no_bit_of_training() -> None:
    traced, plain = new(), new()
    with vpps.Handle(traced.model, vpps.Adam(), target="cpu", vps=2) as handle:
        losses = traced.train(handle, range(2))
        with handle.trace():
            losses += traced.train(handle, range(2, 4))
        losses += traced.train(handle, range(4, 6))
    with vpps.Handle(plain.model, vpps.Adam(), target="cpu", vps=2) as handle:
        expected = [loss for k in (0, 2, 4) for loss in plain.train(handle, range(k, k + 2))]
    assert losses == expected
    assert same_bits(traced.model.numpy(), plain.model.numpy())


def test_of_no_launch_is_told(tmp_path: Path) -> None:
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=1) as handle:
        net.train(handle, range(1))
        with (
            pytest.warns(RuntimeWarning, match="no launch was recorded") as told,
            handle.trace(tmp_path / "x"),
        ):
            pass
    assert [w.filename for w in told] == [__file__]


def test_records_nothing_before_and_after() -> None:
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=2) as handle:
        net.train(handle, range(1))
        with handle.trace() as trace:
            net.train(handle, range(1))
        net.train(handle, range(1))
        assert len(trace.timelines) == 1
        with pytest.raises(vpps.HandleError, match="records none"):
            handle.timeline()


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


def train_and_fail(net: Classifier, handle: vpps.Handle) -> None:
    """Two steps, and one of an empty graph."""
    net.train(handle, range(2))
    _, loss = net.batch(1)
    handle.fb(vpps.Graph(), loss)


class TestErrors:
    def test_within_the_block_leave_a_file_of_what_has_ended(self, tmp_path: Path) -> None:
        net = new()
        path = tmp_path / "step.json"
        with vpps.Handle(net.model, target="cpu", vps=2) as handle:
            with pytest.raises(vpps.GraphError, match="empty"), handle.trace(path):
                train_and_fail(net, handle)
            assert len([e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "launch"]) == 2
            net.train(handle, range(1))
            assert not handle._engine.records

    def test_of_the_path_come_before_anything_runs(self, tmp_path: Path) -> None:
        net = new()
        with vpps.Handle(net.model, target="cpu", vps=2) as handle:
            with (
                pytest.raises(vpps.HandleError, match="there is no folder"),
                handle.trace(tmp_path / "nowhere/x"),
            ):
                raise AssertionError
            with pytest.raises(vpps.HandleError, match="is a folder"), handle.trace(tmp_path):
                raise AssertionError

    @pytest.mark.filterwarnings("ignore:trace. no launch")
    def test_of_blocks_in_blocks_and_closed_handles(self) -> None:
        net = new()
        with vpps.Handle(net.model, target="cpu", vps=2) as handle:
            with handle.trace(), pytest.raises(vpps.HandleError, match="records one already"), handle.trace():
                raise AssertionError
            with handle.trace() as trace:
                pass
            with pytest.raises(vpps.HandleError, match="no launch was recorded"):
                trace.summary()
        with pytest.raises(vpps.HandleError, match="closed"), handle.trace():
            raise AssertionError


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


def test_ctrl_c_while_machines_are_exchanged_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net = new()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with vpps.Handle(net.model, target="cpu", vps=2) as handle:
        make = handle._configurator.make_engine
        monkeypatch.setattr(handle._configurator, "make_engine", interrupted)
        with pytest.raises(KeyboardInterrupt), handle.trace():
            raise AssertionError
        monkeypatch.setattr(handle._configurator, "make_engine", make)
        assert not handle._engine.records
        with handle.trace():
            net.train(handle, range(1))
        monkeypatch.setattr(handle._configurator, "make_engine", interrupted)
        with pytest.raises(KeyboardInterrupt):
            net.train(handle, range(1))
        monkeypatch.setattr(handle._configurator, "make_engine", make)
        net.train(handle, range(1))
        assert not handle._engine.records, "it records for ever"


@pytest.mark.parametrize("where", ["_tracing.begin", "_configurator.exchange", "_tracing.end"])
def test_ctrl_c_at_the_edges_of_a_block_leaves_it(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = new()
    with vpps.Handle(net.model, target="cpu", vps=1) as handle:
        net.train(handle, range(1))

        def interrupt(*unused: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        owner, _, method = where.partition(".")
        monkeypatch.setattr(getattr(handle, owner), method, interrupt)
        with pytest.raises(KeyboardInterrupt), handle.trace():
            pass
        net.train(handle, range(1))
        assert not handle._engine.records
        with handle.trace() as trace:
            net.train(handle, range(1))
        assert len(trace.timelines) == 1
