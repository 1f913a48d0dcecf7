"""Several graphs at once, one graph more than once, backward twice or never: right, or a clear error."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu


def data(seed: int, length: int = 3) -> Any:
    return torch.tensor(np.random.default_rng(seed).normal(size=(length, INPUT)), dtype=torch.float32)


def last_state(chain: Chain, net: Any, x: Any) -> Any:
    graph = vpps.Graph()
    return net(graph, chain.states(graph, graph.rows(x, grad=True))[-1])


def gradients(net: Any) -> list[Any]:
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    return found


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_several_graphs_in_flight(chain: Chain, net: Any, order: tuple[int, ...]) -> None:
    xs = [data(k, 2 + k).requires_grad_() for k in range(3)]
    expected = []
    for x in xs:
        last_state(chain, net, x).sum().backward()
        expected.append([*gradients(net), x.grad])
        x.grad = None
    outputs = [last_state(chain, net, x) for x in xs]
    for k in order:
        outputs[k].sum().backward()
        assert_equal([*gradients(net), xs[k].grad], expected[k])


def test_one_backward_of_several_graphs(chain: Chain, net: Any) -> None:
    """As of two branches of a Siamese network, one of which feeds the other."""
    x = data(1).requires_grad_()
    first = last_state(chain, net, x)
    second = last_state(chain, net, torch.outer(torch.ones(2), first[:INPUT]))
    ((first - second) ** 2).sum().backward()
    found = [*gradients(net), x.grad]
    x.grad = None
    first = chain.in_torch(net, x)[-1]
    second = chain.in_torch(net, torch.outer(torch.ones(2), first[:INPUT]))[-1]
    ((first - second) ** 2).sum().backward()
    assert_equal(found, [*gradients(net), x.grad])


def test_losses_and_values_in_flight_together(chain: Chain, net: Any) -> None:
    x = data(1)
    graph, other = vpps.Graph(), vpps.Graph()
    loss = net.loss(graph, chain.loss(graph, graph.rows(x)))
    value = net(other, chain.states(other, other.rows(x))[0])
    (loss + value.sum()).backward()
    found = gradients(net)
    states = chain.in_torch(net, x)
    ((states[-1] ** 2).sum() + states[0].sum()).backward()
    assert_equal(found, gradients(net))


class TestAgain:
    def test_a_graph_twice(self, chain: Chain, net: Any) -> None:
        x = data(2).requires_grad_()
        graph = vpps.Graph()
        states = chain.states(graph, graph.rows(x, grad=True))
        (net(graph, states[-1]).sum() + net(graph, states[0]).sum()).backward()
        found = [*gradients(net), x.grad]
        x.grad = None
        expected = chain.in_torch(net, x)
        (expected[-1].sum() + expected[0].sum()).backward()
        assert_equal(found, [*gradients(net), x.grad])

    def test_a_graph_that_grows(self, chain: Chain, net: Any) -> None:
        """By what PyTorch makes of its first values."""
        x = data(2).requires_grad_()
        graph = vpps.Graph()
        h = chain.states(graph, graph.rows(x, grad=True))[-1]
        y = torch.relu(net(graph, h))[:INPUT]
        net(graph, chain.step(h, graph.input(y, grad=True))).sum().backward()
        found = [*gradients(net), x.grad]
        x.grad = None
        states = chain.in_torch(net, x)
        weights = dict(net.named_parameters())
        W, U, b = (weights[f"chain.{name}"] for name in "WUb")
        torch.tanh(W @ torch.relu(states[-1])[:INPUT] + U @ states[-1] + b).sum().backward()
        assert_equal(found, [*gradients(net), x.grad])

    @pytest.mark.parametrize("at_once", [False, True])
    def test_backward_twice(self, chain: Chain, net: Any, at_once: bool) -> None:
        graph = vpps.Graph()
        loss = chain.loss(graph, graph.rows(data(3)))
        value = net.loss(graph, loss) if at_once else net(graph, loss)
        for k in (1, 2, 3):
            value.backward(retain_graph=True)
            if k == 1:
                once = [p.grad.clone() for p in net.parameters()]
            assert_equal([p.grad for p in net.parameters()], [k * g for g in once])
        value.backward()
        assert_equal(gradients(net), [4 * g for g in once])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            value.backward()

    def test_backward_after_weights_have_changed(self, chain: Chain, net: Any) -> None:
        value = last_state(chain, net, data(1)).sum()
        with torch.no_grad():
            net.chain.U.add_(1)
        with pytest.raises(vpps.HandleError, match="weights have changed since"):
            value.backward()

    def test_a_loss_after_weights_have_changed(self, chain: Chain, net: Any) -> None:
        """Its gradients have been computed before."""
        graph = vpps.Graph()
        loss = chain.loss(graph, graph.rows(data(1)))
        net.loss(graph, loss).backward()
        expected = gradients(net)
        value = net.loss(graph, loss)
        with torch.no_grad():
            net.chain.U.add_(1)
        value.backward()
        assert_equal(gradients(net), expected)

    def test_two_updates_of_vpps_in_flight(self, chain: Chain) -> None:
        net = vpps.torch.Module(chain.model, vpps.SGD(lr=0.1), vps=1)
        first, second = last_state(chain, net, data(1)), last_state(chain, net, data(2))
        second.sum().backward()
        with pytest.raises(vpps.HandleError, match="weights have changed since"):
            first.sum().backward()
        assert chain.model.step == 1

    def test_an_update_of_vpps_twice(self, chain: Chain) -> None:
        net = vpps.torch.Module(chain.model, vpps.SGD(lr=0.1), vps=1)
        value = last_state(chain, net, data(1)).sum()
        value.backward(retain_graph=True)
        with pytest.raises(vpps.HandleError, match="weights have changed since"):
            value.backward()


class TestNever:
    @pytest.mark.parametrize("at_once", [False, True])
    def test_nothing_leaks(self, chain: Chain, net: Any, at_once: bool) -> None:
        """Neither graphs nor tensors outlive their outputs, but for the handle's latest."""
        alive = []
        for k in range(4):
            graph, x = vpps.Graph(), data(k).requires_grad_() * 1
            loss = chain.loss(graph, graph.rows(x, grad=True))
            value = net.loss(graph, loss) if at_once else net(graph, loss)
            if k % 2:
                value.backward()
            alive.append((weakref.ref(graph), weakref.ref(x)))
            del graph, loss, x, value
        gc.collect()
        assert [(g() is None, x() is None) for g, x in alive[:-1]] == [(True, True)] * 3

    def test_a_backward_frees_while_the_output_lives(self, chain: Chain, net: Any) -> None:
        x = data(1).requires_grad_() * 1
        graph = vpps.Graph()
        value = net(graph, chain.loss(graph, graph.rows(x, grad=True)))
        tensor, first = weakref.ref(x), weakref.ref(graph)
        del graph, x
        value.backward()
        step = last_state(chain, net, data(2))
        assert value is not None
        assert step is not None
        assert tensor() is None
        assert first() is None

    def test_a_module_goes_with_its_last_reference(self, chain: Chain) -> None:
        net = vpps.torch.Module(chain.model, vps=1)
        last_state(chain, net, data(1)).sum().backward()
        alone, scope = weakref.ref(net), net.chain
        del net
        assert alone() is None
        assert torch.equal(scope.W, torch.from_numpy(chain.W.numpy()))
        last_state(chain, vpps.torch.Module(chain.model, vps=1), data(1)).sum().backward()

    def test_training_goes_on(self, chain: Chain, net: Any) -> None:
        last_state(chain, net, data(1))
        last_state(chain, net, data(2)).sum().backward()
        found = gradients(net)
        chain.in_torch(net, data(2))[-1].sum().backward()
        assert_equal(found, gradients(net))


