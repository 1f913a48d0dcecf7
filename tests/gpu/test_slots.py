"""Weights on the chip of a GPU: gradients and training, wherever weights, transposes and gradients lie.

The same model as a Tree-LSTM of a paper would be, of a size that fills many slots, on all multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.test_optim import OPTIMIZERS
from vpps.plan.onchip import OnChip, Options
from vpps.reference import Reference, weights_of
from vpps.zoo import TreeLSTMSentiment

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("roomy_kernels")]

WORDS, CLASSES = 50, 5


class Sentiment:
    """A Tree-LSTM with a loss at every inner node of random binary trees."""

    def __init__(self, hidden: int, embedding: int) -> None:
        self.model = vpps.Model(seed=5)
        self.network = TreeLSTMSentiment(self.model, WORDS, embedding=embedding, hidden=hidden)

    def batch(self, seed: int, leaves: tuple[int, ...] = (5, 1, 9, 14)) -> tuple[vpps.Graph, vpps.Expression]:
        """The same graph and its loss for the same seed."""
        rng = np.random.default_rng(seed)
        graph, network = vpps.Graph(), self.network
        losses = []
        for n in leaves:
            nodes = [graph.call(network.leaf, int(rng.integers(WORDS))) for _ in range(n)]
            losses.append(graph.call(network.node_loss, nodes[0][0], int(rng.integers(CLASSES))))
            while len(nodes) > 1:
                k = int(rng.integers(len(nodes) - 1))
                (h1, c1), (h2, c2) = nodes[k : k + 2]
                nodes[k : k + 2] = [graph.call(network.tree_lstm.inner, h1, h2, c1, c2)]
                losses.append(graph.call(network.node_loss, nodes[k][0], int(rng.integers(CLASSES))))
        return graph, vpps.sum(losses) * 0.1


@dataclass(frozen=True)
class Case:
    """What is forced of a model's place on the chip, and what must have come of that.

    Attributes:
        options: what is forced.
        holds: whether the test tests what it says.
        hidden: width of the states; 0: of the largest test.
    """

    options: Options
    holds: Callable[[OnChip], bool] = lambda c: True
    hidden: int = 64


def tiers(onchip: OnChip) -> set[str]:
    return {held.tier for held in onchip.held}


U, W = "tree_lstm/U", "tree_lstm/W"
CASES: dict[str, Case] = {
    "as planned": Case(Options(), lambda c: tiers(c) == {"registers"}),
    "as planned, 256 wide": Case(Options(), lambda c: "registers" in tiers(c), hidden=256),
    "as planned, 640 wide": Case(Options(), lambda c: len(tiers(c)) > 1, hidden=640),
    "gradients in registers": Case(Options(gradients="registers"), lambda c: c.gradients == "registers"),
    "gradients over transposes": Case(Options(gradients="overlay"), lambda c: c.gradients == "overlay"),
    "gradients in passes": Case(Options(gradients="passes"), lambda c: c.gradients == "passes"),
    "gradients in passes, 256 wide": Case(Options(gradients="passes"), lambda c: c.gradients == "passes", hidden=256),
    **{
        f"round-robin, rpw {rpw}": Case(
            Options(ownership="round-robin", rpw=rpw),
            lambda c, rpw=rpw: {slot.rows for slot in c.slots} == {rpw},  # type: ignore[misc]
        )
        for rpw in (1, 2, 4)
    },
    "partial sums by atomics": Case(Options(transposed="atomic"), lambda c: "atomic" in tiers(c)),
    "round-robin, atomic": Case(
        Options(ownership="round-robin", rpw=2, transposed="atomic"), lambda c: "atomic" in tiers(c)
    ),
    "shared memory": Case(
        Options(tiers=dict.fromkeys((U, f"{U}^T", W, f"{W}^T"), "shared")), lambda c: "shared" in tiers(c)
    ),
    "gradients in shared memory, over transposes": Case(
        Options(tiers=dict.fromkeys((U, f"{U}^T", W, f"{W}^T"), "shared"), gradients="overlay"),
        lambda c: "shared" in tiers(c) and c.gradients == "overlay",
    ),
    "registers, shared memory, L2": Case(
        Options(tiers={U: "shared", f"{U}^T": "L2", W: "registers", f"{W}^T": "L2"}),
        lambda c: tiers(c) == {"registers", "shared", "L2"},
    ),
    **{
        f"tile {tile}": Case(Options(tile=tile), lambda c, tile=tile: c.tile == tile)  # type: ignore[misc]
        for tile in (8, 4, 2, 1)
    },
    "two blocks per multiprocessor": Case(Options(blocks_per_sm=2), lambda c: c.blocks_per_sm == 2),
    "two groups": Case(Options(groups=2)),
    "four groups, 256 wide": Case(Options(groups=4), hidden=256),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_training(name: str) -> None:
    """One kernel for a case: its gradients are the reference's, its training is that of the cpu, again and again."""
    case = CASES[name]
    if case.options.groups > 1:
        pytest.importorskip("vpps.plan.grouping", reason="groups are not built yet")
    net, witness = Sentiment(case.hidden, case.hidden), Sentiment(case.hidden, case.hidden)
    graph, loss = net.batch(1)
    reference = Reference(graph, weights_of(net.model))
    expected = reference.backward(loss)
    expected_loss = float(reference.value(loss))
    with vpps.Handle(net.model, vpps.Adam(lr=0.01), clip_norm=1.0, onchip=case.options) as handle:
        found = [handle.gradients(graph, loss) for _ in range(3)]
        onchip = handle._arrangement.onchip
        assert onchip is not None
        assert case.holds(onchip), onchip
        for value, gradients in found:
            assert value == pytest.approx(expected_loss, rel=FORWARD_TOLERANCE)
            for p in net.model:
                assert relative_error(gradients[p.name], expected[p.name]) < GRADIENT_TOLERANCE, p.name
        if "atomic" not in tiers(onchip):  # the order of whose additions is nobody's
            for value, gradients in found[1:]:
                assert value == found[0][0]
                assert all(np.array_equal(g, found[0][1][p]) for p, g in gradients.items())
        assert handle.forward(graph, [loss])[0] == pytest.approx(expected_loss, rel=FORWARD_TOLERANCE)
        for k in range(6):
            handle.fb(*net.batch(k), accumulate=k % 3 == 1)
        latest = handle.sync_get_latest_loss()
    with vpps.Handle(witness.model, vpps.Adam(lr=0.01), clip_norm=1.0, target="cpu") as other:
        for k in range(6):
            other.fb(*witness.batch(k), accumulate=k % 3 == 1)
        assert latest == pytest.approx(other.sync_get_latest_loss(), rel=1e-3)
    for p in net.model:
        # Adam's first steps are the sign of a gradient: where that is all rounding, so is the step.
        assert relative_error(p.numpy(), witness.model[p.name].numpy()) < 1e-2, p.name


