"""Timelines: every executed instruction occurs once, times are consistent, and a second count confirms the bytes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.classifier import Classifier, new, same_bits
from tests.report.conftest import TARGETS
from tests.runtime.test_cpu import stop_next_launch
from vpps.engine.timeline import HOST_SPANS, PHASES, Timeline
from vpps.kernel.host_compiler import ISA_FLAGS, build_cpu, compiler
from vpps.kernel.ziglang import is_zig
from vpps.planner.reader import STEPS
from vpps.runtime.cpu import CpuMachine
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.simt import SimtMachine
from vpps.script.disassemble import Decoded, entry_points, instructions
from vpps.script.encode import encode, plain
from vpps.script.instructions import MAGIC, Flag
from vpps.script.slices import TILE_COLUMNS, share, tiles, unit_owners

HIDDEN, LEAVES = 64, 6
VPS = 3
WEIGHTS, GRADIENTS = ("Matvec", "PackedMatmul"), ("Outer", "PackedMatmulGradient")


def bytes_of(timeline: vpps.Timeline, *forms: str) -> NDArray[np.int64]:
    """Return the bytes that instructions of some forms read and wrote, by virtual processor."""
    chosen = timeline.records[np.isin(timeline.forms, forms)]
    return np.array([chosen["bytes"][chosen["vp"] == vp].sum() for vp in range(timeline.n_vps)], np.int64)


class Net:
    """A small net with every counted kind of bytes: matrices sliced by units (in several parts) and by rows, a padded
    last panel, lists that may all be empty, a table, an unused parameter."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.table = self.model.lookup("E", (9, HIDDEN))
        U = self.model.parameter("U", (2 * HIDDEN, 2 * HIDDEN))
        b = self.model.parameter("b", (2 * HIDDEN,))
        V = self.model.parameter("V", (HIDDEN, HIDDEN))
        self.Wo = self.model.parameter("Wo", (3, HIDDEN))
        self.model.parameter("unused", (5, 7))

        @vpps.cell
        def node(left: vpps.Expression, right: vpps.Expression, others: list[vpps.Expression]) -> vpps.Expression:
            gate, update = vpps.split(U @ vpps.concat([left, right]) + b, 2)
            return vpps.sigmoid(gate) * vpps.tanh(update) + vpps.sum(vpps.each(lambda x: vpps.tanh(V @ x), others))

        self.node = node

    def batch(self, with_lists: bool = True) -> tuple[vpps.Graph, vpps.Expression]:
        """Return a graph with its loss."""
        graph = vpps.Graph()
        words = [graph.lookup(self.table, i) for i in range(LEAVES)]
        first = self.node(words[0], words[1], [])
        second = self.node(words[2], words[3], words[4:] if with_lists else [])
        root = self.node(first, second, words[:1] if with_lists else [])
        return graph, vpps.sum([vpps.cross_entropy(self.Wo @ s, i) for i, s in enumerate([first, second, root])])


@lru_cache
def timeline_of(vps: int, with_lists: bool = True) -> Timeline:
    net = Net()
    with vpps.Handle(net.model, target="cpu", vps=vps, clip_norm=1.0, timeline=True) as handle:
        handle.fb(*net.batch(with_lists))
        return handle.timeline()


def recording(net: Classifier, target: str, **options: Any) -> vpps.Handle:
    """Return a handle that records timelines. Every kernel has Adam and clipping, so that few kernels are compiled."""
    return vpps.Handle(
        net.model, vpps.Adam(lr=0.01), **{"target": target, "vps": VPS, "clip_norm": 1.0, "timeline": True, **options}
    )


def executed(timeline: Timeline, vp: int) -> list[Decoded]:
    """Return the instructions that a virtual processor must execute."""
    script = timeline.plan.script
    return list(instructions(script, entry_points(script)[vp]))


def of_vp(timeline: Timeline, vp: int) -> Any:
    return timeline.records[timeline.records["vp"] == vp]


