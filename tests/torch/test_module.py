"""PyTorch's demands on a module: state dicts, modes, moves and copies are right, or raise a clear error."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.model.precisions import Precisions
from vpps.reference import Reference, weights_of

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/test --torch installs and tests it")

from tests.comparison import relative_error, rounds_alike  # noqa: E402
from tests.torch.networks import HIDDEN, INPUT, Chain  # noqa: E402

pytestmark = pytest.mark.cpu


@pytest.fixture
def chain() -> Chain:
    return Chain(table=True)


def step(chain: Chain, net: Any, seed: int = 0) -> Any:
    """Run backward from a random batch's loss; returns the loss."""
    loss = chain.loss_by_module(net, np.random.default_rng(seed).normal(size=(3, INPUT)))
    loss.backward()
    return loss


def test_products_round_as_the_option_says(chain: Chain) -> None:
    net = vpps.torch.Module(chain.model, vps=1, precision="bf16")
    assert net.handle.precision == "bf16"
    graph, rounded = vpps.Graph(), Precisions.given("bf16")
    loss = chain.loss(graph, graph.rows(np.random.default_rng(0).normal(size=(3, INPUT))))
    reference = Reference(graph, weights_of(chain.model), precisions=rounded)
    expected = reference.backward(loss)
    net.loss(graph, loss).backward()
    assert rounds_alike(reference)
    for name in "WUb":
        assert relative_error(getattr(net.chain, name).grad.numpy(), expected[f"chain/{name}"]) < 1e-4


class TestStateDict:
    def test_names(self, net: Any) -> None:
        assert set(net.state_dict()) == {"chain.W", "chain.U", "chain.b", "words", "_extra_state"}
        assert set(torch.nn.Sequential(net).state_dict()) >= {"0.chain.W", "0.words", "0._extra_state"}

    @pytest.mark.parametrize("rule, options", [
        (None, {}), (vpps.Momentum(lr=0.1), {}), (vpps.Adam(lr=0.01), {"ema": 0.9}),
    ])  # fmt: skip
    def test_training_goes_on_from_a_file(self, rule: vpps.Optimizer | None, options: dict[str, Any]) -> None:
        """Training continues bit-identically: the file has moments, averages and steps."""
        chains = [Chain(seed=seed, table=True) for seed in (1, 2)]
        nets = [vpps.torch.Module(c.model, rule, vps=1, **options) for c in chains]
        for k in range(3):
            step(chains[0], nets[0], k)
        assert step(chains[1], nets[1], 0) != step(chains[0], nets[0], 0)
        file = io.BytesIO()
        torch.save(nets[0].state_dict(), file)
        file.seek(0)
        nets[1].load_state_dict(torch.load(file, weights_only=True))
        for k in range(3, 5):
            assert step(chains[0], nets[0], k) == step(chains[1], nets[1], k)
        for p in chains[0].model:
            np.testing.assert_array_equal(chains[1].model[p.name].numpy(), p.numpy())
            if options:
                np.testing.assert_array_equal(chains[1].model[p.name].average(), p.average())
        assert chains[1].model.step == (0 if rule is None else 6)

    def test_extra_state_of_something_else(self, net: Any) -> None:
        for other in ({"a": 1}, torch.zeros(3), torch.zeros(9, dtype=torch.uint8)):
            with pytest.raises(vpps.ModelError, match="not the extra state of a Module of this model"):
                net.load_state_dict(net.state_dict() | {"_extra_state": other})

    def test_weights_alone_will_do(self, net: Any) -> None:
        """An old layer's weights suffice. A state dict has only tensors, so any tool for tensors can clone and write
        it."""
        wanted = {name: value.clone() for name, value in net.state_dict().items()}
        del wanted["_extra_state"]
        wanted["chain.b"] += 1
        assert str(net.load_state_dict(wanted)) == "<All keys matched successfully>"
        assert torch.equal(net.chain.b, wanted["chain.b"])
        with pytest.raises(RuntimeError, match=r"size mismatch for chain\.b"):
            net.load_state_dict(wanted | {"chain.b": torch.zeros(HIDDEN + 1)})
        del wanted["chain.b"]
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "chain\.b"'):
            net.load_state_dict(wanted)

    def test_moments_of_another_optimizer(self, chain: Chain) -> None:
        chains = [chain, *(Chain(table=True) for _ in range(2))]
        rules = vpps.Adam(), None, vpps.Momentum(lr=0.1)
        net, plain, other = (vpps.torch.Module(c.model, rule, vps=1) for c, rule in zip(chains, rules, strict=True))
        step(chain, net)
        state = net.state_dict()
        with pytest.raises(vpps.ModelError, match="moments are of 'adam', and this Module updates by 'momentum'"):
            other.load_state_dict(state)
        plain.load_state_dict(state)  # PyTorch has its own state
        del state["_extra_state"]
        other.load_state_dict(state)
        assert other.model.optimizer_state is None

    @pytest.mark.parametrize("names", ["a a/b a/b/c", "a/b a.b"])
    def test_parameters_beside_scopes(self, names: str) -> None:
        model = vpps.Model()
        for name in names.split():
            model.parameter(name, ())
        if "." in names:
            with pytest.raises(vpps.ModelError, match=r"'a\.b'.*'a/b'"):
                vpps.torch.Module(model, vps=1)
        else:
            assert list(vpps.torch.Module(model, vps=1).state_dict()) == ["a", "_extra_state", "a.b", "a.b.c"]


