"""Several graphs at once, one graph more than once, backward twice or never: each gives correct results or an error."""

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
    x = np.random.default_rng(seed).normal(size=(length, INPUT))
    return torch.tensor(x, dtype=torch.float32, requires_grad=True)


def last_state(chain: Chain, net: Any, x: Any) -> Any:
    return chain.by_module(net, x)[-1]


def gradients(net: Any, *inputs: Any) -> list[Any]:
    """Return the gradients, and reset them."""
    every = [*net.parameters(), *inputs]
    found = [p.grad.clone() for p in every]
    for p in every:
        p.grad = None
    return found


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_several_graphs_in_flight(chain: Chain, net: Any, order: tuple[int, ...]) -> None:
    """Each backward adds to the gradients, as in PyTorch."""
    xs, found = [data(k, 2 + k) for k in range(3)], []
    for layer in (last_state, lambda chain, net, x: chain.in_torch(net, x)[-1]):
        outputs = [layer(chain, net, x) for x in xs]
        for k in order:
            outputs[k].sum().backward()
        found.append(gradients(net, *xs))
    assert_equal(*found)
    assert found[0][0].shape in ((HIDDEN, INPUT), (HIDDEN, HIDDEN), (HIDDEN,))


class TestAgain:
    def test_a_graph_twice(self, chain: Chain, net: Any) -> None:
        x = data(2)
        graph = vpps.Graph()
        states = chain.states(graph, graph.rows(x, grad=True))
        (net(graph, states[-1]).sum() + net(graph, states[0]).sum()).backward()
        found = gradients(net, x)
        expected = chain.in_torch(net, x)
        (expected[-1].sum() + expected[0].sum()).backward()
        assert_equal(found, gradients(net, x))

    def test_a_graph_that_grows(self, chain: Chain, net: Any) -> None:
        """The graph grows by values that PyTorch computed from the graph's first values."""
        x = data(2)
        graph = vpps.Graph()
        h = chain.states(graph, graph.rows(x, grad=True))[-1]
        y = torch.relu(net(graph, h))[:INPUT]
        net(graph, chain.step(h, graph.input(y, grad=True))).sum().backward()
        found = gradients(net, x)
        states = chain.in_torch(net, x)
        W, U, b = (dict(net.named_parameters())[f"chain.{name}"] for name in "WUb")
        torch.tanh(W @ torch.relu(states[-1])[:INPUT] + U @ states[-1] + b).sum().backward()
        assert_equal(found, gradients(net, x))

    @pytest.mark.parametrize("at_once", [False, True])
    def test_backward_twice(self, chain: Chain, net: Any, at_once: bool) -> None:
        value = chain.loss_by_module(net, data(3), at_once)
        for k in (1, 2, 3):
            value.backward(retain_graph=True)
            if k == 1:
                once = [p.grad.clone() for p in net.parameters()]
            assert_equal([p.grad for p in net.parameters()], [k * g for g in once])
        value.backward()
        assert_equal(gradients(net), [4 * g for g in once])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            value.backward()

    @pytest.mark.parametrize("at_once", [False, True])
    def test_after_weights_have_changed(self, chain: Chain, net: Any, at_once: bool) -> None:
        """Values with gradients were computed before the change."""
        chain.loss_by_module(net, data(1), at_once).backward()
        expected = gradients(net)
        value = chain.loss_by_module(net, data(1), at_once)
        with torch.no_grad():
            net.chain.U.add_(1)
        if at_once:
            value.backward()
            assert_equal(gradients(net), expected)
        else:
            with pytest.raises(vpps.HandleError, match="weights have changed since"):
                value.backward()

    @pytest.mark.parametrize("twice", [False, True])
    def test_updates_of_vpps_in_flight(self, chain: Chain, twice: bool) -> None:
        net = vpps.torch.Module(chain.model, vpps.SGD(lr=0.1), vps=1)
        first = last_state(chain, net, data(1)).sum()
        second = first if twice else last_state(chain, net, data(2)).sum()
        second.backward(retain_graph=twice)
        with pytest.raises(vpps.HandleError, match="weights have changed since"):
            first.backward()
        assert chain.model.step == 1


class TestNever:
    @pytest.mark.parametrize("at_once", [False, True])
    def test_nothing_leaks(self, chain: Chain, net: Any, at_once: bool) -> None:
        """Graphs and tensors do not outlive their outputs, except the handle's latest; after backward, the output does
        not keep them either."""
        alive, values = [], []
        for k in range(4):
            graph, x = vpps.Graph(), data(k) * 1
            loss = chain.loss(graph, graph.rows(x, grad=True))
            value = net.loss(graph, loss) if at_once else net(graph, loss)
            if k % 2:
                value.backward()
                values.append(value)
            alive.append((weakref.ref(graph), weakref.ref(x)))
            del graph, loss, x, value
        gc.collect()
        assert [(g() is None, x() is None) for g, x in alive[:-1]] == [(True, True)] * 3

    def test_a_module_goes_with_its_last_reference(self, chain: Chain) -> None:
        net = vpps.torch.Module(chain.model, vps=1)
        last_state(chain, net, data(1)).sum().backward()
        alone, scope = weakref.ref(net), net.chain
        del net
        assert alone() is None
        assert torch.equal(scope.W, torch.from_numpy(chain.W.numpy()))
        last_state(chain, vpps.torch.Module(chain.model, vps=1), data(1)).sum().backward()


def test_threads(chain: Chain, net: Any) -> None:
    """Each handle has its own graphs and gradients."""

    def worker(k: int) -> list[list[Any]]:
        found = []
        for j in range(20):
            x = data(20 * k + j, 1 + j % 3)
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


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_with_dropout(chain: Chain, net: Any, reentrant: bool) -> None:
    def run(x: Any) -> Any:
        graph = vpps.Graph()
        states = chain.states(graph, graph.rows(x, grad=True))
        return net(graph, vpps.dropout(states[-1], 0.5)).square()

    loss = checkpoint(run, data(1), use_reentrant=reentrant).sum()
    with pytest.raises(vpps.GraphError, match="other masks of dropout"):
        loss.backward()
    net.eval()
    checkpoint(run, data(1), use_reentrant=reentrant).sum().backward()