class TestRecords:
    @pytest.fixture(params=[pytest.param(f"cpu {n}", marks=pytest.mark.cpu) for n in (1, 2, 3)] + TARGETS[1:])
    def timeline(self, request: pytest.FixtureRequest) -> Timeline:
        """Return the timeline of a training step."""
        if request.param.startswith("cpu"):
            return timeline_of(int(request.param[-1]))
        if request.param == "cuda":
            request.getfixturevalue("fake")
        net = new()
        with recording(net, request.param) as handle:
            net.train(handle, range(2))
            return handle.timeline()

    def test_are_of_every_executed_instruction_and_fit_together(self, timeline: Timeline) -> None:
        assert timeline.lost == [0] * timeline.n_vps
        for vp in range(timeline.n_vps):
            own = of_vp(timeline, vp)
            assert own["position"].tolist() == [d.position for d in executed(timeline, vp)]
            assert np.array_equal(own["end"][:-1], own["start"][1:])
            assert (own["start"] <= own["end"]).all()
        # No virtual processor leaves a barrier before the last one arrives. A signal takes effect at some moment during
        # its barrier instruction, which may still be waking other processors.
        barriers = timeline.records[timeline.forms == "Wait"]
        positions = np.unique(barriers["position"])
        for own in (barriers[barriers["position"] == position] for position in positions):
            assert len(own) == timeline.n_vps
            assert own["end"].min() >= own["start"].max()
        assert len(positions) == (timeline.plan.n_barriers if timeline.n_vps > 1 else 0)

    def test_come_after_the_host_has_launched_and_have_phases_that_add_up(self, timeline: Timeline) -> None:
        assert tuple(span.name for span in timeline.host) == HOST_SPANS
        for span, following in zip(timeline.host, timeline.host[1:], strict=False):
            assert span.start <= span.end == following.start
        assert timeline.host[-1].end <= timeline.start
        assert min(span.seconds for span in timeline.host[:2]) > 0
        seconds = timeline.seconds()
        assert tuple(seconds) == PHASES
        loads = "Load" in timeline.forms
        for name, by_vp in seconds.items():
            assert by_vp.shape == (timeline.n_vps,)
            assert by_vp.any() == {"load": loads, "waiting": timeline.n_vps > 1}.get(name, True)
        np.testing.assert_allclose(sum(seconds.values()), timeline.duration, rtol=1e-9)

    @pytest.mark.cpu
    def test_of_streams_of_their_own_are_told_apart(self) -> None:
        net = new()
        with recording(net, "cpu", schedule="paper") as handle:
            net.train(handle, range(1))
            timeline = handle.timeline()
        assert len(set(entry_points(timeline.plan.script))) == VPS
        for vp in range(VPS):
            assert of_vp(timeline, vp)["position"].tolist() == [d.position for d in executed(timeline, vp)]


class TestPhases:
    @pytest.mark.cpu
    @pytest.mark.parametrize("vps", [1, 2, 3])
    def test_are_what_the_instructions_are_for(self, vps: int) -> None:
        timeline = timeline_of(vps)
        found: dict[str, set[str]] = {}
        for position, phase in zip(timeline.records["position"].tolist(), timeline.phases.tolist(), strict=True):
            words = timeline.plan.origin(position)
            found.setdefault(PHASES[phase], set()).add(words.split(" of ")[0].split(",")[0].split(" '")[0])
        assert found["forward"] == {"forward", "loss"}
        assert found["backward"] == {"backward"}
        assert found["gradients"] == {"gradient", "gather_sum"}
        assert {w.split(".")[0] for w in found["update"]} == {
            "guard", "squares_matrix", "squares_rows", "clip", "update_matrix", "update_vector", "update_rows", "",
        }  # fmt: skip
        if vps > 1:
            assert all(words.startswith("barrier") for words in found["waiting"])
            forms = timeline.forms[timeline.phases == PHASES.index("waiting")]
            assert forms.tolist() == ["Wait"] * (vps * timeline.plan.n_barriers)

    def test_of_an_evaluation_are_forward_load_and_waiting(self, target: str) -> None:
        net = new()
        graph, loss = net.batch(0)
        with recording(net, target) as handle:
            handle.forward(graph, [loss])
            timeline = handle.timeline()
        seconds = timeline.seconds()
        loads = {"load"} if target != "cpu" else set()
        assert {name for name, by_vp in seconds.items() if by_vp.any()} == {"forward", "waiting"} | loads
        assert (seconds["forward"] > 0).all()
        np.testing.assert_allclose(sum(seconds.values()), timeline.duration, rtol=1e-9)


