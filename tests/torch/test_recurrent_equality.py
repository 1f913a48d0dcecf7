"""vpps.torch's recurrent layers equal torch.nn's in float64, over 2,000 random configurations of module and call."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from torch.nn.utils.rnn import pack_sequence, unpack_sequence  # noqa: E402

pytestmark = pytest.mark.cpu

FORWARD, GRADIENT = 1e-5, 1e-4
CHUNKS, MODULES, CALLS = 50, 10, 4  # chunks x modules x calls are 2,000 configurations

FORMS: dict[str, tuple[Callable[[Any, int], Any], Callable[[Any, int], Any]]] = {
    "tensor": (torch.stack, torch.unbind),
    "unbatched": (lambda xs, dim: xs[0], lambda y, dim: [y]),
    "packed": (lambda xs, dim: pack_sequence(xs, enforce_sorted=False), lambda y, dim: unpack_sequence(y)),
    "packed, sorted": (lambda xs, dim: pack_sequence(xs), lambda y, dim: unpack_sequence(y)),
    "list": (lambda xs, dim: xs, lambda y, dim: y),
    "nested": (lambda xs, dim: torch.nested.as_nested_tensor(xs, layout=torch.jagged), lambda y, dim: y.unbind()),
}
"""Functions that bring sequences into a form, and back; `dim` is that of the batch."""


class Net(NamedTuple):
    """A module of vpps, and torch.nn's in float64. `cells` is layers x directions; 0 for LSTMCell and GRUCell."""

    mine: Any
    theirs: Any
    cells: int
    n_states: int

    def change(self, r: Random) -> None:
        """Change weights by one of several routes, and freeze some."""
        p, chance = r.choice(list(self.mine.parameters())), r.choice([0, 0, 0.3, 1])
        match r.randrange(4):
            case 0:
                p.data.mul_(0.9)
            case 1:
                p.detach().view(-1)[r.randrange(p.numel())] += 0.1
            case 2:
                self.mine.load_state_dict({k: 0.9 * v for k, v in self.mine.state_dict().items()})
        self.theirs.load_state_dict(self.mine.state_dict())
        for p, other in zip(self.mine.parameters(), self.theirs.parameters(), strict=True):
            other.requires_grad_(p.requires_grad_(r.random() >= chance).requires_grad)


def draw_net(r: Random) -> Net:
    kind = r.choice(["LSTM", "LSTM", "GRU", "GRU", "RNN", "LSTMCell", "GRUCell"])
    sizes, options = (r.randint(1, 20), r.randint(1, 20)), {"bias": r.random() < 0.8}
    cells = 0
    if not kind.endswith("Cell"):
        options |= {"num_layers": r.randint(1, 3), "bidirectional": r.random() < 0.4, "batch_first": r.random() < 0.5}
        options["dropout"] = r.choice([0.0, 0.5]) if options["num_layers"] > 1 else 0.0
        cells = options["num_layers"] * (1 + options["bidirectional"])
    if kind == "RNN":
        options["nonlinearity"] = r.choice(["tanh", "relu"])
    mine, theirs = (getattr(home, kind)(*sizes, **options) for home in (vpps.torch, torch.nn))
    training = not options.get("dropout")
    return Net(mine.train(training), theirs.double().train(training), cells, 1 + kind.startswith("LSTM"))


class Call(NamedTuple):
    """Inputs of a call: form, steps (n, width) and resets (n,) of each sequence, and initial states, if given."""

    form: str
    xs: list[Any]
    hx: list[Any]
    resets: list[Any] | None


def draw_call(r: Random, net: Net) -> Call:
    form, batch = r.choice(list(FORMS) if net.cells else ["tensor", "unbatched"]), r.randint(1, 5)
    lengths = [r.randint(0 if form in ("list", "nested") else 1, 6) for _ in range(batch)]
    if form == "packed, sorted":
        lengths.sort(reverse=True)
    if form in ("tensor", "unbatched"):
        lengths = lengths[:1] * (1 if form == "unbatched" else batch)
    if form == "nested" and not any(lengths):  # PyTorch makes no such nested tensor
        lengths[-1] = 1
    shape = max(net.cells, 1), len(lengths), net.mine.hidden_size
    hx = [torch.randn(shape) for _ in range(net.n_states)] if r.random() < 0.5 else []
    resets = [torch.rand(n) < 0.3 for n in lengths] if net.cells and r.random() < 0.4 else None
    return Call(form, [torch.randn(n, net.mine.input_size) for n in lengths], hx, resets)


def as_hx(states: Any) -> Any:
    return None if not len(states) else tuple(states) if len(states) == 2 else states[0]


def as_states(final: Any) -> tuple[Any, ...]:
    return final if isinstance(final, tuple) else (final,)


