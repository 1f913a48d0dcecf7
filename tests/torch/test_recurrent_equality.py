"""vpps.torch's recurrent layers equal torch.nn's in float64, over 2,000 random configurations of module and call."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import Any, NamedTuple

import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence  # noqa: E402

pytestmark = pytest.mark.cpu

FORWARD, GRADIENT = 1e-5, 1e-4
CHUNKS, MODULES, CALLS = 50, 10, 4  # chunks x modules x calls are 2,000 configurations


class Net(NamedTuple):
    """A module of vpps, and torch.nn's in float64. `cells` is layers x directions; 0 for LSTMCell and GRUCell."""

    mine: Any
    theirs: Any
    cells: int
    n_states: int

    @property
    def directions(self) -> int:
        return 1 + (self.cells > 0 and self.mine.bidirectional)

    def change(self, r: Random) -> None:
        """Change weights by one of several routes, and freeze some."""
        p = r.choice(list(self.mine.parameters()))
        match r.randrange(4):
            case 0:
                p.data.mul_(0.9)
            case 1:
                with torch.no_grad():
                    p.view(-1)[r.randrange(p.numel())] += 0.1
            case 2:
                self.mine.load_state_dict({k: 0.9 * v for k, v in self.mine.state_dict().items()})
        self.theirs.load_state_dict(self.mine.state_dict())
        chance = r.choice([0, 0, 0.3, 1])
        for p, other in zip(self.mine.parameters(), self.theirs.parameters(), strict=True):
            other.requires_grad_(p.requires_grad_(r.random() >= chance).requires_grad)


def draw_net(r: Random) -> Net:
    kind = r.choice(["LSTM", "LSTM", "GRU", "GRU", "RNN", "LSTMCell", "GRUCell"])
    sizes, options = (r.randint(1, 20), r.randint(1, 20)), {"bias": r.random() < 0.8}
    cells = 0
    if not kind.endswith("Cell"):
        options |= {"num_layers": r.randint(1, 3), "bidirectional": r.random() < 0.4, "batch_first": r.random() < 0.5}
        cells = options["num_layers"] * (1 + options["bidirectional"])
        options["dropout"] = r.choice([0.0, 0.5]) if options["num_layers"] > 1 else 0.0
    if kind == "RNN":
        options["nonlinearity"] = r.choice(["tanh", "relu"])
    mine = getattr(vpps.torch, kind)(*sizes, **options)
    theirs = getattr(torch.nn, kind)(*sizes, **options, dtype=torch.float64)
    if cells and mine.dropout:
        mine.eval(), theirs.eval()
    return Net(mine, theirs, cells, 1 + kind.startswith("LSTM"))


class Call(NamedTuple):
    """Inputs of a call: form, steps (n, width) and resets (n,) of each sequence, and initial states, if given."""

    form: str
    xs: list[Any]
    hx: list[Any]
    resets: list[Any] | None

    @property
    def lengths(self) -> list[int]:
        return list(map(len, self.xs))


FORMS = "tensor", "unbatched", "packed", "packed, sorted", "list", "tuple", "nested"


def draw_call(r: Random, net: Net) -> Call:
    form, batch = r.choice(FORMS if net.cells else FORMS[:2]), r.randint(1, 5)
    least = 1 if form in ("tensor", "unbatched", "packed", "packed, sorted") else 0
    lengths = [r.randint(least, 6) for _ in range(batch)]
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


def in_form(form: str, tensors: list[Any], batch_first: bool) -> Any:
    match form:
        case "tensor":
            return torch.stack(tensors, 0 if batch_first else 1)
        case "unbatched":
            return tensors[0]
        case "packed" | "packed, sorted":
            return pack_sequence(tensors, enforce_sorted=form != "packed")
        case "nested":
            return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
    return tuple(tensors) if form == "tuple" else tensors


def by_sequence(form: str, y: Any, batch_first: bool) -> list[Any]:
    match form:
        case "unbatched":
            return [y]
        case "packed" | "packed, sorted":
            padded, lengths = pad_packed_sequence(y, batch_first=True)
            return [row[:n] for row, n in zip(padded, lengths, strict=True)]
    return list(y.unbind(0 if batch_first or form == "nested" else 1)) if isinstance(y, torch.Tensor) else list(y)


