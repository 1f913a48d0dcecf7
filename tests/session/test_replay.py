"""A replay computes the same bits as a handle that records the graph again with the new values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.engine.test_parameter_store import interrupt_next_launch
from vpps.engine.gradients import Gradients
from vpps.session.replay import Replay, Span

E = vpps.Expression
pytestmark = pytest.mark.usefixtures("roomy_kernels")
TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]
LENGTHS, WIDTH = (4, 2, 3), 5


class Net:
    """Sequences whose steps lie one behind the other. `scale` multiplies every output: values are read twice."""

    def __init__(self) -> None:
        self.model = model = vpps.Model(seed=3)
        W = model.parameter("W", (WIDTH, WIDTH))
        U = model.parameter("U", (WIDTH, WIDTH))

        @vpps.cell
        def begin(x: E, h0: E) -> E:
            return vpps.tanh(W @ x)

        @vpps.cell
        def step(x: E, h: E) -> E:
            return vpps.tanh(W @ x + U @ h) * x

        @vpps.cell
        def resume(x: E, h0: E) -> E:
            return vpps.tanh(W @ x + U @ h0)

        self.cells = [begin, step, resume]
        starts = np.cumsum([0, *LENGTHS])
        n = int(starts[-1])
        self.before = np.arange(-1, n - 1, dtype=np.int32)
        self.before[starts[:-1]] = -1
        self.levels = (np.arange(n) - np.repeat(starts[:-1], LENGTHS)).astype(np.int32)
        self.kind = (self.before >= 0).astype(np.int8)
        self.kind[starts[1:-1]] = 2  # the first sequence does not read its initial state
        self.last = (starts[1:] - 1).astype(np.int32)
        self.sequence = np.repeat(np.arange(len(LENGTHS)), LENGTHS)

    def record(self, values: list[Any], grad: bool) -> tuple[vpps.Graph, list[vpps.Rows], list[vpps.Rows]]:
        """Return a graph, its inputs, and the rows to compute: all outputs, and each sequence's last."""
        graph = vpps.Graph()
        x, h0 = inputs = [graph.rows(v, grad=grad) for v in values]
        out = graph.map(
            self.cells, self.kind, self.before[:, None], {"x": x, "h0": h0[self.sequence]}, levels=self.levels,
            state=WIDTH,
        )  # fmt: skip
        return graph, inputs, [out, out[self.last]]


def random_values(seed: int) -> list[Any]:
    """Return the values of the inputs and the gradients of the outputs."""
    random = np.random.default_rng(seed)
    rows = sum(LENGTHS), len(LENGTHS), sum(LENGTHS), len(LENGTHS)
    return [random.normal(size=(n, WIDTH)).astype(np.float32) for n in rows]


def results(net: Net, handle: vpps.Handle, values: list[Any], keeps: bool) -> list[Any]:
    """Return values and gradients by the handle's calls."""
    graph, inputs, wanted = net.record(values[:2], keeps)
    found: list[Any] = list(handle.forward(graph, wanted, keep=keeps))
    if keeps:
        gradients = handle.backward(values[2:])
        found += [handle.input_gradient(rows) for rows in inputs]
        found += [gradients[name] for name in ("W", "U")]
    return found


def replayed(replay: Replay, values: list[Any], keeps: bool, addresses: bool = False) -> list[Any]:
    """Return the same by a replay.

    Args:
        addresses: True to give memory by addresses.
    """
    given = [v.ctypes.data for v in values] if addresses else values
    out = [np.full_like(v, np.nan) for v in values]
    into: Any = [v.ctypes.data for v in out] if addresses else out
    launch = replay.forward(given[:2], into[2:])
    if not keeps:
        return out[2:]
    gradients: Gradients = replay.backward(launch, given[:2], given[2:], into[:2])
    return [*out[2:], *out[:2], gradients["W"], gradients["U"]]


