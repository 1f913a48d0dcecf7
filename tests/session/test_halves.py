"""Forward, backward and update as separate calls: the same bits as `fb`, and gradients of any requested values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import GRADIENT_TOLERANCE, relative_error
from tests.engine.test_parameter_store import interrupt_next_launch
from tests.fuzz.histories import state
from vpps.placement.onchip import ChipOptions
from vpps.reference import Reference, weights_of
from vpps.script.disassemble import entry_points

E = vpps.Expression
pytestmark = pytest.mark.usefixtures("roomy_kernels")
TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]
WORDS, WIDTH, CLASSES = 9, 6, 3


def adam() -> vpps.Optimizer:
    return vpps.Adam(lr=lambda step: 0.02 / step, groups={"W": {"weight_decay": 0.1}})


class Net:
    """Trees with dropout over a table; leaves also read an input."""

    def __init__(self, dropout: float = 0.3) -> None:
        self.model = model = vpps.Model(seed=4)
        words = model.lookup("words", (WORDS, WIDTH), init="normal")
        W = model.parameter("W", (2 * WIDTH, 2 * WIDTH))
        b = model.parameter("b", (2 * WIDTH,), init="normal")
        O = model.parameter("O", (CLASSES, WIDTH))

        @vpps.cell
        def leaf(x: E, word: int) -> E:
            return vpps.tanh(vpps.lookup(words, word) + x)

        @vpps.cell
        def node(left: E, right: E) -> E:
            gate, update = vpps.split(W @ vpps.concat([left, right]) + b, 2)
            return vpps.dropout(vpps.sigmoid(gate) * vpps.tanh(update), dropout)

        @vpps.cell
        def scores(h: E) -> E:
            return O @ h

        self.leaf, self.node, self.scores = leaf, node, scores

    def states(self, graph: vpps.Graph, seed: int, x: Any = None) -> tuple[vpps.Rows, list[E]]:
        """Return inputs, and the state of every inner node, the root's last."""
        random = np.random.default_rng(seed)
        n = int(random.integers(2, 6))
        data = random.normal(size=(n, WIDTH)) if x is None else x
        rows = graph.rows(data, grad=True)
        nodes = [self.leaf(row, int(random.integers(seed % 3, WORDS))) for row in rows]
        inner = []
        while len(nodes) > 1:
            at = int(random.integers(len(nodes) - 1))
            nodes[at : at + 2] = [self.node(*nodes[at : at + 2])]
            inner.append(nodes[at])
        return rows, inner

    def batch(self, seed: int) -> tuple[vpps.Graph, E]:
        graph = vpps.Graph()
        losses = []
        for k in range(3):
            _, inner = self.states(graph, 10 * seed + k)
            losses += [vpps.cross_entropy(self.scores(h), k) for h in inner]
        return graph, vpps.sum(losses) * 0.25


def by_fb(handle: vpps.Handle, graph: vpps.Graph, loss: E) -> None:
    handle.fb(graph, loss)


def by_apply(handle: vpps.Handle, graph: vpps.Graph, loss: E) -> None:
    handle.forward(graph, [loss], train=True, keep=True)
    handle.apply(handle.backward([1]))


def by_update(handle: vpps.Handle, graph: vpps.Graph, loss: E) -> None:
    handle.forward(graph, [loss], train=True, update=True)
    assert handle.backward([1]) == {}


def trained(how: Callable[[vpps.Handle, vpps.Graph, E], None], steps: int = 4, **options: Any) -> dict[str, Any]:
    net = Net()
    with vpps.Handle(net.model, verify=True, **options) as handle:
        for k in range(steps):
            how(handle, *net.batch(k))
    return state(net.model) | {"step": net.model.step}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


ON_SIMT: list[dict[str, Any]] = [
    *({}, {"clip_norm": 0.1}, {"ema": 0.9}, {"schedule": "paper"}),
    *({"onchip": ChipOptions(groups=2), "vps": 4, "clip_norm": bound} for bound in (None, 0.1)),
]


