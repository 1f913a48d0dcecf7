"""PyTorch and vpps share weights: either may change them, and only changed weights are repacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.placement.distribution import Distribution

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu

WORDS = np.array([1, 2])


@pytest.fixture
def chain() -> Chain:
    return Chain(table=True)


def value(chain: Chain, handle: Any) -> Any:
    """Return the last state, computed by a handle or a module."""
    graph = vpps.Graph()
    state = chain.states(graph, graph.rows(np.ones((2, INPUT))), WORDS)[-1]
    if isinstance(handle, vpps.Handle):
        return torch.from_numpy(handle.forward(graph, [state])[0])
    with torch.no_grad():
        return handle(graph, state)


def expected(chain: Chain, net: Any) -> Any:
    """Return the last state, computed by PyTorch with its weights."""
    return chain.in_torch(net, torch.ones(2, INPUT), WORDS)[-1].detach()


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of parameter names to which each packing appends."""
    names: list[str] = []
    store = Distribution.store_weights

    def noted(self: Any, pool: Any, p: vpps.Parameter, value: Any) -> None:
        names.append(p.name)
        store(self, pool, p, value)

    monkeypatch.setattr(Distribution, "store_weights", noted)
    return names


def stepped(rule: Callable[[list[Any]], Any], p: Any) -> None:
    p.grad = torch.ones_like(p)
    rule([p]).step()


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "in place": lambda net, p: p.add_(0.5),
    "one element": lambda net, p: p[0, 0].fill_(7),
    "a part": lambda net, p: p[:1].mul_(3),
    "copy_": lambda net, p: p.copy_(p + 0.5),
    "init": lambda net, p: torch.nn.init.uniform_(p),
    "data replaced": lambda net, p: setattr(p, "data", p.data + 0.5),
    "data in place": lambda net, p: p.data.add_(0.5),
    "set_": lambda net, p: p.set_(p + 0.5),
    "array in place": lambda net, p: np.add(p.detach().numpy(), 0.5, out=p.detach().numpy()),
    "vector_to_parameters": lambda net, p: torch.nn.utils.vector_to_parameters(p.detach().reshape(-1) + 0.5, [p]),
    "load": lambda net, p: net.load_state_dict({"chain.U": p + 1}, strict=False),
    "assign": lambda net, p: net.load_state_dict({"chain.U": p + 1}, strict=False, assign=True),
    "adam": lambda net, p: stepped(torch.optim.Adam, p),
    "adam, fused": lambda net, p: stepped(lambda ps: torch.optim.Adam(ps, fused=True), p),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changes_by_pytorch_are_seen_by_all(
    chain: Chain, net: Any, packed: list[str], change: str, tmp_path: Any
) -> None:
    """Changes reach this module, another handle and a checkpoint."""
    with vpps.Handle(chain.model, train=False, target="cpu", vps=1) as beside:
        before = value(chain, net)
        assert sorted(packed) == sorted(p.name for p in chain.model)
        assert torch.equal(value(chain, beside), before)
        value(chain, net)
        assert len(packed) == 2 * len(chain.model)
        CHANGES[change](net, net.chain.U)
        for handle in (beside, net):
            after = value(chain, handle)
            assert not torch.equal(before, after)
            torch.testing.assert_close(after, expected(chain, net))
        assert packed[2 * len(chain.model) :] == ["chain/U"] * 2
    assert net.chain.U.data_ptr() == chain.U.host.ctypes.data
    CHANGES[change](net, net.chain.U)
    chain.model.save(tmp_path / "model")
    np.testing.assert_array_equal(vpps.Model.load(tmp_path / "model")["chain/U"].numpy(), net.chain.U.numpy())


def test_changes_by_vpps(chain: Chain, net: Any, packed: list[str]) -> None:
    value(chain, net)
    chain.W.assign(np.full((HIDDEN, INPUT), 0.25))
    assert (net.chain.W == 0.25).all()
    torch.testing.assert_close(value(chain, net), expected(chain, net))
    assert packed[len(chain.model) :] == ["chain/W"]


