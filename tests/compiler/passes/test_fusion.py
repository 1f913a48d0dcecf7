"""Tails, made by fusing cells: results are bit-identical to those of the unfused instructions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import vpps
from tests.compiler.passes.test_barriers_per_level import gru, lstm, sru, tree_lstm
from tests.kernels import know_gradients, widen
from tests.planner import launches
from tests.simt import models
from vpps.compiler.passes import Passes
from vpps.compiler.passes.fusion import MOST
from vpps.errors import CompileError, ScriptError
from vpps.graph.derive import DERIVED
from vpps.kernel.render import template_dir
from vpps.kernel.spec import KernelSpec, check_numbers
from vpps.ops import OPS, Form
from vpps.placement.distribution import Distribution
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.report.script_report import script_text
from vpps.runtime.simt import SimtMachine
from vpps.script.disassemble import instructions
from vpps.script.tails import NONE, Step, Tail, ViewUse
from vpps.script.verify import verify

pytestmark = pytest.mark.cpu

E = vpps.Expression
Batch = tuple[vpps.Graph, E]
Results = list[object]

UNFUSED = Passes(fusion=False)
FUSED = Passes()


def results(model: vpps.Model, batches: list[Batch], passes: Passes, **options: object) -> Results:
    """Return the bits of losses, gradients and inference results, then of the weights after a step on each batch.

    The `one_kernel` fixture makes a single kernel or tail library serve all kinds of calls.
    """
    found: Results = []
    before, step = {p.name: p.numpy().copy() for p in model}, model.step
    with vpps.Handle(model, passes=passes, example=batches[0], **options) as handle:  # type: ignore[arg-type]
        for graph, loss in batches:
            value, gradients = handle.gradients(graph, loss, train=True)
            found += [value, {name: g.tobytes() for name, g in gradients.items()}]
            found.append(handle.forward(graph, [loss])[0].tobytes())
        for graph, loss in batches:
            handle.fb(graph, loss)
    found += [p.numpy().tobytes() for p in model]
    for p in model:
        p.assign(before[p.name])
    model.step = step  # random numbers depend on it
    return found


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one kernel serve all calls of `results`."""
    widen(monkeypatch, SimtMachine, know_gradients)


def assert_same(model: vpps.Model, batches: list[Batch], *schedules: tuple[int, str], **options: object) -> None:
    """Compare with every (number of virtual processors, schedule); unfused bits depend on neither of these."""
    (vps, schedule), *_ = schedules
    expected = results(model, batches, UNFUSED, vps=vps, schedule=schedule, verify=False, **options)
    for vps, schedule in schedules:
        assert results(model, batches, FUSED, vps=vps, schedule=schedule, **options) == expected, (vps, schedule)


NETWORKS: dict[str, Callable[[], models.Network]] = {
    "tree-lstm": models.tree_lstm,
    "dropout": lambda: models.tree_lstm(dropout=0.4),
    "wide": lambda: models.tree_lstm(hidden=72),  # units are divided, not rows
    "tagger": models.tagger,
    "child-sum": models.child_sum,
    "attention": models.attention,
    "mv-rnn": models.mv_rnn,
    **{build.__name__: lambda build=build: recurrent(build) for build in (gru, sru, lstm, tree_lstm)},  # type: ignore[misc]
}
SCHEDULES = [(1, "vector"), (3, "vector"), (7, "vector"), (2, "paper")]
RUNS: list[tuple[str, list[tuple[int, str]], dict[str, Any]]] = [
    *((name, SCHEDULES, {"target": "cpu"}) for name in NETWORKS),
    *((name, [(3, "vector"), (3, "paper")], {"target": "simt"}) for name in ("tree-lstm", "child-sum", "attention")),
    ("tree-lstm", [(4, "vector")], {"target": "simt", "onchip": vpps.ChipOptions(groups=2)}),
]


