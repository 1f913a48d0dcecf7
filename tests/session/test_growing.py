"""Graphs that grow between calls of `forward`: only new vertices are computed, with the bits of a full evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import HIDDEN, Classifier, new
from tests.engine.test_parameter_store import interrupt_next_launch
from tests.fuzz import graphs
from tests.fuzz.program import execute
from tests.interruptions import interrupted
from vpps.engine.configuration import Configuration
from vpps.engine.engine import Engine
from vpps.placement.onchip import ChipOptions
from vpps.planner.plan import Plan

pytestmark = pytest.mark.usefixtures("roomy_kernels")
TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]
cpu = pytest.mark.cpu


def present_of(handle: vpps.Handle) -> Any:
    """Return the vertices of the latest forward's graph whose values are still in the pool; None if there are none."""
    plan = handle._engine.plan
    assert plan is not None
    return plan.present


def vertices_of(handle: vpps.Handle) -> int:
    """Return the number of vertices that the latest launch computed."""
    plan = handle._engine.plan
    assert plan is not None
    return len(calls_of(plan))


def calls_of(plan: Plan) -> set[int]:
    """Return the recording indices of the vertices that a plan computes; a cell may be in parts."""
    return {call for b in plan.blocks for call in b.arrays.calls[b.order].tolist()}


class Decoding:
    """A classifier that reads a sentence as it grows, one word at a time.

    Attributes:
        states: the state after each word.
    """

    def __init__(self, net: Classifier, **options: Any) -> None:
        self.net, self.graph, self.options = net, vpps.Graph(), options
        self.other: vpps.Handle | None = None
        self.states, self.words = [self.graph.zeros(HIDDEN)], [0]

    def grow(self, words: int = 1) -> vpps.Expression:
        """Read more words; returns the logits."""
        for _ in range(words):
            self.words.append((3 * self.words[-1] + 1) % 12)
            self.states.append(self.net.read(self.states[-1], self.words[-1]))
        return self.net.model["Wo"] @ self.states[-1] + self.net.model["bo"]

    def step(self, handle: vpps.Handle, words: int = 1) -> None:
        """Read more words and check the logits."""
        logits = self.grow(words)
        self.check(handle.forward(self.graph, [logits], **self.options)[0], handle.target)

    def check(self, found: Any, target: str) -> None:
        """Check that these logits equal those of another handle that reads all words at once."""
        self.other = self.other or vpps.Handle(self.net.model, target=target, train=False)
        graph = vpps.Graph()
        expected = self.other.forward(graph, [self.net.logits(graph, self.words[1:])], **self.options)[0]
        assert found.tobytes() == expected.tobytes()


def check_random_graph(number: int, target: str, onchip: ChipOptions | None = None) -> bool:
    """Run a random program's lines, a few at a time. Returns True if any call kept values in the pool."""
    random = Random(number)
    drawn = graphs.draw(random)
    drawn = replace(drawn, options=drawn.options._replace(fused=target == "cpu" and number % 8 == 7))
    lines = drawn.source()
    made = execute(drawn.program()[: -len(lines)])
    options = eval(f"dict({graphs.open_with(drawn.options.named)})", made) | {"target": target}
    if drawn.paper and onchip is None:
        options["schedule"] = "paper"
    vps = random.choice((1, 2, 3)) * (1 if onchip is None else onchip.groups or 1)
    stayed = False
    with (
        vpps.Handle(made["model"], vps=vps, onchip=onchip, **options) as handle,
        vpps.Handle(made["model"], vps=vps, onchip=onchip, train=False, **options) as other,
    ):
        if onchip is not None:  # the first graph determines the layout on the chip
            whole = execute(lines, **made)
            for h in (handle, other):
                h.forward(whole["graph"], [whole["loss"]])
        growing: dict[str, Any] = execute(lines[:1], **made)
        for stop in range(2, len(lines) - 2):
            growing = execute(lines[stop - 1 : stop], **growing)
            if random.random() < 0.3:
                continue
            graph = growing["graph"]
            known = [k for k, e in growing.items() if isinstance(e, vpps.Expression) and e.owner is graph]
            names = known[-2:] if random.random() < 0.5 else random.sample(known, min(len(known), 3))
            found = handle.forward(graph, [growing[k] for k in names], train=drawn.train)
            stayed |= present_of(handle) is not None
            anew = execute(lines[:stop], **made)
            expected = other.forward(anew["graph"], [anew[k] for k in names], train=drawn.train)
            for name, a, b in zip(names, found, expected, strict=True):
                assert a.tobytes() == b.tobytes(), f"random graph {number}: {name} differs after {stop} lines"
    return stayed


