"""Users of PyTorch expect of any module: weights changed by any route, derivatives of any kind, copies, names."""

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
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "add_": lambda net, w: w.add_(1),
    "one element": lambda net, w: w[0, 0].fill_(7),
    "copy_": lambda net, w: w.copy_(torch.full_like(w, 3)),
    "init": lambda net, w: torch.nn.init.ones_(w),
    "data": lambda net, w: setattr(w, "data", torch.full_like(w, 5)),
    "data in place": lambda net, w: w.data.mul_(2),
    "set_": lambda net, w: w.set_(torch.full_like(w, 6)),
    "vector": lambda net, w: torch.nn.utils.vector_to_parameters(torch.full((w.numel(),), 7.0), [w]),
    "load": lambda net, w: net.load_state_dict({"chain.W": torch.full_like(w, 8)}, strict=False),
    "assign": lambda net, w: net.load_state_dict({"chain.W": torch.full_like(w, 9)}, strict=False, assign=True),
    "numpy": lambda net, w: w.detach().numpy().fill(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen_by_all(chain: Chain, net: Any, change: str, tmp_path: Any) -> None:
    x = np.ones(INPUT, np.float32)

    def value(handle: Any) -> Any:
        graph = vpps.Graph()
        return handle.forward(graph, [chain.W @ graph.input(x)])[0]

    with vpps.Handle(chain.model, train=False, target="cpu", vps=1) as serving:
        value(serving), value(net.handle)
        w = net.chain.W
        with torch.no_grad():
            CHANGES[change](net, w)
        expected = w.detach().numpy() @ x
        np.testing.assert_allclose(value(serving), expected, rtol=1e-5)
        np.testing.assert_allclose(value(net.handle), expected, rtol=1e-5)
    CHANGES["data"](net, w)
    chain.model.save(tmp_path / "model.safetensors")
    assert (vpps.Model.load(tmp_path / "model.safetensors")["chain/W"].numpy() == 5).all()


def output(chain: Chain, net: Any, x: Any, at_once: bool) -> Any:
    graph = vpps.Graph()
    loss = chain.loss(graph, graph.rows(x, grad=True))
    return net.loss(graph, loss) if at_once else net(graph, loss)


@pytest.mark.parametrize("at_once", [False, True])
class TestDerivativesThatThereAreNot:
    def test_penalty(self, chain: Chain, net: Any, at_once: bool) -> None:
        x = torch.randn(2, INPUT, requires_grad=True)
        out = output(chain, net, x, at_once)
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        with pytest.raises(vpps.GraphError, match="differentiable once"):
            torch.autograd.grad(out + gradient.square().sum(), [net.chain.W])

    @pytest.mark.parametrize("function", ["hvp", "vhp"])
    def test_products_with_a_hessian(self, chain: Chain, net: Any, at_once: bool, function: str) -> None:
        x = torch.randn(2, INPUT)
        with pytest.raises(vpps.GraphError, match="differentiable once"):
            getattr(torch.autograd.functional, function)(lambda x: output(chain, net, x, at_once), x, x)

    @pytest.mark.parametrize("of", ["input", "weights"])
    def test_forward_mode(self, chain: Chain, net: Any, at_once: bool, of: str) -> None:
        x = torch.randn(2, INPUT)
        with forward_ad.dual_level():
            if of == "input":
                x = forward_ad.make_dual(x, x)
            else:
                w = net.chain.W
                net.chain._parameters["W"] = forward_ad.make_dual(w, torch.ones_like(w))
            with pytest.raises(vpps.VppsError, match=r"tangent|another tensor"):
                output(chain, net, x, at_once)

    def test_functions(self, chain: Chain, net: Any, at_once: bool) -> None:
        for transform in (torch.func.grad, torch.func.hessian):
            with pytest.raises(vpps.VppsError):
                transform(lambda x: output(chain, net, x, at_once))(torch.randn(2, INPUT))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_with_dropout(chain: Chain, net: Any, reentrant: bool) -> None:
    def run(x: Any) -> Any:
        graph = vpps.Graph()
        states = chain.states(graph, graph.rows(x, grad=True))
        return net(graph, vpps.dropout(states[-1], 0.5)).square()

    x = torch.randn(2, INPUT, requires_grad=True)
    loss = checkpoint(run, x, use_reentrant=reentrant).sum()
    with pytest.raises(vpps.GraphError, match="other masks of dropout"):
        loss.backward()
    net.eval()
    checkpoint(run, x, use_reentrant=reentrant).sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_taken_everywhere(chain: Chain, net: Any, dtype: Any) -> None:
    x = torch.ones(2, INPUT, dtype=dtype)
    for grad in (False, True):
        graph = vpps.Graph()
        rows = graph.rows(x, grad=grad)
        single = graph.input(x[0], grad=grad)
        found = net(graph, [chain.W @ rows[0], chain.W @ single])
        torch.testing.assert_close(found[0], found[1])
        torch.testing.assert_close(found[0], net.chain.W.sum(1))
    chain.b.assign(torch.ones(HIDDEN, dtype=dtype))


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
    """A chain in a network of PyTorch."""

    def __init__(self, optimizer: vpps.Optimizer | None) -> None:
        super().__init__()
        self.chain = Chain()
        self.net = vpps.torch.Module(self.chain.model, optimizer, vps=1)
        self.encoder = torch.nn.Linear(INPUT, INPUT)

    def forward(self, x: Any) -> Any:
        graph = vpps.Graph()
        return self.net.loss(graph, self.chain.loss(graph, graph.rows(self.encoder(x), grad=True)))


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
        output(chain, net, torch.randn(2, INPUT), False)


@pytest.mark.parametrize("at_once", [False, True])
def test_programs_of_one_graph_and_batches_of_gradients(chain: Chain, net: Any, at_once: bool) -> None:
    x = torch.randn(2, INPUT)
    for record in (lambda f: torch.jit.trace(f, (x,)), lambda f: make_fx(f)(x)):
        with pytest.raises(vpps.GraphError, match="trace what is around the layer"):
            record(lambda x: output(chain, net, x, at_once))
    out = output(chain, net, x, at_once)
    with pytest.raises(vpps.GraphError, match="one gradient at a time"):
        torch.autograd.grad(out, [net.chain.W], torch.ones(2), is_grads_batched=True)


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
    output(chain, net, torch.randn(2, INPUT), True).backward()
    assert net.chain.W.grad.abs().sum() > 0


def test_optimizers_may_write_through_data(chain: Chain, net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers and exchanges between ranks write so. Here the written element is not among the sampled ones."""
    monkeypatch.setattr("vpps.torch.weights.SAMPLE", 1)
    own = type("Own", (torch.optim.Optimizer,), {"step": lambda self: net.chain.W.data[1].fill_(9)})
    before = output(chain, net, torch.ones(1, INPUT), False)
    before.backward()
    own(net.parameters(), {}).step()
    assert output(chain, net, torch.ones(1, INPUT), False) != before
