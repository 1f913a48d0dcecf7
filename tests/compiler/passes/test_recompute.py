"""What backward computes again: a cut of least floats, with the bits and less of the memory of what is stored."""

from __future__ import annotations

import pytest

import vpps
from tests.compiler.passes.test_fusion import NETWORKS, SCHEDULES, Gated, lowered, names, results
from tests.kernels import know_gradients, widen
from vpps.compiler.instr import Instr, View
from vpps.compiler.passes import Passes
from vpps.compiler.passes.recompute import recomputed
from vpps.runtime.simt import SimtMachine
from vpps.script.tails import ViewUse

STORED, AGAIN = Passes(), Passes(recompute=True)


@pytest.mark.host
class TestCuts:
    """Slab 0 is a product, and not elementwise."""

    def test_a_value_is_not_computed_again_where_that_saves_nothing(self) -> None:
        assert recomputed([10, 10], {1: [0]}, read=[1], kept=[]) == set()

    def test_it_is_where_what_it_is_made_of_is_there_anyway(self) -> None:
        assert recomputed([10, 10], {1: [0]}, read=[1], kept=[0]) == {1}
        assert recomputed([10, 10], {1: [0]}, read=[0, 1], kept=[]) == {1}

    def test_what_is_kept_for_others_is_read(self) -> None:
        assert recomputed([10, 10, 10], {1: [0], 2: [1]}, read=[1, 2], kept=[1]) == {2}

    def test_several_values_of_one_are_computed_from_it(self) -> None:
        assert recomputed([10, 10, 10, 10], {1: [0], 2: [0], 3: [1, 2]}, read=[1, 2, 3], kept=[]) == {1, 2, 3}

    def test_of_equal_cuts_the_one_nearest_to_backward_is_taken(self) -> None:
        made_of = {k: [k - 1] for k in (1, 2, 3)}
        assert recomputed([10] * 4, made_of, read=[3], kept=[]) == set()
        assert recomputed([5, 10, 5, 10], made_of, read=[3], kept=[]) == {3}

    def test_a_wide_value_is_computed_from_narrow_ones(self) -> None:
        made_of = {2: [0, 1], 3: [2]}
        assert recomputed([3, 4, 10, 10], made_of, read=[2, 3], kept=[]) == {2, 3}
        assert recomputed([7, 4, 10, 10], made_of, read=[2, 3], kept=[]) == {3}

    def test_arguments_cost_nothing(self) -> None:
        assert recomputed([10], {0: []}, read=[0], kept=[]) == {0}


@pytest.mark.cpu
@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_the_same(name: str) -> None:
    network = NETWORKS[name]()
    batches = [network.batch(s) for s in (0, 1)]
    expected = results(network.model, batches, Passes(fusion=False), target="cpu", vps=2, verify=False)
    for vps, schedule in (SCHEDULES[1], SCHEDULES[-1]):
        assert results(network.model, batches, AGAIN, target="cpu", vps=vps, schedule=schedule) == expected


@pytest.mark.cpu
def test_the_emulated_gpu_gives_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    widen(monkeypatch, SimtMachine, know_gradients)  # as in test_fusion.py
    network = NETWORKS["tree-lstm"]()
    found, expected = (
        results(network.model, [network.batch(0)], passes, target="simt", vps=3) for passes in (AGAIN, STORED)
    )
    assert found == expected


@pytest.mark.host
def test_the_hyperbolic_tangent_of_a_state_is_computed_again() -> None:
    net = Gated()
    graph, _ = net.batch()
    stored, again = (lowered(net.cell, graph, net.model, passes=p) for p in (STORED, AGAIN))
    assert names(again.backward) == names(stored.backward) == ["tail", "matvec"]
    # tanh(new) from new, a result, and tanh(c) from c, an argument; the gates of a product are as wide as it is.
    assert calls(again.backward[0]) - calls(stored.backward[0]) == {"Tanh::forward"}
    assert len(written(stored.forward[1])) - len(written(again.forward[1])) == 2


def calls(tail: Instr) -> set[str]:
    assert tail.tail is not None
    return {step.code for step in tail.tail.steps}


def written(tail: Instr) -> list[View]:
    return [view for use, view in tail.operands["views"] if use == ViewUse.WRITE]


@pytest.mark.cpu
def test_training_takes_less_memory() -> None:
    peaks = []
    for passes in (Passes(fusion=False), STORED, AGAIN):
        net = Gated()
        graph, loss = net.batch(steps=50)
        with vpps.Handle(net.model, target="cpu", vps=1, passes=passes) as handle:
            handle.fb(graph, loss)
            peaks.append(handle.memory.peak)
    assert peaks[0] > peaks[1] > peaks[2]
