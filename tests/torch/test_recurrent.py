"""vpps.torch's recurrent layers do what PyTorch users expect of torch.nn's, which compute beside them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from io import BytesIO
from threading import Barrier, Thread
from typing import Any

import pytest

import vpps
from tests.processes import run

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from safetensors import torch as safetensors  # noqa: E402
from torch.func import functional_call  # noqa: E402
from torch.nn.utils import parameters_to_vector, vector_to_parameters  # noqa: E402
from torch.nn.utils.parametrizations import weight_norm  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_sequence  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.cpu

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 4, 6
TWO = {"num_layers": 2, "bidirectional": True}
LAYERS = pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
H = torch.zeros(1, BATCH, HIDDEN)


def pair(kind: str = "LSTM", **options: Any) -> tuple[Any, Any]:
    """Return a layer of vpps, and torch.nn's with equal weights."""
    mine, theirs = (getattr(home, kind)(INPUT, HIDDEN, **options) for home in (vpps.torch, torch.nn))
    theirs.load_state_dict(mine.state_dict())
    return mine, theirs


def same(mine: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def steps(*shape: int) -> Any:
    return torch.randn(*(shape or (STEPS, BATCH, INPUT)), generator=torch.Generator().manual_seed(len(shape) + 7))


def loss_of(results: Any) -> Any:
    return sum(t.square().sum() for t in tree_leaves(results))


# ---- constructors and calls


@pytest.mark.parametrize(
    "kind, args, options",
    [
        *((kind, (3, 4), {}) for kind in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell")),
        *((kind, (), {"input_size": 3, "hidden_size": 4}) for kind in ("LSTM", "GRU", "RNN", "GRUCell")),
        *((kind, (3, 4, 2, False, True, 0.5, True), {}) for kind in ("LSTM", "GRU")),
        ("RNN", (3, 4, 2, "relu", False, True, 0.5, True), {}),
        ("RNN", (3, 4), {"nonlinearity": "relu", "num_layers": 3, "device": "cpu", "dtype": torch.bfloat16}),
        ("LSTM", (3, 4), {"batch_first": True, "dropout": 0.1, "dtype": torch.float64, "num_layers": 2}),
        *((kind, (3, 4, False, "cpu", torch.float16), {}) for kind in ("LSTMCell", "GRUCell")),
        ("GRU", (3, 4), {"device": "meta"}),
    ],
)
def test_arguments_and_initial_weights_are_torch_nns(kind: str, args: Any, options: Any) -> None:
    nets = []
    for home in (vpps.torch, torch.nn):
        torch.manual_seed(5)
        nets.append(getattr(home, kind)(*args, **options))
    mine, theirs = nets
    assert repr(mine) == repr(theirs)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape)
        assert a.is_meta or torch.equal(a, b)
    mine.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict())


@pytest.mark.parametrize(
    "kind, options",
    [
        ("LSTM", {"hidden_size": 0}), ("GRU", {"num_layers": 0}), ("LSTM", {"dropout": 2}), ("GRU", {"bias": 1}),
        ("LSTM", {"hidden_size": 1.5}), ("RNN", {"nonlinearity": "selu"}), ("LSTM", {"batch": True}),
        ("LSTM", {"proj_size": 9}), ("LSTMCell", {"x": 1}),
    ],
)  # fmt: skip
def test_constructors_refuse_what_torch_nn_refuses(kind: str, options: Any) -> None:
    for home in (torch.nn, vpps.torch):
        with pytest.raises((TypeError, ValueError)):
            getattr(home, kind)(**{"input_size": 3, "hidden_size": 4, **options})


