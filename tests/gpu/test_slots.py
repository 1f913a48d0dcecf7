"""Weights on a GPU's chip: gradients and training, for all locations of weights and transposes.

A Tree-LSTM, small on a few multiprocessors, or 256 wide on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.model.test_optim import OPTIMIZERS
from tests.simt.test_windows import (
    test_a_matrix_leaves_the_chip_where_a_graph_does_more_with_it_than_to_multiply_vectors,  # noqa: F401
)
from tests.training import ReferenceTraining
from vpps.placement.onchip import ChipOptions as Options
from vpps.placement.onchip import OnChip
from vpps.placement.onchip.holding import Ownership
from vpps.reference import Reference, weights_of
from vpps.runtime.driver import Properties
from vpps.zoo import TreeLSTMSentiment

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("roomy_kernels")]

WORDS, CLASSES = 50, 5
SMALL, FEW = 64, 16  # width of states, virtual processors


class Sentiment:
    """A Tree-LSTM with a loss at every inner node of random binary trees."""

    def __init__(self, hidden: int, embedding: int) -> None:
        self.model = vpps.Model(seed=5)
        self.network = TreeLSTMSentiment(self.model, WORDS, embedding=embedding, hidden=hidden)

    def batch(self, seed: int, leaves: tuple[int, ...] = (5, 1, 9, 14)) -> tuple[vpps.Graph, vpps.Expression]:
        """Return a graph and its loss; they depend only on the seed."""
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
    """Forced options for a model's location on the chip, and the expected result.

    Attributes:
        options: the forced options.
        holds: checks that the options had the intended effect.
        hidden: width of the states; from 256 on, all multiprocessors take part.
    """

    options: Options
    holds: Callable[[OnChip], bool]
    hidden: int = SMALL

    def vps(self, gpu: Properties) -> int:
        """Return the handle's number of virtual processors."""
        return gpu.sms if self.hidden > SMALL else min(FEW, gpu.sms)


def tiers(onchip: OnChip) -> set[str]:
    return {held.tier for held in onchip.held}


U, W = "tree_lstm/U", "tree_lstm/W"
CASES: dict[str, Case] = {
    "small": Case(Options(), lambda c: c.of(U).tier == c.of(W).tier == "shared"),
    "256 wide": Case(Options(), lambda c: c.of(U).tier == c.of(W).tier == "shared", hidden=256),
    "512 wide": Case(Options(), lambda c: c.chip.changes_windows, hidden=512),
    "1024 wide": Case(Options(), lambda c: c.chip.has_chunks, hidden=1024),
    **{
        f"round-robin, rpw {rpw}": Case(
            Options(ownership="round-robin", rpw=rpw),
            lambda c, rpw=rpw: {slot.rows for slot in c.chip.slots} == {rpw},  # type: ignore[misc]
        )
        for rpw in (1, 2, 4)
    },
    "round-robin, 256 wide": Case(Options(ownership="round-robin"), lambda c: "atomic" in tiers(c), hidden=256),
    "some in memory": Case(Options(tiers={f"{U}^T": "L2", W: "L2"}), lambda c: tiers(c) == {"shared", "L2"}),
    "two groups": Case(Options(groups=2), lambda c: bool(c.chip.dense)),
    "four groups": Case(Options(groups=4), lambda c: c.chip.changes_windows or c.vps < 33, hidden=256),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_training(name: str, gpu: Properties) -> None:
    """One kernel per case: gradients equal the reference's; gradients and trained weights are the same every time."""
    case = CASES[name]
    groups = case.options.groups or 1
    vps = case.vps(gpu) // groups * groups
    net = Sentiment(case.hidden, case.hidden)
    graph, loss = net.batch(1)
    reference = Reference(graph, weights_of(net.model))
    expected = reference.backward(loss)
    expected_loss = float(reference.value(loss))
    witness = ReferenceTraining(net.model, vpps.Adam(lr=0.01), clip_norm=1.0)
    with vpps.Handle(net.model, vpps.Adam(lr=0.01), vps=vps, clip_norm=1.0, onchip=case.options) as handle:
        found = [handle.gradients(graph, loss) for _ in range(3)]
        onchip = handle._engine.arrangement.onchip
        assert onchip is not None
        assert case.holds(onchip), onchip
        for value, gradients in found:
            assert value == pytest.approx(expected_loss, rel=FORWARD_TOLERANCE)
            for p in net.model:
                assert relative_error(gradients[p.name], expected[p.name]) < GRADIENT_TOLERANCE, p.name
        if "atomic" not in tiers(onchip):  # atomic additions have no fixed order
            for value, gradients in found[1:]:
                assert value == found[0][0]
                assert all(np.array_equal(g, found[0][1][p]) for p, g in gradients.items())
        assert handle.forward(graph, [loss])[0] == pytest.approx(expected_loss, rel=FORWARD_TOLERANCE)
        for k in range(4):
            handle.fb(*net.batch(k), accumulate=k % 3 == 1)
            last = witness.fb(*net.batch(k), accumulate=k % 3 == 1)
        assert handle.sync_get_latest_loss() == pytest.approx(last, rel=1e-3)
    for p in net.model:
        assert relative_error(p.numpy(), witness.weights[p.name]) < SIGNS, p.name


# Adam's first steps follow a gradient's sign: if the gradient is only rounding error, so is the step.
SIGNS = 1e-2


@pytest.mark.parametrize("options", [Options(), Options(ownership="round-robin")])
def test_the_paper_schedule_runs_on_the_same_kernels(options: Options, gpu: Properties) -> None:
    net = Sentiment(256, 256)
    graph, loss = net.batch(1)
    reference = Reference(graph, weights_of(net.model))
    expected = reference.backward(loss)
    with vpps.Handle(net.model, schedule="paper", onchip=options) as handle:
        value, gradients = handle.gradients(graph, loss)
    assert value == pytest.approx(float(reference.value(loss)), rel=FORWARD_TOLERANCE)
    for p in net.model:
        assert relative_error(gradients[p.name], expected[p.name]) < GRADIENT_TOLERANCE, p.name


@pytest.mark.parametrize("ownership", ["aligned", "round-robin"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_what_is_held(name: str, ownership: Ownership, gpu: Properties) -> None:
    """Covers steps with and without clipping, and averages of the weights."""
    for clip_norm in (None, 0.3):
        net = Sentiment(SMALL, SMALL)
        witness = ReferenceTraining(net.model, OPTIMIZERS[name](), clip_norm, ema=0.9)
        options = Options(ownership=ownership)
        vps = min(FEW, gpu.sms)
        with vpps.Handle(
            net.model, OPTIMIZERS[name](), vps=vps, clip_norm=clip_norm, ema=0.9, onchip=options
        ) as handle:
            for k in range(4):
                handle.fb(*net.batch(k))
                witness.fb(*net.batch(k))
        for p in net.model:
            assert relative_error(p.numpy(), witness.weights[p.name]) < SIGNS, p.name
            assert relative_error(p.average(), witness.averages[p.name]) < SIGNS, p.name