def recurrent(build: Callable[[int], tuple[vpps.Model, vpps.Graph, E]]) -> models.Network:
    model, graph, loss = build(5)
    return models.Network(model, lambda seed: (graph, loss), [])


@pytest.mark.usefixtures("one_kernel")
@pytest.mark.parametrize("name, schedules, options", RUNS, ids=lambda x: x.get("target") if type(x) is dict else None)
def test_results_are_those_of_the_unfused_instructions(
    name: str, schedules: list[tuple[int, str]], options: dict[str, Any]
) -> None:
    network = NETWORKS[name]()
    assert_same(network.model, [network.batch(s) for s in (0, 1)], *schedules, **options)


def test_constants_of_a_tail_are_told_apart_by_their_bits() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (4, 4))

    @vpps.cell
    def f(x: E) -> tuple[E, E]:
        y = W @ x
        return vpps.leaky_relu(y, 0.0), vpps.leaky_relu(y, -0.0)

    signs = []
    for passes in (UNFUSED, FUSED):
        with vpps.Handle(model, target="cpu", vps=1, passes=passes) as handle:
            graph = vpps.Graph()
            signs.append(np.signbit(handle.forward(graph, list(f(graph.input(np.ones(4)))))).tolist())
    assert signs[0] == signs[1]
    assert signs[0][0] != signs[0][1]


@pytest.mark.parametrize("target", ["cpu", "simt", "cuda"])
def test_pieces_of_several_instructions_are_not_taken_for_one(target: str) -> None:
    """The zeros for the unread part of `v` are split like a sum and run together with all but one of its pieces."""
    model = vpps.Model(seed=0)
    table = model.lookup("table", (6, 3), init="normal")

    @vpps.cell(elements={"xs": (3,)})
    def cell(v: vpps.Symbol, xs: vpps.Symbol) -> tuple[vpps.Symbol, vpps.Symbol]:
        total = vpps.sum(xs)
        return vpps.concat([total[2:], v[:2]]), total

    graph = vpps.Graph()
    x = graph.input([0.5, -0.25, 1.0])
    last, _ = graph.call(cell, graph.call(cell, x, [graph.lookup(table, 1)])[1], [])
    loss = vpps.dot(last, x)
    example = launches.Example(model, graph, loss, [last])
    for seed in range(3):
        c = launches.draw(Random(seed), (target, 1, "vector"), "depth")._replace(fusion=True)
        for plan in launches.plans(example, c):
            launches.verify(plan)


# ---- every op


def every_elementwise_op() -> tuple[vpps.Model, list[Batch]]:
    """One cell with every op, called three times."""
    model = vpps.Model(seed=2)
    a, b = (model.parameter(name, (70,), init="normal") for name in "ab")

    @vpps.cell
    def everything(s: E) -> E:
        x, y = vpps.tanh(a * s), vpps.sigmoid(b * s) + 0.3
        terms = [-x, x - y, 0.7 * x, vpps.clamp(x, -0.2, 0.3), 1 / y, x / y, (x > y) + (y >= x) + vpps.eq(x, y)]
        terms += [vpps.where(c, x, y) - vpps.where(c, 2, 3) for c in (x > 0.1, x < 0.1, x >= 0, x <= 0, vpps.eq(x, 0))]
        for op in (op for op in DERIVED.values() if op.form is Form.MAP):
            operands = (y if "low" in op.samples else x, 2 * y)[: op.arity]
            terms.append(getattr(vpps, op.name)(*operands) * y)
        return vpps.sum(vpps.tanh(vpps.sum([t * (0.1 * k) for k, t in enumerate(terms)])))

    graph = vpps.Graph()
    loss = vpps.mean([everything(graph.input(np.full((), v))) for v in (0.3, -1.1, 2.0)])
    used = {node.op.name for node in next(c for c in graph.blocks if c.name == "everything").nodes}
    assert used >= {op.name for op in OPS.values() if op.form is Form.MAP} - {"copy"}
    return model, [(graph, loss)]