@cpu
@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("part", range(8))
def test_random_graphs_have_the_same_bits(part: int) -> None:
    """Covers all policies, schedules and passes, with dropout and without; every launch is verified."""
    assert sum(check_random_graph(number, "cpu") for number in range(12 * part, 12 * part + 12)) >= 3


@pytest.mark.simt
@pytest.mark.parametrize("groups", [1, 2])
def test_random_graphs_have_the_same_bits_on_simt(groups: int) -> None:
    onchip = None if groups == 1 else ChipOptions(groups=groups)
    stayed = [check_random_graph(number, "simt", onchip) for number in range(1012, 1014)]
    assert any(stayed)


@pytest.mark.parametrize("target", TARGETS)
def test_a_step_computes_that_step_alone(target: str) -> None:
    """The step's plan can be explained even after the graph has grown."""
    net, plans = new(), []
    with vpps.Handle(net.model, target=target, verify=True) as handle:
        decoding = Decoding(net)
        for length in range(1, 9):
            decoding.step(handle)
            assert handle._engine.machine.launches == length
            plans.append(handle._engine.plan)
        decoding.step(handle, words=3)
        assert vertices_of(handle) == 5
    for length, plan in enumerate(plans, 1):
        assert plan is not None
        assert max(calls_of(plan)) == 3 * length  # the zeros come first
        assert len(calls_of(plan)) == (3 if length > 3 else length + 3)