@pytest.mark.parametrize("options", [Options(), Options(gradients="passes"), Options(transposed="atomic")])
def test_the_paper_schedule_has_the_same_kernel_and_results(options: Options) -> None:
    net = Sentiment(64, 64)
    graph, loss = net.batch(1)
    reference = Reference(graph, weights_of(net.model))
    expected = reference.backward(loss)
    with vpps.Handle(net.model, schedule="paper", onchip=options) as handle:
        value, gradients = handle.gradients(graph, loss)
    assert value == pytest.approx(float(reference.value(loss)), rel=FORWARD_TOLERANCE)
    for p in net.model:
        assert relative_error(gradients[p.name], expected[p.name]) < GRADIENT_TOLERANCE, p.name


@pytest.mark.parametrize("gradients", ["overlay", "passes"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_what_is_held(name: str, gradients: str) -> None:
    """With clipping and without, and with averages of the weights."""
    for clip_norm in (None, 0.3):
        nets = Sentiment(64, 64), Sentiment(64, 64)
        for net, target in zip(nets, ("cuda", "cpu"), strict=True):
            onchip = Options(gradients=gradients) if target == "cuda" else None  # type: ignore[arg-type]
            optimizer = OPTIMIZERS[name]()
            with vpps.Handle(
                net.model, optimizer, target=target, clip_norm=clip_norm, ema=0.9, onchip=onchip
            ) as handle:
                for k in range(4):
                    handle.fb(*net.batch(k))
        for p in nets[0].model:
            twin = nets[1].model[p.name]
            assert relative_error(p.numpy(), twin.numpy()) < 1e-2, p.name
            assert relative_error(p.average(), twin.average()) < 1e-2, p.name
