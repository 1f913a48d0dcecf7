"""Random graphs of random cells agree with the reference, with equal bits for 1, 2, 3 and 7 virtual processors."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings

from tests import comparison
from tests.comparison import assert_agrees_with_reference, rounds_alike
from tests.fuzz import graphs
from tests.gpu.conftest import with_default
from tests.planner import launches
from vpps.compiler import encoded_cell
from vpps.model.precisions import Precisions
from vpps.placement.onchip import ChipOptions
from vpps.planner.native.policy_table import POLICIES
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu


def examples(n: int) -> settings:
    """Return settings for n examples, the same in every run."""
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def check(number: int, onchip: ChipOptions | None = None, precision: str = "float32") -> None:
    """Check that a random graph agrees with the reference, with some policy, unless float32 can round differently."""
    random = Random(number)
    model, graph, used, loss = graphs.draw(random).build()
    policy = random.choice(list(POLICIES))
    if precision != "float32":
        reference = Reference(graph, weights_of(model), precisions=Precisions.given(precision))
        reference.backward(loss)
        if not rounds_alike(reference):
            return
    try:
        chosen = launches.policy_for(policy, graph)
        assert_agrees_with_reference(model, graph, loss, used, policy=chosen, onchip=onchip, precision=precision)
    except AssertionError as error:
        error.add_note(f"random graph {number}, policy {policy}")
        raise


@pytest.fixture(autouse=True)
def three_virtual_processors_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    compare = comparison.assert_agrees_with_reference
    monkeypatch.setattr(compare, "__defaults__", with_default(compare, "vp_counts", (1, 3, 7)))


@pytest.fixture(autouse=True)
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide inference steps into pieces of 1 or 3 rows, or not at all."""
    if number := sum(request.node.callspec.params.values()) % 3:
        monkeypatch.setattr(encoded_cell, "FEWEST_ROWS", 2 * number - 1)
        monkeypatch.setattr(encoded_cell, "CACHED_FLOATS", 0)


@pytest.mark.parametrize("part", range(10))
def test_random_graphs_agree_with_the_reference(part: int, request: pytest.FixtureRequest) -> None:
    """Half of the graphs run as for users, with fused cells."""
    if part % 2:
        request.getfixturevalue("fused")
    for number in range(8 * part, 8 * part + 8):
        check(number)


@pytest.mark.parametrize("part", range(3))
def test_random_graphs_whose_products_round_agree_with_the_reference(part: int) -> None:
    """About half of the graphs qualify."""
    for number in range(8 * part, 8 * part + 8):
        check(number, precision="bf16")


@pytest.mark.parametrize("number", range(len(launches.MACHINES)))
def test_the_verifier_accepts_every_kind_of_launch_of_every_machine(number: int) -> None:
    """Plans without the machine: training, clipped, averaging, accumulating, inference; with any policy."""
    for seed, precision in ((number, "float32"), (1000 * number + 2, "float32"), (number + 100, "bf16")):
        random = Random(seed)
        model, graph, used, loss = graphs.draw(random).build()
        it = launches.Example(model, graph, loss, used)
        c = launches.draw(random, launches.MACHINES[number])
        for plan in launches.plans(it, c, precision=precision):
            launches.verify(plan)
