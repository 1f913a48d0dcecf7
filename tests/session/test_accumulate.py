"""Accumulated gradients: the sum that one large batch would have, updated with once, and lost by nothing in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import VP_COUNTS, relative_error
from tests.engine.test_parameter_store import interrupt_next_launch
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
    @pytest.mark.parametrize("clip_norm", [None, 0.01])
    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_updates_are_those_of_one_large_batch(self, name: str, clip_norm: float | None) -> None:
        """With parameters, tables and rows that some of the batches use, others not; for any number of processors."""
        groups = [(0, 1, 2), (3,), (1, 1), (2, 4, 6), (5, 0)]
        whole = new()
        with vpps.Handle(whole.model, OPTIMIZERS[name](), clip_norm=clip_norm) as handle:
            for group in groups:
                handle.fb(*whole.batch(*group))
        first: Net | None = None
        for vps in VP_COUNTS:
            net = new()
            with vpps.Handle(net.model, OPTIMIZERS[name](), vps=vps, clip_norm=clip_norm) as handle:
                for group in groups:
                    net.accumulate(handle, group[:-1])
                    handle.fb(*net.batch(group[-1]))
            for k, expected in whole.model.numpy().items():
                assert relative_error(net.model[k].numpy(), expected) < 1e-5, k
            assert first is None or same_state(net.model, first.model), f"{vps} virtual processors"
            first = first or net

    def test_the_gradients_are_those_of_the_reference(self) -> None:
        net = new()
        before = net.model.numpy()
        graph, loss = net.batch(0, 1, 3)
        expected = Reference(graph, weights_of(net.model)).backward(loss)
        with vpps.Handle(net.model, vpps.SGD(lr=1.0), vps=3) as handle:
            net.accumulate(handle, (0, 1))
            handle.fb(*net.batch(3))
        for p in net.model:
            if p.trainable:
                assert relative_error(before[p.name] - p.numpy(), expected[p.name]) < 1e-4, p.name

    def test_one_call_is_as_if_there_were_no_accumulation(self) -> None:
        net, witness = new(), new()
        with vpps.Handle(net.model, vpps.Adam()) as handle, vpps.Handle(witness.model, vpps.Adam()) as other:
            net.accumulate(handle, (0, 1))
            handle.fb(*net.batch(2))
            witness.accumulate(other, (0, 1))
            other.fb(*witness.batch(2))
            for k in range(3):  # nothing is left of what was accumulated
                handle.fb(*net.batch(k))
            other.discard_accumulated()
            for k in range(3):
                other.fb(*witness.batch(k))
        assert same_state(net.model, witness.model)

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

    def test_the_norm_that_is_clipped_is_that_of_the_sum(self) -> None:
        net = new()
        before = net.model.numpy()
        with vpps.Handle(net.model, vpps.SGD(lr=1.0), clip_norm=1e-3) as handle:
            net.accumulate(handle, (0, 1, 3))
            handle.fb(*net.batch(5))
        moved = np.sqrt(sum(np.sum((w - before[name]) ** 2) for name, w in net.model.numpy().items()))
        assert moved == pytest.approx(1e-3, rel=1e-3)

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
    @pytest.mark.parametrize(
        "between",
        ["forward", "gradients", "gradients twice", "value", "numpy", "save", "refused", "sync", "later parameter"]
        + ["disassemble", "forward-only handle", "new handle", "checkpoint", "interrupt", "interrupted gradients"],
    )
    def test_nothing_disturbs_the_sum(self, between: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither what is accumulated nor what is read in between, to the last bit."""
        net, witness = new(), new()
        with vpps.Handle(witness.model, vpps.Adam(), vps=2, clip_norm=0.1) as other:
            handle = vpps.Handle(net.model, vpps.Adam(), vps=2, clip_norm=0.1)
            for group in ((0, 1, 3), (2,), (4, 5, 7)):
                for k in group:
                    update = k == group[-1]
                    other.fb(*witness.batch(k), accumulate=not update)
                    handle.fb(*net.batch(k), accumulate=not update)
                    graph, loss = net.batch(9, 10)
                    match between:
                        case "forward":
                            handle.forward(graph, [loss])
                        case "gradients" | "gradients twice":
                            expected = other.gradients(*witness.batch(9, 10))
                            for _ in range(1 + (between == "gradients twice")):
                                found = handle.gradients(graph, loss)
                                assert found[0] == expected[0]
                                assert all(np.array_equal(g, expected[1][name]) for name, g in found[1].items())
                        case "value":
                            handle.forward(graph, [loss])
                            handle.value(loss)
                        case "numpy":
                            net.model.numpy()
                        case "save":
                            net.model.save(tmp_path / "model")
                        case "refused":
                            with pytest.raises(vpps.GraphError):
                                handle.fb(graph, net.batch(1)[1], accumulate=True)
                        case "sync":
                            handle.sync_get_latest_loss()
                        case "later parameter":
                            net.model.parameter(f"p{len(net.model)}", (3,), init="ones")
                        case "disassemble":
                            handle.disassemble(graph, loss)
                        case "forward-only handle":
                            with vpps.Handle(net.model, train=False) as evaluator:
                                evaluator.forward(graph, [loss])
                        case "new handle":
                            handle.close()
                            handle = vpps.Handle(net.model, vpps.Adam(), vps=3, clip_norm=0.1)
                        case "checkpoint":
                            net.model.save(tmp_path / "model")
                            handle.close()
                            net = Net(vpps.Model.load(tmp_path / "model"))
                            handle = vpps.Handle(net.model, vpps.Adam(), vps=2, clip_norm=0.1)
                        case "interrupt":
                            for accumulate in (True, False):
                                with interrupt_next_launch(handle, monkeypatch):
                                    handle.fb(graph, loss, accumulate=accumulate)
                        case "interrupted gradients":
                            with interrupt_next_launch(handle, monkeypatch):
                                handle.gradients(graph, loss)
                    assert handle.accumulated == other.accumulated
            handle.close()
        for p in witness.model:
            assert np.array_equal(net.model[p.name].numpy(), p.numpy()), p.name
        assert net.model.step == witness.model.step == 3

    def test_assigned_weights_are_those_that_the_update_changes(self) -> None:
        net = new()
        with vpps.Handle(net.model, vpps.SGD(lr=1.0)) as handle:
            net.accumulate(handle, [0])
            gradient = handle.gradients(*net.batch(0))[1]["W0"]
            net.model["W0"].assign(np.zeros((40, 45)))
            handle.fb(*net.batch(1))  # does not use it
        np.testing.assert_allclose(net.model["W0"].numpy(), -gradient, rtol=1e-6)

    def test_a_frozen_parameter_keeps_its_part_until_the_update(self) -> None:
        """Frozen, it is not updated; thawed in time, it has the gradients of the calls while it was trained."""
        for thaw in (False, True):
            net, witness = new(), new()
            for n, trained in ((net, False), (witness, True)):
                with vpps.Handle(n.model, vpps.SGD(lr=1.0)) as handle:
                    n.accumulate(handle, (0, 1))
                    before = n.model["words"].numpy(), n.model["W0"].numpy()
                    for name in ("words", "W0"):
                        n.model[name].trainable = trained
                    handle.fb(*n.batch(1), accumulate=True)  # uses rows 1 to 4 of the table
                    for name in ("words", "W0"):
                        n.model[name].trainable = trained or thaw
                    handle.fb(*n.batch(8))  # rows 8 to 11, and W2
            if not thaw:
                assert np.array_equal(net.model["words"].numpy(), before[0])
                assert np.array_equal(net.model["W0"].numpy(), before[1])
                continue
            assert np.array_equal(net.model["W0"].numpy(), witness.model["W0"].numpy())
            table, full = net.model["words"].numpy(), witness.model["words"].numpy()
            assert np.array_equal(table[0], full[0])
            assert np.array_equal(table[8:], full[8:])
            assert (table[1:4] != before[0][1:4]).any(axis=1).all()
            assert (table[1:4] != full[1:4]).any(axis=1).all()

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

    def test_a_restore_puts_back_what_was_accumulated_then(self, tmp_path: Path) -> None:
        net, witness = new(), new()
        with vpps.Handle(witness.model, vpps.Adam()) as other:
            witness.accumulate(other, (0, 1))
            other.fb(*witness.batch(2))
        with vpps.Handle(net.model, vpps.Adam()) as handle:
            net.model.save(tmp_path / "without")
            net.accumulate(handle, (0, 1))
            net.model.save(tmp_path / "with")
            net.accumulate(handle, (3, 4))
            net.model.restore(tmp_path / "without")
            assert handle.accumulated == 0
            net.accumulate(handle, (5,))
            net.model.restore(tmp_path / "with")
            assert handle.accumulated == 2
            handle.fb(*net.batch(2))
        assert same_state(net.model, witness.model)

    def test_discarding_starts_afresh(self) -> None:
        net, witness = new(), new()
        with vpps.Handle(net.model) as handle, vpps.Handle(witness.model) as other:
            for n, h in ((net, handle), (witness, other)):
                if h is handle:
                    net.accumulate(handle, (0, 1, 3))
                    handle.discard_accumulated()
                    assert handle.accumulated == 0
                n.accumulate(h, (2, 1))
                h.fb(*n.batch(5))
            net.accumulate(handle, (0,))
        assert net.model.accumulated is not None
        with vpps.Handle(net.model) as handle:  # also what another handle accumulated
            handle.discard_accumulated()
            assert handle.accumulated == 0
        assert net.model.accumulated is None
        assert same_state(net.model, witness.model)

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
