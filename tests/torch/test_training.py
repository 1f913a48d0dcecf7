"""Networks of which a part is in vpps learn what the same ones in PyTorch alone do, whoever makes the updates."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.placement.distribution import Distribution

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.torch.networks import HIDDEN, INPUT, MIXED, Chain, MixedNetwork, Tagger  # noqa: E402

pytestmark = pytest.mark.cpu

Optimizers = Callable[[list[Any]], Any]


class Twin:
    """A network with its middle in vpps, and a copy of it in PyTorch alone.

    Args:
        inner: the optimizer of vpps for the middle; None: PyTorch's for everything.
    """

    def __init__(self, network: MixedNetwork, inner: vpps.Optimizer | None = None, sparse: bool = False) -> None:
        self.network = network
        # The scripts are verified elsewhere: that takes most of the time.
        self.net = vpps.torch.Module(network.model, inner, sparse=sparse, vps=1, verify=False)
        self.outer, self.own_outer = network.outer, copy.deepcopy(network.outer)
        self.own = {name: torch.nn.Parameter(p.detach().clone()) for name, p in self.net.named_parameters()}

    def assert_curves_agree(self, mixed: list[Any], alone: list[Any], steps: int, rel: float = 1e-4) -> None:
        """Train both with these optimizers."""
        for step, batch in enumerate(self.network.batches(steps)):
            found = []
            for optimizers in (mixed, alone):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                if optimizers is mixed:
                    loss = self.network.mixed_loss(self.net, self.outer, batch)
                else:
                    loss = self.network.loss_in_torch(self.own, self.own_outer, batch)
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                found.append(loss.item())
            assert found[0] == pytest.approx(found[1], rel=rel), f"step {step}"
        for name, p in self.net.named_parameters():
            torch.testing.assert_close(p, self.own[name], rtol=1e-2, atol=1e-3)


OPTIMIZERS: dict[str, Optimizers] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01),
    "adam, foreach": lambda ps: torch.optim.Adam(ps, lr=0.01, foreach=True),
    "adam, fused": lambda ps: torch.optim.Adam(ps, lr=0.01, fused=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pytorch_updates_everything(name: str) -> None:
    torch.manual_seed(1)
    twin, make = Twin(Tagger(table=True)), OPTIMIZERS[name]
    mixed = make([*twin.outer.parameters(), *twin.net.parameters()])
    alone = make([*twin.own_outer.parameters(), *twin.own.values()])
    twin.assert_curves_agree([mixed], [alone], 40)


def test_tables_with_sparse_adam() -> None:
    torch.manual_seed(1)
    twin = Twin(Tagger(table=True, sparse=True), sparse=True)

    def optimizers(outer: Any, parameters: dict[str, Any]) -> list[Any]:
        dense = [p for name, p in parameters.items() if name != "words"]
        return [torch.optim.Adam([*outer.parameters(), *dense]), torch.optim.SparseAdam([parameters["words"]])]

    mixed, alone = optimizers(twin.outer, dict(twin.net.named_parameters())), optimizers(twin.own_outer, twin.own)
    twin.assert_curves_agree(mixed, alone, 40)
    assert twin.net.words.grad.is_sparse


@pytest.mark.parametrize("name", MIXED)
def test_vpps_updates_its_part(name: str) -> None:
    """Over 200 steps, with Adam inside and outside."""
    torch.manual_seed(1)
    twin = Twin(MIXED[name](), vpps.Adam(lr=0.01))
    mixed = [torch.optim.Adam(twin.outer.parameters(), lr=0.01)]
    alone = [torch.optim.Adam(twin.own_outer.parameters(), lr=0.01), torch.optim.Adam(twin.own.values(), lr=0.01)]
    twin.assert_curves_agree(mixed, alone, 200, rel=1e-3)
    assert twin.network.model.step == 200
    assert all(p.grad is None for p in twin.net.parameters())


@pytest.mark.parametrize("name", MIXED)
def test_pytorch_updates_all_of_a_mixed_network(name: str) -> None:
    torch.manual_seed(1)
    twin = Twin(MIXED[name]())
    mixed = torch.optim.Adam([*twin.outer.parameters(), *twin.net.parameters()], lr=0.01)
    alone = torch.optim.Adam([*twin.own_outer.parameters(), *twin.own.values()], lr=0.01)
    twin.assert_curves_agree([mixed], [alone], 100, rel=1e-3)


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
    """To the bit."""
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


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda p: p.add_(0.5),
    "copy_": lambda p: p.copy_(p + 0.5),
    "a part": lambda p: p[:1].mul_(3),
    "data replaced": lambda p: setattr(p, "data", p.data + 0.5),
    "data in place": lambda p: p.data.add_(0.5),
    "array in place": lambda p: np.add(p.detach().numpy(), 0.5, out=p.detach().numpy()),
    "vector_to_parameters": lambda p: torch.nn.utils.vector_to_parameters(p.detach().reshape(-1) + 0.5, [p]),
    "init": lambda p: torch.nn.init.uniform_(p),
}


class TestWhoHasChangedWhat:
    """Only what has changed is packed for the kernel again."""

    @pytest.fixture
    def chain(self) -> Chain:
        return Chain(table=True)

    @staticmethod
    def value(chain: Chain, net: Any) -> Any:
        graph = vpps.Graph()
        with torch.no_grad():
            return net(graph, chain.states(graph, graph.rows(np.ones((2, INPUT))), np.array([1, 2]))[-1])

    @pytest.fixture
    def packed(self, net: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names of parameters, as they are packed."""
        names: list[str] = []
        store = Distribution.store_weights

        def noted(self: Any, pool: Any, p: vpps.Parameter, value: Any) -> None:
            names.append(p.name)
            store(self, pool, p, value)

        monkeypatch.setattr(Distribution, "store_weights", noted)
        return names

    @pytest.mark.parametrize("change", CHANGES)
    @torch.no_grad()
    def test_changes_by_pytorch(self, chain: Chain, net: Any, packed: list[str], change: str) -> None:
        before = self.value(chain, net)
        assert sorted(packed) == sorted(p.name for p in chain.model)
        self.value(chain, net)
        assert len(packed) == len(chain.model)
        CHANGES[change](net.chain.U)
        after = self.value(chain, net)
        assert packed[len(chain.model) :] == ["chain/U"]
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, chain.in_torch(net, torch.ones(2, INPUT), np.array([1, 2]))[-1])
        np.testing.assert_array_equal(chain.U.numpy(), net.chain.U.numpy())
        assert net.chain.U.data_ptr() == chain.U.host.ctypes.data

    def test_changes_by_vpps(self, chain: Chain, net: Any, packed: list[str]) -> None:
        self.value(chain, net)
        chain.W.assign(np.full((HIDDEN, INPUT), 0.25))
        assert (net.chain.W == 0.25).all()
        after = self.value(chain, net)
        assert packed[len(chain.model) :] == ["chain/W"]
        torch.testing.assert_close(after, chain.in_torch(net, torch.ones(2, INPUT), np.array([1, 2]))[-1].detach())

    @pytest.mark.parametrize("change", ["adam", "adam, fused", "load_state_dict"])
    def test_other_handles_see_what_pytorch_did(self, chain: Chain, net: Any, change: str) -> None:
        graph = vpps.Graph()
        state = chain.states(graph, graph.rows(np.ones((2, INPUT))), np.array([1, 2]))[-1]
        with vpps.Handle(chain.model, train=False, vps=1) as beside:
            (before,) = beside.forward(graph, [state])
            if change in OPTIMIZERS:
                optimizer = OPTIMIZERS[change](list(net.parameters()))
                net(graph, state).sum().backward()
                optimizer.step()
            else:
                net.load_state_dict({name: p + 1 for name, p in net.named_parameters()}, strict=False)
            for handle in (beside, net.handle):
                (after,) = handle.forward(graph, [state])
                assert not np.array_equal(before, after)
                expected = chain.in_torch(net, torch.ones(2, INPUT), np.array([1, 2]))[-1]
                torch.testing.assert_close(torch.from_numpy(after), expected.detach())

    def test_requires_grad_and_trainable_are_one_thing(self, chain: Chain, net: Any) -> None:
        def trained() -> list[str]:
            net.zero_grad()
            graph = vpps.Graph()
            net(graph, chain.states(graph, graph.rows(np.ones((2, INPUT))), np.array([1, 2]))[-1]).sum().backward()
            return [n for n, p in net.named_parameters() if p.grad is not None]

        every = {"chain.W", "chain.U", "chain.b", "words"}
        assert set(trained()) == every
        net.chain.W.requires_grad_(False)
        assert set(trained()) == every - {"chain.W"}
        assert not chain.W.trainable
        chain.W.trainable = True
        chain.b.trainable = False
        assert net.chain.W.requires_grad
        assert set(trained()) == every - {"chain.b"}
        assert not net.chain.b.requires_grad

    def test_parameters_that_are_declared_later(self, chain: Chain, net: Any) -> None:
        self.value(chain, net)
        late = chain.model.parameter("late", (HIDDEN,), init="ones")
        assert torch.equal(dict(net.named_parameters())["late"], torch.ones(HIDDEN))
        graph = vpps.Graph()
        net(graph, graph.input(np.ones(HIDDEN)) * late).sum().backward()
        assert torch.equal(net.late.grad, torch.ones(HIDDEN))