class TestBits:
    @pytest.mark.parametrize(
        "target, options",
        [
            pytest.param("cpu", {}, marks=pytest.mark.cpu),
            *(pytest.param("simt", options, marks=pytest.mark.simt, id=str(options)) for options in ON_SIMT),
        ],
    )
    def test_are_those_of_fb(self, target: str, options: dict[str, Any]) -> None:
        """Tests rules and options that tests/fuzz/histories.py does not cover, also on simt."""
        steps = 2 if "onchip" in options else 4
        whole, *halves = (
            trained(how, steps, optimizer=adam(), target=target, **{"vps": 2} | options)
            for how in (by_fb, by_apply, by_update)
        )
        assert all(same(whole, found) for found in halves)

    def test_what_was_accumulated_of_parameters_frozen_since_is_left_alone(self) -> None:
        """A frozen parameter has no place among the others' gradients."""

        def run(how: Callable[[vpps.Handle, vpps.Graph, E], None]) -> dict[str, Any]:
            net = Net()
            with vpps.Handle(net.model, vpps.SGD(lr=0.1)) as handle:
                handle.fb(*net.batch(0), accumulate=True)
                net.model["W"].trainable = False
                how(handle, *net.batch(1))
            return state(net.model)

        whole, applied = run(by_fb), run(by_apply)
        for name in whole:
            assert relative_error(applied[name], whole[name]) < 1e-5, name


class TestGradients:
    @pytest.mark.parametrize("target", TARGETS)
    def test_are_those_of_the_reference(self, target: str) -> None:
        """Covers several outputs, rows and single expressions, one of them twice and one without a seed."""
        net, graph, random = Net(dropout=0), vpps.Graph(), np.random.default_rng(1)
        rows, inner = net.states(graph, 1)
        scores = net.scores(inner[-1])
        wanted = [scores, rows, inner[0], scores, inner[-1]]
        seeds = [random.normal(size=(len(e), *e.shape) if isinstance(e, vpps.Rows) else e.shape) for e in wanted]
        terms = [vpps.dot(e, graph.input(s)) for e, s in zip(wanted, seeds, strict=True) if isinstance(e, E)][:-1]
        terms += [vpps.dot(row, graph.input(s)) for row, s in zip(rows, seeds[1], strict=True)]
        loss = vpps.sum(terms)
        with vpps.Handle(net.model, target=target, vps=2, verify=True) as handle:
            values = handle.forward(graph, wanted, keep=True)
            found = handle.backward([*seeds[:-1], None])
            of_inputs = handle.input_gradient(rows)
        reference = Reference(graph, weights_of(net.model))
        expected = reference.backward(loss)
        for e, value in zip(wanted, values, strict=True):
            if isinstance(e, E):
                assert relative_error(value, reference.value(e)) < GRADIENT_TOLERANCE
        assert found.keys() == {"words", "W", "b", "O"}
        of_table = found.pop("words")
        assert isinstance(of_table, vpps.RowGradients)
        assert relative_error(of_table.values, expected["words"][of_table.rows]) < GRADIENT_TOLERANCE
        for name, gradient in found.items():
            assert relative_error(gradient, expected[name]) < GRADIENT_TOLERANCE, name
        by_hand = np.stack([reference.gradient(row) for row in rows])
        assert relative_error(of_inputs, by_hand) < GRADIENT_TOLERANCE

    def test_of_inputs_alone(self) -> None:
        """No parameter is trained; only gradients that flow through the model are wanted."""
        net, graph = Net(dropout=0), vpps.Graph()
        rows, inner = net.states(graph, 2)
        with vpps.Handle(net.model) as handle:
            handle.forward(graph, [inner[-1]], keep=True)
            handle.backward([np.ones(WIDTH)])
            expected = handle.input_gradient(rows)
            for p in net.model:
                p.trainable = False
            handle.forward(graph, [inner[-1]], keep=True)
            assert handle.backward([np.ones(WIDTH)]) == {}
            assert np.array_equal(handle.input_gradient(rows), expected)
            assert np.any(expected)
            loss = vpps.sum(inner[-1])
            value, found = handle.gradients(graph, loss)
            assert value == handle.forward(graph, [loss])[0]
            assert not any(map(np.any, found.values()))
            handle.gradients(graph, loss)
            assert np.array_equal(handle.input_gradient(rows), expected)
            for accumulate in (False, True):  # a step is only for parameters
                with pytest.raises(vpps.NoGradientError, match="the loss depends on no trainable parameter"):
                    handle.fb(graph, loss, accumulate=accumulate)

    def test_of_gradients_are_sparse_if_asked(self) -> None:
        net = Net(dropout=0)
        graph, loss = net.batch(1)
        with vpps.Handle(net.model) as handle:
            value, dense = handle.gradients(graph, loss)
            again, sparse = handle.gradients(graph, loss, sparse=True)
            kept = handle.forward(graph, [loss], keep=True)
            halves = handle.backward([1])
        assert value == again == kept[0]
        for name, gradient in sparse.items():
            other = halves[name]
            if isinstance(gradient, vpps.RowGradients):
                assert isinstance(other, vpps.RowGradients)
                assert np.array_equal(gradient.values, other.values)
                whole = np.zeros_like(dense[name])
                whole[gradient.rows] = gradient.values
                gradient, other = whole, whole
            assert np.array_equal(gradient, other), name
            assert np.array_equal(gradient, dense[name]), name

    def test_draws_have_other_masks(self) -> None:
        net = Net(dropout=0.5)
        graph, loss = net.batch(0)
        with vpps.Handle(net.model) as handle:
            drawn = [handle.forward(graph, [loss], train=True, draw=k)[0] for k in (0, 1, 2)]
            again = [handle.forward(graph, [loss], train=True, keep=True, draw=k)[0] for k in (0, 1, 2)]
            handle.fb(graph, loss)
            assert handle.sync_get_latest_loss() == drawn[0]
        assert drawn == again
        assert len(set(map(float, drawn))) == 3


