"""Gradients of strategy "gemm": vectors are gathered, multiplied between two launches, the second makes the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import GRADIENT_TOLERANCE, relative_error
from tests.fuzz import graphs
from tests.fuzz.histories import state
from tests.planner.launches import policy_for
from vpps.errors import ScriptError
from vpps.placement.onchip import ChipOptions, Device
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.plan import Plan
from vpps.reference import Reference, key_of, weights_of
from vpps.runtime.simt import SimtMachine
from vpps.script.disassemble import instructions
from vpps.script.instructions import HEAD_WORDS, HEADER_WORDS
from vpps.script.products import Continuation, PoolRows, Product, entered_at
from vpps.script.verify import verify

pytestmark = [pytest.mark.simt, pytest.mark.usefixtures("roomy_kernels")]

E = vpps.Expression
GEMM = ChipOptions(gradients="gemm")
HIDDEN, EMBEDDING = 18, 17


class Net:
    """Matrices that meet vectors of one cell (V, with nothing to gather), of two (U, concatenations among them), of
    list elements, of vertices and of a parameter (T), and one that is not trained (F)."""

    def __init__(self) -> None:
        self.model = model = vpps.Model(seed=3)
        self.words = model.lookup("words", (9, EMBEDDING), init="normal")
        model.parameter("V", (HIDDEN, EMBEDDING))
        model.parameter("U", (HIDDEN, HIDDEN + EMBEDDING))
        model.parameter("T", (HIDDEN, HIDDEN))
        model.parameter("F", (HIDDEN, HIDDEN), trainable=False)
        for name in ("b", "v"):
            model.parameter(name, (HIDDEN,), init="normal")

    @vpps.cell
    def leaf(self, x: E) -> E:
        return vpps.tanh(self.model["V"] @ vpps.tanh(x) + self.model["b"])

    @vpps.cell
    def grow(self, h: E, x: E) -> E:
        return vpps.tanh(self.model["U"] @ vpps.concat([h, x]) + self.model["F"] @ h)

    @vpps.cell
    def again(self, h: E, x: E) -> E:
        model = self.model
        return vpps.tanh(model["U"] @ vpps.concat([h * h, x]) + model["T"] @ (h + 1.0) + model["T"] @ model["v"])

    @vpps.cell(elements={"hs": (HIDDEN,)})
    def pool(self, hs: list[E]) -> E:
        return vpps.sum(vpps.each(lambda h: vpps.tanh(self.model["T"] @ h), hs)) + self.model["b"]

    def batch(self, kind: str, seed: int = 1) -> tuple[vpps.Graph, E]:
        """Kinds: "all"; "chain", without T; "empty", in which T meets the elements of empty lists alone."""
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        found = []
        for length in (1, 4, 2):
            xs = [graph.lookup(self.words, int(i)) for i in rng.integers(0, 9, length)]
            hs = [self.leaf(x) for x in xs]
            for h, x in zip(list(hs), xs, strict=True):
                hs.append(self.grow(h, x))
            if kind == "all":
                hs += [self.again(h, x) for h, x in zip(hs, xs, strict=False)]
            if kind != "chain":
                hs.append(graph.call(self.pool, hs[: length - 1] if kind == "all" else []))
            found += [vpps.mse(h, graph.input(rng.normal(size=HIDDEN))) for h in hs]
        return graph, vpps.sum(found)


KINDS = ("all", "chain", "empty")


def plan_of(handle: vpps.Handle) -> Plan:
    """The latest one."""
    assert handle._engine.plan is not None
    return handle._engine.plan


def products_of(plan: Plan) -> dict[str, Product]:
    """By the parameter's name."""
    assert plan.continuation is not None
    return {product.name: product for product in plan.continuation.products}


class TestGradients:
    @pytest.mark.parametrize("vps, schedule", [(1, "vector"), (3, "vector"), (3, "paper")])
    def test_are_those_of_the_reference(self, vps: int, schedule: str) -> None:
        net = Net()
        with vpps.Handle(net.model, target="simt", vps=vps, schedule=schedule, onchip=GEMM) as handle:
            for kind in KINDS:
                graph, loss = net.batch(kind)
                expected = Reference(graph, weights_of(net.model)).backward(loss)
                value, found = handle.gradients(graph, loss)
                assert value == pytest.approx(float(Reference(graph, weights_of(net.model)).value(loss)), rel=1e-5)
                untouched = {"all": {"F"}, "empty": {"F", "v"}, "chain": {"F", "v", "T"}}[kind]
                assert {p.name for p in net.model} - found.keys() == untouched
                for p in (p for p in net.model if p.name in found):
                    assert relative_error(found[p.name], expected[p.name]) < GRADIENT_TOLERANCE, (kind, p.name)
                plan = plan_of(handle)
                assert plan.launches == 1, "without an update nothing is left for a second launch"
                assert products_of(plan).keys() == ({"U", "V"} if kind == "chain" else {"T", "U", "V"})
                assert "outer" not in plan.instructions

    def test_vectors_that_lie_side_by_side_stay_where_they_are(self) -> None:
        net = Net()
        with vpps.Handle(net.model, target="simt", vps=3, onchip=GEMM) as handle:
            handle.gradients(*net.batch("all"))
            text = handle.disassemble(*net.batch("all"))
        copies = [line for line in text.splitlines() if "vectors for the gradient of" in line]
        for name, n in (("V", 0), ("U", 2 * 3), ("T", 3 * 2)):  # three cells multiply T; concatenations have two parts
            assert sum(f"gradient of {name!r}" in line for line in copies) == n, name
        assert len(copies) == 12

    def test_zero_rows_give_zero(self) -> None:
        net = Net()
        with vpps.Handle(net.model, target="simt", vps=3, onchip=GEMM) as handle:
            _, before = handle.gradients(*net.batch("all"))
            _, found = handle.gradients(*net.batch("empty"))
            assert products_of(plan_of(handle))["T"].n == 0
        assert before["T"].any()
        assert not found["T"].any()
        assert found["U"].any()


