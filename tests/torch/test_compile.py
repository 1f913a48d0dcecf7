"""torch.compile compiles the code around a module, and leaves the module to Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu


class Mixed(torch.nn.Module):
    """Linear layers around a chain, whose graph is recorded in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.chain = Chain()
        self.before, self.after = torch.nn.Linear(3, INPUT), torch.nn.Linear(HIDDEN, 2)
        self.net = vpps.torch.Module(self.chain.model, vps=1)

    def forward(self, x: Any) -> Any:
        hidden = self.chain.by_module(self.net, torch.relu(self.before(x)))
        return torch.tanh(self.after(hidden[-1]))


@pytest.fixture(autouse=True)
def _anew() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def results(call: Any, mixed: Mixed, x: Any) -> list[Any]:
    mixed.zero_grad()
    value = call(x)
    value.sum().backward()
    return [value.detach(), *(p.grad.clone() for p in mixed.parameters())]


def test_values_and_gradients_are_the_same() -> None:
    """Values and gradients are still equal after an update."""
    mixed = Mixed()
    compiled = torch.compile(mixed, backend="eager")
    optimizer = torch.optim.SGD(mixed.parameters(), lr=0.5)
    for length in (2, 3, 2):
        x = torch.tensor(np.random.default_rng(length).normal(size=(length, 3)), dtype=torch.float32)
        for found, expected in zip(results(compiled, mixed, x), results(mixed, mixed, x), strict=True):
            torch.testing.assert_close(found, expected)
        optimizer.step()


def test_the_graph_breaks_at_the_module_and_says_why() -> None:
    mixed, graph, reason = Mixed(), vpps.Graph(), "vpps runs graphs that differ from call to call"
    wanted = mixed.chain.states(graph, graph.rows(np.ones((2, INPUT))))[-1]

    def mix(x: Any) -> Any:
        y = torch.relu(x)
        return torch.tanh(mixed.net(graph, wanted) + y)

    told = torch._dynamo.explain(mix)(torch.ones(HIDDEN))
    assert told.graph_count == 2
    assert any(reason in str(b.reason) for b in told.break_reasons)
    with pytest.raises(Exception, match=reason):
        torch.compile(mix, backend="eager", fullgraph=True)(torch.ones(HIDDEN))
