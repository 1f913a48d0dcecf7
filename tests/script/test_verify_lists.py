"""The verifier knows instructions on lists and matrices: it accepts what the scheduler makes and finds faults in it."""

from __future__ import annotations

import pytest

import vpps
from tests.script.test_verify import _conflicts, _Races, barriers, check
from vpps.errors import ScriptError
from vpps.placement.distribution import Distribution
from vpps.placement.update import Update
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner

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
