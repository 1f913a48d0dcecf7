"""Recurrent layers on a simulated GPU: results, order and places of copies. Tensors of the host pose as the GPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from vpps.script.instructions import HEADER_WORDS

torch = pytest.importorskip("torch")

from tests.torch.posing import Posing  # noqa: E402
from vpps.torch import chains  # noqa: E402
from vpps.torch.chains import Batch, Config, Grads, RecurrentStack  # noqa: E402
from vpps.torch.layouts import Layout, equal_layout  # noqa: E402
from vpps.torch.on_device import DeviceRecurrentStack  # noqa: E402

pytestmark = pytest.mark.simt

COMPUTE, LENDING = 1, 4  # numbers of the machine's stream and event: the fixture creates stream 0, and the machine
# creates 2 streams, 2 events for scripts, 2 for ends of launches, and this one


def weights_of(config: Config) -> list[Any]:
    """Return random weights for a stack, those of torch.nn's layer."""
    kind = getattr(torch.nn, config.mode.partition("_")[0])
    sizes = config.input_size, config.hidden_size, config.num_layers
    torch.manual_seed(0)
    return list(kind(*sizes, bias=config.bias, bidirectional=config.bidirectional)._flat_weights)


def random_batch(config: Config, layout: Layout, gives_states: bool) -> Batch:
    shape = config.cells, layout.batch, config.hidden_size
    states = [torch.randn(shape) for _ in range(config.states)] if gives_states else []
    width = config.hidden_size * config.directions
    masks = [torch.rand(layout.n, width) for _ in range(config.num_layers - 1)]
    return Batch(torch.randn(layout.n, config.input_size), layout, tuple(states), tuple(masks))


def step(stack: RecurrentStack, batch: Batch, weights: list[Any], seeds: list[Any]) -> list[Any]:
    """Run forward and backward. Returns results and gradients, which a simulated GPU may not have computed yet."""
    grads = Grads(True, (True,) * len(batch.states))
    found, token = stack.forward(batch, weights, grads)
    inputs, learned = stack.backward(batch, weights, grads, token, seeds)
    return [*found, *inputs, *learned]


LSTM = Config("LSTM", 3, 4, 1, True, False, (), "cpu", 0)
RAGGED = Layout(np.array([3, 0, 5, 1]))


@pytest.mark.parametrize(
    "config, layout, gives_states",
    [
        (LSTM, equal_layout(2, 5, False), False),
        (LSTM._replace(mode="GRU", num_layers=2, bidirectional=True), RAGGED, True),
        (LSTM._replace(mode="RNN_TANH", bias=False), RAGGED, False),
    ],
    ids=["LSTM", "GRU", "RNN"],
)
def test_results_are_those_of_the_host(posing: Posing, config: Config, layout: Layout, gives_states: bool) -> None:
    """Covers index and strided copies, transposes of stacked weights, sequences without steps, and seeds of None."""
    weights, batch = weights_of(config), random_batch(config, layout, gives_states)
    host, device = RecurrentStack(config), posing.stack(config)
    seeds = [torch.randn(t.shape) for t in host.forward(batch, weights, None)[0]]
    for given in (seeds, [None, *seeds[1:]], [seeds[0], *[None] * config.states]):
        expected, found = step(host, batch, weights, given), step(device, batch, weights, given)
        posing.finish()
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
        batch.x.add_(0.5)  # read again at each call
    host.handle.close()


