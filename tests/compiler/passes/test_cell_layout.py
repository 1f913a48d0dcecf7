"""Layout inside a cell: orders stacked parameters so that ops on neighbouring rows become one op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vpps
from tests.compiler.passes.cells import NONE, Build, assert_passes_agree, operations, traced
from tests.planner.test_random_graphs import examples
from vpps.compiler.passes.horizontal import find_stacks, horizontal
from vpps.compiler.prepare import live_nodes, parts_of_units, prepare
from vpps.record.trace import TracedCell

H, IN = 32, 16  # rows are whole panels of every instruction set
STACKED = replace(NONE, horizontal=True)
Weights = dict[str, vpps.Parameter]


def gates(model: vpps.Model, name: str, letters: str, columns: int = H) -> Weights:
    """Return a matrix for each gate; a vector if `columns` is zero."""
    shape = (H, columns) if columns else (H,)
    return {g: model.parameter(f"{name}{g}", shape, init="normal") for g in letters}


def counted(cells: list[TracedCell], model: vpps.Model) -> list[Counter[str]]:
    """Count each cell's operations by name, after horizontal fusion."""
    stacks = find_stacks(cells, list(model), 32)
    return [Counter(operations(horizontal(cell, stacks)[0])) for cell in cells]


def stacked(cells: list[TracedCell], model: vpps.Model) -> list[str]:
    return [stack.name for stack in find_stacks(cells, list(model), 32).all]


def lstm(
    model: vpps.Model, biases: Weights, w: str = "ifou", u: str = "ifou", sums: str = "ifou", name: str = ""
) -> Callable[..., Any]:
    """An LSTM whose input products, state products and sums are each written in a different order."""
    W, U = gates(model, f"{name}W", w, IN), gates(model, f"{name}U", u)

    def step(x: vpps.Expression, h: vpps.Expression, c: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression]:
        wx = {g: W[g] @ x for g in w}
        uh = {g: U[g] @ h for g in u}
        gate = {g: wx[g] + uh[g] + biases[g] for g in sums}
        c = vpps.sigmoid(gate["i"]) * vpps.tanh(gate["u"]) + vpps.sigmoid(gate["f"]) * c
        return vpps.sigmoid(gate["o"]) * vpps.tanh(c), c

    return step


# ---- ops that become one


def test_gates_written_in_another_order_are_one_sum():
    model = vpps.Model()
    cell = traced(lstm(model, gates(model, "b", "ifou", 0), "ifou", "uofi", "fiou"), (IN,), (H,), (H,))
    assert stacked([cell], model) == ["Wi+Wf+Wo+Wu", "Ui+Uf+Uo+Uu", "bi+bf+bo+bu"]
    found = counted([cell], model)[0]
    assert (found["affine"], found["add"], found["sigmoid"]) == (2, 3, 1)


def test_two_cells_that_share_biases_agree_on_their_order():
    model = vpps.Model()
    W, U, b = gates(model, "W", "iou", IN), gates(model, "U", "uio"), gates(model, "b", "iou", 0)

    def leaf(x):
        return tuple(vpps.tanh(W[g] @ x + b[g]) for g in "iou")

    def inner(h):
        return tuple(vpps.tanh(U[g] @ h + b[g]) for g in "uio")

    cells = [traced(leaf, (IN,)), traced(inner, (H,))]
    assert stacked(cells, model) == ["Wu+Wi+Wo", "Uu+Ui+Uo", "bu+bi+bo"]
    assert counted(cells, model) == [Counter(affine=1, add=1, tanh=1, slice=3)] * 2


def test_gates_of_one_activation_lie_together():
    model = vpps.Model()
    W = gates(model, "W", "iufo", IN)

    def cell(x, c):
        i, u, f, o = (W[g] @ x for g in "iufo")
        return vpps.sigmoid(o) * (vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * c)

    found = traced(cell, (IN,), (H,))
    (name,) = stacked([found], model)
    assert name.split("+")[1] != "Wu" != name.split("+")[2]
    assert counted([found], model)[0]["sigmoid"] == 1


def test_a_sum_of_some_gates_is_one():
    """A GRU gate by gate: two of the three input products are added to state products."""
    model = vpps.Model()
    W, U, V = gates(model, "W", "rnz", IN), gates(model, "U", "zr"), model.parameter("V", (H, H))

    def step(x, h):
        wr, wn, wz = (W[g] @ x for g in "rnz")
        z, r = vpps.sigmoid(U["z"] @ h + wz), vpps.sigmoid(wr + U["r"] @ h)
        n = vpps.tanh(wn + V @ (r * h))
        return z * h + (1 - z) * n

    cell = traced(step, (IN,), (H,))
    found = counted([cell], model)[0]
    assert (found["affine"], found["add"], found["sigmoid"]) == (3, 3, 1)


