"""Accumulated gradients: the sum that one large batch would have, updated with once, and lost by nothing in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.runtime.test_cpu import stop_next_launch
from vpps.ops.philox import launch_key
from vpps.placement.distribution import Distribution, HeldGradients
from vpps.reference import Reference, key_of, weights_of

pytestmark = pytest.mark.cpu

E = vpps.Expression
OPTIMIZERS: dict[str, Callable[[], vpps.Optimizer]] = {
    "sgd": lambda: vpps.SGD(lr=0.05),
    "sgd-decay": lambda: vpps.SGD(lr=0.05, weight_decay=0.1),
    "momentum": lambda: vpps.Momentum(lr=0.02),
    "adam": lambda: vpps.Adam(lr=0.01),
}


class Net:
    """Batches differ in the parameters and table rows that they use: batch k uses matrix k % 3, rows k to k + 3."""

    def __init__(self, model: vpps.Model) -> None:
        if "words" not in model:
            model.lookup("words", (12, 40), init="normal")
            model.lookup("other", (6, 5), init="normal")
            for k in range(3):
                model.parameter(f"W{k}", (40, 45))
            model.parameter("b", (40,), init="normal")
            model.parameter("frozen", (40,), init="ones", trainable=False)
        self.model = model

    @vpps.cell
    def read(self, word: E, other: E, *, k: int) -> E:
        return vpps.tanh(self.model[f"W{k}"] @ vpps.concat([word, other]) + self.model["b"]) * self.model["frozen"]

    def loss(self, graph: vpps.Graph, k: int) -> E:
        words, other = self.model["words"], self.model["other"]
        assert isinstance(words, vpps.Lookup)
        assert isinstance(other, vpps.Lookup)
        losses = []
        for i in range(4):
            x = graph.lookup(words, (k + i) % 12)
            y = graph.lookup(other, k % 6) if k % 2 else graph.input(np.full(5, 0.5))
            h = self.read(x, y, k=k % 3)
            losses.append(vpps.mse(h, graph.input(np.cos(np.arange(40) * (k + 1)))))
        return vpps.sum(losses)

    def batch(self, *which: int) -> tuple[vpps.Graph, E]:
        graph = vpps.Graph()
        losses = [self.loss(graph, k) for k in which]
        return graph, losses[0] if len(losses) == 1 else vpps.sum(losses)

    def accumulate(self, handle: vpps.Handle, which: Iterable[int]) -> None:
        for k in which:
            handle.fb(*self.batch(k), accumulate=True)


def new() -> Net:
    return Net(vpps.Model(seed=7))


def state(model: vpps.Model) -> dict[str, Any]:
    """Weights and moments."""
    found: dict[str, Any] = dict(model.numpy())
    if model.optimizer_state is not None:
        for name, arrays in model.optimizer_state.moments.items():
            found |= {f"{name}/{k}": v for k, v in arrays.items()}
    return found


def same_state(a: vpps.Model, b: vpps.Model) -> bool:
    x, y = state(a), state(b)
    return a.step == b.step and x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x)


class TestSum:
    def test_weights_stay_until_the_update(self) -> None:
        net = new()
        before = net.model.numpy()
        asked: list[int] = []

        def schedule(update: int) -> float:
            asked.append(update)
            return 0.1

        with vpps.Handle(net.model, vpps.SGD(lr=schedule)) as handle:
            for k in range(4):
                handle.fb(*net.batch(k), accumulate=True)
                assert handle.accumulated == k + 1
            assert all(np.array_equal(net.model[name].numpy(), w) for name, w in before.items())
            assert (net.model.step, asked) == (0, [])
            handle.fb(*net.batch(4))
            assert (net.model.step, asked, handle.accumulated) == (1, [1], 0)
        assert not np.array_equal(net.model["W0"].numpy(), before["W0"])

    def test_losses_are_those_of_the_calls(self) -> None:
        net = new()
        with vpps.Handle(net.model) as handle:
            expected = [handle.gradients(*net.batch(k))[0] for k in range(3)]
            net.accumulate(handle, [0])
            assert handle.sync_get_latest_loss() == expected[0]
            assert handle.fb(*net.batch(1), accumulate=True) == expected[0]
            assert handle.fb(*net.batch(2)) == expected[1]
            assert handle.sync_get_latest_loss() == expected[2]

    def test_dropout_has_another_mask_in_every_call(self) -> None:
        model = vpps.Model(seed=5)
        p = model.parameter("p", (200,), init="ones")

        def batch() -> tuple[vpps.Graph, E, E]:
            graph = vpps.Graph()
            y = vpps.dropout(graph.input(np.ones(200)) * p, 0.5)
            return graph, vpps.sum(y), y

        masks = []
        with vpps.Handle(model, vpps.SGD(lr=0.0)) as handle:
            for call in range(3):
                assert key_of(model) == launch_key(5, 1, call)
                graph, loss, y = batch()
                reference = Reference(graph, weights_of(model), key_of(model))
                handle.gradients(graph, loss, train=True)  # foretells it
                assert np.array_equal(handle.value(y), reference.value(y))
                handle.fb(graph, loss, accumulate=call < 2)
                masks.append(handle.value(y))
                assert np.array_equal(masks[-1], reference.value(y))
            assert key_of(model) == launch_key(5, 2)
        assert len(np.unique(masks, axis=0)) == 3

    def test_given_gradients_are_read_at_once(self) -> None:
        """What becomes of their arrays afterwards, a PyTorch optimizer's zeros, is nothing to it."""
        results = []
        for overwrite in (False, True):
            net = Net(vpps.Model(seed=2))
            given: list[Any] = [np.ones((40, 45), np.float32), np.array([2, 3]), np.ones((2, 40), np.float32)]
            with vpps.Handle(net.model, vpps.SGD(lr=1.0)) as handle:
                handle.apply({"W0": given[0], "words": tuple(given[1:])}, accumulate=True)
                for array in given if overwrite else ():
                    array[...] = 0
                handle.apply({"words": vpps.RowGradients(np.array([3]), np.ones((1, 40), np.float32))})
            results.append(net.model.numpy())
        for name, w in results[0].items():
            assert w.tobytes() == results[1][name].tobytes(), name