def layer_of_vpps(net: Any, call: Call, xs: list[Any], hx: list[Any]) -> list[Any]:
    (form, back), dim, single = FORMS[call.form], 0 if net.batch_first else 1, call.form == "unbatched"
    resets = None if call.resets is None else form(call.resets, dim)
    y, final = net(form(xs, dim), as_hx([s[:, 0] for s in hx] if single else hx), resets=resets)
    return [*back(y, dim), *(s.unsqueeze(1) if single else s for s in as_states(final))]


def layer_of_pytorch(net: Any, call: Call, xs: list[Any], hx: list[Any]) -> list[Any]:
    """Compute each sequence alone, and each piece between resets alone, in both directions."""
    directions, dim = 1 + net.bidirectional, 0 if net.batch_first else 1
    shape = net.num_layers * directions, len(xs), net.hidden_size
    hx = hx or [torch.zeros(shape, dtype=torch.float64)] * (1 + (net.mode == "LSTM"))
    is_backward = (torch.arange(shape[0]) % directions == 1)[:, None, None]
    outputs, finals = [], []
    for b, x in enumerate(xs):
        start = tuple(s[:, b : b + 1] for s in hx)
        resets = [False] * len(x) if call.resets is None else call.resets[b].tolist()
        pieces = x.tensor_split([t for t in range(1, len(x)) if resets[t]]) if len(x) else ()
        found, ends = [x.new_zeros(0, net.hidden_size * directions)], []
        for k, piece in enumerate(pieces):
            enters = torch.where(is_backward, k == len(pieces) - 1, k == 0 and not resets[0])
            y, end = net(piece.unsqueeze(dim), as_hx([torch.where(enters, s, 0.0) for s in start]))
            found.append(y.squeeze(dim))
            ends.append(as_states(end))
        outputs.append(torch.cat(found))
        if ends:
            start = tuple(torch.where(is_backward, *of_ends) for of_ends in zip(ends[0], ends[-1], strict=True))
        finals.append(start)
    return [*outputs, *(torch.cat(states, 1) for states in zip(*finals, strict=True))]


def steps_of_a_cell(net: Any, call: Call, xs: list[Any], hx: list[Any]) -> list[Any]:
    (form, back), outputs = FORMS[call.form], []
    states = tuple(s[0, 0] if call.form == "unbatched" else s[0] for s in hx)
    for x in form(xs, 1):
        states = as_states(net(x, as_hx(states)))
        outputs.append(states[0])
    return [*back(torch.stack(outputs), 1), *states]


def check(net: Net, call: Call, r: Random) -> None:
    """Compare results, and gradients of a random function of some results for some of the inputs and weights.

    Some calls come again with other values, because a layer replays a layout that it knows.
    """
    wants, uses, enabled = r.choice([0, 0.5, 1]), r.choice([0, 0.5, 1]), r.random() < 0.85
    wanted = [r.random() < wants for _ in (*call.xs, *call.hx)]
    for _ in range(r.choice([1, 1, 3])):
        found, seeds, values = [], [], [torch.randn(t.shape) for t in (*call.xs, *call.hx)]
        for module, dtype in ((net.mine, torch.float32), (net.theirs, torch.float64)):
            compute = steps_of_a_cell if not net.cells else layer_of_vpps if module is net.mine else layer_of_pytorch
            leaves = [t.to(dtype, copy=True).requires_grad_(w) for t, w in zip(values, wanted, strict=True)]
            with torch.set_grad_enabled(enabled):
                results = compute(module, call, leaves[: len(call.xs)], leaves[len(call.xs) :])
            seeds = seeds or [torch.randn(t.shape) * (r.random() < uses) for t in results]
            found.append((results, gradients(results, seeds, [*leaves, *module.parameters()], enabled)))
        for tolerance, mine, theirs in zip((FORWARD, GRADIENT), *found, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                assert a.shape == b.shape
                error, scale = ((t.abs().max().item() if t.numel() else 0.0) for t in (a.double() - b, b))
                assert error <= tolerance * max(1, scale), (net, call, tolerance, error)


def gradients(results: list[Any], seeds: list[Any], tensors: list[Any], enabled: bool) -> Any:
    """Return the gradients of those tensors that need them."""
    sources = [t for t in tensors if t.requires_grad]
    if not (sources and enabled):
        assert not any(t.requires_grad for t in results)
        return ()
    loss = sum((t * s).sum() for t, s in zip(results, seeds, strict=True)) + 0 * sum(t.sum() for t in sources)
    return torch.autograd.grad(loss, sources)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_configurations(chunk: int) -> None:
    for seed in range(chunk * MODULES, (chunk + 1) * MODULES):
        r = Random(seed)
        torch.manual_seed(seed)
        net = draw_net(r)
        for _ in range(CALLS):
            net.change(r)
            check(net, draw_call(r, net), r)