def test_optimizers_may_write_through_data(chain: Chain, net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers and exchanges between ranks write this way. Here the written element is not among those sampled."""
    monkeypatch.setattr("vpps.torch.weights.SAMPLE", 1)
    own = type("Own", (torch.optim.Optimizer,), {"step": lambda self: net.chain.W.data[1].fill_(9)})
    before = chain.loss_by_module(net, torch.ones(1, INPUT), False)
    before.backward()
    own(net.parameters(), {}).step()
    assert chain.loss_by_module(net, torch.ones(1, INPUT), False) != before


def test_requires_grad_and_trainable_are_one_thing(chain: Chain, net: Any) -> None:
    def trained() -> set[str]:
        net.zero_grad()
        chain.by_module(net, torch.ones(2, INPUT), WORDS)[-1].sum().backward()
        return {n for n, p in net.named_parameters() if p.grad is not None}

    every = {"chain.W", "chain.U", "chain.b", "words"}
    assert trained() == every
    net.chain.W.requires_grad_(False)
    assert trained() == every - {"chain.W"}
    assert not chain.W.trainable
    chain.W.trainable = True
    chain.b.trainable = False
    assert net.chain.W.requires_grad
    assert trained() == every - {"chain.b"}
    assert not net.chain.b.requires_grad


def test_parameters_that_are_declared_later(chain: Chain, net: Any) -> None:
    value(chain, net)
    late = chain.model.parameter("late", (HIDDEN,), init="ones")
    assert torch.equal(dict(net.named_parameters())["late"], torch.ones(HIDDEN))
    graph = vpps.Graph()
    net(graph, graph.input(np.ones(HIDDEN)) * late).sum().backward()
    assert torch.equal(net.late.grad, torch.ones(HIDDEN))


READERS: dict[str, Callable[[Any], Any]] = {
    "parameters": lambda outer: list(outer.parameters())[2],
    "named_parameters": lambda outer: dict(outer.named_parameters())["0.chain.U"],
    "state_dict": lambda outer: outer.state_dict()["0.chain.U"],
    "attribute": lambda outer: outer[0].chain.U,
    "get_parameter": lambda outer: outer.get_parameter("0.chain.U"),
}


class TestNewestWeights:
    """PyTorch sees vpps's updates when it reads."""

    @pytest.fixture
    def net(self, chain: Chain) -> Any:
        return vpps.torch.Module(chain.model, vpps.SGD(lr=0.5), vps=1)

    @pytest.mark.parametrize("reader", READERS)
    def test_whoever_reads_them(self, chain: Chain, net: Any, reader: str) -> None:
        outer = torch.nn.Sequential(net)
        read = READERS[reader]
        before = read(outer).detach().clone()
        chain.loss_by_module(net, torch.ones(2, INPUT)).backward()
        after = read(outer)
        assert not torch.equal(before, after)
        np.testing.assert_array_equal(after.detach().numpy(), chain.U.numpy())
        assert after.data_ptr() == chain.U.host.ctypes.data

    @pytest.mark.parametrize("read", [False, True])
    def test_changes_on_both_sides(self, chain: Chain, net: Any, read: bool) -> None:
        """PyTorch's changes are refused unless it has read vpps's changes."""
        W, b = net.chain.W, net.chain.b
        chain.loss_by_module(net, torch.ones(2, INPUT)).backward()
        with torch.no_grad():
            for p in (net.chain.W, net.chain.b) if read else (W, b):
                p.zero_()
        if read:
            with torch.no_grad():
                assert not chain.by_module(net, torch.ones(1, INPUT)).any()
            chain.loss_by_module(net, torch.ones(2, INPUT)).backward()
            assert chain.model.step == 2
        else:
            with pytest.raises(vpps.HandleError, match=r"'chain/W'.*PyTorch has changed.*vpps has updated them"):
                chain.loss_by_module(net, torch.ones(2, INPUT))
