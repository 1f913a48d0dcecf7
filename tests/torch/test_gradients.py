"""Gradients through `vpps.torch.Module` equal plain PyTorch's gradients, on equal weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from tests.zoo.cases import Case, every_case

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu

TOLERANCE = 1e-4
BENCH = Path(__file__).parents[2] / "bench"


def assert_gradients_equal(net: Any, expected: dict[str, Any], scale: float = 1.0) -> None:
    """Assert that all parameters have equal dense gradients; then reset the net's gradients."""
    found = dict(net.named_parameters())
    assert found.keys() == {name.replace("/", ".") for name in expected}
    assert any(g.any() for g in expected.values())
    for name, wanted in expected.items():
        gradient = found[name.replace("/", ".")].grad
        dense = np.zeros(wanted.shape) if gradient is None else gradient.to_dense().numpy().reshape(wanted.shape)
        error = relative_error(dense, scale * wanted.astype(np.float64))
        assert error <= TOLERANCE, f"{name}: relative error {error:.1e}"
    net.zero_grad()


@pytest.fixture
def programs() -> Any:
    """Return the zoo in PyTorch, the benches' peer."""
    if str(BENCH) not in sys.path:
        sys.path.insert(0, str(BENCH))
    from peers.torch_zoo import PROGRAMS

    return PROGRAMS


@every_case
def test_every_network_of_the_zoo(case: Case, programs: Any) -> None:
    """Covers the network's loss computed by vpps, and a PyTorch loss on its outputs."""
    task = case.make(limit=8)
    program, batch = programs[case.task](task), task.train[[0, 1, 2]]
    net = vpps.torch.Module(task.model)
    graph = vpps.Graph()
    loss = net.loss(graph, task.loss(graph, batch))
    (loss * 0.5).backward()
    expected, gradients = program.gradients(batch)
    assert loss.item() == pytest.approx(expected, rel=TOLERANCE)
    assert_gradients_equal(net, gradients, scale=0.5)

    graph = vpps.Graph()
    outputs = net(graph, task.outputs(graph, batch))
    seeds = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(3))
    (torch.tanh(outputs) * seeds).sum().backward()
    program.loss = lambda batch: (torch.tanh(program.outputs(batch)) * seeds).sum()
    assert_gradients_equal(net, program.gradients(batch)[1])
    net.handle.close()


class Layer(NamedTuple):
    """A chain computed by a module, or in PyTorch with the module's weights."""

    chain: Chain
    net: Any
    in_torch: bool

    def __call__(self, x: Any) -> Any:
        """Return all the states."""
        return self.chain.in_torch(self.net, x) if self.in_torch else self.chain.by_module(self.net, x)

    def loss(self, x: Any) -> Any:
        """Return the loss, whose gradients come with it."""
        return self(x)[-1].square().sum() if self.in_torch else self.chain.loss_by_module(self.net, x)


def siamese(layer: Layer, x: Any) -> Any:
    """Return a loss with one backward through two graphs, the first of which feeds the second."""
    first = layer(x)[-1]
    return (first - layer(torch.outer(torch.ones(2), first[:INPUT]))[-1]).square().sum()