@pytest.mark.parametrize("batch_first", [False, True])
@LAYERS
def test_inputs_of_torch_nn(kind: str, batch_first: bool) -> None:
    """Results have torch.nn's types, shapes and order. Covers inputs that are views."""
    mine, theirs = pair(kind, **TWO, batch_first=batch_first)
    ragged, h = [steps(n, INPUT) for n in (2, 4, 1)], steps(4, 3, HIDDEN)
    packed = pack_sequence(ragged, enforce_sorted=False), pack_sequence(sorted(ragged, key=len, reverse=True))
    views = steps(3, INPUT, 3).mT, steps(1, 1, INPUT).expand(3, 3, INPUT), steps(6, 3, INPUT)[::2]
    hx, single = ((h, -h), (h[:, 0], -h[:, 0])) if kind == "LSTM" else (h, h[:, 0])
    for x in (steps(3, 3, INPUT), *views, *packed, ragged[0]):
        for given in (None, single if x is ragged[0] else hx):
            (y, final), (wanted, theirs_final) = mine(x, given), theirs(x, given)
            assert isinstance(y, PackedSequence) == isinstance(x, PackedSequence)
            same(tree_leaves(y), tree_leaves(wanted))
            same(final, theirs_final)
    mine.flatten_parameters()


# ---- copies and files


def saved(value: Any) -> Any:
    torch.save(value, file := BytesIO())
    return BytesIO(file.getvalue())


def loaded(state: Any, **options: Any) -> Any:
    made = vpps.torch.LSTM(INPUT, HIDDEN, **TWO)
    made.load_state_dict(state, **options)
    return made


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "torch.save": lambda net: torch.load(saved(net), weights_only=False),
    "state_dict": lambda net: loaded(torch.load(saved(net.state_dict())), assign=True),
    "safetensors": lambda net: loaded(safetensors.load(safetensors.save(net.state_dict()))),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_are_independent(way: str) -> None:
    (mine, theirs), x = pair(**TWO), steps()
    y, _ = mine(x)
    copied = COPIES[way](mine)
    assert torch.equal(copied(x)[0], y)
    with torch.no_grad():
        copied.weight_hh_l0.zero_()
    same(mine(x), theirs(x))
    theirs.load_state_dict(copied.state_dict())
    same(copied(x), theirs(x))


# ---- weights


def test_functional_call() -> None:
    """Covers temporary tensors, one after the other at the same address, that differ in one element."""
    nets, x = pair(), steps()
    for k in range(20):
        found = []
        for net in nets:
            weight = net.weight_hh_l0.detach().clone()
            weight.view(-1)[7 * k] += 1
            results = functional_call(net, {"weight_hh_l0": weight.requires_grad_()}, (x,))
            found.append((results, torch.autograd.grad(loss_of(results), [weight, net.bias_ih_l0])))
        same(*found)
    same(*(net(x) for net in nets))


def test_parametrizations() -> None:
    (mine, theirs), x = pair(), steps()
    weight_norm(mine, "weight_hh_l0").parametrizations.weight_hh_l0.original0.data.mul_(2)
    wanted = functional_call(theirs, {"weight_hh_l0": mine.weight_hh_l0}, (x,))  # torch.nn's own keep the old weight
    originals = list(mine.parametrizations.parameters())
    same(*(torch.autograd.grad(loss_of(results), originals) for results in (mine(x), wanted)))


def trained_by(optimizer: Any) -> Callable[[Any], None]:
    def change(net: Any) -> None:
        rule = optimizer(net.parameters())
        for _ in range(3):
            rule.zero_grad()
            loss_of(net(steps())).backward()
            rule.step()

    return change


