"""PyTorch users' expectations of any module: weights changed by any route, derivatives of any kind, copies, names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu


ONCE, GRAPHS, TANGENT, DATA = "differentiable once", "trace what is around", "tangent|another tensor", "cannot be read"


def penalty(f: Any, x: Any, net: Any) -> None:
    out = f(x.requires_grad_())
    (gradient,) = torch.autograd.grad(out, x, create_graph=True)
    assert gradient.requires_grad
    torch.autograd.grad(out + gradient.square().sum(), [net.chain.W])


def tangent_of_inputs(f: Any, x: Any, net: Any) -> None:
    with forward_ad.dual_level():
        f(forward_ad.make_dual(x, x))


def tangent_of_weights(f: Any, x: Any, net: Any) -> None:
    with forward_ad.dual_level():
        w = net.chain.W
        net.chain._parameters["W"] = forward_ad.make_dual(w, torch.ones_like(w))
        f(x)


REFUSED: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "penalty": (penalty, ONCE),
    "hvp": (lambda f, x, net: torch.autograd.functional.hvp(f, x, x), ONCE),
    "vhp": (lambda f, x, net: torch.autograd.functional.vhp(f, x, x), ONCE),
    "tangent of inputs": (tangent_of_inputs, TANGENT),
    "tangent of weights": (tangent_of_weights, TANGENT),
    "grad": (lambda f, x, net: torch.func.grad(f)(x), DATA),
    "hessian": (lambda f, x, net: torch.func.hessian(f)(x), DATA),
    "trace": (lambda f, x, net: torch.jit.trace(f, (x,)), GRAPHS),
    "make_fx": (lambda f, x, net: make_fx(f)(x), GRAPHS),
    "batch of gradients": (
        lambda f, x, net: torch.autograd.grad(f(x), [net.chain.W], torch.ones(2), is_grads_batched=True),
        "one gradient at a time",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("at_once", [False, True])
def test_what_there_is_not_is_refused(chain: Chain, net: Any, at_once: bool, name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(vpps.VppsError, match=message):
        call(lambda x: chain.loss_by_module(net, x, at_once), torch.randn(2, INPUT), net)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_create_graph_is_harmless_where_nobody_uses_it(chain: Chain, net: Any) -> None:
    chain.loss_by_module(net, torch.ones(2, INPUT)).backward(create_graph=True)
    assert all(p.grad is not None for p in net.parameters())


NAMES = "a.b a.b/c.d a/_extra_state _weights _parameters training a/training _anchor loss model handle forward T"


@pytest.mark.parametrize("name", NAMES.split())
@pytest.mark.parametrize("assign", [False, True])
def test_names(name: str, assign: bool) -> None:
    nets = []
    for seed in (1, 2):
        model = vpps.Model(seed=seed)
        model.parameter(name, (2, 2))
        model.parameter("a/other", (2,))
        nets.append(torch.nn.ModuleList([vpps.torch.Module(model, vps=1)]).train().eval())
    state = {key: value.clone() for key, value in nets[0].state_dict().items()}
    nets[1].load_state_dict(state, assign=assign)
    assert np.array_equal(nets[0][0].model[name].numpy(), nets[1][0].model[name].numpy())
    with pytest.raises(RuntimeError, match="Unexpected key"):
        nets[1].load_state_dict(state | {"0.nobody": torch.zeros(1)})


def test_a_name_that_state_dicts_need() -> None:
    model = vpps.Model()
    model.parameter("_extra_state", (2,))
    with pytest.raises(vpps.ModelError, match="_extra_state"):
        vpps.torch.Module(model, vps=1)


class Network(torch.nn.Module):
    """A chain in a PyTorch network."""

    def __init__(self, optimizer: vpps.Optimizer | None) -> None:
        super().__init__()
        self.chain = Chain()
        self.net = vpps.torch.Module(self.chain.model, optimizer, vps=1)
        self.encoder = torch.nn.Linear(INPUT, INPUT)

    def forward(self, x: Any) -> Any:
        return self.chain.loss_by_module(self.net, self.encoder(x))


@pytest.mark.parametrize("optimizer", [None, vpps.Adam(lr=0.1)])
def test_copies_train_by_themselves(optimizer: vpps.Optimizer | None) -> None:
    network, x = Network(optimizer), torch.ones(2, INPUT)
    network(x).backward()
    target = copy.deepcopy(network)
    assert target.net.model is target.chain.model is not network.net.model
    assert target.chain.W is target.net.model["chain/W"]
    before = target(x).item()
    assert before == network(x).item()
    for _ in range(2):
        network(x).backward()
        with torch.no_grad():
            for p in network.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=0.1)
    assert target(x).item() == before != network(x).item()


def test_averaged_model() -> None:
    network, x = Network(None), torch.ones(2, INPUT)
    averaged = torch.optim.swa_utils.AveragedModel(network)
    for value in (1.0, 3.0):
        with torch.no_grad():
            network.net.chain.W.fill_(value)
        averaged.update_parameters(network)
    assert (averaged.module.chain.W.numpy() == 2).all()
    assert (network.chain.W.numpy() == 3).all()
    with torch.no_grad():
        network.net.chain.W.fill_(2)
    assert averaged(x).item() == network(x).item()


HOSTILE: dict[str, Callable[[Any], object]] = {
    "NaN": lambda e: e["optimizer"]["moments"]["m"].update(w=torch.full((3,), float("nan"))),
    "negative": lambda e: e["optimizer"]["moments"]["v"].update(w=torch.full((3,), -1.0)),
    "double": lambda e: e["optimizer"]["moments"]["v"].update(w=torch.ones(3, dtype=torch.float64)),
    "large": lambda e: e["optimizer"]["moments"]["v"].update(w=torch.zeros(1).expand(10**12)),
    "no moments": lambda e: e["optimizer"].update(moments={}),
    "a list of moments": lambda e: e["optimizer"].update(moments=[]),
    "no name": lambda e: e["optimizer"].pop("name"),
    "late": lambda e: e["optimizer"].update(since=100),
    "since": lambda e: e["optimizer"].update(since=2**70),
    "step": lambda e: e.update(step=2.5),
    "no step": lambda e: e.pop("step"),
    "drawn": lambda e: e.update(drawn=(0, -1)),
    "rows": lambda e: e["averages"]["current"].update(t=torch.tensor([0])),
    "no rows": lambda e: e["averages"].update(current={}),
    "rows ahead": lambda e: e["averages"]["current"].update(t=torch.full((4,), 10**9)),
    "decay": lambda e: e["averages"].update(decay=2.0),
    "decay is NaN": lambda e: e["averages"].update(decay=float("nan")),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_hostile_extra_state(change: str) -> None:
    from io import BytesIO

    model = vpps.Model()
    w, t = model.parameter("w", (3,)), model.lookup("t", (4, 3))
    net = vpps.torch.Module(model, vpps.Adam(lr=0.1), ema=0.9, vps=1)
    graph = vpps.Graph()
    net.loss(graph, vpps.dot(w, graph.lookup(t, 1))).backward()
    state = net.state_dict()
    extra = torch.load(BytesIO(state["_extra_state"].numpy().tobytes()), weights_only=True)
    HOSTILE[change](extra)
    file = BytesIO()
    torch.save(extra, file)
    before = model.step, model.optimizer_state
    with pytest.raises(vpps.ModelError, match="not the extra state"):
        net.load_state_dict(state | {"_extra_state": torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)})
    assert (model.step, model.optimizer_state) == before


LOST: dict[str, tuple[Callable[[Any], object], str]] = {
    "a tensor": (lambda net: setattr(net.chain, "b", torch.nn.Parameter(torch.zeros(HIDDEN))), "another tensor"),
    "a module": (lambda net: setattr(net, "chain", torch.nn.Linear(INPUT, HIDDEN)), "or module has been put"),
    "no module": (lambda net: delattr(net, "chain"), "or module has been put"),
    "a hook": (lambda net: net.chain.W.register_hook(torch.neg), "has a hook"),
    "a late hook": (lambda net: net.chain.W.register_post_accumulate_grad_hook(print), "has a hook"),
    "sums over ranks": (lambda net: setattr(DistributedDataParallel, "_active_ddp_module", net), "of one rank"),
}


@pytest.mark.parametrize("change", LOST)
def test_what_would_be_lost(chain: Chain, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)
    net = vpps.torch.Module(chain.model, vpps.SGD(lr=0.1), vps=1)
    LOST[change][0](net)
    with pytest.raises(vpps.VppsError, match=LOST[change][1]):
        chain.loss_by_module(net, torch.randn(2, INPUT), False)


def test_copies_have_all_of_a_network(net: Any) -> None:
    net.add_module("linear", torch.nn.Linear(2, 2, dtype=torch.float64))
    net.register_buffer("mean", torch.ones(2, dtype=torch.float64))
    net.own = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    tied = torch.nn.Linear(INPUT, HIDDEN, bias=False)
    tied.weight = net.chain.W
    layers = torch.nn.ModuleList([tied, net.float()])
    copied = copy.deepcopy(layers)
    assert copied[0].weight is copied[1].chain.W
    owned = {k for k, owner in vpps.torch.weights._owners.items() if owner is copied[1]._weights}
    assert owned == set(map(id, copied[1].chain.parameters()))
    for (name, mine), (other, found) in zip(layers.state_dict().items(), copied.state_dict().items(), strict=True):
        assert name == other
        assert mine.data_ptr() != found.data_ptr()
        assert found.dtype in (torch.float32, torch.uint8)
        torch.testing.assert_close(mine, found)


def test_parameters_are_saved(net: Any, tmp_path: Any) -> None:
    torch.save(list(net.parameters()), tmp_path / "parameters.pt")
    torch.testing.assert_close(torch.load(tmp_path / "parameters.pt", weights_only=True), list(net.parameters()))


def test_a_module_made_for_inference_trains(chain: Chain) -> None:
    with torch.inference_mode():
        net = vpps.torch.Module(chain.model, vps=1)
    chain.loss_by_module(net, torch.randn(2, INPUT)).backward()
    assert net.chain.W.grad.abs().sum() > 0
