"""The cuda target with a simulated GPU that runs the real kernels: machines, and handles from first call to last call.

tests/gpu has the tests that need a GPU's real timing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import HIDDEN, Classifier, new, same_bits
from tests.comparison import relative_error
from tests.kernels import know_the_end_of_launches, widen
from tests.runtime import fake_cuda
from tests.runtime.claims import SPEC, MachineClaims, Make, stuck, work
from tests.runtime.fake_cuda import COUNTER_WORDS, CUresult, FakeCuda
from tests.runtime.test_cpu import stop_next_launch
from vpps.kernel.render import render_cuda
from vpps.kernel.simt_compiler import build_simt
from vpps.placement.distribution import FIRST_FREE, LOSS_SLOTS, ONE
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.emulator import Emulator
from vpps.runtime.simt import SimtMachine
from vpps.script.disassemble import instructions
from vpps.script.instructions import HEAD_WORDS, HEADER_WORDS

pytestmark = pytest.mark.simt


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = fake_cuda.install_with_kernels(monkeypatch)
    yield fake
    assert fake.depth == 0, "a context was left current"
    assert fake.findings == []


@pytest.fixture
def roomy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build kernels for any step, so that few are compiled."""
    for machine in (CudaMachine, SimtMachine):
        widen(monkeypatch, machine, know_the_end_of_launches)


@pytest.fixture
def make(fake: FakeCuda) -> Iterator[Make]:
    made: list[CudaMachine] = []

    def new(vps: int | None = None, **options: Any) -> CudaMachine:
        made.append(CudaMachine(vps, **options))
        return made[-1]

    yield new
    for machine in made:
        machine.close()


class TestMachine(MachineClaims):
    consecutive = 30


def test_launches_behind_one_that_was_stopped_do_nothing() -> None:
    """Covers any number of queued launches."""
    kernel = Emulator(build_simt(render_cuda(SPEC), races=True))
    pool, losses = np.zeros((2, FIRST_FREE), np.float32)
    pool[ONE] = 1
    counters, reports, stopped = np.zeros((2, COUNTER_WORDS), np.uint32), np.zeros((6, 5), np.uint32), np.zeros(1, "u4")
    memory = {"stopped": stopped, "losses": losses, "shared_bytes": SPEC.chip.shared_bytes}
    for number, words in enumerate([stuck(3), *[work(3, ONE, LOSS_SLOTS)] * 5]):
        mine, others = counters[number & 1], counters[~number & 1]
        assert not kernel.run(pool, words, mine, others, reports[number], 1000, blocks=3, **memory)  # type: ignore[arg-type]
    assert pool[LOSS_SLOTS] == losses[LOSS_SLOTS] == 0
    assert stopped[0]
    assert reports[0, 0] == HEADER_WORDS + 3 + 1
    assert not reports[1:].any(), "the host is told by the one that was stopped alone"


def on_cuda(net: Classifier, optimizer: vpps.Optimizer | None = None, **options: Any) -> vpps.Handle:
    """Return a handle on the simulated GPU; all tests here with default options share its kernel."""
    return vpps.Handle(net.model, optimizer, **{"target": "cuda", "vps": 3, **options})


def queued(handle: vpps.Handle) -> list[int]:
    """Return a list to which every later launch of the handle appends the number of launches in flight."""
    machine = handle._engine.machine
    assert isinstance(machine, CudaMachine)
    launch, found = machine.launch, list[int]()

    def counted(*what: Any) -> None:
        found.append(machine._state.launches - machine._state.ended)
        launch(*what)

    machine.launch = counted  # type: ignore[method-assign]
    return found