READERS: dict[str, Callable[[Any], Any]] = {
    "parameters": lambda outer: list(outer.parameters())[1],
    "named_parameters": lambda outer: dict(outer.named_parameters())["0.chain.U"],
    "state_dict": lambda outer: outer.state_dict()["0.chain.U"],
    "attribute": lambda outer: outer[0].chain.U,
    "get_parameter": lambda outer: outer.get_parameter("0.chain.U"),
}


class TestNewestWeights:
    """Where vpps updates them, PyTorch sees them when it reads."""

    @pytest.fixture
    def net(self, chain: Chain) -> Any:
        return vpps.torch.Module(chain.model, vpps.SGD(lr=0.5), vps=1)

    @staticmethod
    def step(chain: Chain, net: Any) -> None:
        graph = vpps.Graph()
        net.loss(graph, chain.loss(graph, graph.rows(np.ones((2, INPUT))))).backward()

    @pytest.mark.parametrize("reader", READERS)
    def test_whoever_reads_them(self, chain: Chain, net: Any, reader: str) -> None:
        outer = torch.nn.Sequential(net)
        read = READERS[reader]
        before = read(outer).detach().clone()
        self.step(chain, net)
        after = read(outer)
        assert not torch.equal(before, after)
        np.testing.assert_array_equal(after.detach().numpy(), chain.U.numpy())
        assert after.data_ptr() == chain.U.host.ctypes.data

    def test_changes_on_both_sides(self, chain: Chain, net: Any) -> None:
        W = net.chain.W
        self.step(chain, net)
        with torch.no_grad():
            W.zero_()
        with pytest.raises(vpps.HandleError, match=r"'chain/W'.*PyTorch has changed.*vpps has updated them meanwhile"):
            self.step(chain, net)

    def test_changes_by_pytorch_after_reading(self, chain: Chain, net: Any) -> None:
        self.step(chain, net)
        with torch.no_grad():
            net.chain.W.zero_()
            net.chain.b.zero_()
        graph = vpps.Graph()
        state = chain.states(graph, graph.rows(np.ones((1, INPUT))))[-1]
        with torch.no_grad():
            assert not net(graph, state).any()
        self.step(chain, net)
        assert net.chain.W.any() or not net.chain.U.any() or chain.model.step == 2