WRITES: dict[str, Callable[[Any], object]] = {
    "SGD": trained_by(lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9)),
    "Adam, foreach": trained_by(lambda ps: torch.optim.Adam(ps, 0.01, foreach=True)),
    "AdamW, fused": trained_by(lambda ps: torch.optim.AdamW(ps, 0.01, fused=True)),
    "load_state_dict": lambda net: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}),
    "load, assign": lambda net: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}, assign=True),
    "data.copy_": lambda net: net.weight_hh_l0.data.copy_(net.weight_ih_l0[:, :1]),
    "other memory": lambda net: setattr(net.weight_ih_l0, "data", net.weight_ih_l0.data.T.contiguous().T * 2),
    "NumPy": lambda net: net.bias_ih_l0.detach().numpy().fill(0.25),
    "vector": lambda net: vector_to_parameters(parameters_to_vector(net.parameters()) / 2, net.parameters()),
    "one element": lambda net: net.weight_hh_l0.detach()[3, 2].add_(1),
    "a new parameter": lambda net: setattr(net, "weight_hh_l0", torch.nn.Parameter(net.weight_hh_l0.detach() * 2)),
    "tied": lambda net: setattr(net, "bias_ih_l0", net.bias_hh_l0),
    "types": lambda net: net.to(torch.float64).to(torch.float32).bias_hh_l0.detach().mul_(2),
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_to_weights(write: str) -> None:
    nets, x = pair(), steps()
    before = nets[0](x)[0]
    for net in nets:
        WRITES[write](net)
    same(*(net(x) for net in nets), 1e-4)
    assert not torch.allclose(nets[0](x)[0], before, atol=1e-3)
    same(*(torch.autograd.grad(loss_of(net(x)), net.parameters()) for net in nets), 1e-4)


@pytest.mark.parametrize("name", ["weight_hh_l0", "x", "h"])
def test_a_write_between_forward_and_backward(name: str) -> None:
    mine, x, h = vpps.torch.GRU(INPUT, HIDDEN), steps().requires_grad_(), H.clone()
    loss = mine(x, h)[0].sum()
    {"x": x, "h": h}.get(name, mine.weight_hh_l0).detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    mine(x, h)[0].sum().backward()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell"])
def test_bfloat16_and_autocast(kind: str, autocast: bool) -> None:
    """Results have the lower type, and values within its precision. Gradients have the type of the weights."""
    mine, theirs = pair(kind)
    x = steps(*((BATCH, INPUT) if kind.endswith("Cell") else ()))
    if not autocast:
        mine, x = mine.bfloat16(), x.bfloat16()
        theirs.load_state_dict(mine.state_dict())
    found = []
    for net, given, enabled in ((mine, x, autocast), (theirs, x.float(), False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            results = tree_leaves(net(given))
        gradients = torch.autograd.grad(sum(t.float().sum() for t in results), net.parameters())
        assert {t.dtype for t in results} == {torch.float32 if net is theirs else torch.bfloat16}
        assert {t.dtype for t in gradients} == {p.dtype for p in net.parameters()}
        found.append([t.float() for t in (*results, *gradients)])
    same(*found, 1e-2)


def test_lazily_negated_tensors() -> None:
    """PyTorch passes the bits of the opposite number, and a mark."""
    mine, theirs = (kind(1, 1) for kind in (vpps.torch.RNN, torch.nn.RNN))
    theirs.load_state_dict(mine.state_dict())
    x = torch.complex(torch.ones(1, 1, 1), torch.ones(1, 1, 1)).conj().imag
    assert x.is_neg()
    found = []
    for net in (mine, theirs):
        y, _ = net(x)
        z = (torch.complex(torch.ones_like(y), y).conj() * (1 + 2j)).real.sum()
        found.append([y, *torch.autograd.grad(z, net.parameters())])
    same(*found, 1e-5)


# ---- programs


def truncated(net: Any, x: Any) -> Any:
    states = None
    for piece in x.split(2):
        y, states = net(piece, states)
        loss_of(y).backward()
        states = [s.detach() for s in states]
    return loss_of(net(x, states))


def retained(net: Any, x: Any) -> Any:
    loss = loss_of(net(x))
    for _ in range(2):
        loss.backward(retain_graph=True)
    return loss


def in_turns(net: Any, x: Any) -> Any:
    other = copy.deepcopy(net)
    (loss_of(net(x)) * loss_of(other(x)) + loss_of(net(2 * x)) + loss_of(other(3 * x))).backward()
    return loss_of(net(x)) + sum(p.grad.sum() for p in other.parameters())


def partly_frozen(net: Any, x: Any) -> Any:
    for wanted in (False, True, False):
        net.weight_hh_l0.requires_grad_(wanted)
        loss_of(net(x)).backward()
        assert wanted or net.weight_hh_l0.grad is None
        net.weight_hh_l0.grad = None
    return loss_of(net.requires_grad_(True)(x))


def hooked(net: Any, x: Any) -> Any:
    handles = [
        net.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
        net.register_forward_hook(lambda module, args, out: (out[0] * 3, out[1])),
        net.weight_ih_l0.register_hook(lambda gradient: gradient * 5),
        net.bias_ih_l0.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", 7 * p.grad)),
        net.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 11,)),
    ]
    net(x)[0].square().sum().backward()
    for handle in handles:
        handle.remove()
    return loss_of(net(x))