class TestKept:
    def test_several_wait_for_their_backward(self) -> None:
        """Backward can run in any order, mixed with other calls; each result equals that of a single call."""
        net, handles = Net(), []
        with vpps.Handle(net.model) as handle:
            alone = []
            for k in range(3):
                graph, loss = net.batch(k)
                handle.forward(graph, [loss], train=True, keep=True)
                alone.append(handle.backward([1]))
            for k in range(3):
                graph, loss = net.batch(k)
                handle.forward(graph, [loss], train=True, keep=True)
                handles.append(handle.kept)
            handle.gradients(*net.batch(4))
            for k in (1, 0, 2, 0):
                found = handle.backward([1], kept=handles[k])
                assert found.keys() == alone[k].keys()
                for name in found:
                    assert all(map(np.array_equal, found[name], alone[k][name])), (k, name)

    def test_a_graph_may_grow_meanwhile(self) -> None:
        net, graph = Net(dropout=0), vpps.Graph()
        _, inner = net.states(graph, 1)
        with vpps.Handle(net.model) as handle:
            handle.forward(graph, [inner[-1]], keep=True)
            first, kept = handle.backward([np.ones(WIDTH)]), handle.kept
            _, more = net.states(graph, 2)
            handle.forward(graph, [more[-1]], keep=True)
            again = handle.backward([np.ones(WIDTH)], kept)
            for name in ("W", "b"):
                assert np.array_equal(first[name], again[name])

    def test_other_weights_are_refused(self) -> None:
        net = Net()
        graph, loss = net.batch(0)
        with vpps.Handle(net.model) as handle:
            changes: list[Callable[[], object]] = [
                lambda: handle.fb(graph, loss),
                lambda: net.model["b"].assign(np.zeros(2 * WIDTH)),
                lambda: handle.apply({}),
            ]
            for change in changes:
                handle.forward(graph, [loss], keep=True)
                change()
                with pytest.raises(vpps.HandleError, match=r"the weights have changed since .*; call forward again"):
                    handle.backward([1])
            handle.forward(graph, [loss], update=True)
            handle.backward([1])
            with pytest.raises(vpps.HandleError, match="backward makes an update here, so record all"):
                handle.backward([1])

    def test_gradients_of_inputs_come_with_backward(self) -> None:
        net, graph = Net(), vpps.Graph()
        rows, inner = net.states(graph, 1)
        with vpps.Handle(net.model) as handle:
            handle.forward(graph, [inner[-1]], keep=True)
            with pytest.raises(vpps.GraphError, match="computes no gradients"):
                handle.input_gradient(rows)


