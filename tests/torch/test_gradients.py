"""Gradients through `vpps.torch.Module` equal those of PyTorch alone, on equal weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import relative_error
from tests.zoo.cases import Case, every_case

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu

TOLERANCE = 1e-4
BENCH = Path(__file__).parents[2] / "bench"


def assert_gradients_equal(net: Any, expected: dict[str, Any], scale: float = 1.0) -> None:
    """Of all parameters, dense; then forget those of the net."""
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
    """The zoo in PyTorch, which the benches compare with."""
    if str(BENCH) not in sys.path:
        sys.path.insert(0, str(BENCH))
    from peers.torch_zoo import PROGRAMS

    return PROGRAMS


@every_case
def test_every_network_of_the_zoo(case: Case, programs: Any) -> None:
    """Its loss by vpps, and a loss of PyTorch's on its outputs."""
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


class TestInputs:
    """Tensors that a graph is given get their gradients."""

    def test_of_rows_and_single_vectors(self, chain: Chain, net: Any) -> None:
        encoder = torch.nn.Linear(3, INPUT)
        x, last = torch.randn(4, 3), torch.randn(INPUT, requires_grad=True)
        found = []
        for ours in (True, False):
            inputs = encoder(x)
            if ours:
                graph = vpps.Graph()
                states = chain.states(graph, [*graph.rows(inputs, grad=True), graph.input(last, grad=True)])
                hidden = torch.stack(net(graph, [states[1], states[-1]]))
            else:
                hidden = chain.in_torch(net, torch.cat([inputs, last[None]]))[[1, -1]]
            (hidden**2).sum().backward()
            every = [last, *encoder.parameters(), *net.parameters()]
            found.append([t.grad.clone() for t in every])
            for t in every:
                t.grad = None
        for mine, expected in zip(*found, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)

    def test_of_a_loss(self, chain: Chain, net: Any) -> None:
        x = torch.randn(3, INPUT, requires_grad=True)
        graph = vpps.Graph()
        (net.loss(graph, chain.loss(graph, graph.rows(x, grad=True))) * 2).backward()
        (expected,) = torch.autograd.grad(2 * (chain.in_torch(net, x)[-1] ** 2).sum(), [x])
        torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-6)

    def test_a_tensor_that_is_given_twice_gets_the_sum(self, chain: Chain, net: Any) -> None:
        x = torch.randn(2, INPUT, requires_grad=True)
        graph = vpps.Graph()
        states = chain.states(graph, [*graph.rows(x, grad=True), *graph.rows(x, grad=True)])
        net(graph, states[-1]).sum().backward()
        (expected,) = torch.autograd.grad(chain.in_torch(net, torch.cat([x, x]))[-1].sum(), [x])
        torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-6)

    def test_gradients_flow_where_only_inputs_want_them(self, chain: Chain, net: Any) -> None:
        net.requires_grad_(False)
        x = torch.randn(2, INPUT, requires_grad=True)
        graph = vpps.Graph()
        net(graph, chain.states(graph, graph.rows(x, grad=True))[-1]).sum().backward()
        (expected,) = torch.autograd.grad(chain.in_torch(net, x)[-1].sum(), [x])
        torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-6)
        assert all(p.grad is None for p in net.parameters())

    def test_inputs_that_nothing_depends_on_have_none(self, chain: Chain, net: Any) -> None:
        x, unused = torch.randn(2, INPUT, requires_grad=True), torch.randn(2, INPUT, requires_grad=True)
        graph = vpps.Graph()
        graph.rows(unused, grad=True)
        rows = graph.rows(x, grad=True)
        net(graph, chain.states(graph, rows)[0]).sum().backward()
        assert not unused.grad.any()
        assert x.grad[0].any()
        assert not x.grad[1].any()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
    def test_gradients_have_the_type_of_the_tensor(self, chain: Chain, net: Any, dtype: Any) -> None:
        x = torch.randn(2, INPUT).to(dtype).requires_grad_()
        graph = vpps.Graph()
        output = net(graph, chain.states(graph, graph.rows(x, grad=True))[-1])
        assert output.dtype == torch.float32
        output.sum().backward()
        (expected,) = torch.autograd.grad(chain.in_torch(net, x.float())[-1].sum(), [x])
        assert x.grad.dtype == dtype
        torch.testing.assert_close(x.grad, expected, rtol=1e-2, atol=1e-3)

    def test_gradcheck(self, chain: Chain, net: Any) -> None:
        def states(x: Any) -> Any:
            graph = vpps.Graph()
            return torch.stack(net(graph, chain.states(graph, graph.rows(x, grad=True))))

        x = torch.randn(3, INPUT, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(states, (x,), eps=1e-2, atol=1e-3, rtol=1e-2, nondet_tol=0)

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


class TestOnce:
    @pytest.mark.parametrize("at_once", [False, True])
    def test_second_derivatives_are_refused(self, at_once: bool) -> None:
        chain = Chain()
        net = vpps.torch.Module(chain.model, vps=1)
        x = torch.randn(2, INPUT, requires_grad=True)
        graph = vpps.Graph()
        loss = chain.loss(graph, graph.rows(x, grad=True))
        output = net.loss(graph, loss) if at_once else net(graph, loss) ** 2
        (gradient,) = torch.autograd.grad(output, [x], create_graph=True)
        assert gradient.requires_grad
        with pytest.raises(vpps.GraphError, match="differentiable once"):
            gradient.sum().backward()

    @pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
    def test_create_graph_is_harmless_where_nobody_uses_it(self) -> None:
        chain = Chain()
        net = vpps.torch.Module(chain.model, vps=1)
        graph = vpps.Graph()
        net.loss(graph, chain.loss(graph, graph.rows(np.ones((2, INPUT))))).backward(create_graph=True)
        assert all(p.grad is not None for p in net.parameters())


@pytest.mark.simt
@pytest.mark.parametrize("inner", [None, vpps.SGD(lr=0.1)])
def test_on_the_emulated_gpu(inner: vpps.Optimizer | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU would compute, with weights that PyTorch has changed, or vpps."""
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")
    chain = Chain()
    net = vpps.torch.Module(chain.model, inner, target="simt", vps=2)
    weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    x = torch.randn(2, INPUT, requires_grad=True)
    for _ in range(2):
        graph = vpps.Graph()
        state = net(graph, chain.states(graph, graph.rows(x, grad=True))[-1])
        expected = chain.in_torch(weights, x)[-1]
        torch.testing.assert_close(state, expected)
        inputs = [x, *(net.parameters() if inner is None else ())]
        found = torch.autograd.grad((state**2).sum(), inputs)
        wanted = torch.autograd.grad((expected**2).sum(), [x, *weights.values()])
        for mine, gradient in zip(found, wanted, strict=inner is None):
            torch.testing.assert_close(mine, gradient, rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            for p, own, gradient in zip(net.parameters(), weights.values(), wanted[1:], strict=True):
                own.sub_(gradient, alpha=0.1)
                if inner is None:
                    p.sub_(gradient, alpha=0.1)