class TestModes:
    """Dropout is on in training, with new masks every time, and off in evaluation."""

    @pytest.fixture
    def net(self) -> Any:
        model = vpps.Model()
        model.parameter("w", (200,), init="ones")
        return vpps.torch.Module(model, vps=1)

    @staticmethod
    def forward(net: Any, at_once: bool = False) -> Any:
        graph = vpps.Graph()
        dropped = vpps.dropout(net.model["w"] * graph.input(np.ones(200)), 0.5)
        return net.loss(graph, vpps.dot(dropped, dropped)) if at_once else net(graph, dropped)

    def test_masks_differ_from_call_to_call_and_go_on_from_a_state_dict(self, net: Any) -> None:
        masks = [self.forward(net) for _ in range(3)]
        self.forward(net, at_once=True)
        state = net.state_dict()
        with torch.no_grad():
            masks += [self.forward(net) for _ in range(2)]
        for k, mask in enumerate(masks):
            assert (mask == 0).any()
            assert not any(torch.equal(mask, other) for other in masks[:k])
        masks[0].sum().backward()
        assert torch.equal(net.w.grad, masks[0].detach())
        assert net.model.step == 0
        net.load_state_dict(state)
        assert all(torch.equal(self.forward(net), mask) for mask in masks[3:])

    def test_eval_turns_it_off(self, net: Any) -> None:
        net.eval()
        with torch.no_grad():
            assert torch.equal(self.forward(net), torch.ones(200))
        value = self.forward(net)
        assert torch.equal(value, torch.ones(200))
        value.sum().backward()
        assert torch.equal(net.w.grad, torch.ones(200))
        assert self.forward(net, at_once=True).item() == 200

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("at_once", [False, True])
    def test_no_grad_computes_values_alone(self, chain: Chain, context: Any, at_once: bool) -> None:
        net = vpps.torch.Module(chain.model, vps=1)
        with context():
            assert not chain.loss_by_module(net, torch.ones(2, INPUT), at_once).requires_grad
        assert net.handle.kept is None

    def test_evaluation_changes_no_weights_where_vpps_updates_them(self, chain: Chain) -> None:
        net = vpps.torch.Module(chain.model, vpps.SGD(lr=0.1), vps=1).eval()
        before = chain.model.numpy()
        x = torch.ones(2, INPUT, requires_grad=True)
        chain.loss_by_module(net, x, at_once=False).backward()
        assert x.grad.any()
        for name, value in chain.model.numpy().items():
            np.testing.assert_array_equal(value, before[name])