def saved_elsewhere(layer: Layer, x: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return layer(x)[-1].sum()


NETWORKS: dict[str, Callable[[Layer, Any], Any]] = {
    "scaled": lambda layer, x: 1024 * layer(x)[-1].sum(),
    "loss": lambda layer, x: 2 * layer.loss(x),
    "loss and states": lambda layer, x: layer.loss(x) + layer(x)[0].sum(),
    "siamese": siamese,
    "without a backward of the first": lambda layer, x: (layer(2 * x), layer(x))[1][-1].sum(),
    "checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=False)[-1].sum(),
    "reentrant checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=True)[-1].sum(),
    "saved elsewhere": saved_elsewhere,
    "rows that nothing depends on": lambda layer, x: layer(x)[0].sum(),
}


def gradients_of(value: Any, net: Any, *inputs: Any) -> list[Any]:
    """Return the gradients at the ends of backward, and reset them. Parameters' are tensors, which PyTorch can clip."""
    value.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    every = [*inputs, *net.parameters()]
    found = [norm, *(torch.zeros_like(t) if t.grad is None else t.grad.clone() for t in every)]
    for t in every:
        t.grad = None
    return found


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("trained", [True, False])
def test_networks_of_chains(chain: Chain, net: Any, network: str, trained: bool) -> None:
    """Covers graphs in which only inputs need gradients."""
    net.requires_grad_(trained)
    x = torch.randn(3, INPUT, requires_grad=True)
    found, expected = (
        gradients_of(NETWORKS[network](Layer(chain, net, in_torch), x), net, x) for in_torch in (False, True)
    )
    assert_same(found, expected)


class TestInputs:
    """Input tensors of a graph get their gradients."""

    def test_of_rows_and_single_vectors(self, chain: Chain, net: Any) -> None:
        """The rows are given twice and get the sum of both gradients; unused rows get none."""
        encoder = torch.nn.Linear(3, INPUT)
        x, last, unused = torch.randn(4, 3), *(torch.randn(INPUT, requires_grad=True) for _ in range(2))
        found = []
        for ours in (True, False):
            inputs = encoder(x)
            if ours:
                graph = vpps.Graph()
                graph.input(unused, grad=True)
                twice = [*graph.rows(inputs, grad=True), *graph.rows(inputs, grad=True)]
                states = chain.states(graph, [*twice, graph.input(last, grad=True)])
                hidden = torch.stack(net(graph, [states[1], states[-1]]))
            else:
                hidden = chain.in_torch(net, torch.cat([inputs, inputs, last[None]]))[[1, -1]]
            found.append(gradients_of((hidden**2).sum(), net, last, unused, *encoder.parameters()))
        assert_same(*found)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
    def test_gradients_have_the_type_of_the_tensor(self, chain: Chain, net: Any, dtype: Any) -> None:
        x = torch.randn(2, INPUT).to(dtype).requires_grad_()
        output = chain.by_module(net, x)[-1]
        assert output.dtype == torch.float32
        output.sum().backward()
        (expected,) = torch.autograd.grad(chain.in_torch(net, x.float())[-1].sum(), [x])
        assert x.grad.dtype == dtype
        torch.testing.assert_close(x.grad, expected, rtol=1e-2, atol=1e-3)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_halves_are_taken_everywhere(self, chain: Chain, net: Any, dtype: Any) -> None:
        x = torch.ones(2, INPUT, dtype=dtype)
        for grad in (False, True):
            graph = vpps.Graph()
            found = net(graph, [chain.W @ graph.rows(x, grad=grad)[0], chain.W @ graph.input(x[0], grad=grad)])
            torch.testing.assert_close(found[0], found[1])
            torch.testing.assert_close(found[0], net.chain.W.sum(1))
        chain.b.assign(torch.ones(HIDDEN, dtype=dtype))

    @pytest.mark.parametrize("make", ["rows", "input", "map", "assign"])
    def test_a_tensor_that_requires_gradients_is_not_taken_for_data(self, chain: Chain, make: str) -> None:
        graph, x = vpps.Graph(), torch.randn(INPUT, INPUT, requires_grad=True)
        calls: dict[str, Callable[[], Any]] = {
            "rows": lambda: graph.rows(x),
            "input": lambda: graph.input(x),
            "map": lambda: graph.map(chain.step, inputs={"x": x}, state=HIDDEN),
            "assign": lambda: chain.W.assign(x),
        }
        with pytest.raises(vpps.DtypeError, match=r"requires gradients; .*grad=True.*tensor\.detach\(\)"):
            calls[make]()

    def test_a_tensor_that_is_changed_after_it_was_given(self, chain: Chain, net: Any) -> None:
        x = torch.randn(2, INPUT, requires_grad=True) * 1
        graph = vpps.Graph()
        states = chain.states(graph, graph.rows(x, grad=True))
        x.mul_(2)
        with pytest.raises(vpps.GraphError, match=r"2 rows .* changed in place since"):
            net(graph, states[-1])


@pytest.mark.simt
@pytest.mark.parametrize("inner", [None, vpps.SGD(lr=0.1)])
def test_on_the_emulated_gpu(inner: vpps.Optimizer | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated GPU agrees with PyTorch after either library has changed the weights."""
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")
    chain = Chain()
    net = vpps.torch.Module(chain.model, inner, target="simt", vps=2)
    weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    x = torch.randn(2, INPUT, requires_grad=True)
    for _ in range(2):
        state, expected = chain.by_module(net, x)[-1], chain.in_torch(weights, x)[-1]
        torch.testing.assert_close(state, expected)
        inputs = [x, *(net.parameters() if inner is None else ())]
        found = torch.autograd.grad((state**2).sum(), inputs)
        wanted = torch.autograd.grad((expected**2).sum(), [x, *weights.values()])
        assert_same(list(found), list(wanted[: len(found)]))
        with torch.no_grad():
            for p, own, gradient in zip(net.parameters(), weights.values(), wanted[1:], strict=True):
                own.sub_(gradient, alpha=0.1)
                if inner is None:
                    p.sub_(gradient, alpha=0.1)
