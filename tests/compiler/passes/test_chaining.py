"""Chains: a tail reads a product's result on the chip if possible. No bit changes; the verifier finds wrong pairs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.kernels import know_gradients, widen
from tests.simt import models
from vpps.compiler.passes import Passes
from vpps.errors import ScriptError
from vpps.planner.plan import Plan
from vpps.reference import Reference, weights_of
from vpps.runtime.simt import SimtMachine
from vpps.script.disassemble import Decoded, entry_points, instructions
from vpps.script.instructions import Flag
from vpps.script.tails import ViewUse
from vpps.script.verify import verify

pytestmark = pytest.mark.simt

E = vpps.Expression
FUSED, UNFUSED = Passes(), Passes(fusion=False)


class Gated:
    """A layer with two gates. `kept`: the product itself is also a result of the cell.

    With 40 units on four virtual processors a block owns 20 rows, so at most 64 vectors of results wait for a tail.
    """

    def __init__(self, kept: bool = False) -> None:
        self.model = vpps.Model(seed=4)
        W, b = self.model.parameter("W", (80, 24)), self.model.parameter("b", (80,), init="normal")

        @vpps.cell
        def layer(x: E) -> E | tuple[E, E]:
            gates = W @ x + b
            y = vpps.sigmoid(gates[:40]) * vpps.tanh(gates[40:])
            return (y, gates) if kept else y

        self.layer = layer

    def batch(self, n: int) -> tuple[vpps.Graph, E]:
        """Return the layer for n vectors."""
        graph, rng = vpps.Graph(), np.random.default_rng(n)
        made = [graph.call(self.layer, graph.input(rng.normal(size=24))) for _ in range(n)]
        ys = [part for one in made for part in (one if isinstance(one, tuple) else (one,))]
        return graph, vpps.sum([vpps.sum(y * y) for y in ys])


def plan_of(handle: vpps.Handle) -> Plan:
    plan = handle._engine.plan
    assert plan is not None
    return plan


def chains(plan: Plan) -> list[tuple[Decoded, Decoded]]:
    """Return the first virtual processor's forward products with their chained tails."""
    found = list(instructions(plan.script, entry_points(plan.script)[0]))
    return [(a, b) for a, b in pairwise(found) if a.flags & Flag.CHAINED]


@pytest.mark.parametrize("n", [1, 2, 7, 64, 150])
def test_results_are_those_of_the_reference_and_of_unfused_instructions(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases: one tile of vectors, as many vectors as fit, and more."""
    widen(monkeypatch, SimtMachine, know_gradients)  # as in test_fusion.py
    net = Gated()
    graph, loss = net.batch(n)
    reference = Reference(graph, weights_of(net.model))
    expected = reference.backward(loss)
    found = {}
    for passes in (FUSED, UNFUSED):
        with vpps.Handle(net.model, target="simt", vps=4, passes=passes, example=net.batch(1)) as handle:
            value, gradients = handle.gradients(graph, loss)
            assert value == pytest.approx(float(reference.value(loss)), rel=FORWARD_TOLERANCE)
            for name, g in gradients.items():
                assert relative_error(g, expected[name]) < GRADIENT_TOLERANCE, name
            found[passes] = value, {name: g.tobytes() for name, g in gradients.items()}
            assert bool(chains(plan_of(handle))) == passes.fusion
    assert found[FUSED] == found[UNFUSED]


@pytest.mark.parametrize(
    "kept, options",
    [
        (True, {}),
        (False, {"schedule": "paper"}),
        (False, {"onchip": vpps.ChipOptions(tiers={"W": "L2"})}),
        (False, {"onchip": vpps.ChipOptions(ownership="round-robin", rpw=2)}),
    ],
    ids=["read elsewhere", "paper", "in memory", "dealt in turns"],
)
def test_where_the_tail_cannot_take_it_it_goes_to_memory(kept: bool, options: dict[str, object]) -> None:
    net = Gated(kept)
    graph, loss = net.batch(3)
    expected = Reference(graph, weights_of(net.model)).backward(loss)
    with vpps.Handle(net.model, target="simt", vps=4, **{"passes": FUSED, **options}) as handle:  # type: ignore[arg-type]
        _, gradients = handle.gradients(graph, loss)
        assert not chains(plan_of(handle))
    for name, g in gradients.items():
        assert relative_error(g, expected[name]) < GRADIENT_TOLERANCE, name


class TestVerifier:
    @pytest.fixture
    def plan(self) -> Plan:
        network = models.tree_lstm()
        with vpps.Handle(network.model, target="simt", vps=3, passes=FUSED) as handle:
            handle.fb(*network.batch(0))
            return plan_of(handle)

    @staticmethod
    def check(plan: Plan, change: dict[int, int]) -> None:
        script = plan.script.copy()
        for position, word in change.items():
            script[position] = word
        assert plan.layout is not None
        verify(script, plan.layout, plan.origin)

    def test_finds_a_product_that_keeps_nothing(self, plan: Plan) -> None:
        product, _ = chains(plan)[0]
        word = int(plan.script[product.position]) & ~(Flag.CHAINED << 16)
        with pytest.raises(ScriptError, match=rf"word {product.position}, held_matvec.*not a row of one array"):
            self.check(plan, {product.position: word})

    def test_finds_a_tail_without_a_product(self, plan: Plan) -> None:
        found = list(instructions(plan.script, entry_points(plan.script)[0]))
        chained = {tail.position for _, tail in chains(plan)}
        tail = next(d for d in found if d.instruction.name == "tail" and d.position not in chained)
        last_use = tail.position + tail.words - 1
        with pytest.raises(ScriptError, match=rf"word {tail.position}, tail.*its program uses view"):
            self.check(plan, {last_use: ViewUse.RESULT})

    def test_finds_a_part_that_there_is_not(self, plan: Plan) -> None:
        product, tail = chains(plan)[0]
        views = tail.fields["views"]
        assert isinstance(views, list)
        k = next(k for k, (_, use) in enumerate(views) if use == ViewUse.RESULT)
        at = tail.position + tail.words - 3 * (len(views) - k)
        with pytest.raises(ScriptError, match=f"takes part {product.parts} of a result that has {product.parts}"):
            self.check(plan, {at: product.parts})

    def test_finds_a_tail_of_other_rows(self, plan: Plan) -> None:
        _, tail = chains(plan)[0]
        with pytest.raises(ScriptError, match="its rows and units are not those of the product"):
            self.check(plan, {tail.position + 2: tail.n + 1})