TRAININGS: dict[str, Callable[[], dict[str, Any]]] = {
    "sgd": lambda: {"optimizer": vpps.SGD(lr=0.05)},
    "clipped": lambda: {"optimizer": vpps.Adam(lr=0.01), "clip_norm": 0.3},
    "averaged": lambda: {"optimizer": vpps.Adam(lr=0.01), "ema": 0.9},
}


def train(net: Net, accumulate: bool, **options: Any) -> tuple[list[float], list[int]]:
    """Trains on batches of all kinds; losses, and launches of each call."""
    losses, launches = [], []
    with vpps.Handle(net.model, **options) as handle:
        for step, kind in enumerate(("all", "chain", "empty", "all", "chain", "chain")):
            handle.fb(*net.batch(kind, seed=step), accumulate=accumulate and step % 3 < 2)
            losses.append(handle.sync_get_latest_loss())
            launches.append(plan_of(handle).launches)
    return losses, launches


def assert_trains_as_on_cpu(accumulate: bool, training: str, target: str = "simt", **options: Any) -> list[int]:
    """The losses, and in the end weights, moments and averages; launches of each call."""
    net, witness = Net(), Net()
    losses, launches = train(net, accumulate, target=target, **{"vps": 3, **options, **TRAININGS[training]()})
    expected, _ = train(witness, accumulate, target="cpu", vps=2, **TRAININGS[training]())
    assert np.allclose(losses, expected, rtol=1e-4)
    found = state(net.model)
    for name, value in state(witness.model).items():
        assert relative_error(found[name], value.astype(float)) < (1e-3 if name[:2] in ("m/", "v/") else 1e-4), name
    return launches


class TestTraining:
    @pytest.mark.parametrize("accumulate", [False, True])
    @pytest.mark.parametrize("training", TRAININGS)
    def test_goes_as_on_cpu(self, training: str, accumulate: bool) -> None:
        """Among the updates is one whose batch leaves out a matrix that holds gradients."""
        launches = assert_trains_as_on_cpu(accumulate, training, onchip=GEMM)
        assert launches == ([1, 1, 2] * 2 if accumulate else [2] * 6)

    @pytest.mark.parametrize("clip_norm", [None, 1.0])
    def test_steps_that_need_no_product_are_made_in_the_first_launch(self, clip_norm: float | None) -> None:
        """None where gradients are clipped."""
        net = Net()
        with vpps.Handle(net.model, target="simt", vps=3, clip_norm=clip_norm, onchip=GEMM) as handle:
            text = handle.disassemble(*net.batch("all"))
        first, _, rest = text.partition("; then, outside the kernel")
        products, _, second = rest.partition("; then a second launch")
        assert [line.rpartition("gradient of ")[2] for line in products.strip().splitlines()] == ["'V'", "'U'", "'T'"]
        early, late = (second, "") if clip_norm else (first, second)
        assert "update" not in first if clip_norm else "clip" not in text
        assert "update_vector" in early
        assert "update_rows" in early
        assert "update_vector" not in late
        assert "update_matrix" not in first
        assert second.count("update_matrix.sgd.owned") == 3

    def test_runs_are_equal_to_the_last_bit_with_any_schedule(self) -> None:
        found = []
        for schedule in ("vector", "paper"):
            net = Net()
            train(net, False, target="simt", vps=3, onchip=GEMM, schedule=schedule, optimizer=vpps.Adam(lr=0.01))
            found.append(net.model.numpy())
        assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