def test_threads(chain: Chain, net: Any) -> None:
    """Each with graphs of its own, and gradients of its own."""

    def worker(k: int) -> list[list[Any]]:
        found = []
        for j in range(20):
            x = data(20 * k + j, 1 + j % 3).requires_grad_()
            mine = torch.autograd.grad(last_state(chain, net, x).sum(), [x, net.chain.U])
            expected = torch.autograd.grad(chain.in_torch(net, x)[-1].sum(), [x, net.chain.U])
            found.append([*mine, *expected])
        return found

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(worker, range(3)):
            for x, U, *expected in found:
                assert_equal([x, U], expected)


def test_a_handle_that_was_closed(chain: Chain, net: Any) -> None:
    value = last_state(chain, net, data(1)).sum()
    net.handle.close()
    with pytest.raises(vpps.HandleError, match="closed"):
        value.backward()
    with pytest.raises(vpps.HandleError, match="closed"):
        last_state(chain, net, data(1))


def test_gradient_accumulation(chain: Chain, net: Any) -> None:
    """As in PyTorch: backward adds to `grad`."""
    for k in range(3):
        last_state(chain, net, data(k)).sum().backward()
    found = gradients(net)
    sum(chain.in_torch(net, data(k))[-1].sum() for k in range(3)).backward()
    assert_equal(found, gradients(net))
    assert found[0].shape in ((HIDDEN, INPUT), (HIDDEN, HIDDEN), (HIDDEN,))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(chain: Chain, net: Any, reentrant: bool) -> None:
    """Forward is computed again in backward (torch.utils.checkpoint)."""
    x = data(1).requires_grad_()
    checkpoint(last_state, chain, net, x, use_reentrant=reentrant).sum().backward()
    found = [*gradients(net), x.grad]
    x.grad = None
    chain.in_torch(net, x)[-1].sum().backward()
    assert_equal(found, [*gradients(net), x.grad])


def test_saved_tensors_that_are_packed(chain: Chain, net: Any) -> None:
    with torch.autograd.graph.save_on_cpu():
        value = last_state(chain, net, data(1)).sum()
    value.backward()
    found = gradients(net)
    chain.in_torch(net, data(1))[-1].sum().backward()
    assert_equal(found, gradients(net))


def test_gradients_can_be_clipped_and_scaled(chain: Chain, net: Any) -> None:
    (1024 * last_state(chain, net, data(1)).sum()).backward()
    found = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    clipped = gradients(net)
    (1024 * chain.in_torch(net, data(1))[-1].sum()).backward()
    torch.testing.assert_close(found, torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5))
    assert_equal(clipped, gradients(net))


def test_autograd_grad(chain: Chain, net: Any) -> None:
    x = data(1).requires_grad_()
    found = torch.autograd.grad(last_state(chain, net, x).sum(), [net.chain.U, x])
    expected = torch.autograd.grad(chain.in_torch(net, x)[-1].sum(), [net.chain.U, x])
    assert_equal(list(found), list(expected))
    assert net.chain.U.grad is None