def owned(d: Decoded, vp: int, n_vps: int, panel: int) -> tuple[int, int]:
    """Return the (rows, panels of units) that a virtual processor computes in an instruction's result."""
    if d.flags & Flag.ROWS:
        low, high = share(d.n, vp, n_vps)
        return high - low, -(-d.width // panel) if high > low else 0
    units = np.flatnonzero(unit_owners(d.width, d.parts, panel, n_vps) == vp)
    return d.n, len(np.unique(units // panel))


def expected_bytes(timeline: Timeline, vp: int, panel: int) -> dict[str, int]:
    """Return the bytes by form of instruction, from only the script."""
    floats, n_vps = dict.fromkeys(("Matvec", "Outer", "Update"), 0), timeline.n_vps
    for d in executed(timeline, vp):
        form = d.instruction.form
        if form == "Matvec":
            rows, panels = owned(d, vp, n_vps, panel)
            if rows:
                floats[form] += panels * panel * int(d.fields["columns"])
        if form in ("Outer", "UpdateMatrix"):
            columns = int(d.fields["columns"])
            across = -(-columns // TILE_COLUMNS)
            passes = -(-d.n // 128)
            for tile in range(*share(tiles(d.width, columns, panel), vp, n_vps)):
                width = min(TILE_COLUMNS, columns - tile % across * TILE_COLUMNS)
                valid = min(panel, d.width - tile // across * panel)
                if form == "Outer":  # the first pass only writes, unless the instruction adds to a gradient
                    touches = 2 * passes if d.flags & Flag.ACCUMULATE else max(1, 2 * passes - 1)
                    floats[form] += touches * width * panel
                else:
                    gradient = 0 if d.flags & Flag.NO_GRADIENT else 1
                    floats["Update"] += width * panel * (2 + gradient) + width * valid
        if form == "UpdateVector":
            units = int((unit_owners(d.width, d.parts, panel, n_vps) == vp).sum())
            floats["Update"] += units * (2 if d.flags & Flag.NO_GRADIENT else 3)
        if form == "UpdateRows":
            low, high = share(d.n, vp, n_vps)
            floats["Update"] += (high - low) * d.width * 3
    return {form: 4 * n for form, n in floats.items()}


def long_products(n: int = 300, rows: int = 40, **options: Any) -> Timeline:
    """Return a step with n products with a 70-column matrix."""
    model = vpps.Model(seed=1)
    W = model.parameter("W", (rows, 70))
    graph = vpps.Graph()
    loss = vpps.sum([vpps.sum(vpps.tanh(W @ graph.input(np.full(70, 0.01 * i)))) for i in range(n)])
    with vpps.Handle(model, vps=2, timeline=True, **{"clip_norm": 1.0, **options}) as handle:
        handle.fb(graph, loss)
        return handle.timeline()


@pytest.mark.cpu
class TestBytes:
    @pytest.mark.parametrize("made", [lambda: timeline_of(1, False), lambda: timeline_of(3), lambda: long_products()])
    def test_are_those_of_a_count_from_the_script(self, made: Callable[[], Timeline]) -> None:
        """The count covers every virtual processor. Products without vectors read nothing; gradients take a pass per
        128 vectors."""
        timeline = made()
        expected = [expected_bytes(timeline, vp, CpuMachine(1).panel) for vp in range(timeline.n_vps)]
        assert bytes_of(timeline, *WEIGHTS).tolist() == [e["Matvec"] for e in expected]
        assert bytes_of(timeline, *GRADIENTS).tolist() == [e["Outer"] for e in expected]
        assert bytes_of(timeline, *STEPS).tolist() == [e["Update"] for e in expected]
        assert min(bytes_of(timeline, *WEIGHTS)) > 0

    @pytest.mark.parametrize("n", [3, 300])
    def test_of_steps_made_with_the_last_outer_product_lack_its_gradient(self, n: int) -> None:
        timeline = long_products(n, 64, clip_norm=None, optimizer=vpps.Adam())
        passes = -(-n // 128)  # all but the last write the gradient, all but the first read it
        per_weight = 2 * 3 + 1 + 2 * (passes - 1)  # the weight and its moments read and written, its transpose written
        assert sum(bytes_of(timeline, *STEPS)) == 4 * 64 * 70 * per_weight
        assert not bytes_of(timeline, *GRADIENTS).any()

    @pytest.mark.parametrize("n", [1, 40])
    @pytest.mark.parametrize("vps_count", [1, 2])
    def test_of_a_matrix_times_matrices(self, vps_count: int, n: int) -> None:
        model = vpps.Model(seed=1)
        W = model.parameter("W", (64, 32))
        graph = vpps.Graph()
        loss = vpps.sum([vpps.sum(vpps.tanh(W @ graph.input(np.full((32, 5), 0.01 * i)))) for i in range(n)])
        with vpps.Handle(model, vps=vps_count, timeline=True) as handle:
            handle.fb(graph, loss)
            timeline = handle.timeline()
            panel = handle._engine.machine.panel
        assert {"PackedMatmul", "PackedMatmulGradient"} <= set(timeline.forms.tolist())
        # Forward reads the matrix, backward its transpose; both owners of a divided panel read it.
        whole = 4 * 64 * 32 * 2
        assert whole <= sum(bytes_of(timeline, *WEIGHTS)) <= whole + 4 * panel * (64 + 32) * (vps_count - 1)
        passes = -(-n // (128 // 5))
        assert sum(bytes_of(timeline, *GRADIENTS)) == 4 * 64 * 32 * (2 * passes - 1)


def test_results_are_bitwise_those_of_a_plain_handle(target: str) -> None:
    with_one, without = new(), new()
    plain = "cpu" if target == "cpu" else "simt"
    with recording(with_one, target) as handle:
        losses = with_one.train(handle, range(3))
        gradients = handle.gradients(*with_one.batch(7))
    with recording(without, plain, timeline=False) as handle:
        assert without.train(handle, range(3)) == losses
        expected = handle.gradients(*without.batch(7))
    assert gradients[0] == expected[0]
    assert same_bits(gradients[1], expected[1])
    assert same_bits(with_one.model.numpy(), without.model.numpy())


@pytest.mark.cpu
class TestKernel:
    def test_compiles_without_warnings(self) -> None:
        _, source, tile = build_cpu()
        flags = ["-std=c++17", "-fsyntax-only", "-fopenmp-simd", "-Wall", "-Wextra", *ISA_FLAGS[tile.isa]]
        if is_zig(compiler()):
            pytest.skip("zig has no way to check a source alone")
        command = [*compiler(), *flags, "-xc++", "-"]
        run = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
        assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.cpu
class TestHandle:
    def test_gives_the_latest_launch_or_the_one_before_to_who_does_not_wait(self) -> None:
        net = Net()
        graph, loss = net.batch()
        with vpps.Handle(net.model, vps=2, timeline=True) as handle:
            handle.fb(graph, loss)
            with pytest.raises(vpps.HandleError, match="no launch has ended"):
                handle.timeline(wait=False)
            first = handle.timeline()
            assert handle.timeline() is first
            handle.fb(*net.batch(with_lists=False))
            assert handle.timeline(wait=False) is first
            second = handle.timeline()
            assert handle.timeline(wait=False) is second
            assert first.end <= second.start
            handle.forward(graph, [loss])
            evaluation = handle.timeline()
            handle.gradients(graph, loss)
            assert handle.timeline() not in (first, second, evaluation)
        assert len(first.records) > len(evaluation.records)  # and they outlive the handle

    def test_forgets_a_launch_that_an_interrupt_came_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        net = Net()
        with vpps.Handle(net.model, vps=2, timeline=True) as handle:
            handle.fb(*net.batch())
            first = handle.timeline()

            def interrupt(script: object) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(handle._engine.machine, "launch", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    handle.fb(*net.batch())
            assert handle.timeline() is first
            handle.fb(*net.batch())
            assert first.end < handle.timeline().start

    def test_without_one_says_how_to_get_one(self) -> None:
        net = Net()
        with vpps.Handle(net.model) as handle:
            handle.fb(*net.batch())
            with pytest.raises(vpps.HandleError, match="timeline=True"):
                handle.timeline()
        with vpps.Handle(net.model, timeline=True) as handle, pytest.raises(vpps.HandleError, match="call fb"):
            handle.timeline()
        with pytest.raises(vpps.HandleError, match="closed"):
            handle.timeline()


def test_of_a_stopped_launch_ends_where_it_stopped(target: str) -> None:
    net = new()
    with recording(net, target, verify=False) as handle:
        net.train(handle, range(1))
        first = handle.timeline()
        stop_next_launch(handle)
        handle.fb(*net.batch(1))
        with pytest.raises(vpps.KernelError):
            handle.sync_get_latest_loss()
        stopped = handle.timeline()
        assert 0 < len(stopped.records) < len(first.records)
        assert not stopped.seconds()["update"].any()
        net.train(handle, range(1))
        assert len(handle.timeline().records) == len(first.records)


def test_room_that_is_too_small_is_told(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in (CpuMachine, SimtMachine, CudaMachine):
        record = machine.record
        monkeypatch.setattr(machine, "record", lambda self, _, record=record: record(self, 5))
    net = new()
    with recording(net, target) as handle:
        net.train(handle, range(1))
        timeline = handle.timeline()
    n = len(executed(timeline, 0))
    assert timeline.lost == [n - 5] * VPS
    assert len(timeline.records) == 5 * VPS
    with pytest.raises(vpps.KernelError, match=f"lacks {VPS * (n - 5)} executed instructions"):
        timeline.seconds()


@pytest.mark.cpu
class TestRoom:
    def test_is_never_exceeded_by_the_kernel(self) -> None:
        machine = CpuMachine(1)
        machine.reserve(16, 0)
        script = plain([MAGIC, 1, 1, 0, 5, *encode("signal", 0, 0, counter=0) * 9, *encode("end", 0, 0)])
        recording = machine.record(8)
        recording._records[0, 4:] = 0  # as if the last four belonged to another launch
        recording._logs["capacity"] = 4
        machine.launch(script)
        assert machine.wait() is None
        assert not recording._records[0, 4:]["end"].any()
        assert int(recording._logs["executed"][0]) == 10
        machine.close()