def layer_of_vpps(net: Any, call: Call, xs: list[Any], hx: list[Any]) -> list[Any]:
    given: Any = None
    if hx:
        hx = [s[:, 0] for s in hx] if call.form == "unbatched" else hx
        given = tuple(hx) if len(hx) == 2 else hx[0]
    resets = None if call.resets is None else in_form(call.form, call.resets, net.batch_first)
    y, final = net(in_form(call.form, xs, net.batch_first), given, resets=resets)
    finals = final if isinstance(final, tuple) else (final,)
    outputs = by_sequence(call.form, y, net.batch_first)
    return [*outputs, *(s.unsqueeze(1) if call.form == "unbatched" else s for s in finals)]


def layer_of_pytorch(net: Any, call: Call, xs: list[Any], hx: list[Any]) -> list[Any]:
    """Compute each sequence alone, and each piece between resets alone, in both directions."""
    n_states, directions = 1 + (net.mode == "LSTM"), 1 + net.bidirectional
    shape = net.num_layers * directions, len(xs), net.hidden_size
    hx = hx or [torch.zeros(shape, dtype=torch.float64) for _ in range(n_states)]
    is_backward = (torch.arange(shape[0]) % directions == 1)[:, None, None]
    outputs, finals = [], []
    for b, x in enumerate(xs):
        start = [s[:, b : b + 1] for s in hx]
        resets = [False] * len(x) if call.resets is None else call.resets[b].tolist()
        pieces = x.tensor_split([t for t in range(1, len(x)) if resets[t]]) if len(x) else ()
        found, ends = [x.new_zeros(0, net.hidden_size * directions)], []
        for k, piece in enumerate(pieces):
            enters = torch.where(is_backward, k == len(pieces) - 1, k == 0 and not resets[0])
            h = tuple(torch.where(enters, s, 0.0) for s in start)
            y, end = net(piece.unsqueeze(0 if net.batch_first else 1), h if n_states == 2 else h[0])
            found.append(y.squeeze(0 if net.batch_first else 1))
            ends.append(end if n_states == 2 else (end,))
        outputs.append(torch.cat(found))
        if ends:
            start = [torch.where(is_backward, first, last) for first, last in zip(ends[0], ends[-1], strict=True)]
        finals.append(start)
    return [*outputs, *(torch.cat(states, 1) for states in zip(*finals, strict=True))]


def steps_of_a_cell(net: Any, call: Call, xs: list[Any], hx: list[Any]) -> list[Any]:
    x = in_form(call.form, xs, batch_first=False)
    states = tuple(s[0, 0] if call.form == "unbatched" else s[0] for s in hx)
    outputs = []
    for step in x:
        found = net(step, None if not states else states if len(states) == 2 else states[0])
        states = found if isinstance(found, tuple) else (found,)
        outputs.append(states[0])
    return [*by_sequence(call.form, torch.stack(outputs), batch_first=False), *states]


def check(net: Net, call: Call, r: Random) -> None:
    """Compare results and gradients of a random function of some results, for some of the inputs and weights."""
    wants, uses = (r.choice([0, 0.5, 1]) for _ in range(2))
    wanted = [r.random() < wants for _ in (*call.xs, *call.hx)]
    seeds: list[Any] = []
    found = []
    enabled = r.random() < 0.85
    for module, dtype in ((net.mine, torch.float32), (net.theirs, torch.float64)):
        run = steps_of_a_cell if not net.cells else layer_of_vpps if module is net.mine else layer_of_pytorch
        leaves = [t.to(dtype, copy=True).requires_grad_(w) for t, w in zip((*call.xs, *call.hx), wanted, strict=True)]
        with nullcontext() if enabled else torch.no_grad():
            results = run(module, call, leaves[: len(call.xs)], leaves[len(call.xs) :])
        seeds = seeds or [torch.randn(t.shape) * (r.random() < uses) for t in results]
        sources = [t for t in (*leaves, *module.parameters()) if t.requires_grad]
        gradients: Any = ()
        if sources and enabled:
            loss = sum((t * s).sum() for t, s in zip(results, seeds, strict=True)) + 0 * sum(t.sum() for t in sources)
            gradients = torch.autograd.grad(loss, sources)
        else:
            assert not any(t.requires_grad for t in results)
        found.append((results, gradients))
    for tolerance, mine, theirs in zip((FORWARD, GRADIENT), *found, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a.shape == b.shape
            error, scale = ((t.abs().max().item() if t.numel() else 0.0) for t in (a.double() - b, b))
            assert error <= tolerance * max(1, scale), (net, call, tolerance, error)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_configurations(chunk: int) -> None:
    for seed in range(chunk * MODULES, (chunk + 1) * MODULES):
        r = Random(seed)
        torch.manual_seed(seed)
        net = draw_net(r)
        for _ in range(CALLS):
            net.change(r)
            check(net, draw_call(r, net), r)