def test_what_is_placed_stays_where_no_other_order_is_better():
    """A different order would need a different kernel if weights are on the chip."""
    model = vpps.Model()
    W = gates(model, "W", "ifo", IN)
    sigmoids = traced(lambda x: tuple(vpps.sigmoid(W[g] @ x) for g in "ifo"), (IN,))
    mixed = traced(lambda x: (vpps.sigmoid(W["i"] @ x), vpps.tanh(W["f"] @ x), vpps.sigmoid(W["o"] @ x)), (IN,))
    before = find_stacks([sigmoids], list(model), 32)
    assert [stack.name for stack in before.all] == ["Wi+Wf+Wo"]
    found = find_stacks([mixed], list(model), 32, before=before.orders)
    assert [set(stack.name.split("+")[:2]) for stack in found.all] != [{"Wi", "Wf"}]
    assert find_stacks([sigmoids], list(model), 32, before=found.orders).same_as(found)


def test_part_of_a_stacked_bias_is_read_where_it_is():
    model = vpps.Model()
    W, U, b = gates(model, "W", "ifou", IN), gates(model, "U", "iou"), gates(model, "b", "ifou", 0)
    cells = [
        traced(lambda x: tuple(W[g] @ x + b[g] for g in "ifou"), (IN,)),
        traced(lambda h: tuple(U[g] @ h + b[g] for g in "iou"), (H,)),
    ]
    assert [found["add"] for found in counted(cells, model)] == [1, 1]
    assert [len(name.split("+")) for name in stacked(cells, model)] == [4, 3, 4]


@pytest.mark.parametrize("cut, parts", [(H, (4, 3, 1)), (H // 2, (4, 3, 2))])
def test_a_slice_of_gates_is_dealt_like_them(cut: int, parts: tuple[int, int, int]):
    """If a gate is sliced further, the others are still treated as gates."""
    W = vpps.Model().parameter("W", (4 * H, IN))

    def cell(x: vpps.Expression) -> tuple[vpps.Expression, vpps.Expression]:
        gates = W @ x
        i, f, o = vpps.split(vpps.sigmoid(gates[: 3 * H]), 3)
        u = i * vpps.tanh(gates[3 * H :])
        return vpps.tanh(u + f)[:cut] * 2, o

    found = traced(cell, (IN,))
    nodes, outputs = prepare(found)
    of_nodes = parts_of_units(nodes, live_nodes(nodes, outputs), 1)
    of = {n.op.name: of_nodes[i] for i, n in enumerate(nodes)}
    assert (of["affine"], of["sigmoid"], of["tanh"]) == parts


# ---- results


def network(drawn: list[tuple[str, str, str]]) -> Build:
    """Chains of several LSTMs in turn, with gates in random orders and shared biases."""

    def build(model: vpps.Model) -> tuple[vpps.Graph, vpps.Expression, list[vpps.Expression]]:
        rng = np.random.default_rng(0)
        graph = vpps.Graph()
        biases = gates(model, "b", "ifou", 0)
        cells = [vpps.cell(lstm(model, biases, *orders, name=str(k))) for k, orders in enumerate(drawn)]
        states = []
        for n in (3, 1):
            h = c = graph.zeros(H)
            for k in range(n * len(cells)):
                h, c = cells[k % len(cells)](graph.input(rng.normal(size=IN)), h, c)
                states.append(h)
        return graph, vpps.sum([vpps.dot(s, s) for s in states]), states

    return build


orders = st.permutations("ifou").map("".join)


@pytest.mark.cpu
@examples(4)
@given(st.lists(st.tuples(orders, orders, orders), min_size=1, max_size=2))
def test_gates_in_any_order_give_the_same_bits(drawn: list[tuple[str, str, str]]):
    assert_passes_agree(network(drawn), (NONE, STACKED))


@pytest.mark.cpu
@pytest.mark.parametrize("train", [True, False])
def test_gates_in_any_order_run_as_in_one(train: bool):
    """Instructions and barriers equal those of an LSTM with all gates written in the same order."""
    plans = []
    for written in (("ifou", "ifou", "ifou"), ("iufo", "uofi", "foui")):
        model = vpps.Model(seed=1)
        graph, loss, states = network([written])(model)
        with vpps.Handle(model, vps=2, train=train, passes=replace(STACKED, lazy_batching=True)) as handle:
            if train:
                handle.gradients(graph, loss)
            else:
                handle.forward(graph, states)
            plan = handle._engine.plan
            assert plan is not None
            cells = [b.cell.lowered for b in plan.blocks]
            names = [[Counter(i.name for i in instrs) for instrs in (c.forward, c.backward)] for c in cells]
            plans.append((names, plan.n_barriers))
    assert plans[0] == plans[1]
