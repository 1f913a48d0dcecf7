"""Modules on a simulated GPU: results, weights on the GPU and on the host, and what passes between the two."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import vpps

torch = pytest.importorskip("torch")

from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402
from tests.torch.posing import Posing  # noqa: E402
from vpps.script.instructions import HEADER_WORDS  # noqa: E402

pytestmark = pytest.mark.simt

WORDS = np.array([1, 4, 1])


def rows(seed: int = 0, requires_grad: bool = False) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, INPUT, generator=generator).requires_grad_(requires_grad)


class Pair:
    """Two equal networks, one on the host and one on the GPU."""

    def __init__(self, posing: Posing, *optimizer: vpps.Optimizer, **options: Any) -> None:
        self.posing = posing
        self.chains = [Chain(table=True) for _ in range(2)]
        self.host = vpps.torch.Module(self.chains[0].model, *optimizer, target="cpu", vps=1, **options)
        self.device = posing.module(self.chains[1].model, *optimizer, **options)
        self.nets = self.host, self.device

    def outputs(self, x: Any) -> list[Any]:
        """Return the states of both."""
        graphs = [vpps.Graph() for _ in self.nets]
        found = [
            net(g, chain.states(g, g.rows(x, grad=x.requires_grad), WORDS))
            for net, chain, g in zip(self.nets, self.chains, graphs, strict=True)
        ]
        self.posing.finish()
        return [torch.stack(states) for states in found]

    def losses(self, x: Any) -> list[Any]:
        """Return the loss of both, with gradients of the same launch."""
        found = [c.loss_by_module(net, x) for net, c in zip(self.nets, self.chains, strict=True)]
        self.posing.finish()
        return found

    def gradients(self, results: list[Any], x: Any, seed: Any = None) -> list[Any]:
        """Return gradients of the inputs and of all trainable parameters of both. They go through no node that adds up
        gradients, because it would read them before the simulated GPU has computed them."""
        found = []
        for net, result in zip(self.nets, results, strict=True):
            inputs = [x, *(p for p in net.parameters() if p.requires_grad)]
            found.append(torch.autograd.grad(result, inputs, seed, allow_unused=True))
            self.posing.finish()
        return found

    def check(self) -> None:
        """Compare values computed with the weights of both."""
        host, device = self.outputs(rows(9))
        close(device, host)
        for a, b in zip(*(net.parameters() for net in self.nets), strict=True):
            close(b, a)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, check_layout=True)


@pytest.mark.parametrize("sparse", [False, True])
def test_results_and_gradients_are_those_of_the_host(posing: Posing, sparse: bool) -> None:
    """Some parameters are unused or frozen; some results get no gradient; a second call comes in between."""
    pair, x = Pair(posing, sparse=sparse), rows(requires_grad=True)
    for net in pair.nets:
        net.chain.b.requires_grad_(False)
    seed = torch.randn(3, HIDDEN)
    seed[1] = 0
    for make, given in ((pair.outputs, seed), (pair.losses, None), (pair.losses, torch.tensor(-2.0))):
        results = make(x)
        close(results[1], results[0])
        pair.outputs(rows(1))
        for a, b in zip(*pair.gradients(results, x, given), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                close(b, a)
    states = pair.outputs(x)
    (a,), (b,) = (torch.autograd.grad(h[:1].sum(), x) for h in states)
    posing.finish()
    close(b, a)
    with torch.no_grad():
        host, device = pair.outputs(x)
    close(device, host)
    assert not device.requires_grad


@pytest.mark.parametrize("rule", [vpps.SGD(lr=0.1), vpps.Adam(lr=0.1)])
def test_a_backward_can_update(posing: Posing, rule: vpps.Optimizer) -> None:
    pair, x = Pair(posing, rule), rows(requires_grad=True)
    for _ in range(3):
        results = pair.outputs(x)
        for result in results:
            result.pow(2).sum().backward()
        posing.finish()
        close(results[1], results[0])
    pair.check()
    assert pair.chains[1].U.lender is None


def test_a_step_passes_nothing_through_the_host_and_never_waits(posing: Posing) -> None:
    """Only the script, which holds the inputs of the graph, goes to the GPU."""
    pair, fake = Pair(posing), posing.fake
    net, chain = pair.device, pair.chains[1]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> list[int]:
        """Return the numbers of launches in flight after each call."""
        found = []
        loss = chain.loss_by_module(net, rows().numpy())
        found.append(net.handle._engine.in_flight)
        loss.backward()
        graph = vpps.Graph()
        hidden = net(graph, chain.states(graph, graph.rows(rows()), WORDS))
        found.append(net.handle._engine.in_flight)
        hidden[-1].backward(torch.ones(HIDDEN))
        found.append(net.handle._engine.in_flight)
        posing.finish()  # PyTorch's operators
        optimizer.step()
        optimizer.zero_grad()
        return found

    for _ in range(2):
        step()
    begin = len(fake.calls)
    finish, posing.finish = posing.finish, lambda: None  # type: ignore[method-assign]
    assert step() == [2, 2, 2]
    calls = fake.calls[begin:]
    assert "synchronise" not in [name for name, *_ in calls]
    scripts = [call for call in calls if call[0] == "copy in"]
    assert len(scripts) == sum(name == "launch" for name, *_ in calls) == 3
    assert not [call for call in calls if call[0] == "copy out"]
    copied = {call[2] for call in calls if call[0] == "copy"}
    assert copied >= {p.data_ptr() for p in (net.chain.W, net.chain.U, net.chain.b)}
    finish()


def test_lazily_negated_gradients(posing: Posing) -> None:
    """PyTorch passes the bits of the opposite number, and a mark."""
    pair, x = Pair(posing), rows(requires_grad=True)
    for net, chain in zip(pair.nets, pair.chains, strict=True):
        y, expected = (chain.loss_by_module(net, x, at_once=False) for _ in range(2))
        posing.finish()
        (found,) = torch.autograd.grad((torch.complex(torch.ones(()), y).conj() * (1 + 2j)).real, x)
        (expected,) = torch.autograd.grad(2 * expected, x)
        posing.finish()
        close(found, expected)


class TestWeights:
    @torch.no_grad()
    def test_changes_by_pytorch_are_seen_by_all(self, posing: Posing, tmp_path: Any) -> None:
        """A handle on the host, a second Module on the GPU and a checkpoint see them."""
        pair = Pair(posing)
        chain, net = pair.chains[1], pair.device
        beside = vpps.Handle(chain.model, train=False, target="cpu", vps=1)
        other = posing.module(chain.model, train=False)
        assert other.chain.U.data_ptr() == net.chain.U.data_ptr()
        changes = [
            lambda p: p.mul_(2), lambda p: setattr(p, "data", p + 0.25), lambda p: torch.nn.init.constant_(p, 0.3),
            lambda p: p.set_(p + 0.1),
        ]  # fmt: skip
        for change in changes:
            for each in pair.nets:
                change(each.chain.U)
            pair.check()
            graph = vpps.Graph()
            states = chain.states(graph, graph.rows(rows(9)), WORDS)
            found = tuple(map(torch.from_numpy, beside.forward(graph, states))), other(graph, states)
            posing.finish()
            for values in found:
                close(torch.stack(values), pair.outputs(rows(9))[0])
            assert torch.equal(other.chain.U, net.chain.U)
        chain.model.save(tmp_path / "model")
        np.testing.assert_array_equal(vpps.Model.load(tmp_path / "model")["chain/U"].numpy(), net.chain.U.numpy())
        beside.close()

    def test_changes_by_vpps(self, posing: Posing, tmp_path: Any) -> None:
        """A step of PyTorch's optimizer continues from weights that were assigned."""
        pair = Pair(posing)
        held = [net.chain.U for net in pair.nets]
        for chain, U in zip(pair.chains, held, strict=True):
            chain.U.assign(np.full((HIDDEN, HIDDEN), 0.125))
            U.grad = torch.ones_like(U)
            torch.optim.SGD([U], lr=0.5).step()
        assert (held[1] == -0.375).all()
        pair.check()
        for chain in pair.chains:
            chain.model.save(tmp_path / "model")
            chain.W.assign(np.full((HIDDEN, INPUT), 0.25))
        assert (pair.device.chain.W == 0.25).all()
        pair.check()
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in pair.nets]
        weights = [net.chain.W for net in pair.nets]
        for chain in pair.chains:
            chain.model.restore(tmp_path / "model")
        for optimizer, W in zip(optimizers, weights, strict=True):
            W.grad = torch.ones_like(W)
            optimizer.step()
        pair.check()
        assert not (weights[1] == 0.15).any()

    def test_only_changed_weights_are_copied(self, posing: Posing) -> None:
        pair, fake = Pair(posing), posing.fake
        net = pair.device

        def copied() -> set[str]:
            begin = len(fake.calls)
            pair.outputs(rows())
            sources = {call[2] for call in fake.calls[begin:] if call[0] == "copy"}
            return {name for name, p in net.named_parameters() if p.data_ptr() in sources}

        assert copied() == {"chain.W", "chain.U", "chain.b", "words"}
        assert copied() == set()
        with torch.no_grad():
            net.words[3].zero_()
        assert copied() == {"words"}
        pair.chains[1].b.assign(np.ones(HIDDEN))
        assert copied() == {"chain.b"}
        assert copied() == set()

    def test_averages_leave_them_alone(self, posing: Posing) -> None:
        pair = Pair(posing, vpps.SGD(lr=0.1), ema=0.5)
        for result in pair.outputs(rows(requires_grad=True)):
            result.sum().backward()
        posing.finish()
        chain = pair.chains[1]
        average = chain.U.average()
        pair.device.handle.close()
        net = posing.module(chain.model)
        before = net.chain.U.detach().clone()
        graph = vpps.Graph()
        state = chain.states(graph, graph.rows(rows()))[-1]
        with chain.model.averaged(), torch.no_grad():
            net.chain.U.mul_(1)
            np.testing.assert_array_equal(chain.U.numpy(), average)
            averaged = net(graph, state)
            posing.finish()
        with torch.no_grad():
            plain = net(graph, state)
            posing.finish()
        assert not torch.equal(averaged, plain)
        assert torch.equal(net.chain.U, before)
        np.testing.assert_array_equal(chain.U.numpy(), before.numpy())

    def test_copies_are_independent(self, posing: Posing) -> None:
        pair = Pair(posing)
        with torch.no_grad():
            pair.device.chain.U.mul_(2)
        twin = copy.deepcopy(pair.device)
        posing.handles.append(twin.handle)
        assert torch.equal(twin.chain.U, pair.device.chain.U)
        with torch.no_grad():
            twin.chain.U.zero_()
        assert pair.device.chain.U.any()
        assert not twin.model["chain/U"].numpy().any()
        twin.load_state_dict(pair.device.state_dict())
        assert torch.equal(twin.chain.U, pair.device.chain.U)
        np.testing.assert_array_equal(twin.model["chain/U"].numpy(), pair.chains[1].U.numpy())

    def test_ties_are_copied(self, posing: Posing) -> None:
        """The copy of a layer that comes first uses the tensor of the Module's copy, in both directions."""
        net = posing.module(Chain().model)
        tied = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        tied.weight = net.chain.U
        tied, twin = copy.deepcopy(torch.nn.ModuleList([tied, net]))
        posing.handles.append(twin.handle)
        assert tied.weight is twin.chain.U
        with torch.no_grad():
            for change in (lambda p: p.fill_(0.5), lambda p: setattr(p, "data", torch.full_like(p, 0.25))):
                change(tied.weight)
                np.testing.assert_array_equal(twin.model["chain/U"].numpy(), twin.chain.U.numpy())
                assert net.chain.U.ne(twin.chain.U).any()

    def test_they_are_in_one_place(self, posing: Posing) -> None:
        """An open Module refuses another one that would use them elsewhere; after it, they move with their values."""
        chain = Chain()
        net = posing.module(chain.model)
        with pytest.raises(vpps.ModelError, match="has its weights on the GPU"):
            vpps.torch.Module(chain.model, train=False, target="cpu")
        with torch.no_grad():
            net.chain.U.fill_(0.5)
        net.handle.close()
        host = vpps.torch.Module(chain.model, target="cpu")
        assert (host.chain.U == 0.5).all()
        with torch.no_grad():
            net.chain.U.fill_(7)  # left behind
            host.chain.U.mul_(2)
        assert (chain.U.numpy() == 1).all()
        host.handle.close()
        between = vpps.torch.Module(chain.model, train=False, target="cpu")
        with pytest.raises(vpps.ModelError, match="has its weights on the host"):
            posing.module(chain.model)
        between.handle.close()
        again = posing.module(chain.model)
        assert (again.chain.U == 1).all()
        with torch.no_grad():
            again.chain.U.add_(1)
        y = chain.loss_by_module(again, rows(), at_once=False)
        _ = host.chain.U  # shares the array, which changes when it is read
        assert (chain.U.numpy() == 2).all()
        _ = host.chain.U
        y.backward()
        posing.finish()

    def test_beside_a_handle_that_trains(self, posing: Posing) -> None:
        """A Module that only evaluates uses them where they are, on the host."""
        pair = Pair(posing, vpps.SGD(lr=0.1))
        other = posing.module(pair.chains[1].model, train=False)
        for result in pair.outputs(rows(requires_grad=True)):
            result.sum().backward()
        posing.finish()
        graph = vpps.Graph()
        with torch.no_grad():
            found = other(graph, pair.chains[1].states(graph, graph.rows(rows(9)), WORDS))
        posing.finish()
        close(torch.stack(found), pair.outputs(rows(9))[0])

    def test_copies_wait_for_the_stream_that_wrote(self, posing: Posing) -> None:
        pair = Pair(posing)
        chain, net = pair.chains[1], pair.device
        pair.outputs(rows())
        with torch.no_grad():
            pair.host.chain.U.fill_(0.5)
        with posing.context():
            for _ in range(50):
                posing.run(posing.current, lambda: None)
            posing.run(posing.current, lambda: net.chain.U.data.fill_(0.5))
            torch.autograd.graph.increment_version(net.chain.U)
            assert chain.model.notice_changes() is None
            posing.current = posing.fake.cuStreamCreate(1)[1]  # runs ahead of the other streams
        with vpps.Handle(chain.model, train=False) as handle:
            graph = vpps.Graph()
            found = handle.forward(graph, chain.states(graph, graph.rows(rows(9)), WORDS))
        close(torch.from_numpy(np.array(found)), pair.outputs(rows(9))[0])

    def test_a_forked_child_says_that_it_cannot_read_them(self, posing: Posing) -> None:
        chain = Chain()
        net = posing.module(chain.model)
        before = chain.U.numpy()
        with torch.no_grad():
            net.chain.U.fill_(3)
        lender: Any = chain.U.lender
        lender._pid += 1
        with pytest.raises(vpps.HandleError, match="was forked, and cannot read weights from the GPU"):
            chain.U.numpy()
        assert np.array_equal(chain.W.numpy(), net.chain.W.detach())
        lender._pid -= 1
        assert not np.array_equal(chain.U.numpy(), before)

    def test_they_outlive_the_module(self, posing: Posing) -> None:
        """Later changes are made on the host, and go to the tensors of the next Module."""
        chain = Chain()
        net = posing.module(chain.model)
        with torch.no_grad():
            net.chain.U.fill_(3)
        net.handle.close()
        del net
        gc.collect()
        assert (chain.U.numpy() == 3).all()
        chain.U.assign(np.full((HIDDEN, HIDDEN), 0.5))
        graph = vpps.Graph()
        state = chain.states(graph, graph.rows(rows()))[-1]
        with vpps.Handle(chain.model, target="cpu") as host, vpps.Handle(chain.model, train=False) as gpu:
            (a,), (b,) = (handle.forward(graph, [state]) for handle in (host, gpu))
        assert gpu.target == "cuda"
        close(torch.from_numpy(b), torch.from_numpy(a))
        net = posing.module(chain.model)
        assert (net.chain.U == 0.5).all()

    def test_reduced_precision_is_packed_on_the_host(self, posing: Posing) -> None:
        pair = Pair(posing, precision="bf16")
        for net in pair.nets:
            with torch.no_grad():
                net.chain.U.mul_(2)
        host, device = pair.outputs(rows())
        torch.testing.assert_close(device, host, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("fails", [False, True])
def test_a_graph_may_grow(posing: Posing, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """From the third call on, only new vertices are computed; after a launch that was stopped, all are."""
    pair = Pair(posing)
    graphs = [vpps.Graph() for _ in pair.nets]
    states: list[Any] = [graph.zeros(HIDDEN) for graph in graphs]
    for net in pair.nets:
        net.eval()
    for k in range(6):
        found = []
        for j, (net, chain) in enumerate(zip(pair.nets, pair.chains, strict=True)):
            states[j] = chain.step(states[j], graphs[j].input(rows(k)[0]))
            with torch.no_grad(), monkeypatch.context() as patch:
                if fails and k == 3 and net is pair.device:
                    stop_launches(patch, net.handle)
                found.append(net(graphs[j], states[j]))
        posing.finish()
        if fails and k == 3:
            with pytest.raises(vpps.KernelError):
                pair.device.handle.sync_get_latest_loss()
        else:
            close(found[1], found[0])


def stop_launches(patch: pytest.MonkeyPatch, handle: vpps.Handle) -> None:
    """Let all virtual processors stop at their first instruction."""
    machine: Any = handle._engine.machine
    launch = machine.launch

    def launch_broken(script: Any) -> None:
        script = script.copy()
        script[script[HEADER_WORDS:][: machine.vps]] = 0xFFFF  # no such opcode
        launch(script)

    patch.setattr(machine, "launch", launch_broken)


def test_a_later_call_reports_a_launch_that_was_stopped(posing: Posing, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(posing)
    net, chain = pair.device, pair.chains[1]

    def call() -> None:
        graph = vpps.Graph()
        with torch.no_grad():
            net(graph, chain.states(graph, graph.rows(rows()))[-1])

    call()
    posing.finish()
    with monkeypatch.context() as patch:
        stop_launches(patch, net.handle)
        call()
        posing.finish()
    call()
    with pytest.raises(vpps.KernelError, match="the kernel stopped at word"):
        call()
    call()
    posing.finish()
    assert net.handle._engine.machine.is_open


def test_a_launch_that_never_began_leaves_the_forward_before_it(
    posing: Posing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, x = Pair(posing), rows(requires_grad=True)
    net, chain = pair.device, pair.chains[1]
    graph = vpps.Graph()
    given = graph.rows(x, grad=True)
    state = chain.states(graph, given)[-1]
    net(graph, state)
    with monkeypatch.context() as patch:
        patch.setattr(net.handle._engine.machine, "launch", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            net(graph, state)
    with pytest.raises(vpps.GraphError, match="the latest call was forward"):
        net.handle.input_gradient(given)
    posing.finish()


def raising(error: type[BaseException]) -> Any:
    def raise_it(*arguments: Any) -> None:
        raise error

    return raise_it


def test_steps_in_flight_are_judged_first(posing: Posing) -> None:
    """A step that is skipped leaves the accumulated gradients."""
    found = []
    for target in ("cpu", "cuda"):
        chain = Chain()
        net = vpps.torch.Module(chain.model, vpps.SGD(lr=0.1), target=target, on_nonfinite="skip", vps=2)
        posing.handles += [net.handle] if target == "cuda" else []
        for factor in (1, np.nan):
            graph = vpps.Graph()
            net.handle.fb(graph, chain.loss(graph, graph.rows(rows() * 1)) * factor, accumulate=True)
        net.eval()
        graph = vpps.Graph()
        y = net(graph, chain.loss(graph, graph.rows(rows(1, True), grad=True)))
        posing.finish()
        y.backward()
        graph = vpps.Graph()
        net.handle.fb(graph, chain.loss(graph, graph.rows(rows(2))))
        net.handle.sync_get_latest_loss()
        found.append((torch.from_numpy(chain.U.numpy()), net.handle.skipped))
    close(found[1][0], found[0][0])
    assert found[0][1] == found[1][1] == 1


def test_closing_frees_the_pool(posing: Posing) -> None:
    pair = Pair(posing)
    pair.outputs(rows())
    owner = weakref.ref(pair.device.handle._engine.machine.pool.memory.owner)
    pair.device.handle.close()
    gc.collect()
    assert owner() is None