class TestSomeMatricesOnly:
    """A matrix that neither the chip nor its second-level cache holds gets a product, others keep what they have."""

    @pytest.fixture(autouse=True)
    def small_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        device = SimtMachine.device.fget  # type: ignore[attr-defined]

        def smaller(machine: SimtMachine) -> Device:
            found: Device = device(machine)
            return replace(found, l2_bytes=4 * HIDDEN * HIDDEN)

        monkeypatch.setattr(SimtMachine, "device", property(smaller))

    @pytest.mark.parametrize("training", ["sgd", "clipped"])
    @pytest.mark.parametrize("accumulate", [False, True])
    def test_goes_as_on_cpu(self, training: str, accumulate: bool) -> None:
        large = ChipOptions(tiers={"U": "L2", "U^T": "L2"})
        launches = assert_trains_as_on_cpu(accumulate, training, onchip=large)
        assert launches == ([1, 1, 2] * 2 if accumulate else [2] * 6)

    @pytest.mark.parametrize("clip_norm", [None, 1.0])
    def test_what_the_chip_keeps_outlives_the_first_launch_only_if_it_must(self, clip_norm: float | None) -> None:
        net = Net()
        large = ChipOptions(tiers={"U": "L2", "U^T": "L2"})
        with vpps.Handle(net.model, target="simt", vps=3, clip_norm=clip_norm, onchip=large) as handle:
            handle.gradients(*net.batch("all"))
            assert products_of(plan_of(handle)).keys() == {"U"}
            text = handle.disassemble(*net.batch("all"))
        first, _, second = text.partition("; then a second launch")
        kept = 2 if clip_norm else 0  # V and T
        assert (first.count("store_gradient.owned"), second.count("load_gradient.owned")) == (kept, kept)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of a step that clips gradients."""
    net = Net()
    with vpps.Handle(net.model, target="simt", vps=3, clip_norm=1.0, onchip=GEMM) as handle:
        handle.fb(*net.batch("all"))
        handle.sync_get_latest_loss()
        return plan_of(handle)


class TestVerifier:
    """What follows the first launch is checked with it, as one history."""

    def test_accepts_what_is_planned(self, plan: Plan) -> None:
        verify(plan.script, plan.layout, plan.origin, plan.continuation)

    def test_products_are_missed(self, plan: Plan) -> None:
        assert plan.continuation is not None
        for left_out in range(3):
            products = tuple(p for k, p in enumerate(plan.continuation.products) if k != left_out)
            with pytest.raises(ScriptError, match=r"squares_matrix.*which nothing has written"):
                verify(plan.script, plan.layout, plan.origin, plan.continuation._replace(products=products))

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda p: {"n": p.n + 1}, "are no row of one array|nothing has written"),
            (lambda p: {"x": PoolRows(p.x.address + 1, p.x.stride)}, "of X from .* are no row of one array"),
            (lambda p: {"dy": PoolRows(1 << 30, p.dy.stride)}, "of dY from .* are no row of one array"),
            (lambda p: {"gradient": p.gradient + 1}, "of G from .* are no row of one array"),
            (lambda p: {"accumulate": True}, "of G, which nothing has written"),
        ],
    )
    def test_products_of_what_is_not_there_are_refused(
        self, plan: Plan, change: Callable[[Product], dict[str, Any]], message: str
    ) -> None:
        wrong = products_of(plan)["U"]
        wrong = wrong._replace(**change(wrong))
        assert plan.continuation is not None
        with pytest.raises(ScriptError, match=f"the product for the gradient of 'U': .*({message})"):
            verify(plan.script, plan.layout, plan.origin, Continuation((wrong,), plan.continuation.entries))

    def test_a_wait_of_the_second_launch_that_does_not_wait_is_found(self, plan: Plan) -> None:
        assert plan.continuation is not None
        script = plan.script.copy()
        entry = int(entered_at(script, plan.continuation.entries)[HEADER_WORDS])
        (wait,) = (d for d in instructions(script, entry) if d.instruction.name == "barrier")
        script[wait.position + HEAD_WORDS + 1] = 0  # its target
        with pytest.raises(ScriptError, match=r"clip.*(race|which nothing has written)"):
            verify(script, plan.layout, plan.origin, plan.continuation)


@pytest.mark.parametrize("schedule", ["vector", "paper"])
def test_random_graphs_make_the_step_of_the_reference(schedule: str) -> None:
    two_launches = 0
    for number in range(302, 306):
        random = Random(number)
        model, graph, _, loss = graphs.draw(random).build()
        policy = random.choice(list(POLICIES))
        before = weights_of(model)
        expected = Reference(graph, before, key_of(model)).backward(loss)
        with vpps.Handle(
            model, vpps.SGD(lr=1.0), target="simt", vps=2, policy=policy_for(policy, graph), schedule=schedule,
            onchip=GEMM, passes=vpps.Passes(fusion=False),
        ) as handle:  # fmt: skip
            handle.fb(graph, loss)
            plan = handle._engine.plan
            assert plan is not None
            two_launches += plan.launches == 2
        largest = max(float(np.linalg.norm(g)) for g in expected.values())
        for p in model:
            step = expected[p.name] if p.trainable else np.zeros(p.shape)
            error = float(np.linalg.norm(before[p.name] - p.numpy() - step))
            assert error <= GRADIENT_TOLERANCE * largest + 1e-6 * float(np.linalg.norm(before[p.name])), (number, p)
    assert two_launches >= 3
