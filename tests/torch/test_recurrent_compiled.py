"""Under torch.compile, recurrent layers are one operator without graph breaks, and equal torch.nn's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import vpps

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from torch.nn.utils.rnn import pack_sequence  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from tests.torch.test_recurrent import HIDDEN, INPUT, TWO, pair, same  # noqa: E402

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sequences(*lengths: int) -> list[Any]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randn(n, INPUT, generator=generator) for n in lengths]


def results(net: Any, call: Any, *args: Any, **options: Any) -> list[Any]:
    """Return values, and gradients of the parameters and of tensors that need them."""
    net.zero_grad()
    given = [t for t in tree_leaves((args, options)) if isinstance(t, torch.Tensor) and t.requires_grad]
    values = [t for t in tree_leaves(call(*args, **options)) if t is not None and t.is_floating_point()]
    loss = sum((t * (k + 1)).sin().sum() for k, t in enumerate(values))
    gradients = torch.autograd.grad(loss, [*net.parameters(), *given])
    return [t.detach() for t in (*values, *gradients)]


FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "tensor": lambda xs: torch.stack([x[:2] for x in xs], 1),
    "sequence": lambda xs: xs[0],
    "packed": lambda xs: pack_sequence(xs, enforce_sorted=False),
    "sorted": lambda xs: pack_sequence(sorted(xs, key=len, reverse=True)),
}


@pytest.mark.parametrize(
    "kind, form, backend",
    [
        ("LSTM", "tensor", "eager"), ("LSTM", "sequence", "aot_eager"), ("LSTM", "packed", "aot_eager"),
        ("LSTM", "sorted", "eager"), ("GRU", "packed", "eager"), ("RNN", "tensor", "aot_eager"),
    ],
)  # fmt: skip
def test_layers(kind: str, form: str, backend: str) -> None:
    """Covers shapes that change, initial states and their gradients, and updated weights."""
    options: dict[str, Any] = {} if kind == "GRU" else TWO
    mine, theirs = pair(kind, **options)
    compiled = torch.compile(mine, backend=backend, fullgraph=True)
    for lengths in ((2, 4, 3), (5, 3), (2, 4, 3)):
        x = FORMS[form](sequences(*lengths))
        same(results(mine, compiled, x), results(theirs, theirs, x))
        batch = () if form == "sequence" else (len(lengths),)
        h = torch.randn(options.get("num_layers", 1) * len(options or [1]), *batch, HIDDEN, requires_grad=True)
        hx = (h, 2 * h.detach()) if kind == "LSTM" else h
        same(results(mine, compiled, x, hx), results(theirs, theirs, x, hx))
        with torch.no_grad():
            same(tree_leaves(compiled(x)), tree_leaves(theirs(x)))
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
                b.copy_(a.mul_(0.9))


@pytest.mark.parametrize("kind, backend", [("LSTMCell", "aot_eager"), ("GRUCell", "eager")])
def test_cells(kind: str, backend: str) -> None:
    mine, theirs = pair(kind)
    compiled = torch.compile(mine, backend=backend, fullgraph=True)
    for batch in ((2,), (5,), ()):
        x = torch.randn(*batch, INPUT, requires_grad=True)
        h = torch.randn(*batch, HIDDEN)
        hx = (h, -h) if kind == "LSTMCell" else h
        same(results(mine, compiled, x), results(theirs, theirs, x))
        same(results(mine, compiled, x, hx), results(theirs, theirs, x, hx))


def test_inductor() -> None:
    """Covers code around the layer, and a call between forward and backward."""
    mine, theirs = pair(**TWO)
    head = torch.nn.Linear(2 * HIDDEN, 2)

    def network(layer: Any) -> Callable[[Any], Any]:
        return lambda x: torch.tanh(head(layer(torch.relu(x))[0]))

    compiled = torch.compile(network(mine), fullgraph=True)
    for steps in (2, 5):
        x, other = (torch.randn(steps, 3, INPUT, requires_grad=True) for _ in range(2))

        def both(call: Any, x: Any = x, other: Any = other) -> Any:
            return call(x), call(other)

        same(results(mine, lambda: both(compiled)), results(theirs, lambda: both(network(theirs))))


def test_lists_and_resets() -> None:
    """The layer itself computes beside it, because torch.nn has neither."""
    net = vpps.torch.LSTM(INPUT, HIDDEN, **TWO, batch_first=True)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    xs = sequences(2, 1, 3)
    x, resets = torch.stack(sequences(4, 4)), torch.tensor([[True, False, True, False], [False, False, False, True]])
    hx = (torch.randn(4, 2, HIDDEN, requires_grad=True), torch.randn(4, 2, HIDDEN))
    cut = [torch.arange(len(x)) == 1 for x in xs]
    packed, flags = pack_sequence(xs, enforce_sorted=False), pack_sequence(cut, enforce_sorted=False)
    for args, options in (
        ((xs,), {}), ((xs,), {"resets": cut}), ((x,), {"resets": resets}), ((x, hx), {"resets": resets}),
        ((packed,), {"resets": flags}), ((packed,), {"resets": flags.data}),
    ):  # fmt: skip
        same(results(net, compiled, *args, **options), results(net, net, *args, **options))


def test_dropout_follows_manual_seed() -> None:
    net = vpps.torch.LSTM(INPUT, HIDDEN, num_layers=2, dropout=0.5)
    compiled, x = torch.compile(net, backend="aot_eager", fullgraph=True), torch.randn(6, 2, INPUT)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(compiled(x)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    net.eval()
    same(compiled(x), net(x))


@pytest.mark.parametrize(
    "kind, args, message",
    [
        ("LSTM", (torch.zeros(2, 3, INPUT + 1),), "input_size is 4"),
        ("GRU", (torch.zeros(2, 3, 4, INPUT),), "expected an input"),
        ("LSTM", (torch.zeros(2, 3, INPUT), (torch.zeros(1, 2, HIDDEN),) * 2), "the initial state is"),
        ("LSTM", ([torch.zeros(2, INPUT + 1)],), r"input_size is 4|tensor \(steps, 4\)"),
        ("GRU", (pack_sequence(sequences(2, 1)), torch.zeros(1, 3, HIDDEN)), "the initial state is"),
        ("LSTM", (torch.zeros(2, 3, INPUT).double(),), "convert one"),
        ("GRUCell", (torch.zeros(2, INPUT + 1),), "expected an input"),
    ],
)
def test_mistakes_have_the_messages_of_other_calls(kind: str, args: Any, message: str) -> None:
    net = getattr(vpps.torch, kind)(INPUT, HIDDEN)
    for call in (net, torch.compile(net, backend="eager", fullgraph=True)):
        with pytest.raises(Exception, match=message):
            call(*args)


def test_export_is_refused() -> None:
    net = vpps.torch.LSTM(INPUT, HIDDEN)
    with pytest.raises(Exception, match=r"torch\.export cannot keep a launch of vpps.*load the state_dict into"):
        torch.export.export(net, (torch.zeros(2, 3, INPUT),))