def elsewhere(net: Any, x: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return loss_of(net(x))


def in_inference(net: Any, x: Any) -> Any:
    with torch.inference_mode():
        scale = net(x)[0].sum().item()
    return scale * net(x)[0].sum()


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "two calls before one backward": lambda net, x: (net(x)[0] * net(2 * x)[0][:, :1]).sum(),
    "of two calls, the first": lambda net, x: loss_of((net(x), net(2 * x))[0]),
    "two layouts": lambda net, x: loss_of(net(x)) + net(x[1:, :2])[0].sum() + net(x)[1][0].square().sum(),
    "one after the other": lambda net, x: net(net(x)[0][..., :INPUT])[1][1].sum(),
    "one step": lambda net, x: loss_of(net(x[:1])),  # weight_hh has no influence
    "only c": lambda net, x: loss_of(net(x)[1][1]),
    "expanded gradient": lambda net, x: net(x)[0][..., :1].sum() + net(x)[1][0].mean(),
    "truncated": truncated,
    "retained": retained,
    "two modules in turns": in_turns,
    "frozen for a while": partly_frozen,
    "hooks": hooked,
    "checkpoint": lambda net, x: loss_of(checkpoint(net, x, use_reentrant=False)),
    "reentrant checkpoint": lambda net, x: loss_of(checkpoint(net, x, use_reentrant=True)),
    "saved elsewhere": elsewhere,
    "inference": in_inference,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: str) -> None:
    found = []
    for net in pair():
        x = steps().requires_grad_()
        value = PROGRAMS[program](net, x)
        value.backward()
        found.append([value.detach(), x.grad, *(p.grad for p in net.parameters())])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            value.backward()
    same(*found, 1e-4)


@LAYERS
def test_what_learns_without_influence(kind: str) -> None:
    """Covers calls in which nothing that needs a gradient has an influence. torch.nn's gradients are zeros."""
    nets = pair(kind)
    for net in nets:
        net.requires_grad_(False).weight_hh_l0.requires_grad_()
        net(steps(1, BATCH, INPUT))[0].sum().backward()
    same(*([p.grad for p in net.parameters() if p.grad is not None] for net in nets))
    h = torch.ones(1, BATCH, HIDDEN, requires_grad=True)
    hx, resets = (h, h) if kind == "LSTM" else h, torch.ones(STEPS, BATCH) > 0
    nets[0].requires_grad_(False)(steps(), hx, resets=resets)[0].sum().backward()
    assert not h.grad.any()


@LAYERS
def test_a_rollout_equals_one_call(kind: str) -> None:
    net, x, resets = pair(kind)[0], steps(), steps(STEPS, BATCH) > 0.5
    (y, last), states = net(x, resets=resets), None
    for t, wanted in enumerate(y):
        with torch.no_grad():
            found, states = net(x[t : t + 1], states, resets=resets[t : t + 1])
        same(found[0], wanted.detach())
    same(states, tree_map(torch.Tensor.detach, last))


# ---- refusals


def penalty(net: Any, x: Any) -> None:
    (gradient,) = torch.autograd.grad(net(x.requires_grad_())[0].sum(), x, create_graph=True)
    gradient.square().sum().backward()


def many_gradients(net: Any, x: Any) -> None:
    torch.autograd.grad(net(x)[0].sum(), net.bias_ih_l0, torch.ones(2), is_grads_batched=True)


def packed_resets(net: Any, x: Any) -> None:
    net(pack_sequence([x[:3, 0], x[:2, 0]]), resets=torch.zeros(2, 3, dtype=torch.bool))