def test_a_step_copies_in_order_and_never_waits(posing: Posing) -> None:
    weights, batch = weights_of(LSTM), random_batch(LSTM, equal_layout(1, 5, True), True)
    stack, fake = posing.stack(LSTM), posing.fake
    seeds = [torch.randn(5, 4), torch.randn(1, 1, 4), torch.randn(1, 1, 4)]
    for _ in range(3):  # later steps find their replay
        step(stack, batch, weights, seeds)
    posing.finish()
    begin, queries = len(fake.calls), list[int]()
    fake.cuEventQuery, query = lambda event: (queries.append(event), query(event))[1], fake.cuEventQuery  # type: ignore[method-assign]
    grads = Grads(True, (True, True))
    (y, h, c), token = stack.forward(batch, weights, grads)
    middle, queried = len(fake.calls), len(queries)
    (gx, gh, gc), learned = stack.backward(batch, weights, grads, token, seeds)
    middle -= sum(call[0] == "fill" for call in fake.calls[begin:middle])  # VPPS_VERIFY fills memory with NaN
    calls = [call for call in fake.calls[begin:] if call[0] != "fill"]
    assert "synchronise" not in [name for name, *_ in calls]
    assert fake.streams[COMPUTE], "the launches have not run"

    (replay,), ours, theirs = stack._replays.values(), COMPUTE, posing.current
    machine: Any = stack.handle._engine.machine
    place = stack.handle._store.distribution.places
    pool, script = machine.pool.address, replay._script.memory.address
    lent, back = [("record", LENDING, ours), ("wait event", theirs, LENDING)], [
        ("record", LENDING, theirs), ("wait event", ours, LENDING)]  # fmt: skip

    def to_script(tensor: Any, k: int) -> Any:
        return "copy", script + 4 * replay._places[k][0].start, tensor.data_ptr(), tensor.nbytes, theirs

    def from_pool(tensor: Any, start: int, pieces: Any = None) -> Any:
        copy = "copy", tensor.data_ptr(), pool + 4 * start, tensor.nbytes, theirs
        return copy if pieces is None else ("operators", theirs)

    def launch(entries: int, number: int) -> list[Any]:
        entry = script + 4 * HEADER_WORDS
        copied = "copy", entry, script + 4 * entries, 4 * machine.vps, ours
        return [copied, ("launch", machine.spec.chip.shared_bytes, ours), ("record", 2 + (number & 1), ours)]

    number, plan = machine.launches, replay._plan
    outputs = [from_pool(t, s.start, s.pieces) for t, s in zip((y, h, c), replay._outputs, strict=True)]
    assert calls[: middle - begin] == [
        *lent, *(to_script(t, k) for k, t in enumerate((batch.x, *batch.states))), *back,
        *launch(len(plan.script), number - 1), *lent, *outputs, *back,
    ]  # fmt: skip
    at = np.cumsum([plan.seeds, *(s.numel() for s in seeds)])
    given = [("copy", pool + 4 * int(a), s.data_ptr(), s.nbytes, theirs) for a, s in zip(at, seeds, strict=False)]
    cell = stack._cells[0]
    of_weights = [
        from_pool(g, place[p].gradient) for g, p in zip(learned, (cell.W, cell.U, cell.b, cell.b), strict=True)
    ]
    of_inputs = [from_pool(t, s.start, s.pieces) for t, s in zip((gx, gh, gc), replay._gradients, strict=True)]
    assert calls[middle - begin :] == [
        *lent, *given, *back, *launch(plan.divisions[0], number), *lent, *of_inputs, *of_weights, *back,
    ]  # fmt: skip
    assert 2 + (number & 1) not in queries[:queried]
    assert 2 + (number - 1 & 1) not in queries[queried:], "backward does not wait for its forward"


def test_only_changed_weights_are_copied(posing: Posing) -> None:
    weights, batch = weights_of(LSTM), random_batch(LSTM, equal_layout(1, 5, True), False)
    stack, fake = posing.stack(LSTM), posing.fake
    optimizer = torch.optim.SGD(weights, lr=0.1)

    def copied() -> bool:
        begin = len(fake.calls)
        y = stack.forward(batch, weights, None)[0][0]
        sources = [call[2] for call in fake.calls[begin:] if call[0] == "copy"]
        posing.finish()
        expected = RecurrentStack(LSTM)
        torch.testing.assert_close(y, expected.forward(batch, weights, None)[0][0], rtol=1e-4, atol=1e-5)
        expected.handle.close()
        return weights[0].data_ptr() in sources

    assert [copied() for _ in range(3)] == [True, False, False]
    with torch.no_grad():
        weights[1].mul_(2)
    assert copied()
    weights[2].grad = torch.ones_like(weights[2])
    optimizer.step()
    assert copied()
    assert not copied()
    weights[0] = torch.nn.Parameter(-weights[0].detach())
    assert copied()


def test_layers_and_failures(posing: Posing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's gradients are those of torch.nn, also if another call comes in between. A later call reports a launch
    that was stopped."""
    monkeypatch.setitem(chains.kinds, "cpu", posing.stack)
    lstm = vpps.torch.LSTM(3, 4)
    same = torch.nn.LSTM(3, 4)
    same.load_state_dict(lstm.state_dict())
    x, seed = torch.randn(5, 1, 3, requires_grad=True), torch.randn(5, 1, 4)
    (y, _), _ = lstm(x), lstm(x)  # the second launch replaces the values
    found = torch.autograd.grad(y, [x, *lstm.parameters()], seed)
    posing.finish()
    expected = torch.autograd.grad(same(x)[0], [x, *same.parameters()], seed)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    lstm.requires_grad_(False).weight_hh_l0.requires_grad_(True)  # which one step does not use
    (one, _), ones = lstm(x[:1].detach()), torch.ones(1, 1, 4)
    assert not torch.autograd.grad(one, lstm.weight_hh_l0, ones)[0].any()
    posing.finish()
    torch.testing.assert_close(one, same(x[:1])[0], rtol=1e-4, atol=1e-5)
    lstm.requires_grad_(True)
    lstm(x)
    posing.finish()
    stack = lstm._stack[1]
    machine: Any = stack.handle._engine.machine
    (replay,) = stack._replays.values()
    replay._script.memory.owner.array.view(np.uint32)[int(replay._plan.script[HEADER_WORDS])] = 0xFFFF  # no such opcode
    lstm(x)
    lstm(x)
    with pytest.raises(vpps.KernelError, match="the kernel stopped at word"):
        lstm(x)
    assert machine.is_open


def test_other_gpus_are_refused() -> None:
    with pytest.raises(vpps.ModelError, match="CUDA_VISIBLE_DEVICES=1"):
        DeviceRecurrentStack(LSTM._replace(device="cuda:1"))
