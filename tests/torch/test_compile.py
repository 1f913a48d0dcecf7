"""torch.compile compiles what is around a module, and leaves the module to Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu


class Mixed(torch.nn.Module):
    """Linear layers around a chain; the graph is recorded in `forward`, or before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.chain = Chain()
        self.before, self.after = torch.nn.Linear(3, INPUT), torch.nn.Linear(HIDDEN, 2)
        self.net = vpps.torch.Module(self.chain.model, vps=1)

    def forward(self, x: Any, graph: Any = None) -> Any:
        inputs = torch.relu(self.before(x))
        if graph is None:
            graph = vpps.Graph()
        states = self.chain.states(graph, graph.rows(inputs, grad=True))
        hidden = self.net(graph, states)[-1]
        return torch.tanh(self.after(hidden))


@pytest.fixture(autouse=True)
def _anew() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def results(call: Any, mixed: Mixed, x: Any, **how: Any) -> list[Any]:
    mixed.zero_grad()
    value = call(x, **how)
    value.sum().backward()
    return [value.detach(), *(p.grad.clone() for p in mixed.parameters())]


def test_values_and_gradients_are_the_same() -> None:
    mixed = Mixed()
    compiled = torch.compile(mixed, backend="eager")
    for length in (2, 3, 2):
        x = torch.tensor(np.random.default_rng(length).normal(size=(length, 3)), dtype=torch.float32)
        for found, expected in zip(results(compiled, mixed, x), results(mixed, mixed, x), strict=True):
            torch.testing.assert_close(found, expected)


def test_updates_are_noticed() -> None:
    mixed = Mixed()
    compiled = torch.compile(mixed, backend="eager")
    optimizer = torch.optim.SGD(mixed.parameters(), lr=0.5)
    x = torch.ones(2, 3)
    before = results(compiled, mixed, x)[0]
    optimizer.step()
    after = results(compiled, mixed, x)[0]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, mixed(x).detach())


def test_the_graph_breaks_at_the_module_and_says_why() -> None:
    mixed = Mixed()
    graph = vpps.Graph()
    wanted = mixed.chain.states(graph, graph.rows(np.ones((2, INPUT))))[-1]

    def mix(x: Any) -> Any:
        y = torch.relu(x)
        return torch.tanh(mixed.net(graph, wanted) + y)

    told = torch._dynamo.explain(mix)(torch.ones(HIDDEN))
    assert told.graph_count == 2
    assert any("vpps runs graphs that differ from call to call" in str(b.reason) for b in told.break_reasons)


def test_fullgraph_says_why_not() -> None:
    mixed = Mixed()
    graph = vpps.Graph()
    wanted = mixed.chain.states(graph, graph.rows(np.ones((2, INPUT))))[-1]
    compiled = torch.compile(lambda: mixed.net(graph, wanted) * 2, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="vpps runs graphs that differ from call to call"):
        compiled()
