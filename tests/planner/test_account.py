"""A plan tells the origin of each word in its script on request, at any time, without effect on other plans."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import vpps
from tests.classifier import new
from tests.planner import golden, launches
from tests.zoo.cases import CASES
from vpps.placement.distribution import Distribution
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.disassemble import instructions

pytestmark = pytest.mark.cpu

RULE = vpps.SGD(lr=0.1)
BARRIERS = ("barrier", "signal", "wait")
OF_THE_END = {  # instructions that belong to no cell: their names in messages, without the parameter
    "forward": {"loss", "input", "load"},
    "backward": {"load"},  # if backward is a separate launch
    "gradients": {"load_gradient", "store_gradient", "gather_sum", "guard"},
    "update": {"guard", "clip", "load_gradient", "squares_matrix", "squares_rows"},
}


def planner_of(model: vpps.Model) -> Planner:
    return Planner(Distribution(model, 2, 32, 0, train=True))


def check(plan: Plan) -> None:
    """Check that every instruction matches its section."""
    end = len(plan.script)
    for start, stream in reversed(plan.streams):
        assert start + stream.words == end
        end = start
        found = list(instructions(plan.script, start))
        assert found[-1].position + found[-1].words == start + stream.words
        sections = iter(stream.sections)
        at = 0
        while at < len(found):
            s = next(sections)
            assert start + s.start == found[at].position
            if s.group is None:
                name = found[at].instruction.name
                if s.first:
                    assert name in BARRIERS
                    assert int(s.first) > 0
                elif s.phase:
                    called = s.phase.partition(" of ")[0]
                    assert name.removeprefix("held_") == called
                    assert called in OF_THE_END[s.during] or (s.during == "update" and called.startswith("update_"))
                else:
                    assert name in ("end", *BARRIERS)
                at += 1
                continue
            assert s.block is not None
            for row in [s.first] if isinstance(s.first, int) else s.first.tolist():
                assert 0 <= row < len(s.block.order)
                for _, instr in s.group.starts:
                    assert found[at].instruction.name == instr.instruction.name
                    at += 1
        assert next(sections, None) is None
    spans = plan.account.lists
    assert np.all(spans[:, 0] <= spans[:, 1])
    assert np.all(spans[1:, 0] >= spans[:-1, 1])
    assert spans[-1, 1] <= end


@pytest.mark.parametrize("target, groups, schedule", launches.MACHINES)
def test_every_instruction_is_what_its_section_says(target: str, groups: int, schedule: str) -> None:
    for name in golden.NAMES[groups :: 32 if schedule == "paper" else 16]:
        random = Random(f"{name} {schedule}")
        c = launches.draw(random, (target, groups, schedule), "sinks-last")
        for plan in launches.plans(golden.example(name), c):
            check(plan)


def test_words_name_cells_ops_parameters_and_calls() -> None:
    net = new()
    graph, loss = net.batch(1)
    plan = planner_of(net.model).plan_training(graph, loss, Update(RULE, 1, 1, 0.5), 0)
    start, stream = plan.streams[0]
    said = [plan.origin(start + s.start) for s in stream.sections]
    assert "loss" in said
    assert "clip" in said
    assert "squares_matrix of 'W'" in said
    assert "update_rows.sgd of 'words'" in said
    assert any(x.startswith("barrier") and x.endswith("before the update") for x in said)
    assert any(x.startswith("gradient of 'U' of cell 'Classifier.read', op 'add', from call") for x in said)
    (before_clipping,) = (s for s in stream.sections if s.phase == "before clipping")
    where = plan.whereabouts(start + before_clipping.start)
    assert where.startswith(f"barrier {before_clipping.first}, before clipping, after gradient of ")
    assert plan.origin(3) == plan.whereabouts(3) == ""


def test_a_plan_is_that_of_the_vertices_at_the_time() -> None:
    """Vertices of rows, and of cells that are first used later, do not change it."""
    for name in ("tree-lstm", "nmt with attention"):
        task, graph = CASES[name].make(limit=5), vpps.Graph()
        loss = task.loss(graph, task.train[:])
        planner = planner_of(task.model)
        plan, before = (planner.plan_training(graph, loss, None, 0) for _ in range(2))
        inference, as_well = (planner.plan_forward(graph, [loss]) for _ in range(2))
        said = [texts(before), texts(as_well)]
        del planner
        task.outputs(graph, task.train[:])  # the graph grows
        vpps.sum(vpps.cell(lambda x: vpps.sigmoid(x))(graph.input(np.ones(3))))
        assert [texts(plan), texts(inference)] == said
        assert np.array_equal(plan.account.lists, before.account.lists)
        assert np.array_equal(plan.account.memory, before.account.memory)
        with pytest.raises(AttributeError, match="colour"):
            plan.colour  # type: ignore[attr-defined] # noqa: B018


def texts(plan: Plan) -> list[str]:
    return [plan.origin(start + s.start) for start, stream in plan.streams for s in stream.sections]


def test_words_of_values_may_be_others_meanwhile_but_no_positions() -> None:
    net = new()
    rule = vpps.Adam(lr=0.1)
    planner = Planner(Distribution(net.model, 2, 32, 2, train=True), "depth", "vector", None)
    graph, loss = net.batch(1)
    plan, other = (planner.plan_training(graph, loss, Update(rule, 1, 1, None), 0) for _ in range(2))
    rule.lr = 0.5
    check(plan)
    rule.groups["W*"] = {"lr": 0.3}
    planner.plan_training(graph, loss, Update(rule, 2, 2, None), 0)
    with pytest.raises(vpps.ScriptError, match="hyper-parameter groups were added"):
        other.origin(100)