REFUSED: dict[str, tuple[Callable[[Any, Any], object], type[Exception], str]] = {
    "double backward": (penalty, vpps.GraphError, "differentiable once"),
    "batch of gradients": (many_gradients, vpps.GraphError, "one gradient at a time"),
    "trace": (lambda net, x: torch.jit.trace(net, (x,)), vpps.GraphError, r"LSTM: torch\.jit\.trace.*torch\.compile"),
    "float64": (lambda net, x: net.double()(x.double()), vpps.ModelError, r"LSTM computes in float32.*\.float\(\)"),
    "mixed types": (lambda net, x: net(x.double()), vpps.ModelError, "LSTM: .*float32.*float64: convert"),
    "type of states": (lambda net, x: net(x, (H, H.half())), vpps.ModelError, "LSTM: .*float32.*float16: convert"),
    "device": (lambda net, x: net(x.to("meta")), vpps.ModelError, "LSTM: the weights are on cpu, .* on meta"),
    "meta": (lambda net, x: net.to("meta")(x.to("meta")), vpps.ModelError, "LSTM: .* meta; use cpu or cuda"),
    "width": (lambda net, x: net(x[..., 1:]), vpps.ShapeError, "LSTM: each step has 3 numbers; input_size is 4"),
    "dimensions": (lambda net, x: net(x[0, 0]), vpps.ShapeError, r"LSTM: expected an input \(steps, batch,"),
    "no tensor": (lambda net, x: net(x.numpy()), vpps.DtypeError, "LSTM: expected a tensor, PackedSequence"),
    "no list": (lambda net, x: net([]), vpps.ShapeError, "LSTM: the list holds no sequence"),
    "list": (lambda net, x: net([x[0], x]), vpps.ShapeError, r"LSTM: sequence 1 of the list is \(5, 3, 4\)"),
    "list of lists": (lambda net, x: net([[1.0] * 4]), vpps.ShapeError, "LSTM: sequence 0 of the list is list"),
    "strided": (lambda net, x: net(torch.nested.nested_tensor([x[0]])), vpps.ShapeError, "LSTM: .*layout=torch.jagged"),
    "one state": (lambda net, x: net(x, H), vpps.ShapeError, r"LSTM: the initial state is \(h0, c0\) of .*\(1, 3, 6\)"),
    "shape of states": (lambda net, x: net(x, (H, H[:, 1:])), vpps.ShapeError, r"LSTM: .*got \(1, 3, 6\), \(1, 2, 6\)"),
    "no states": (lambda net, x: net(x, (None, None)), vpps.ShapeError, "LSTM: .*got None, None"),
    "resets": (lambda net, x: net(x, resets=x[..., 0]), vpps.ShapeError, r"LSTM: resets: .*torch\.bool.*float32"),
    "shape of resets": (lambda net, x: net(x, resets=H[0] > 0), vpps.ShapeError, r"LSTM: resets: .*\(5, 3\), got"),
    "resets of a list": (lambda net, x: net([x[0]], resets=[H[0, 0] > 0]), vpps.ShapeError, "LSTM: resets: .*as long"),
    "packed resets": (packed_resets, vpps.ShapeError, r"LSTM: resets: .*\(5,\), got"),
    "resets are a list": (lambda net, x: net(x, resets=[True]), vpps.ShapeError, r"LSTM: resets: .*got \[True\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call(vpps.torch.LSTM(INPUT, HIDDEN), steps())


def test_refusals_of_others() -> None:
    lstm, gru, x, h = vpps.torch.LSTMCell(INPUT, HIDDEN), vpps.torch.GRUCell(INPUT, HIDDEN), steps()[0], H[0]
    for message, call in {
        "LSTMCell: expected an input": lambda: lstm(x[:, 1:]),
        "GRUCell: expected an input": lambda: gru(steps()),
        r"GRUCell: the state is h of shape \(3, 6\); got \(1, 3, 6\)": lambda: gru(x, H),
        r"LSTMCell: .* \(3, 6\); got \(3, 6\), \(2, 6\)": lambda: lstm(x, (h, h[1:])),
        r"LSTMCell: the state is \(h, c\) of shape": lambda: lstm(x, h),
        r"LSTMCell: the state is \(h, c\) of .*got \(3, 6\)$": lambda: lstm(x, (h,)),
        r"GRUCell: .*got \(tensor": lambda: gru(x, (h, h)),
        "GRUCell: .*convert one": lambda: gru(x.double()),
        r"GRU: .*got \(tensor": lambda: vpps.torch.GRU(INPUT, HIDDEN)(steps(), (H, H)),
        r"LSTM\(proj_size=2\).*proj_size=0, or torch\.nn\.LSTM": lambda: vpps.torch.LSTM(3, 4, proj_size=2),
        r"GRU\(proj_size=2\)": lambda: vpps.torch.GRU(3, 4, proj_size=2),
    }.items():
        with pytest.raises(vpps.VppsError, match=message):
            call()


# ---- dropout


@pytest.mark.parametrize("p", [0.2, 0.5, 1.0])
def test_dropout(p: float) -> None:
    """The layers pass ones on, so the results are the factors of dropout: 0, or 1 / (1 - p)."""
    net, x = vpps.torch.RNN(1, 64, 2, "relu", bias=False, dropout=p), torch.ones(20, 10, 1)
    for w, value in zip(net.parameters(), (1, 0, torch.eye(64), 0), strict=True):
        w.detach().copy_(torch.as_tensor(value))
    torch.manual_seed(3)
    y = net(x)[0]
    n, zeros = y.numel(), (y == 0).sum().item()
    assert abs(zeros - p * n) <= 4 * (p * (1 - p) * n) ** 0.5
    if p < 1:
        same(y[y != 0], torch.full((n - zeros,), 1 / (1 - p)))
        assert len(y.reshape(200, 64).unique(dim=0)) == 200  # each step draws its own
    assert torch.equal(net(x)[0], y) == (p == 1)
    torch.manual_seed(3)
    assert torch.equal(net(x)[0], y)
    assert net.eval()(x)[0].min() == 1


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_with_dropout(use_reentrant: bool) -> None:
    """The gradient is that of the function that the seed fixes; a checkpoint draws equal factors again."""
    net, x, direction = vpps.torch.GRU(INPUT, HIDDEN, **TWO, dropout=0.5), steps().requires_grad_(), steps(5, 3, 4)

    def loss(at: Any, function: Any = net) -> Any:
        torch.manual_seed(4)
        return loss_of(function(at)[0])

    (gradient,) = torch.autograd.grad(loss(x), x)
    loss(x, lambda at: checkpoint(net, at, use_reentrant=use_reentrant)).backward()
    assert torch.equal(x.grad, gradient)
    slope = (loss(x + 0.01 * direction) - loss(x - 0.01 * direction)) / 0.02
    same(slope, (gradient * direction).sum(), 1e-2)


# ---- threads and processes


def test_threads_share_a_module() -> None:
    (mine, theirs), barrier, wrong = pair(**TWO), Barrier(2), []

    def work(number: int) -> None:
        barrier.wait()
        try:
            for k in range(10):
                x = [steps(1 + (k + number * j) % 4, INPUT) * (1 + number) for j in range(3)]
                found = torch.autograd.grad(loss_of(mine(x)), mine.parameters())
                wanted = torch.autograd.grad(sum(loss_of(theirs(one)) for one in x), theirs.parameters())
                same(found, wanted, 1e-4)
        except Exception as error:
            wrong.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_forked_children() -> None:
    """A child computes for itself. The backward of its parent's call is refused."""
    out = run("""
        import os, torch, vpps.torch
        torch.set_num_threads(2)
        net, x = vpps.torch.LSTM(2, 3), torch.ones(4, 2)
        y = net(x)[0].sum()
        child = os.fork()
        if not child:
            assert net(x)[0].sum() == y
            net(x)[0].sum().backward()
            try:
                y.backward()
            except vpps.HandleError as error:
                print(error, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        y.backward()
    """)
    assert "a forked child" in out