RULES: list[tuple[Optimizers, vpps.Optimizer]] = [
    (lambda ps: torch.optim.SGD(ps, 0.1, weight_decay=0.1), vpps.SGD(0.1, weight_decay=0.1)),
    (lambda ps: torch.optim.SGD(ps, 0.02, 0.8), vpps.Momentum(0.02, momentum=0.8)),
    (lambda ps: torch.optim.AdamW(ps, 0.01, eps=1e-3, weight_decay=0.1), vpps.AdamW(0.01, eps=1e-3, weight_decay=0.1)),
    (lambda ps: torch.optim.RMSprop(ps, 0.01, 0.9, eps=0.1), vpps.RMSprop(0.01, rho=0.9, eps=0.1)),
]


@pytest.mark.parametrize("theirs_of, ours", RULES)
def test_handles_step_as_pytorch_what_the_loss_touches(theirs_of: Optimizers, ours: vpps.Optimizer) -> None:
    """A chain of two results, of which losses read one, both or an earlier one; one parameter is frozen and thawed."""
    model = vpps.Model(seed=1)
    mine = {n: model.parameter(n, (16, 16)) for n in ("W", "U", "V", "O")}
    theirs = {n: torch.tensor(p.numpy(), dtype=torch.float64, requires_grad=True) for n, p in mine.items()}
    optimizer, start = theirs_of(list(theirs.values())), np.linspace(-1, 1, 16)

    def loss_of(ps: Any, x: Any, f: Any, read: str) -> Any:
        """`f` is the library."""

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
