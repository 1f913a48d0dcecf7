"""Arguments whose rows have a constant stride need no index list."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.placement.distribution import Distribution
from vpps.planner.gathering import gathering
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.instructions import INDEXED
from vpps.script.verify import verify

pytestmark = pytest.mark.cpu

LENGTHS = (3, 7, 1, 5, 7, 2)
WIDTH = 8


def sequences(lengths: tuple[int, ...]) -> tuple[vpps.Model, vpps.Graph, list[vpps.Expression]]:
    """Record sequences of some lengths, whose steps read two states of the previous step; returns the last states."""
    model = vpps.Model(seed=2)
    W = model.parameter("W", (WIDTH, WIDTH))

    @vpps.cell
    def step(h: vpps.Expression, c: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression]:
        c = vpps.tanh(W @ h) + c
        return vpps.tanh(c), c

    graph = vpps.Graph()
    ends = []
    for k, length in enumerate(lengths):
        h, c = graph.input(np.full(WIDTH, 0.1 * k)), graph.zeros(WIDTH)
        for _ in range(length):
            h, c = step(h, c)
        ends.append(h)
    return model, graph, ends


def plans(lengths: tuple[int, ...], policy: str = "sinks-last") -> tuple[Plan, Plan]:
    """Return verified plans for inference and for training."""
    model, graph, ends = sequences(lengths)
    planner = Planner(Distribution(model, 2, 32, 0, train=True), policy)
    inference = planner.plan_forward(graph, ends)
    training = planner.plan_training(graph, vpps.sum([vpps.sum(h) for h in ends]), None, 0)
    for plan in (inference, training):
        verify(plan.script, plan.layout, plan.origin)
    return inference, training


@pytest.mark.parametrize("policy", ["sinks-last", "depth"])
def test_sequences_need_lists_unless_they_come_by_length(policy: str) -> None:
    """Each step reads some of the previous step's rows, contiguous if the longest sequence was recorded first."""
    mixed, _ = plans(LENGTHS, policy)
    assert gathering(mixed).bytes["forward"] > 0
    for lengths in (tuple(sorted(LENGTHS, reverse=True)), (9,)):
        found = gathering(plans(lengths, policy)[0])
        assert found.bytes.total() == 0
        assert found.arguments == found.contiguous


@pytest.mark.parametrize(
    "order, mode",
    [
        *[((0, 1, 2), WIDTH), ((0, 2, 4), 2 * WIDTH), ((3, 3, 3), 0), ((4,), 0)],
        *(((order), INDEXED) for order in [(0, 1, 3), (2, 1, 0), (1, 1, 2), (0, 2, 1, 3)]),
    ],
)
def test_rows_at_equal_gaps_need_no_list(order: tuple[int, ...], mode: int) -> None:
    assert modes(order) == {mode}


def modes(order: tuple[int, ...]) -> set[int]:
    """Return the second words of the operand through which one step reads some of five inputs in the given order."""
    model = vpps.Model(seed=1)
    graph = vpps.Graph()
    inputs = graph.rows(np.zeros((5, WIDTH)))
    read = [vpps.tanh(inputs[k]) for k in order]
    planner = Planner(Distribution(model, 1, 32, 0, train=True))
    plan = planner.plan_forward(graph, [*read, inputs])
    (block,) = (b for b in plan.blocks if "tanh" in b.arrays.cell.name)
    return {int(mode) for operand in block.cell.operands for mode in block.operand_words(operand)[1]}


def test_gradients_of_weights_keep_their_lists() -> None:
    """Gradients are summed over all steps at once."""
    _, training = plans(LENGTHS)
    assert gathering(training).bytes["gradients"] == 4 * WIDTH * sum(LENGTHS)
