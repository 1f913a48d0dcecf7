"""Random recurrent cells - several results of which some are unread, lists, slices of concatenations, dropout - through
all passes: what they compute is what the reference computes, by both planners, with streams of two rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vpps
from tests.comparison import relative_error
from vpps.plan.passes import streaming
from vpps.plan.policies import POLICIES
from vpps.reference import Reference, key_of, weights_of

pytestmark = pytest.mark.cpu

WIDTH = 8
E = vpps.Expression
PLANNERS = ("numpy", "compiled")


@pytest.fixture(autouse=True)
def short_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "CHUNK_ROWS", 2)


def assert_agrees(model: vpps.Model, graph: vpps.Graph, loss: E, values: list[E], **options: Any) -> None:
    """Loss and gradients in training, with dropout; values in inference."""
    training, inference = Reference(graph, weights_of(model), key_of(model)), Reference(graph, weights_of(model))
    expected = training.backward(loss)
    largest = max(float(np.linalg.norm(g)) for g in expected.values())
    with vpps.Handle(model, verify=True, **options) as handle:
        value, gradients = handle.gradients(graph, loss, train=True)
        assert value == pytest.approx(float(training.value(loss)), rel=1e-4, abs=1e-5)
        for name, gradient in gradients.items():
            error = float(np.linalg.norm(gradient - expected[name]))
            assert error <= 1e-3 * float(np.linalg.norm(expected[name])) + 1e-5 * largest, name
        for e, found in zip(values, handle.forward(graph, values), strict=True):
            assert relative_error(found, inference.value(e)) < 1e-3


class Net:
    """Matrices and a table that random cells share."""

    def __init__(self, seed: int) -> None:
        self.model = vpps.Model(seed=seed)
        self.square = [self.model.parameter(f"W{i}", (WIDTH, WIDTH)) for i in range(4)]
        self.tall = [self.model.parameter(f"V{i}", (2 * WIDTH, WIDTH)) for i in range(2)]
        self.bias = [self.model.parameter(f"b{i}", (WIDTH,), init="normal") for i in range(2)]
        self.words = self.model.lookup("words", (5, WIDTH), init="normal")

    def cell(self, drawn: tuple[bool, list[tuple[int, int, int]], list[int]]) -> vpps.Cell[Any]:
        """A cell (x, before, word[, memory]) of the drawn operations; its results are the last value and others."""
        has_list, operations, results = drawn

        def body(x: E, before: E, word: int, memory: Any = None) -> tuple[E, ...]:
            values = [x, before, vpps.lookup(self.words, word)]
            for which, i, j in operations:
                a, b = values[i % len(values)], values[j % len(values)]
                values.append(self.operation(which, i, j, a, b, memory))
            return (values[-1], *(values[r % len(values)] for r in results))

        if has_list:
            return vpps.cell(lambda x, before, word, memory: body(x, before, word, memory))
        return vpps.cell(lambda x, before, word: body(x, before, word))

    def operation(self, which: int, i: int, j: int, a: E, b: E, memory: Any) -> E:
        W, V, c = self.square, self.tall, self.bias
        in_list: dict[int, Callable[[], E]] = {
            10: lambda: vpps.sum(vpps.each(lambda m: W[i % 4] @ m * b, memory)),
            11: lambda: vpps.sum(vpps.each(lambda m: vpps.concat([m, b])[4 : 4 + WIDTH], memory)),
            12: lambda: vpps.mean(vpps.each(lambda m: vpps.tanh(vpps.concat([b, m])[:WIDTH]), memory)),
            13: lambda: vpps.max(memory),
        }
        if which in in_list and memory is not None:
            return in_list[which]()
        match which:
            case 0 | 1:
                return W[i % 4] @ b
            case 2:
                return vpps.tanh(W[i % 4] @ a + W[j % 4] @ b + c[i % 2])
            case 3:
                return vpps.sigmoid(a) * b
            case 4:
                return (V[i % 2] @ a)[:WIDTH] + c[j % 2]
            case 5:
                return vpps.tanh(V[i % 2] @ a)[WIDTH:]
            case 6:
                return vpps.concat([a, b])[3 : 3 + WIDTH]
            case 7:
                return vpps.dropout(a, 0.3)
            case 8:
                first, second = vpps.split(a, 2)
                return vpps.concat([second, first])
            case 9:
                return a * vpps.sum(b) * 0.1
            case _:
                return vpps.tanh(a + b)


cells = st.tuples(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=8),
    st.lists(st.integers(0, 99), max_size=3),
)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    drawn=st.lists(cells, min_size=1, max_size=2),
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 99), st.integers(0, 99)), min_size=2, max_size=24),
    policy=st.sampled_from(["sinks-last", *POLICIES]),
    vps=st.sampled_from([1, 2, 3]),
    planner=st.sampled_from(PLANNERS),
    seed=st.integers(0, 99),
)
def test_random_recurrent_cells(
    drawn: list[Any], steps: list[tuple[int, int, int]], policy: str, vps: int, planner: str, seed: int
) -> None:
    net = Net(seed)
    made = [(net.cell(d), d[0]) for d in drawn]
    graph, rng = vpps.Graph(), np.random.default_rng(seed)
    leaves = [graph.input(rng.normal(size=WIDTH).astype(np.float32)) for _ in range(3)]
    state, results = [leaves[0]], []
    for which, i, j in steps:
        cell, has_list = made[which % len(made)]
        args: list[Any] = [leaves[i % 3], state[-1 - j % min(3, len(state))], (i + j) % 5]
        if has_list:
            args.append([state[-1 - k % len(state)] for k in range(1 + j % 3)])
        out = graph.call(cell, *args)
        results.append(out)
        state.append(out[0] if j % 4 else out[i % len(out)])
    used = [out[k % len(out)] for k, out in enumerate(results)]
    loss = vpps.sum([vpps.sum(vpps.tanh(e)) for e in [*used, net.square[0] @ leaves[0]]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VPPS_PLANNER", planner)
        assert_agrees(net.model, graph, loss, used, vps=vps, policy=policy)


# ---- faults that were found


def chains(cell: vpps.Cell[Any], n: int, length: int) -> tuple[vpps.Graph, list[tuple[E, ...]]]:
    """Chains of a cell (x, before), whose first result is the next one's `before`."""
    graph, rng, found = vpps.Graph(), np.random.default_rng(1), []
    for _ in range(n):
        before = graph.zeros(WIDTH)
        for _ in range(length):
            found.append(graph.call(cell, graph.input(rng.normal(size=WIDTH).astype(np.float32)), before))
            before = found[-1][0]
    return graph, found