def test_every_elementwise_op() -> None:
    model, batches = every_elementwise_op()
    assert_same(model, batches, (1, "vector"), (3, "paper"), target="cpu")
    assert_same(model, batches, (2, "vector"), target="simt")


# ---- fusion of cells


class Gated:
    """A cell with three stacked gates, over vectors of any width."""

    def __init__(self, hidden: int = 64, model: vpps.Model | None = None) -> None:
        self.model = vpps.Model(seed=1) if model is None else model
        self.hidden = hidden
        self.U = self.model.parameter(f"U{hidden}", (3 * hidden, hidden))

        @vpps.cell
        def gated(h: E, c: E) -> tuple[E, E]:
            i, f, o = vpps.split(vpps.sigmoid(self.U @ h), 3)
            new = f * c + i * vpps.tanh(c)
            return o * vpps.tanh(new), new

        self.cell = gated

    def batch(self, steps: int = 3) -> Batch:
        graph = vpps.Graph()
        h, c = graph.input(np.full(self.hidden, -0.2)), graph.input(np.full(self.hidden, 0.3))
        for _ in range(steps):
            h, c = self.cell(h, c)
        return graph, vpps.sum(vpps.square(h))


class TestCells:
    def test_long_runs_are_several_tails(self) -> None:
        model = vpps.Model(seed=1)
        W = model.parameter("W", (16, 16))

        @vpps.cell
        def deep(x: E) -> E:
            y = W @ x
            for _ in range(MOST):
                y = vpps.tanh(y) + x
            return y

        graph = vpps.Graph()
        loss = vpps.sum(deep(deep(graph.input(np.full(16, 0.1)))))
        with vpps.Handle(model, target="cpu", train=False, passes=FUSED) as handle:
            handle.forward(graph, [loss])
            assert {len(tail.steps) for tail in handle._engine.plan.tails} == {MOST}
        assert_same(model, [(graph, loss)], (2, "vector"), target="cpu")

    def test_cells_of_one_structure_share_their_tails(self) -> None:
        model = vpps.Model(seed=1)
        wide, narrow = Gated(96, model), Gated(32, model)
        with vpps.Handle(model, target="cpu", vps=1, passes=FUSED) as handle:
            assert len(plan_of(handle, wide).tails) == 2
            assert plan_of(handle, narrow).tails == plan_of(handle, wide).tails

    @pytest.mark.usefixtures("one_kernel")
    @pytest.mark.parametrize("target", ["cpu", "simt"])
    def test_a_new_cell_extends_the_kernel_once(self, target: str, caplog: pytest.LogCaptureFixture) -> None:
        model = vpps.Model(seed=1)
        gated = Gated(32, model)
        x = np.linspace(-1, 1, 32)

        @vpps.cell
        def newcomer(x: E, y: E) -> E:
            return vpps.tanh(x * y) - vpps.sigmoid(gated.U @ x)[:32]

        graph = vpps.Graph()
        loss = vpps.sum(newcomer(graph.input(x), graph.input(x[::-1].copy())))
        expected = results(model, [(graph, loss)], UNFUSED, target=target, vps=2)
        with (
            vpps.Handle(model, target=target, vps=2, passes=FUSED) as handle,
            caplog.at_level("INFO", "vpps.engine.engine"),
        ):
            plan_of(handle, gated)
            found = []
            for _ in range(2):
                value, gradients = handle.gradients(graph, loss)
                found = [value, {name: g.tobytes() for name, g in gradients.items()}]
            plan_of(handle, gated)
        assert found == expected[:2]
        assert [r.message for r in caplog.records] == [
            "after launch 1 a graph needs more than the kernel can do: compiling"
        ]


def plan_of(handle: vpps.Handle, net: Gated) -> Plan:
    graph, loss = net.batch()
    handle.gradients(graph, loss)
    assert handle._engine.plan is not None
    return handle._engine.plan


# ---- scripts and kernels