def assert_same_bits(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_bits_are_those_of_a_new_graph(target: str, keeps: bool) -> None:
    """The first run plans, the second finds the words; covers a row that nothing reads, whose gradient is zero."""
    net = Net()
    with vpps.Handle(net.model, vpps.SGD(lr=0.0), target=target, vps=2, verify=True) as handle:
        replay = Replay(handle, *net.record(random_values(0)[:2], keeps), keeps)
        for seed in range(4):
            values = random_values(seed)
            found = replayed(replay, values, keeps, addresses=seed % 2 == 0)
            assert_same_bits(found, results(net, handle, values, keeps))
        if keeps:
            assert not found[3][0].any()
            assert found[3][1:].all()


@pytest.mark.cpu
class TestBackward:
    def test_computes_the_forward_again_after_other_launches(self) -> None:
        net, (a, b) = Net(), (random_values(1), random_values(2))
        with vpps.Handle(net.model, vpps.SGD(lr=0.0), vps=1) as handle:
            replay = Replay(handle, *net.record(a[:2], True), True)
            first = replayed(replay, a, True)
            out = [np.empty_like(v) for v in a]
            launch = replay.forward(a[:2], out[2:])
            assert replay.forward(b[:2], out[2:]) == launch + 1
            before = handle._engine.machine.launches
            gradients = replay.backward(launch, a[:2], a[2:], out[:2])
            assert handle._engine.machine.launches == before + 2
            assert_same_bits([*out[:2], gradients["W"], gradients["U"]], first[2:])

    def test_takes_none_for_zeros_and_for_gradients_that_are_not_needed(self) -> None:
        net, values = Net(), random_values(1)
        values[3][...] = 0
        with vpps.Handle(net.model, vpps.SGD(lr=0.0), vps=1) as handle:
            replay = Replay(handle, *net.record(values[:2], True), True)
            whole = replayed(replay, values, True)
            out = [np.empty_like(v) for v in values]
            launch = replay.forward(values[:2], out[2:])
            gradients = replay.backward(launch, values[:2], [values[2], None], [None, out[1]])
            assert_same_bits([out[1], gradients["W"], gradients["U"]], whole[3:])

    def test_reads_changed_weights(self) -> None:
        net, values = Net(), random_values(1)
        with vpps.Handle(net.model, vpps.SGD(lr=0.0), vps=1) as handle:
            replay = Replay(handle, *net.record(values[:2], True), True)
            replayed(replay, values, True)
            net.model["U"].assign(2 * net.model["U"].numpy())
            assert_same_bits(replayed(replay, values, True), results(net, handle, values, True))


@pytest.mark.cpu
@pytest.mark.parametrize("runs", range(3))
def test_ctrl_c_leaves_a_replay_usable(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts the run that plans, the run that finds the words, and a later one."""
    net = Net()
    with vpps.Handle(net.model, vpps.SGD(lr=0.0), vps=1) as handle:
        replay = Replay(handle, *net.record(random_values(0)[:2], True), True)
        for seed in range(runs):
            replayed(replay, random_values(seed), True)
        with interrupt_next_launch(handle, monkeypatch):
            replayed(replay, random_values(8), True)
        for seed in (9, 10):
            values = random_values(seed)
            assert_same_bits(replayed(replay, values, True), results(net, handle, values, True))


@pytest.mark.host
@pytest.mark.parametrize(
    "starts",
    [[], [7], [0, 4, 8], [8, 4, 0], [6, 2, 14], [4, 0, 12], [1, 8], [0], [0, 0]],
    ids=str,
)
def test_spans(starts: list[int]) -> None:
    """Floats at 0 are zeros: a row without a place begins there. Covers rows out of order and with gaps."""
    pool, width = np.arange(20, dtype=np.float32), 4
    span, out = Span.of(np.array(starts), width), np.full((len(starts), width), np.nan, np.float32)
    span.read(pool, out)
    expected = [np.zeros(width) if s == 0 else np.arange(s, s + width) for s in starts]
    np.testing.assert_array_equal(out, np.reshape(expected, (-1, width)))
    np.testing.assert_array_equal(pool[span.key].reshape(-1, width), out)