class TestBetween:
    def test_assigned_weights_are_those_that_the_update_changes(self) -> None:
        net = new()
        with vpps.Handle(net.model, vpps.SGD(lr=1.0)) as handle:
            net.accumulate(handle, [0])
            gradient = handle.gradients(*net.batch(0))[1]["W0"]
            net.model["W0"].assign(np.zeros((40, 45)))
            handle.fb(*net.batch(1))  # does not use it
        np.testing.assert_allclose(net.model["W0"].numpy(), -gradient, rtol=1e-6)

    def test_an_update_ends_the_part_of_a_frozen_parameter(self) -> None:
        net = new()
        with vpps.Handle(net.model) as handle:
            net.accumulate(handle, (0,))
            for name in ("words", "W0"):
                net.model[name].trainable = False
            handle.fb(*net.batch(2))
            net.accumulate(handle, (1,))
            for name in ("words", "W0"):
                net.model[name].trainable = True
        kept = net.model.accumulated
        assert kept is not None
        assert set(kept.gradients) == {"W1", "b", "other"}
        assert kept.rows["other"].tolist() == [1]

    def test_a_loss_that_is_not_finite_can_be_left_out(self, tmp_path: Path) -> None:
        model = vpps.Model(seed=1)
        b = model.parameter("b", (1,))

        def batch(x: float) -> tuple[vpps.Graph, E]:
            graph = vpps.Graph()
            return graph, vpps.sum(vpps.sqrt(graph.input([x]) + b))

        with vpps.Handle(model, vpps.SGD(lr=1.0), on_nonfinite="raise") as handle:
            handle.fb(*batch(1.0), accumulate=True)
            handle.fb(*batch(-1.0), accumulate=True)
            with pytest.raises(vpps.NonFiniteError, match="step 1"):
                handle.fb(*batch(1.0))
            model.save(tmp_path / "model")
            assert handle.accumulated == 1
            handle.fb(*batch(1.0))
            assert b.numpy() == -1

    def test_a_kernel_that_stopped_takes_the_sum_with_it(self) -> None:
        net = new()
        with vpps.Handle(net.model) as handle:
            net.accumulate(handle, (0,))
            stop_next_launch(handle)
            net.accumulate(handle, (1,))
            with pytest.raises(vpps.KernelError, match="the accumulated gradients are discarded"):
                handle.sync_get_latest_loss()
            assert handle.accumulated == 0
            handle.fb(*net.batch(2))
        assert net.model.step == 1

    def test_memory_for_tables_is_taken_when_it_is_first_needed(self) -> None:
        model = vpps.Model(seed=1)
        table = model.lookup("E", (10_000, 10))

        def batch() -> tuple[vpps.Graph, E]:
            graph = vpps.Graph()
            return graph, vpps.sum(graph.lookup(table, 1))

        with vpps.Handle(model, pool_limit=600_000) as handle:
            handle.fb(*batch())
            with pytest.raises(vpps.CapacityError, match="pool_limit"):
                handle.fb(*batch(), accumulate=True)
            handle.fb(*batch())  # goes on
            assert handle.accumulated == 0
        assert model.step == 2
        with vpps.Handle(model, pool_limit=1_000_000) as handle:
            handle.fb(*batch(), accumulate=True)
            handle.fb(*batch())

    def test_it_needs_a_parameter(self) -> None:
        net = new()
        graph = vpps.Graph()
        loss = vpps.sum(graph.input([1.0]))
        with vpps.Handle(net.model) as handle:
            net.accumulate(handle, (0, 1))
            for accumulate in (True, False):
                with pytest.raises(vpps.GraphError, match="no trainable parameter"):
                    handle.fb(graph, loss, accumulate=accumulate)
            assert handle.accumulated == 2