@cpu
def test_lists_and_maps_grow() -> None:
    """Covers vertices with lists, recorded one by one and by maps, in turn or together."""
    model = vpps.Model(seed=2)
    W = model.parameter("W", (5, 5))

    @vpps.cell
    def summed(xs: list[vpps.Expression], x: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(W @ (vpps.sum(xs) + x))

    def values_after(steps: int) -> Iterator[tuple[vpps.Graph, list[vpps.Expression | vpps.Rows]]]:
        rng, graph = np.random.default_rng(3), vpps.Graph()
        values, rows = [graph.input(np.ones(5))], graph.rows(rng.normal(size=(4, 5)))
        for step in range(steps):
            if step % 3 < 2:
                values.append(summed([values[k] for k in rng.integers(0, len(values), 4)], values[-1]))
                values.append(summed([], rows[step % 4]))
            if step % 3:
                ends = np.array([0, 1, 1, 3, 7])
                rows = graph.map(summed, inputs={"xs": (ends, rows[rng.integers(0, 4, 7)]), "x": rows})
            yield graph, [rows, *values[-2:]]

    with vpps.Handle(model, verify=True) as handle, vpps.Handle(model, train=False) as other:
        for step, (graph, wanted) in enumerate(values_after(9), 1):
            found = handle.forward(graph, wanted)
            assert (present_of(handle) is None) == (step < 3)
            *_, (anew, again) = values_after(step)
            for a, b in zip(found, other.forward(anew, again), strict=True):
                assert a.tobytes() == b.tobytes()


@cpu
class TestWhatStays:
    def test_can_be_read(self) -> None:
        net = new()
        with vpps.Handle(net.model, verify=True) as handle:
            decoding = Decoding(net)
            for _ in range(6):
                decoding.step(handle)
            read = [handle.value(state) for state in decoding.states]
            again = handle.forward(decoding.graph, decoding.states)
            assert vertices_of(handle) == 0
        with vpps.Handle(net.model, train=False) as other:
            expected = other.forward(decoding.graph, decoding.states)
        for a, b, c in zip(expected, read, again, strict=True):
            assert a.tobytes() == b.tobytes() == c.tobytes()

    def test_what_was_left_out_before_is_computed_when_it_is_wanted(self) -> None:
        net = new()
        with vpps.Handle(net.model, verify=True) as handle:
            decoding, logits = Decoding(net), []
            for k in range(8):
                logits.append(decoding.grow())
                wanted = logits[-1] if k < 6 else logits[k - 4]  # the newest state is left out, then read
                handle.forward(decoding.graph, [wanted])
            assert vertices_of(handle) == 0
            decoding.step(handle)
            assert vertices_of(handle) == 5  # three states

    def test_needs_a_graph_that_has_grown_twice(self) -> None:
        """Other graphs take no additional memory, and are computed at every request."""
        net = new()
        with vpps.Handle(net.model) as handle:
            decoding = Decoding(net)
            logits = decoding.grow(20)
            for _ in range(4):
                handle.forward(decoding.graph, [logits])
                assert present_of(handle) is None
            decoding.step(handle)
            assert present_of(handle) is None
            decoding.step(handle)
            assert present_of(handle) is not None

    def test_a_pool_that_may_not_hold_it_all_is_no_error(self) -> None:
        net = new()
        with vpps.Handle(net.model, train=False) as handle:
            decoding = Decoding(net)
            for _ in range(30):
                decoding.step(handle)
            plan = handle._engine.plan
            assert plan is not None
            end = plan._library.distribution.end
            needed = plan.pool_floats - end
        with vpps.Handle(net.model, train=False, pool_limit=4 * (end + needed // 2)) as handle:
            decoding, stayed = Decoding(net), []
            for _ in range(30):
                decoding.step(handle)
                stayed.append(present_of(handle) is not None)
        assert any(stayed)
        assert not all(stayed[-4:])


NAMES = {
    "np": np, "vpps": vpps, "HIDDEN": HIDDEN, "Configuration": Configuration,
    "interrupt_next_launch": interrupt_next_launch,
}  # fmt: skip
BATCH = "*net.batch(3)"
HALF = "handle.forward(d.graph, [d.states[-1]], {}=True); handle.backward([np.ones(HIDDEN)])"
EVENTS = {
    "another graph": "g = vpps.Graph(); handle.forward(g, [net.logits(g, [1, 2, 3])])",
    "a new graph": "d.graph = vpps.Graph(); d.states, words, d.words = [d.graph.zeros(HIDDEN)], d.words, [0]\n"
    "d.step(handle, len(words) - 1)",
    "fb": f"handle.fb({BATCH})",
    "accumulation": f"handle.fb({BATCH}, accumulate=True)",
    "gradients": f"handle.gradients({BATCH})",
    "a step of the graph": "handle.fb(d.graph, vpps.sum(d.states[-1]))",
    "a larger pool": "handle.gradients(*net.batch(3, sentences=300))",
    "apply": "handle.apply({'b': np.ones(HIDDEN, np.float32)})",
    "keep": HALF.format("keep"),
    "update": HALF.format("update"),
    "a step that was left out": "before, skipped = model['Wo'].numpy(), handle.skipped\n"
    f"model['Wo'].assign(np.full(before.shape, 3e38)); handle.fb({BATCH})\n"
    "assert handle.skipped == skipped + 1; model['Wo'].assign(before)",
    "assigned": "model['U'].assign(np.eye(HIDDEN))",
    "frozen": "model['U'].trainable ^= True",
    "a parameter": "model.parameter(f'more{len(d.words)}', (7, 7))",
    "averages": "with model.averaged(): d.step(handle); d.step(handle)",
    "another engine": "handle._configurator.configure(Configuration(vps=3, policy='depth'))",
    "a trace": "with handle.trace() as trace: [d.step(handle) for _ in range(4)]\nassert trace.summary()",
    "disassemble": f"handle.disassemble({BATCH})",
    "inspect": f"handle.inspect({BATCH}).script",
    "explain": "handle.explain()",
    "pulled": "model.numpy()",
    "discarded": "handle.discard_accumulated()",
    "a launch that never began": f"with interrupt_next_launch(handle, patch): handle.fb({BATCH})",
    "one of its own": "with interrupt_next_launch(handle, patch): d.step(handle)",
}


@cpu
@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.filterwarnings("ignore:the loss of step")
def test_whatever_comes_in_between(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = new()
    with vpps.Handle(net.model, vps=2, ema=0.9, verify=True) as handle:
        decoding = Decoding(net)
        names = {"net": net, "model": net.model, "d": decoding, "handle": handle, "patch": monkeypatch, **NAMES}
        for _ in range(2):
            for _ in range(4):
                decoding.step(handle)
            assert present_of(handle) is not None
            exec(EVENTS[event], names)
        decoding.step(handle)
        decoding.options["train"] = True  # there is no dropout, but training mode may be on
        for _ in range(4):
            decoding.step(handle)
        assert vertices_of(handle) == 3


@cpu
def test_weights_that_another_thread_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    net = new()
    with vpps.Handle(net.model, train=False, verify=True) as handle:
        decoding = Decoding(net)
        for _ in range(5):
            decoding.step(handle)
        launch = Engine.launch

        def assigned(*args: Any, **options: Any) -> None:
            net.model["U"].assign(np.eye(HIDDEN))
            launch(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(handle._engine, "launch", partial(assigned, handle._engine))
            found = handle.forward(decoding.graph, [decoding.grow()])[0]
        decoding.check(found, "cpu")
        decoding.step(handle)


@cpu
def test_ctrl_c_at_any_point() -> None:
    net = new()
    with vpps.Handle(net.model, train=False) as handle, vpps.Handle(net.model, train=False) as other:
        decodings: list[Decoding] = []

        def work() -> None:
            decodings.append(Decoding(net))
            for _ in range(6):
                logits = decodings[-1].grow()
                handle.forward(decodings[-1].graph, [logits])

        work()
        for _ in interrupted(work, every=151):
            d = decodings.pop() if decodings else Decoding(net)
            d.grow()
            found, expected = (h.forward(d.graph, [d.states[-1]])[0] for h in (handle, other))
            assert found.tobytes() == expected.tobytes()