@pytest.mark.parametrize("planner", PLANNERS)
def test_an_unread_output_that_another_part_reads_has_a_gradient(monkeypatch: pytest.MonkeyPatch, planner: str) -> None:
    monkeypatch.setenv("VPPS_PLANNER", planner)
    net = Net(1)
    W, U, V = net.square[:3]

    @vpps.cell
    def eager(x, before):
        e = W @ x
        return vpps.tanh(e + U @ before), e  # nobody reads e

    @vpps.cell
    def lazy(x, before):
        gate = vpps.sigmoid(W @ x + U @ before)
        return gate * before + gate, gate, V @ gate  # nobody reads the gate

    for cell, result in ((eager, 0), (lazy, 2)):
        graph, found = chains(cell, 2, 3)
        assert_agrees(net.model, graph, vpps.sum([vpps.sum(out[result]) for out in found]), [], vps=2)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_residual_past_the_recurrence_reads_all_chunks_of_a_stream(
    monkeypatch: pytest.MonkeyPatch, planner: str
) -> None:
    monkeypatch.setenv("VPPS_PLANNER", planner)
    net = Net(1)
    W, U = net.square[:2]

    @vpps.cell
    def cell(x, before):
        e = W @ x
        h = vpps.tanh(e + U @ before)
        return h, h * vpps.sigmoid(e)

    graph, found = chains(cell, 4, 6)
    values = [out[1] for out in found]
    assert_agrees(net.model, graph, vpps.sum([vpps.sum(v) for v in values]), values, vps=2)


def test_a_slice_of_a_value_of_the_vertex_beside_an_element_has_a_row_per_element() -> None:
    net = Net(1)
    W = net.square[0]

    @vpps.cell
    def cell(x, memory):
        return W @ vpps.sum(vpps.each(lambda m: vpps.concat([x, m])[:WIDTH], memory))

    graph = vpps.Graph()
    xs = [graph.input(np.full(WIDTH, 0.1 * k, np.float32)) for k in range(5)]
    value = cell(xs[0], xs[1:])
    assert_agrees(net.model, graph, vpps.sum(value), [value], vps=2)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_recurrence_that_is_eager_and_lazy_alone_does_not_stream(
    monkeypatch: pytest.MonkeyPatch, planner: str
) -> None:
    monkeypatch.setenv("VPPS_PLANNER", planner)
    net = Net(1)
    W, V = net.square[0], net.tall[0]

    @vpps.cell
    def cell(x, before):
        e = W @ x
        return e, vpps.tanh(V @ (e + before))

    graph, found = chains(cell, 4, 5)
    assert_agrees(net.model, graph, vpps.sum([vpps.sum(out[1]) for out in found]), [found[-1][1]], vps=3)