@pytest.mark.parametrize("rows", [[], [0], [11], [0, 1, 2], [3, 7, 8], list(range(12))])
def test_the_verifier_knows_which_gradients_hold_something(rows: list[int]) -> None:
    """All that is placed lies in one array; of the gradients, exactly what is not held is unwritten."""
    model = new().model
    distribution = Distribution(model, 2, 32, 1, train=True, accumulates=True)
    held = HeldGradients(frozenset([model["W1"]]), {model["words"]: np.array(rows, np.int64)} if rows else {})
    placed, empty = distribution.spans(held)
    holds = np.zeros(distribution.end, int)
    for start, stop in placed:
        holds[start:stop] += 1
    assert holds.max() == 1
    for start, stop in empty:
        holds[start:stop] -= 1
    assert holds.min() == 0
    for p, place in distribution.places.items():
        written = holds[place.gradient : place.gradient + place.floats]
        if p.name == "words":
            by_row = written.reshape(12, 40)
            assert np.flatnonzero(by_row.all(axis=1)).tolist() == np.flatnonzero(by_row.any(axis=1)).tolist() == rows
        elif p.trainable:
            assert (written == (p.name == "W1")).all(), p.name
        assert holds[place.weights : place.weights + place.floats].all()


@pytest.mark.parametrize("damage", ["rows", "order", "shape", "missing", "calls"])
def test_damaged_gradients_in_a_checkpoint_are_refused(tmp_path: Path, damage: str) -> None:
    from tests.model.test_checkpoint import rewrite

    net = new()
    with vpps.Handle(net.model) as handle:
        net.accumulate(handle, (0, 1))
        net.model.save(tmp_path / "model")

    def change(tensors: dict[str, Any], description: dict[str, Any]) -> None:
        rows = tensors["gradient_rows/words"]
        match damage:
            case "rows":
                tensors["gradient_rows/words"] = rows + 11
            case "order":
                tensors["gradient_rows/words"] = rows[::-1].copy()
            case "shape":
                tensors["gradient/W0"] = np.zeros((3, 3), np.float32)
            case "missing":
                del tensors["gradient/b"]
            case "calls":
                description["accumulated"]["calls"] = None

    rewrite(tmp_path / "model", change)
    with pytest.raises(vpps.CheckpointError, match="damaged"):
        net.model.restore(tmp_path / "model")
    assert net.model.accumulated is not None