@pytest.mark.usefixtures("roomy_kernels")
class TestTraining:
    @pytest.mark.parametrize("options", [{"clip_norm": 1.0, "ema": 0.9}, {"schedule": "paper"}], ids=["", "paper"])
    def test_is_that_of_the_same_kernels_in_the_emulator(
        self, fake: FakeCuda, options: dict[str, Any], tmp_path: Any
    ) -> None:
        """Bits are equal with or without waiting between steps, accumulating, half steps, exporting and importing
        gradients, or going back to a checkpoint. Bits do not depend on the schedule."""
        found: list[list[Any]] = []
        for changes in (options, {**options, "target": "simt", "schedule": "vector"}):
            net, path = new(), tmp_path / "model.safetensors"
            with on_cuda(net, vpps.Adam(lr=0.01), **changes) as handle:
                for seed in range(5):
                    handle.fb(*net.batch(seed))
                net.model.save(path)  # while a step runs
                losses: list[Any] = net.train(handle, range(5, 7))
                net.model.restore(path)
                for seed in range(6):
                    handle.fb(*net.batch(seed), accumulate=seed % 3 != 2)
                    if seed == 3:  # exports and imports accumulated gradients
                        loss, gradients = handle.gradients(*net.batch(9))
                        losses += [loss, gradients]
                for seed in range(4):
                    graph, loss = net.batch(seed)
                    losses += handle.forward(graph, [loss], train=True, keep=True, update=seed % 2 == 1)
                    assert handle.value(loss) == losses[-1]
                    if gradients := handle.backward([1]):
                        handle.apply(gradients)
                handle.fb(*net.batch(0))
                losses.append(handle.sync_get_latest_loss())
            assert net.model.optimizer_state is not None
            found.append([losses, net.model.numpy(), net.model.optimizer_state.moments])
            if "ema" in options:
                found[-1].append({p.name: p.average() for p in net.model})
        np.testing.assert_equal(found[0], found[1])


class TestOrder:
    def test_a_step_is_put_behind_the_one_that_runs(self, fake: FakeCuda) -> None:
        """The queued step's script is sent ahead of it, in a separate stream."""
        net = new()
        with on_cuda(net, verify=False) as handle:
            net.train(handle, range(2))
            in_flight = queued(handle)
            handle.fb(*net.batch(0))
            fake.calls.clear()
            handle.fb(*net.batch(1))
            assert in_flight == [0, 1]
            assert fake.names() == ["copy in", "record", "wait event", "launch", "record"]
            assert len(handle._engine._flights) == 1, "the one before has been waited for"

    @pytest.mark.usefixtures("roomy_kernels")
    def test_a_step_waits_where_the_host_has_something_to_do(self, fake: FakeCuda) -> None:
        net, witness = new(), new()
        steps: list[tuple[str, Callable[[vpps.Handle, Classifier], Any], int]] = [
            ("first", lambda h, n: None, 0),
            ("queued", lambda h, n: None, 1),
            ("a pool that must grow", lambda h, n: None, 0),
            ("queued", lambda h, n: None, 1),
            ("assigned weights", lambda h, n: n.model["b"].assign(np.full(HIDDEN, 0.1)), 0),
            ("queued", lambda h, n: None, 1),
            ("another parameter", lambda h, n: [n.model.parameter("late", (3,))], 0),
            ("queued", lambda h, n: None, 1),
            ("gradients that went out", lambda h, n: h.gradients(*n.batch(1)), 0),
        ]
        with on_cuda(net) as handle, on_cuda(witness, target="simt") as other:
            in_flight = queued(handle)
            for k, (_, before, _) in enumerate(steps):
                for h, n in ((handle, net), (other, witness)):
                    before(h, n)
                    h.fb(*n.batch(k, sentences=40 if k == 2 else 4))
            in_flight.pop(-2)  # of `gradients`
            assert in_flight == [expected for *_, expected in steps]
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_new_instructions_make_a_new_kernel_in_between(self, fake: FakeCuda) -> None:
        net = new()
        with on_cuda(net) as handle:
            net.train(handle, range(2))
            graph, loss = net.batch(3)
            in_flight = queued(handle)
            handle.fb(graph, loss)
            loads = fake.names().count("load")
            handle.fb(graph, vpps.sqrt(loss))
            handle.fb(graph, loss)
            assert in_flight == [0, 0, 1]
            assert fake.names().count("load") == loads + 1
            assert handle.sync_get_latest_loss() > 0

    def test_two_handles_take_turns(self, fake: FakeCuda) -> None:
        """After every second step, one handle reads weights that the other has just begun to change."""
        net, witness = new(), new()
        graph, loss = net.batch(50)
        with on_cuda(net) as handle, on_cuda(net, train=False) as reader, on_cuda(witness) as other:
            for seed in range(4):
                handle.fb(*net.batch(seed))
                witness.train(other, range(seed, seed + 1))
                if seed % 2:
                    (seen,) = reader.forward(graph, [loss])
                    assert seen == other.forward(*_same(witness, 50))[0]
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_two_models_train_at_once(self, fake: FakeCuda) -> None:
        together, alone = [new(1), new(2)], [new(1), new(2)]
        with on_cuda(together[0]) as first, on_cuda(together[1]) as second:
            for seed in range(3):
                first.fb(*together[0].batch(seed))
                second.fb(*together[1].batch(seed))
        for a, b in zip(together, alone, strict=True):
            with on_cuda(b) as handle:
                b.train(handle, range(3))
            assert same_bits(a.model.numpy(), b.model.numpy())