class TestScripts:
    @pytest.fixture
    def plan(self) -> Plan:
        net = Gated()
        graph, loss = net.batch()
        planner = Planner(Distribution(net.model, 2, 32, 0, train=True), passes=FUSED)
        return planner.plan_training(graph, loss, None, 0)

    def test_the_disassembly_says_what_a_tail_reads_and_writes(self, plan: Plan) -> None:
        line = next(x for x in script_text(plan).splitlines() if " tail" in x and "backward" in x)
        assert re.search(r"views=\(sum of lists \d+ .*\[\d+ step 64\].* to \[\d+ step 192\]", line)
        assert "of cell 'gated'" in line

    @pytest.mark.parametrize(
        "use, word, change, message",
        [
            (ViewUse.READ, 0, lambda address: address + (1 << 20), r"tail .*cell 'gated'.*not a row of one array"),
            (ViewUse.WRITE, 0, lambda address: address + (1 << 20), r"tail .*cell 'gated'.*not a row of one array"),
            (ViewUse.WRITE, 2, lambda use: ViewUse.READ, "its program uses view"),
        ],
    )
    def test_the_verifier_knows_the_views_of_tails(
        self, plan: Plan, use: ViewUse, word: int, change: Callable[[int], int], message: str
    ) -> None:
        verify(plan.script, plan.layout, plan.origin)
        tail = next(d for d in instructions(plan.script, int(plan.script[4])) if d.instruction.name == "tail")
        k = next(k for k, (_, found) in enumerate(tail.fields["views"]) if found == use)  # type: ignore[arg-type]
        position = tail.position + tail.instruction.fixed_words + 3 * k + word
        plan.script[position] = change(int(plan.script[position]))
        with pytest.raises(ScriptError, match=message):
            verify(plan.script, plan.layout, plan.origin)


class TestPrograms:
    PROGRAM = Tail(1, (False, True), 1, (Step("Scale::forward", (1,), 3), Step("Add::forward", (3, 2))), (4, NONE))

    def test_numbers_are_the_same_in_every_process(self) -> None:
        assert self.PROGRAM.name == f"Tail_{self.PROGRAM.number:08x}" == NAME_OF_PROGRAM
        assert replace(self.PROGRAM, stores=(3, NONE)).number != self.PROGRAM.number

    def test_two_of_one_number_are_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tails = [replace(self.PROGRAM, stores=(v, NONE)) for v in (3, 4)]
        check_numbers([replace(tail) for tail in tails])
        monkeypatch.setattr(Tail, "number", 7)
        with pytest.raises(CompileError, match="number 0x7: write one of the cells a little differently"):
            KernelSpec(frozenset(), tails=frozenset(tails))


NAME_OF_PROGRAM = "Tail_73b73fe4"


@pytest.mark.host
@pytest.mark.parametrize("op", [op for op in OPS.values() if op.form is Form.MAP and op.reads], ids=lambda op: op.name)
def test_the_op_table_says_what_device_code_reads(op: object) -> None:
    """Device code does not read an unnamed parameter."""
    assert hasattr(op, "device")
    text = (template_dir() / "ops" / "elementwise.cuh").read_text()
    body = text[text.index(f"struct {op.device} {{") :]
    body = body[: body.index("\n};")]
    for k in range(op.arity):  # type: ignore[attr-defined]
        if k in op.passes or not op.differentiable:  # type: ignore[attr-defined]
            continue
        function = "backward" if op.arity == 1 else f"backward{k}"  # type: ignore[attr-defined]
        found = re.search(rf"\b{function}\(([^)]*)\)", body)
        assert found is not None
        operands = found[1].split(", ")[: op.arity + 1]  # type: ignore[attr-defined]
        letters = [*"ab"[: op.arity], "y"]  # type: ignore[attr-defined]
        reads = "".join(letter for letter, p in zip(letters, operands, strict=True) if p != "float")
        assert reads == op.reads[k]  # type: ignore[attr-defined]