def test_averaged_weights(chain: Chain) -> None:
    """Inside the block, vpps computes with the averages; PyTorch's tensors still hold the weights."""
    net = vpps.torch.Module(chain.model, vpps.SGD(lr=0.5), vps=1, ema=0.5)
    for k in range(3):
        step(chain, net, k)
    x, words = torch.ones(2, INPUT), np.array([1, 2])
    with torch.no_grad():
        before = chain.by_module(net, x, words)
        with chain.model.averaged():
            averaged = chain.by_module(net, x, words)
            weights = {p.name.replace("/", "."): torch.from_numpy(p.average()) for p in chain.model}
            assert not torch.equal(net.chain.U, weights["chain.U"])
        assert torch.equal(chain.by_module(net, x, words), before)
    torch.testing.assert_close(averaged, chain.in_torch(weights, x, words))
    step(chain, net, 4)


class TestResults:
    def test_shapes(self, chain: Chain, net: Any) -> None:
        graph = vpps.Graph()
        states = chain.W @ graph.rows(np.ones((4, INPUT)))
        assert net(graph, states).shape == (4, HIDDEN)
        assert net(graph, states[0]).shape == (HIDDEN,)
        assert net(graph, states[:0]).shape == (0, HIDDEN)
        none, one, every = net(graph, [states[:0], vpps.dot(states[0], states[1]), states])
        assert (none.shape, one.shape, every.shape) == ((0, HIDDEN), (), (4, HIDDEN))
        (none.sum() + every.sum()).backward()
        assert net.chain.W.grad.any()

    def test_what_depends_on_no_weights(self, net: Any) -> None:
        graph = vpps.Graph()
        value = net(graph, graph.input([1, 2]) * 2)
        assert value.tolist() == [2, 4]
        assert not value.requires_grad

    def test_values_stay_as_they_are(self, chain: Chain, net: Any) -> None:
        """Results are not views of memory that later launches use."""
        graph = vpps.Graph()
        value = net(graph, chain.W @ graph.rows(np.ones((4, INPUT))))
        kept = value.detach().clone()
        for k in range(3):
            step(chain, net, k)
        assert torch.equal(value, kept)

    def test_gradients_are_not_copied(self, chain: Chain, net: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The parameter keeps the handle's array."""
        given: list[int] = []
        fetch = net.handle.gradients

        def noted(*args: Any, **how: Any) -> Any:
            loss, found = fetch(*args, **how)
            given.extend(g.ctypes.data for g in found.values() if isinstance(g, np.ndarray))
            return loss, found

        monkeypatch.setattr(vpps.Handle, "gradients", lambda handle, *args, **how: noted(*args, **how))
        step(chain, net)
        assert {p.grad.data_ptr() for n, p in net.named_parameters() if n != "words"} == set(given)


class TestMovesAndCopies:
    @pytest.mark.parametrize("move", ["half", "double", "bfloat16", "share_memory", "cuda", "to_meta"])
    def test_that_cannot_be(self, net: Any, move: str) -> None:
        if move == "cuda" and not torch.cuda.is_available():
            pytest.skip("PyTorch has no GPU here")
        outer = torch.nn.Sequential(net)
        with pytest.raises(vpps.ModelError, match=r"vpps\.torch\.Module"):
            outer.to("meta") if move == "to_meta" else getattr(outer, move)()

    def test_to_where_it_is(self, chain: Chain, net: Any) -> None:
        assert net.float().cpu().to(torch.float32) is net
        assert net.chain.W.data_ptr() == chain.W.host.ctypes.data

    @pytest.mark.parametrize("copier", [copy.copy, pickle.dumps])
    def test_copies(self, net: Any, copier: Callable[[Any], Any]) -> None:
        for outer in (net, torch.nn.Sequential(net)):
            if outer is net or copier is not copy.copy:
                with pytest.raises(vpps.ModelError, match=r"cannot be copied or pickled.*state_dict"):
                    copier(outer)

    def test_another_tensor_in_the_place_of_weights(self, chain: Chain, net: Any) -> None:
        weights = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
        graph = vpps.Graph()
        loss = chain.loss(graph, graph.rows(np.ones((1, INPUT))))
        with pytest.raises(vpps.ModelError, match="another tensor or module has been put in place"):
            torch.func.functional_call(net, weights, (graph, loss))
        net(graph, loss)
        net.chain.b.data = torch.zeros(HIDDEN + 1)
        with pytest.raises(vpps.ModelError, match=r"'chain/b' .* have become torch\.float32 of shape \(7,\)"):
            net.state_dict()


@pytest.mark.parametrize("inner", [None, vpps.SGD(lr=0.1)])
def test_other_defaults_of_pytorch(chain: Chain, inner: vpps.Optimizer | None) -> None:
    """Covers PyTorch's default tensor types and devices."""
    x = torch.ones(2, INPUT, requires_grad=True)
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        net = vpps.torch.Module(chain.model, inner, vps=1).to("cpu")
        graph = vpps.Graph()
        states = chain.states(graph, graph.rows(x, grad=True), np.array([1, 2]))
        product = vpps.dot(states[0], states[1])
        for call in (lambda: net(graph, states[-1]), lambda: net.loss(graph, product)):
            value = call()
            assert (value.dtype, value.device.type) == (torch.float32, "cpu")
            value.sum().backward()
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(device)
    assert x.grad.any()
    assert inner is not None or net.words.grad.any()


class TestArguments:
    @pytest.mark.parametrize("name, value", [("clip_norm", 1.0), ("ema", 0.9), ("autotune", True)])
    def test_options_of_updates_that_pytorch_makes(self, chain: Chain, name: str, value: Any) -> None:
        with pytest.raises(vpps.HandleError, match=f"{name}=.* is an option of vpps's updates"):
            vpps.torch.Module(chain.model, **{name: value})

    def test_models(self, chain: Chain, net: Any) -> None:
        with pytest.raises(vpps.ModelError, match=r"expected a vpps\.Model"):
            vpps.torch.Module(torch.nn.Linear(1, 1))
        with pytest.raises(vpps.HandleError, match=r"sum gradients over ranks there, as in .*all_reduce"):
            vpps.torch.Module(chain.model, world=vpps.distributed.init("alone"))
        with pytest.raises(vpps.HandleError, match="trained by another Module, or Handle, already: use that one"):
            vpps.torch.Module(chain.model)
        net.handle.close()
        assert vpps.torch.Module(chain.model, vps=1).model is chain.model

    @pytest.mark.parametrize("wanted", [3, None, [3], "x"])
    def test_what_is_no_expression(self, net: Any, wanted: Any) -> None:
        graph = vpps.Graph()
        graph.input([1.0])
        for call in (net, net.loss):
            with pytest.raises(vpps.VppsError):
                call(graph, wanted)

    def test_graphs_and_losses(self, chain: Chain, net: Any) -> None:
        graph, other = vpps.Graph(), vpps.Graph()
        other.input([1.0])
        state = chain.states(graph, graph.rows(np.ones((1, INPUT))))[-1]
        with pytest.raises(vpps.GraphError, match="belongs to another graph"):
            net(other, state)
        with pytest.raises(vpps.GraphError, match=r"expected a vpps\.Graph"):
            net(torch.zeros(3), state)
        for context in (torch.enable_grad, torch.no_grad):
            with context(), pytest.raises(vpps.GraphError, match="scalar"):
                net.loss(graph, state)
