"""The verifier knows instructions on lists and matrices: it accepts what the scheduler makes and finds faults in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.script.test_verify import _conflicts, _Races, barriers, check, listing
from vpps.errors import ScriptError
from vpps.placement.distribution import Distribution
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.script.disassemble import Decoded

pytestmark = pytest.mark.host

E = vpps.Expression


def make_plan(vps: int, width: int) -> Plan:
    """Attention, extrema and matrices. A width of 64 is sliced by units of two virtual processors, 8 by rows."""
    model = vpps.Model(seed=1)
    table, tall = model.lookup("table", (9, width)), model.lookup("tall", (4, width, 3))
    W = model.parameter("W", (width, width))

    @vpps.cell
    def node(q: E, M: E, xs: list[E]) -> E:
        ws = vpps.softmax(vpps.each(lambda x: vpps.dot(q, x), xs))
        ps = vpps.log_softmax(vpps.each(lambda x: vpps.tanh(W @ x), xs))
        pooled = vpps.sum(vpps.each(lambda w, x, p: w * x + p, ws, xs, ps)) + vpps.max(ps)
        m = W @ vpps.concat([M, M])[:width]
        return pooled + (m @ m.T) @ q + vpps.outer(q, pooled) @ vpps.tanh(m.T[1])

    graph = vpps.Graph()
    rows = [graph.lookup(table, i) for i in range(9)]
    states = [node(rows[n], graph.lookup(tall, n), rows[: 3 * n + 1]) for n in range(3)]
    states.append(node(states[0], graph.lookup(tall, 3), states))
    optimizer = vpps.SGD(lr=0.1)
    distribution = Distribution(model, vps, 32, len(optimizer.moments), train=True)
    loss = vpps.sum([vpps.sum(s) for s in states])
    return Planner(distribution).plan_training(graph, loss, Update(optimizer, 1, 1, None), 0)


@pytest.mark.parametrize("vps", [1, 2, 3, 7])
@pytest.mark.parametrize("width", [8, 64])
def test_scripts_of_the_scheduler_pass(vps: int, width: int) -> None:
    check(make_plan(vps, width))


@pytest.mark.parametrize("width", [8, 64])
def test_a_wait_that_does_not_wait_is_a_race_where_anything_is_shared(width: int) -> None:
    n, races = len(barriers(make_plan(2, width))), 0
    for which in range(n):
        plan = make_plan(2, width)
        plan.script[barriers(plan)[which].position + 6] = 0  # target 0: already reached
        verifier = _Races(plan.script, plan.layout, plan.origin)
        if _conflicts(plan):
            races += 1
            with pytest.raises(ScriptError, match="race"):
                verifier.run()
        else:
            verifier.run()
    assert races > n // 2


def find(plan: Plan, name: str) -> Decoded:
    return next(d for d in listing(plan) if d.instruction.name == name)


def word(plan: Plan, name: str, field: str) -> int:
    """Position of a field of the first instruction of a name."""
    d = find(plan, name)
    at = d.position + 5
    for f in d.instruction.fields:
        if f.name == field:
            return at
        at += f.kind.words
    raise AssertionError(field)


Damage = Callable[[Plan, NDArray[np.uint32]], None]


def _list_that_ends_before_it_begins(plan: Plan, script: NDArray[np.uint32]) -> None:
    ends = script[word(plan, "list_log_softmax", "elements")]
    script[ends + 1] = script[ends + 2] + 1


def _elements_beyond_the_cell(plan: Plan, script: NDArray[np.uint32]) -> None:
    d = find(plan, "list_log_softmax")
    script[script[word(plan, "list_log_softmax", "elements")] + d.n] += 1 << 20


def _results_where_nothing_is_expected(plan: Plan, script: NDArray[np.uint32]) -> None:
    at = word(plan, "list_log_softmax", "a")
    script[at] = script[word(plan, "list_log_softmax", "dst")]  # it reads where it is about to write


def _matrices_that_do_not_fit(plan: Plan, script: NDArray[np.uint32]) -> None:
    script[word(plan, "matmul", "inner")] += 1


def _rows_that_do_not_fit(plan: Plan, script: NDArray[np.uint32]) -> None:
    script[word(plan, "transpose", "columns")] = 7


def _weights_beyond_the_pool(plan: Plan, script: NDArray[np.uint32]) -> None:
    script[word(plan, "packed_matmul", "weights")] = plan.pool_floats


def _segment_that_is_too_wide(plan: Plan, script: NDArray[np.uint32]) -> None:
    script[word(plan, "packed_matmul_gradient", "x") + 2] += 10_000


@pytest.mark.parametrize(
    "damage, message",
    [
        (_list_that_ends_before_it_begins, "list_log_softmax .*a list ends before it begins"),
        (_elements_beyond_the_cell, r"list_log_softmax .*lists of \d+ rows are longer than there can be"),
        (_results_where_nothing_is_expected, r"list_log_softmax .*reads element \d+, which nothing has written"),
        (_matrices_that_do_not_fit, "matmul .*floats, 4 inside, make no"),
        (_rows_that_do_not_fit, "transpose .*floats are no rows of 7"),
        (_weights_beyond_the_pool, "packed_matmul .*touches element"),
        (_segment_that_is_too_wide, "packed_matmul_gradient .*segments of .* are no 192"),
    ],
)
def test_damage_is_found(damage: Damage, message: str) -> None:
    plan = make_plan(2, 64)
    damage(plan, plan.script)
    with pytest.raises(ScriptError, match=message):
        check(plan)


def test_the_gradient_of_a_parameter_that_only_empty_lists_use_is_written() -> None:
    """It is the sum over no elements, zero, to which the next cell's is added."""
    model = vpps.Model(seed=1)
    b = model.parameter("b", (8,), init="normal")
    lists = vpps.cell(lambda xs, x: vpps.sum(vpps.each(lambda y: y * b, xs)) + x)
    graph = vpps.Graph()
    x = graph.input([1.0] * 8)
    loss = vpps.sum(graph.call(lists, [], x) * b)
    distribution = Distribution(model, 2, 32, 0, train=True)
    check(Planner(distribution).plan_training(graph, loss, None, 0))