class TestInterrupted:
    def test_of_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C before a launch has no effect. A stopped launch raises an error, and training continues."""
        net = Net()
        graph, loss = net.batch(0)
        with vpps.Handle(net.model, vpps.Adam(), target="cpu") as handle:
            handle.fb(graph, loss)
            before = state(net.model)
            handle.forward(graph, [loss], update=True)
            with interrupt_next_launch(handle, monkeypatch):
                handle.backward([1])
            assert net.model.step == 1
            assert same(before, state(net.model))
            handle.backward([1])
            assert net.model.step == 2
            handle.forward(graph, [loss], update=True)
            launch = handle._engine.machine.launch

            def damaged(script: Any) -> None:
                script = script.copy()
                script[entry_points(script)] = 0xFFFF  # no such instruction
                launch(script)

            with monkeypatch.context() as patch:
                patch.setattr(handle._engine.machine, "launch", damaged)
                with pytest.raises(vpps.KernelError, match="the kernel stopped"):
                    handle.backward([1])
            handle.forward(graph, [loss], keep=True)
            assert handle.backward([1])


class TestApply:
    def test_rows_may_come_in_any_order_and_more_than_once(self) -> None:
        def updated(gradients: dict[str, Any]) -> dict[str, Any]:
            net = Net()
            with vpps.Handle(net.model, vpps.Adam()) as handle:
                handle.apply(gradients)
            return state(net.model)

        values = np.random.default_rng(0).normal(size=(4, WIDTH)).astype(np.float32)
        distinct = np.stack([values[1], values[0] + values[2], values[3]])
        dense = np.zeros((WORDS, WIDTH), np.float32)
        dense[[1, 5, 8]] = distinct
        expected = updated({"words": vpps.RowGradients(np.array([1, 5, 8]), distinct)})
        assert same(expected, updated({"words": ([5, 1, 5, 8], values)}))
        assert same(expected, updated({"words": dense}))

    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
    @pytest.mark.parametrize("of", ["gradients", "seeds"])
    def test_what_is_not_finite_is_left_out(self, value: float, of: str) -> None:
        net = Net()
        bad = np.zeros(2 * WIDTH, np.float32)
        bad[3] = value
        graph, loss = net.batch(0)
        with vpps.Handle(net.model, vpps.Adam(), on_nonfinite="raise") as handle:
            handle.apply({"O": np.ones((CLASSES, WIDTH))}, accumulate=True)
            before = state(net.model)
            handle.forward(graph, [loss], update=True)
            calls = {"gradients": lambda: handle.apply({"b": bad}), "seeds": lambda: handle.backward([value])}
            with pytest.raises(vpps.NonFiniteError, match="step 1: gradients are not finite"):
                calls[of](), handle.sync_get_latest_loss()
            assert np.isnan(handle.sync_get_latest_loss())  # there was no fb
            assert same(before, state(net.model))
            assert (handle.skipped, handle.accumulated, net.model.step) == (1, 1, 1)

    def test_is_the_first_call_of_a_handle(self) -> None:
        net, other = Net(dropout=0), Net(dropout=0)
        graph, loss = other.batch(0)
        with vpps.Handle(other.model) as handle:
            _, found = handle.gradients(graph, loss, sparse=True)
        with vpps.Handle(other.model, vpps.SGD(lr=0.5)) as handle:
            handle.fb(graph, loss)
        with vpps.Handle(net.model, vpps.SGD(lr=0.5)) as handle:
            handle.apply(found)
        assert same(state(net.model), state(other.model))
