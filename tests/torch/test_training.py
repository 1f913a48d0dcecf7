"""Networks partly in vpps learn the same as in plain PyTorch, with either library's updates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.torch.networks import INPUT, Chain, Tagger  # noqa: E402

pytestmark = pytest.mark.cpu

Rule = Callable[[list[Any]], Any]


def adam(parameters: list[Any]) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


RULES_OF_PYTORCH: dict[str, Rule] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adam": adam,
    "adam, foreach": lambda ps: torch.optim.Adam(ps, lr=0.01, foreach=True),
    "adam, fused": lambda ps: torch.optim.Adam(ps, lr=0.01, fused=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.05),
}


def optimizers(name: str, outer: Any, middle: dict[str, Any]) -> list[Any]:
    """Return PyTorch optimizers for the outer layers and for the middle's parameters."""
    if rule := RULES_OF_PYTORCH.get(name):
        return [rule([*outer.parameters(), *middle.values()])]
    dense, tables = ([p for key, p in middle.items() if (key == "words") == is_table] for is_table in (False, True))
    return [adam([*outer.parameters(), *dense]), *([torch.optim.SparseAdam(tables, lr=0.01)] if tables else [])]


@pytest.mark.parametrize("name", [*RULES_OF_PYTORCH, "sparse adam", "updated by vpps"])
def test_a_network_learns_what_it_does_in_pytorch_alone(name: str) -> None:
    torch.manual_seed(1)
    is_sparse, is_inner = name not in RULES_OF_PYTORCH, name == "updated by vpps"
    tagger = Tagger(is_sparse)
    # Other tests verify the scripts: that takes most of the time.
    inner = vpps.Adam(lr=0.01) if is_inner else None
    net = vpps.torch.Module(tagger.chain.model, inner, sparse=is_sparse, vps=1, verify=False)
    outer = copy.deepcopy(tagger.outer)
    own = {key: torch.nn.Parameter(p.detach().clone()) for key, p in net.named_parameters()}
    mixed = optimizers(name, tagger.outer, {} if is_inner else dict(net.named_parameters()))
    alone = optimizers(name, outer, own)
    steps = 200 if is_inner else 40
    for step, batch in enumerate(tagger.batches(steps)):
        found = []
        for rules in (mixed, alone):
            for rule in rules:
                rule.zero_grad()
            if rules is mixed:
                loss = tagger.mixed_loss(net, tagger.outer, batch)
            else:
                loss = tagger.loss_in_torch(own, outer, batch)
            loss.backward()
            for rule in rules:
                rule.step()
            found.append(loss.item())
        assert found[0] == pytest.approx(found[1], rel=1e-3 if is_inner else 1e-4), f"step {step}"
    for key, p in net.named_parameters():
        torch.testing.assert_close(p, own[key], rtol=1e-2, atol=1e-3)
        assert (p.grad is None) == is_inner
    assert tagger.chain.model.step == (steps if is_inner else 0)
    assert is_inner or net.words.grad.is_sparse == is_sparse


def test_a_table_of_scalars_and_one_of_matrices_give_sparse_gradients() -> None:
    model = vpps.Model()
    scalars, matrices = model.lookup("scalars", (5,)), model.lookup("matrices", (5, 2, 3))
    net = vpps.torch.Module(model, sparse=True, vps=1)
    graph = vpps.Graph()
    rows = np.array([3, 1, 3])
    x = graph.input(np.ones(3))
    wanted = [graph.lookup(scalars, rows), graph.lookup(matrices, rows) @ x]
    sum(output.sum() for output in net(graph, wanted)).backward()
    assert net.scalars.grad.is_sparse
    np.testing.assert_array_equal(net.scalars.grad.to_dense(), [0, 1, 0, 2, 0])
    np.testing.assert_array_equal(net.matrices.grad.to_dense()[:, 0, 0], [0, 1, 0, 2, 0])
    assert net.matrices.grad.shape == (5, 2, 3)


def test_updates_in_backward_are_those_of_fb() -> None:
    """Weights are bit-identical to those after `fb`."""
    chains = [Chain(table=True) for _ in range(2)]
    net = vpps.torch.Module(chains[0].model, vpps.Adam(lr=0.01), vps=1)
    with vpps.Handle(chains[1].model, vpps.Adam(lr=0.01), vps=1) as handle:
        for k in range(5):
            x = np.random.default_rng(k).normal(size=(3, INPUT))
            for chain in chains:
                graph = vpps.Graph()
                loss = chain.loss(graph, graph.rows(x))
                if chain is chains[0]:
                    net.loss(graph, loss).backward()
                else:
                    handle.fb(graph, loss)
    for name, p in chains[1].model.numpy().items():
        np.testing.assert_array_equal(chains[0].model[name].numpy(), p)


RULES: list[tuple[Rule, vpps.Optimizer]] = [
    (lambda ps: torch.optim.SGD(ps, 0.1, weight_decay=0.1), vpps.SGD(0.1, weight_decay=0.1)),
    (lambda ps: torch.optim.SGD(ps, 0.02, 0.8), vpps.Momentum(0.02, momentum=0.8)),
    (lambda ps: torch.optim.AdamW(ps, 0.01, eps=1e-3, weight_decay=0.1), vpps.AdamW(0.01, eps=1e-3, weight_decay=0.1)),
    (lambda ps: torch.optim.RMSprop(ps, 0.01, 0.9, eps=0.1), vpps.RMSprop(0.01, rho=0.9, eps=0.1)),
]


@pytest.mark.parametrize("theirs_of, ours", RULES)
def test_handles_step_as_pytorch_what_the_loss_touches(theirs_of: Rule, ours: vpps.Optimizer) -> None:
    """A chain with two results; losses read one, both or an earlier result; one parameter is frozen and thawed."""
    model = vpps.Model(seed=1)
    mine = {n: model.parameter(n, (16, 16)) for n in ("W", "U", "V", "O")}
    theirs = {n: torch.tensor(p.numpy(), dtype=torch.float64, requires_grad=True) for n, p in mine.items()}
    optimizer, start = theirs_of(list(theirs.values())), np.linspace(-1, 1, 16)

    def loss_of(ps: Any, x: Any, f: Any, read: str) -> Any:
        """Return the loss; `f` is the library."""

        def step(h: Any, c: Any) -> Any:
            return f.tanh(ps["W"] @ h + ps["U"] @ c), f.tanh(ps["V"] @ c)

        step, h, c, terms = vpps.cell(step) if f is vpps else step, x, x, []
        for what in read:
            h, c = step(h, c)
            terms += {"h": [h], "c": [c], "b": [h, ps["O"] @ c], "-": []}[what]
        return f.sum(sum(terms[1:], terms[0]) * x)

    with vpps.Handle(model, ours, vps=2) as handle:
        for read in ("h", "c", "b", "-c", "b", "ch", "c", "bh"):
            mine["W"].trainable = read != "ch"
            graph = vpps.Graph()
            handle.fb(graph, loss_of(mine, graph.input(start), vpps, read))
            optimizer.zero_grad()
            loss_of(theirs, torch.tensor(start.astype(np.float32), dtype=torch.float64), torch, read).backward()
            if read == "ch":
                theirs["W"].grad = None  # frozen
            optimizer.step()
        for n, p in mine.items():
            np.testing.assert_allclose(p.numpy(), theirs[n].detach().numpy(), rtol=1e-3, atol=1e-5, err_msg=n)
