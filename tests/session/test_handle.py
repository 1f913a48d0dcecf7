"""Handle: arrival of losses and values, repeatable runs, odd graphs, the end of a handle."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from tests.comparison import relative_error
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu


class TestLoss:
    def test_fb_returns_the_loss_of_the_call_before(self) -> None:
        net, witness = new(), new()
        with vpps.Handle(witness.model) as handle:
            losses = witness.train(handle, range(4))
        with vpps.Handle(net.model) as handle:
            assert math.isnan(handle.sync_get_latest_loss())
            stale = [handle.fb(*net.batch(seed)) for seed in range(4)]
            assert math.isnan(stale[0])
            assert stale[1:] == losses[:-1]
            assert handle.sync_get_latest_loss() == losses[-1]
            assert handle.sync_get_latest_loss() == losses[-1]

    def test_nothing_in_between_disturbs_it(self) -> None:
        net, witness = new(), new()

        def disturb(handle: vpps.Handle) -> None:
            graph, loss = net.batch(77)
            handle.forward(graph, [loss])
            handle.value(loss)
            handle.gradients(graph, loss)
            handle.disassemble(graph, loss)
            net.model.numpy()
            with pytest.raises(vpps.GraphError):
                handle.fb(vpps.Graph(), loss)
            net.model.parameter(f"p{len(net.model)}", (3,))

        with vpps.Handle(witness.model) as handle:
            losses = witness.train(handle, range(4))
        with vpps.Handle(net.model) as handle:
            for seed in range(4):
                disturb(handle)
                stale = handle.fb(*net.batch(seed))
                assert stale == losses[seed - 1] if seed else math.isnan(stale)
            disturb(handle)
            assert handle.sync_get_latest_loss() == losses[-1]

    @pytest.mark.parametrize("kind", ["slice", "bare", "lookup", "argument"])
    def test_may_be_any_scalar(self, kind: str) -> None:
        model = vpps.Model(seed=1)
        table = model.lookup("E", (3, 1))
        scalar = model.parameter("s", (), init=2.0)
        graph = vpps.Graph()
        x = graph.lookup(table, 1)

        @vpps.cell
        def same(x: vpps.Expression) -> vpps.Expression:
            return x

        loss = {
            "slice": lambda: x[0],
            "bare": lambda: x[0] * scalar,
            "lookup": lambda: vpps.sum(x),
            "argument": lambda: same(x[0]),
        }[kind]()
        expected = float(Reference(graph, weights_of(model)).value(loss))
        with vpps.Handle(model) as handle:
            got, gradients = handle.gradients(graph, loss)
        assert got == pytest.approx(expected)
        assert gradients["E"][1] == (2 if kind == "bare" else 1)


class TestValues:
    @pytest.mark.parametrize("vps", [1, 2])
    def test_after_fb_are_those_before_the_update(self, vps: int) -> None:
        """Values include table rows and parameters themselves, which the update overwrites."""
        net = new()

        @vpps.cell
        def bias(x: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression]:
            return net.model["b"], net.model["b"] * x  # type: ignore[return-value]

        graph = vpps.Graph()
        word = graph.lookup(net.model["words"], 3)  # type: ignore[arg-type]
        scale = word[0]
        b, scaled = bias(scale)
        h = vpps.tanh(net.model["W"] @ word + scaled + b)
        loss = vpps.cross_entropy(net.model["Wo"] @ h, 1)
        wanted = [word, word[1:4], scale, b, scaled, h, loss, graph.zeros(5)]
        reference = Reference(graph, weights_of(net.model))
        exact = net.model["words"].numpy()[3]
        with vpps.Handle(net.model, vpps.SGD(lr=1.0), vps=vps) as handle:
            handle.fb(graph, loss)
            got = [handle.value(e) for e in wanted]
            assert not np.array_equal(net.model["words"].numpy()[3], exact)
            assert np.array_equal(handle.value(word), exact)  # reading the weights changes nothing
        assert np.array_equal(got[0], exact)
        for value, e in zip(got, wanted, strict=True):
            assert value.shape == e.shape
            assert relative_error(value, reference.value(e)) < 1e-5

    def test_are_copies(self) -> None:
        net = new()
        graph, loss = net.batch(1)
        with vpps.Handle(net.model) as handle:
            (value,) = handle.forward(graph, [loss])
            before = float(value)
            value[...] = 7
            assert handle.value(loss) == before
            handle.fb(graph, loss)
            assert handle.sync_get_latest_loss() == before

    def test_forward_takes_any_iterable_and_gives_values_in_its_order(self) -> None:
        net, graph = new(), vpps.Graph()
        logits = [net.logits(graph, [k, k + 1]) for k in range(3)]
        reference = Reference(graph, weights_of(net.model))
        order = [logits[k] for k in (2, 0, 2, 1)]
        with vpps.Handle(net.model, train=False) as handle:
            for wanted in (order, tuple(order), iter(order), {order[0]}, []):
                values = handle.forward(graph, wanted)  # type: ignore[arg-type]
                for e, value in zip(order, values, strict=len(values) > 1):
                    assert relative_error(value, reference.value(e)) < 1e-5

    def test_input_gradient_reaches_back_to_the_data(self) -> None:
        net = new()
        graph = vpps.Graph()
        x = graph.input(np.linspace(-1, 1, 6), grad=True)
        unused = graph.input(np.ones(2), grad=True)
        loss = vpps.cross_entropy(net.model["Wo"] @ vpps.tanh(net.model["W"] @ x), 2)
        reference = Reference(graph, weights_of(net.model))
        reference.backward(loss)
        with vpps.Handle(net.model) as handle:
            for compute in (handle.gradients, handle.fb):
                compute(graph, loss)
                assert relative_error(handle.input_gradient(x), reference.gradient(x)) < 1e-5
                assert not handle.input_gradient(unused).any()


class TestChanges:
    def test_the_learning_rate_may_change_between_calls(self) -> None:
        """Setting the rate on the optimizer equals making a new optimizer of the same kind."""
        field, replaced = new(), new()
        with (
            vpps.Handle(field.model, vpps.Adam(lr=0.1)) as handle,
            vpps.Handle(replaced.model, vpps.Adam(lr=0.1)) as other,
        ):
            for seed, lr in enumerate((0.1, 0.01, 0.0)):
                handle.optimizer.lr = lr
                other.optimizer = vpps.Adam(lr=lr)
                before = field.model.numpy()
                field.train(handle, range(seed, seed + 1))
                replaced.train(other, range(seed, seed + 1))
                assert same_bits(field.model.numpy(), before) == (lr == 0)
        assert same_bits(field.model.numpy(), replaced.model.numpy())

    def test_clipping_may_change_between_calls(self) -> None:
        net, witness = new(), new()
        with vpps.Handle(net.model) as handle, vpps.Handle(witness.model) as other:
            handle.clip_norm = 1e-3
            before = net.model.numpy()
            net.train(handle, range(1))
            moved = np.sqrt(sum(np.sum((w - before[name]) ** 2) for name, w in net.model.numpy().items()))
            assert moved == pytest.approx(0.1 * 1e-3, rel=1e-3)
            handle.clip_norm = None
            for p in witness.model:
                p.assign(net.model[p.name].numpy())
            assert net.train(handle, range(1, 3)) == witness.train(other, range(1, 3))


class TestGraphs:
    @pytest.mark.parametrize("n", [1500, 20000])
    def test_chains_may_be_longer_than_pythons_stack(self, n: int) -> None:
        """The reference also handles such chains. The verifier is off, as it takes minutes for so many barriers."""
        net, graph = new(), vpps.Graph()
        loss = vpps.cross_entropy(net.logits(graph, [k % 12 for k in range(n)]), 1)
        with vpps.Handle(net.model, vps=2, verify=False) as handle:
            got, gradients = handle.gradients(graph, loss)
        if n < 10_000:
            reference = Reference(graph, weights_of(net.model))
            expected = reference.backward(loss)
            assert got == pytest.approx(float(reference.value(loss)), rel=1e-4)
            assert all(relative_error(g, expected[name]) < 1e-3 for name, g in gradients.items())
        assert all(np.isfinite(g).all() for g in gradients.values())

    def test_batches_of_every_size_follow_each_other(self) -> None:
        """The batches were evaluated before, and are dropped while their kernel is running."""
        net, witness = new(), new()
        sizes = [1, 30, 2, 100, 1]
        with vpps.Handle(net.model) as handle:
            for n in sizes:
                graph, loss = net.batch(n, sentences=n)
                handle.forward(graph, [loss])
                handle.fb(graph, loss)
                del graph, loss
                gc.collect()
        for n in sizes:
            with vpps.Handle(witness.model) as handle:
                handle.fb(*witness.batch(n, sentences=n))
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_a_graph_that_grew_since_is_trained_as_if_it_were_new(self) -> None:
        net, witness = new(), new()
        with vpps.Handle(net.model) as handle, vpps.Handle(witness.model) as other:
            graph = vpps.Graph()
            short = vpps.cross_entropy(net.logits(graph, [1, 2]), 0)
            handle.fb(graph, short)
            long = vpps.cross_entropy(net.logits(graph, [3, 4, 5]), 1)
            handle.fb(graph, short + long)
            for n in (1, 2):
                graph = vpps.Graph()
                losses = [vpps.cross_entropy(witness.logits(graph, [1, 2]), 0)]
                if n == 2:
                    losses.append(vpps.cross_entropy(witness.logits(graph, [3, 4, 5]), 1))
                other.fb(graph, losses[0] if n == 1 else losses[0] + losses[1])
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_may_be_built_on_any_thread_while_the_handle_trains(self) -> None:
        """This also applies to the first graphs, which trace the cells."""
        net, witness = new(), new()
        seeds = range(12)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with vpps.Handle(net.model, vps=2) as handle, ThreadPoolExecutor(4) as builders:
                for graph, loss in builders.map(net.batch, seeds):
                    assert len(graph.blocks) == 6  # zeros, read, Wo @ h, + bo, cross_entropy, sum: none twice
                    handle.fb(graph, loss)
        finally:
            sys.setswitchinterval(interval)
        with vpps.Handle(witness.model, vps=2) as other:
            witness.train(other, seeds)
        assert same_bits(net.model.numpy(), witness.model.numpy())


class TestLife:
    def test_a_context_manager_closes_and_hands_the_weights_back(self) -> None:
        """An exception also closes it; closing twice is harmless."""
        net = new()
        before = net.model.numpy()

        def fail_after(handle: vpps.Handle) -> None:
            handle.fb(*net.batch(1))
            raise RuntimeError

        with pytest.raises(RuntimeError), vpps.Handle(net.model) as handle:
            fail_after(handle)
        after = net.model.numpy()
        assert not same_bits(after, before)
        assert net.model.trainer is None
        assert "closed" in repr(handle)
        with pytest.raises(vpps.HandleError, match="the handle is closed"):
            handle.gradients(vpps.Graph(), None, sparse="x")  # type: ignore[call-overload]
        net.model["b"].assign(np.zeros(20))
        handle.close()
        assert not net.model["b"].numpy().any()
        assert np.array_equal(net.model["U"].numpy(), after["U"])

    def test_a_handle_is_freed_with_its_last_reference(self) -> None:
        """The model is updated. Trained weights outlive a handle that was never closed; kept values do not."""
        net, before = new(), new().model.numpy()
        handle = vpps.Handle(net.model)
        handle.fb(*net.batch(1))
        graph, loss = net.batch(0)
        handle.forward(graph, [loss], train=True, keep=True)
        freed = weakref.ref(handle)
        del handle
        assert freed() is None  # immediately: no cycle holds it
        assert not same_bits(net.model.numpy(), before)
        handle = vpps.Handle(net.model)
        net.train(handle, range(1))
        freed = weakref.ref(net.model)  # type: ignore[assignment]
        del net, handle, graph, loss
        gc.collect()
        assert freed() is None

    def test_source_is_there_before_and_after(self) -> None:
        with vpps.Handle(vpps.Model()) as handle:
            source = handle.source()
            assert "vpps_kernel" in source
        assert handle.source() == source

    def test_disassembly_speaks_of_the_users_cells(self) -> None:
        net = new()
        with vpps.Handle(net.model, vps=2) as handle:
            text = handle.disassemble(*net.batch(1))
            assert net.model.step == 0
        for word in ("read", "tanh", "outer_update", "barrier"):
            assert word in text


def test_an_interrupted_launch_is_waited_for_before_parameters_move(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (8, 8))
    graph = vpps.Graph()
    y = W @ graph.input(np.ones(8))
    with vpps.Handle(model, vps=2) as handle:
        expected = handle.forward(graph, [y])[0]
        wait = handle._engine.machine.wait

        def interrupted(number: int) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(handle._engine.machine, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            handle.forward(graph, [y])
        monkeypatch.setattr(handle._engine.machine, "wait", wait)
        model.parameter("later", (3,))
        np.testing.assert_array_equal(handle.forward(graph, [y])[0], expected)