def _same(net: Classifier, seed: int) -> tuple[vpps.Graph, list[vpps.Expression]]:
    graph, loss = net.batch(seed)
    return graph, [loss]


@pytest.mark.usefixtures("roomy_kernels")
class TestFailures:
    @pytest.mark.parametrize("accumulate", [False, True])
    @pytest.mark.parametrize("behind", [True, False])
    def test_a_stopped_step_is_named_and_the_one_behind_it_has_not_happened(
        self, fake: FakeCuda, accumulate: bool, behind: bool
    ) -> None:
        net, witness = new(), new()
        with on_cuda(net) as handle, on_cuda(witness) as other:
            for k in range(3):
                handle.fb(*net.batch(k), accumulate=accumulate and k < 2)
            handle.sync_get_latest_loss()
            step = net.model.step
            stop_next_launch(handle)
            handle.fb(*net.batch(1), accumulate=accumulate)
            in_flight = queued(handle)
            words = r"cell .\w+\.read., op '\S+'.*, from call \d+"
            if accumulate:
                words += ".*; the accumulated gradients are discarded"
            batch = net.batch(2)
            with pytest.raises(vpps.KernelError, match=words):
                handle.fb(*batch, accumulate=accumulate) if behind else handle.sync_get_latest_loss()
            assert in_flight == [1] * (behind and not accumulate)
            assert net.model.step == step + (not accumulate)
            assert handle.accumulated == 0
            for p in net.model:
                p.assign(witness.model[p.name].numpy())
            assert net.train(handle, range(3)) == witness.train(other, range(3))
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_a_wait_that_takes_too_long_is_named(self, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_PATIENCE", "0.25")
        net = new()
        with on_cuda(net, verify=False) as handle:
            net.train(handle, range(2))
            launch = handle._engine.machine.launch

            def damaged(script: Any) -> None:
                script = script.copy()
                script[_operands(handle, script, "barrier", 1)[0]] += 1  # one signal more than is sent
                handle._engine.machine.launch = launch  # type: ignore[method-assign]
                launch(script)

            handle._engine.machine.launch = damaged  # type: ignore[method-assign]
            handle.fb(*net.batch(2))
            with pytest.raises(
                vpps.KernelError,
                match=r"waited longer than 0.25 s at .*set VPPS_PATIENCE to more seconds \(0: no limit\)",
            ):
                handle.fb(*net.batch(3))
            assert net.model.step == 3
            net.train(handle, range(1))

    def test_a_loss_that_is_not_finite_is_told_one_step_later(self, fake: FakeCuda) -> None:
        net = new()
        graph, loss = net.batch(1)
        with on_cuda(net) as handle:
            handle.fb(graph, loss)
            handle.fb(graph, loss * np.inf)
            with pytest.warns(RuntimeWarning, match="the loss of step 2 is inf") as seen:
                handle.fb(graph, loss)
            assert seen[0].filename == __file__
            assert net.model.step == 3

    @pytest.mark.parametrize(
        "what, steps, in_flight, left",
        [
            ("raise", [(1, False), (np.inf, True), (1, False)], [0, 0], [0]),
            ("skip", [(1, False), (np.inf, False), (1, False), (1, False)], [0, 1, 1, 1], [0, 2, 3]),
            ("skip", [(1, True), (np.inf, False), (1, True), (1, False)], [0, 0, 0, 0], [0, 2, 3]),
        ],
        ids=["raised before the next step", "left out with another behind it", "nothing behind accumulated gradients"],
    )
    def test_or_raised_or_left_out(
        self, fake: FakeCuda, what: str, steps: list[tuple[float, bool]], in_flight: list[int], left: list[int]
    ) -> None:
        net, witness = new(), new()
        with on_cuda(net, vpps.SGD(lr=0.1), on_nonfinite=what) as handle, on_cuda(witness, vpps.SGD(lr=0.1)) as other:
            found = queued(handle)
            for k, (factor, accumulate) in enumerate(steps):
                graph, loss = net.batch(k)
                if what == "raise" and k == 2:
                    with pytest.raises(vpps.NonFiniteError, match="the loss of step 2 is inf"):
                        handle.fb(graph, loss)
                else:
                    handle.fb(graph, loss * factor, accumulate=accumulate)
            assert found == in_flight
            assert handle.skipped == 1
            for k in left:
                other.fb(*witness.batch(k), accumulate=steps[k][1])
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_what_the_gpu_refuses_leaves_the_step_before(self, fake: FakeCuda) -> None:
        net, witness = new(), new()
        with on_cuda(net) as handle, on_cuda(witness) as other:
            handle.fb(*net.batch(0))
            fake.failing["launch"] = CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
            with pytest.raises(vpps.HandleError, match="use a smaller vps="):
                handle.fb(*net.batch(1))
            fake.failing.clear()
            assert net.model.step == 1
            handle.fb(*net.batch(1))
            losses = witness.train(other, range(2))
            assert handle.sync_get_latest_loss() == losses[1]
            handle.fb(*net.batch(2))
            fake.free = 1000
            with pytest.raises(vpps.CapacityError, match=r"the GPU has no .* MiB left for a pool"):
                handle.fb(*net.batch(3, sentences=80))
            fake.free = 2**30
            handle.fb(*net.batch(3))
            witness.train(other, range(2, 4))
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_a_lost_gpu_ends_the_handle_and_leaves_the_last_weights(self, fake: FakeCuda) -> None:
        net = new()
        handle = on_cuda(net)
        net.train(handle, range(1))
        kept = net.model.numpy()
        handle.fb(*net.batch(1))
        fake.broken = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        with pytest.raises(vpps.KernelError, match=r"ILLEGAL_ADDRESS.*last checkpoint"):
            handle.fb(*net.batch(2))
        with pytest.raises(vpps.KernelError, match="ILLEGAL_ADDRESS"):
            handle.close()
        assert same_bits({p.name: p.host for p in net.model}, kept)
        fake.broken = None

    def test_a_race_in_a_kernel_would_be_seen(self, fake: FakeCuda) -> None:
        """The simulated GPU finds that virtual processors that do not wait for each other read during a write."""
        net = new()
        with on_cuda(net, verify=False) as handle:
            net.train(handle, range(1))
            assert fake.findings == []
            launch = handle._engine.machine.launch

            def damaged(script: Any) -> None:
                script = script.copy()
                script[_operands(handle, script, "barrier", 1)] = 0
                script[_operands(handle, script, "barrier", 0)] = 3
                launch(script)

            handle._engine.machine.launch = damaged  # type: ignore[method-assign]
            handle.fb(*net.batch(1))
            handle.sync_get_latest_loss()
        assert {finding.kind for finding in fake.findings} == {"race"}
        fake.findings.clear()


def _operands(handle: vpps.Handle, script: Any, name: str, index: int) -> list[int]:
    """Return that operand's positions in the next script, in all instructions with that name."""
    assert handle._engine.plan is not None
    ((start, _),) = handle._engine.plan.streams
    found = [d.position for d in instructions(script, start) if d.instruction.name == name]
    return [position + HEAD_WORDS + index for position in found]


class TestValues:
    def test_stay_on_the_gpu_where_that_is_wanted(self, fake: FakeCuda) -> None:
        net = new()
        graph, loss = net.batch(1)
        y = net.logits(graph, [1, 2, 3])
        with on_cuda(net) as handle:
            (expected,) = handle.forward(graph, [y])
            fake.calls.clear()
            view = handle.device_value(y)
            assert "copy out" not in fake.names()
            assert isinstance(view, fake_cuda.DeviceArray)
            assert np.array_equal(view, expected)
            view[0] = 7
            assert handle.value(y)[0] == 7, "it is the same memory"
            graph.input(view)
            assert [*graph.blocks.values()][-1].data[-1].tolist() == view.tolist()
            with pytest.raises(vpps.GraphError, match=r"device_value: .* was not computed by .*, forward"):
                handle.device_value(loss)

    def test_are_the_hosts_on_other_targets(self) -> None:
        net = new()
        graph, loss = net.batch(1)
        with on_cuda(net, target="simt") as handle:
            handle.forward(graph, [loss])
            with pytest.raises(
                vpps.HandleError, match="device_value: target 'simt' has its memory on the host; use value"
            ):
                handle.device_value(loss)

    def test_gradients_of_inputs_are_read_back(self, fake: FakeCuda) -> None:
        net = new()
        graph = vpps.Graph()
        h = graph.input(np.full(HIDDEN, 0.3), grad=True)
        loss = vpps.sum(vpps.tanh(net.model["U"] @ h))
        with on_cuda(net) as handle:
            handle.fb(graph, loss)
            U = new().model["U"].numpy()
            expected = U.T @ (1 - np.tanh(U @ np.full(HIDDEN, 0.3)) ** 2)
            assert relative_error(handle.input_gradient(h), expected) < 1e-5


class TestLife:
    @pytest.mark.parametrize("ending", ["close", "with", "del", "exception"])
    def test_ends_with_weights_and_memory_given_back(self, fake: FakeCuda, ending: str) -> None:
        net, witness = new(), new()
        handle = on_cuda(net)
        handle.fb(*net.batch(0))
        handle.fb(*net.batch(1))
        match ending:
            case "close":
                handle.close()
            case "with":
                with handle:
                    pass
            case "exception":
                with pytest.raises(ZeroDivisionError), handle:
                    raise ZeroDivisionError
        del handle
        gc.collect()
        assert not fake.memories
        names = fake.names()
        assert names.count("unload") == 1
        with on_cuda(witness, target="simt") as other:
            witness.train(other, range(2))
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_says_what_it_is_and_what_compiled_its_kernel(self, fake: FakeCuda) -> None:
        net = new()
        with vpps.Handle(net.model, target="auto") as handle:
            assert repr(handle) == "<vpps.Handle: cuda, 4 virtual processors>"
            net.train(handle, range(1))
            assert handle.memory.pool == handle._engine.machine.pool.nbytes >= handle.memory.peak > 0
            assert "vpps_kernel(const Launch launch)" in handle.source()
            text = handle.explain()
        assert "for sm_90 by NVRTC 13.0 in 1.0 s" in text
        assert "580.65.06, CUDA 13.0" in text

    def test_more_virtual_processors_than_fit_are_refused_at_the_first_call(self, fake: FakeCuda) -> None:
        net = new()
        with on_cuda(net, vps=5) as handle, pytest.raises(vpps.VppsError, match="at most 4"):
            handle.fb(*net.batch(0))
