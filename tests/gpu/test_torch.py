"""vpps.torch on a GPU: results are those of PyTorch, and no call waits or overtakes another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch has no GPU", allow_module_level=True)

from tests.torch.networks import INPUT, WORDS, Chain  # noqa: E402

pytestmark = pytest.mark.gpu

LENGTHS = torch.tensor([7, 3, 9, 1])
READ = np.array([1, 4, 1, 0, 10])


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Let cuDNN compute in float32; PyTorch's other products do so by default."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make PyTorch raise an error if an operator waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_equal_those_of_torch(kind: str) -> None:
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(12, 16, 2, bidirectional=True).cuda()
    ours = getattr(vpps.torch, kind)(12, 16, 2, bidirectional=True, device="cuda")
    ours.load_state_dict(theirs.state_dict())
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (ours, theirs)]
    for _ in range(3):
        x = torch.randn(9, 4, 12, device="cuda", requires_grad=True)
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
        seed, found = torch.randn(int(LENGTHS.sum()), 32, device="cuda"), []
        for net, optimizer in zip((ours, theirs), optimizers, strict=True):
            y, states = net(packed)
            state = states[0] if isinstance(states, tuple) else states
            optimizer.zero_grad()
            gx = torch.autograd.grad(y.data, x, seed, retain_graph=True)[0]
            (y.data * seed).sum().add(state.sum()).backward(inputs=list(net.parameters()))
            found.append([y.data, state, gx, *(p.grad for p in net.parameters())])
            optimizer.step()
        for a, b in zip(*found, strict=True):
            close(a, b)


def layer_steps() -> Callable[[], Any]:
    """Return a function that makes a step of a layer and returns its output."""
    torch.manual_seed(0)
    net = vpps.torch.LSTM(12, 16, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, seed = torch.randn(9, 4, 12, device="cuda"), torch.randn(9, 4, 16, device="cuda")

    def step() -> Any:
        optimizer.zero_grad()
        y, _ = net(x * 1.5)
        (y * seed).sum().backward()
        optimizer.step()
        return y

    return step


def module_steps() -> Callable[[], Any]:
    """Return a function like that of `layer_steps` for a Module, whose graph has inputs of the host."""
    chain = Chain(table=True)
    net = vpps.torch.Module(chain.model)
    assert net.chain.U.is_cuda
    outer = torch.nn.Linear(6, 6, device="cuda")
    optimizer = torch.optim.SGD([*net.parameters(), *outer.parameters()], lr=0.1)
    x = np.random.default_rng(0).normal(size=(5, INPUT)).astype(np.float32)

    def step() -> Any:
        optimizer.zero_grad()
        graph = vpps.Graph()
        hidden = torch.stack(net(graph, chain.states(graph, graph.rows(x), READ)))
        outer(hidden).pow(2).sum().backward()
        chain.loss_by_module(net, x).backward()
        optimizer.step()
        return hidden

    return step


@pytest.mark.parametrize("make", [layer_steps, module_steps])
def test_steps_do_not_wait_and_keep_their_order(make: Callable[[], Callable[[], Any]]) -> None:
    """Steps have the same bits if the host waits after each, in PyTorch's default stream and in another one."""
    found = []
    for waits, stream in ((True, None), (False, None), (False, torch.cuda.Stream())):
        torch.manual_seed(0)
        with torch.cuda.stream(stream):
            step = make()
            for k in range(30):
                if waits or k < 3:  # the first steps compile and plan
                    y = step()
                    torch.cuda.synchronize()
                else:
                    with no_waiting():
                        y = step()
            found.append(y.detach().cpu())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_modules_equal_those_of_the_host() -> None:
    chains = [Chain(table=True) for _ in range(2)]
    nets = [vpps.torch.Module(c.model, target=t) for c, t in zip(chains, ("cpu", "cuda"), strict=True)]
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in nets]
    for k in range(4):
        found = []
        for net, chain, optimizer in zip(nets, chains, optimizers, strict=True):
            torch.manual_seed(k)
            x = torch.randn(5, INPUT).to(net.chain.U.device).requires_grad_()
            optimizer.zero_grad()
            states = chain.by_module(net, x, READ)
            loss = states.pow(2).sum() + chain.loss_by_module(net, x)
            loss.backward()
            found.append([states.detach(), loss.detach(), x.grad, *(p.grad for p in net.parameters())])
            optimizer.step()
        for a, b in zip(*found, strict=True):
            close(b, a)
    chains[1].words.assign(np.ones((WORDS, 6)))
    assert (nets[1].words == 1).all()
    np.testing.assert_array_equal(chains[1].U.numpy(), nets[1].chain.U.detach().cpu().numpy())
