"""The paper's schedule gives the same numbers as vector instructions, from exclusive scripts for single vertices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from vpps.planner.plan import Plan
from vpps.record.arrays import BlockArrays
from vpps.script.disassemble import Decoded, entry_points, instructions
from vpps.script.instructions import Flag

pytestmark = pytest.mark.cpu

SYNCHRONISATION = ("signal", "wait", "barrier", "end")


def streams(plan: Plan) -> list[list[Decoded]]:
    """Return the instructions of each virtual processor."""
    return [list(instructions(plan.script, entry)) for entry in entry_points(plan.script)]


def planned(handle: vpps.Handle, graph: vpps.Graph, loss: vpps.Expression) -> Plan:
    handle.gradients(graph, loss)
    assert handle._engine.plan is not None
    return handle._engine.plan


def alone(stream: list[Decoded]) -> list[Decoded]:
    return [d for d in stream if d.flags & Flag.ALONE]


def test_training_and_growing_graphs_give_the_same_bits() -> None:
    """Random graphs: see test_random_graphs.py."""
    results = []
    for schedule in ("vector", "paper"):
        net = new()
        rule = vpps.Adam(lr=0.01, weight_decay=1e-3)
        with vpps.Handle(net.model, rule, vps=4, schedule=schedule, clip_norm=0.5) as handle:
            losses = net.train(handle, range(8))
            graph = vpps.Graph()
            h = graph.zeros(20)
            states = []
            for word in (3, 1, 4):
                h = net.read(h, word)
                states.append(handle.forward(graph, [h])[0].tobytes())
        results.append((losses, states, net.model.numpy()))
    (losses, states, weights), (paper_losses, paper_states, paper_weights) = results
    assert (losses, states) == (paper_losses, paper_states)
    assert len(set(losses)) == 8
    assert same_bits(weights, paper_weights)


def test_every_vertex_and_op_is_in_one_script() -> None:
    net = new()
    graph, loss = net.batch(seed=3)
    with vpps.Handle(net.model, vps=4, schedule="paper") as handle:
        exclusive = planned(handle, graph, loss)
    assert len(set(entry_points(exclusive.script))) == 4
    with vpps.Handle(net.model, vps=4) as handle:
        shared = planned(handle, graph, loss)
    mine = [d for s in streams(exclusive) for d in alone(s)]
    assert all(d.n == 1 for d in mine)
    names = {d.instruction.name for d in mine}
    assert names > {"tanh", "tanh.grad0", "cross_entropy", "gather_sum"}
    assert not names & {"matvec", "outer"}  # divided among the processors that hold rows of the matrix
    rows = Counter()
    for d in streams(shared)[0]:
        rows[d.instruction.name] += d.n
    written = Counter(d.instruction.name for d in mine)
    for name in names - {"gather_sum"}:  # gather_sum also sums the gradients of table rows, at the end
        assert written[name] == rows[name], name


def test_products_run_where_rows_of_the_matrix_are_held() -> None:
    model = vpps.Model(seed=1)
    with vpps.Handle(model, vps=4, schedule="paper") as handle:
        granule = handle._engine.machine.panel
        W = model.parameter("W", (2 * granule, 8))  # two blocks of rows: two of the four processors hold some
        graph = vpps.Graph()
        losses = [vpps.sum(W @ graph.input(np.ones(8))) for _ in range(3)]
        plan = planned(handle, graph, vpps.sum(losses))
    products = [[d for d in s if d.instruction.name == "matvec" and d.width == 2 * granule] for s in streams(plan)]
    assert sorted(map(len, products)) == [0, 0, 3, 3]
    assert all(d.n == 1 for own in products for d in own)


def test_load_is_shared_evenly_with_products() -> None:
    """A processor with products gets fewer other operations."""
    model = vpps.Model(seed=1)
    p, W = model.parameter("p", (40,), init="normal"), model.parameter("W", (3, 64))  # one block of rows: one owner
    graph = vpps.Graph()
    losses = [vpps.dot(vpps.tanh(graph.input(np.full(40, k))), p) for k in range(30)]
    with vpps.Handle(model, vps=4, schedule="paper") as handle:
        plan = planned(handle, graph, vpps.sum(losses))
        for name in ("tanh", "dot", "dot.grad0"):
            shares = [sum(d.instruction.name == name for d in alone(s)) for s in streams(plan)]
            assert max(shares) - min(shares) <= 1, (name, shares)
        total = sum(np.array([sum(d.width for d in alone(s)) for s in streams(plan)]))
        assert all(abs(sum(d.width for d in alone(s)) - total / 4) < 0.1 * total for s in streams(plan))
        graph = vpps.Graph()
        inputs = [graph.input(np.full(64, k)) for k in range(12)]
        plan = planned(handle, graph, vpps.sum([vpps.sum(W @ x) + vpps.sum(vpps.tanh(x)) for x in inputs]))
    holds = [any(d.instruction.name == "matvec" and d.width == 3 for d in s) for s in streams(plan)]
    tanhs = [sum(d.instruction.name == "tanh" for d in s) for s in streams(plan)]
    assert holds.count(True) == 1
    assert tanhs[holds.index(True)] < min(n for n, held in zip(tanhs, holds, strict=True) if not held)


def test_who_takes_no_part_in_a_level_neither_signals_nor_waits() -> None:
    net = new()
    graph = vpps.Graph()
    loss = vpps.cross_entropy(net.logits(graph, [1, 2, 3, 4, 5, 6]), 0)  # a chain: rarely work for two processors
    with vpps.Handle(net.model, vps=1, schedule="paper") as handle:
        assert not {"signal", "wait", "barrier"} & {
            d.instruction.name for d in streams(planned(handle, graph, loss))[0]
        }
    with vpps.Handle(net.model, vps=4, schedule="paper") as handle:
        plan = planned(handle, graph, loss)
    signals = [sum(d.instruction.name == "signal" for d in s) for s in streams(plan)]
    waits = [sum(d.instruction.name == "wait" for d in s) for s in streams(plan)]
    assert 0 < sum(signals) < 4 * plan.n_barriers / 2
    assert sum(waits) < 4 * plan.n_barriers / 2
    for own in streams(plan):  # a signal only follows work, never another signal or a wait
        names = [d.instruction.name for d in own]
        assert all(names[i - 1] not in SYNCHRONISATION for i, name in enumerate(names) if name == "signal")


def test_disassembly_names_the_call_of_every_vertex() -> None:
    net = new()
    graph, loss = net.batch(seed=5)
    with vpps.Handle(net.model, vps=3, schedule="paper") as handle:
        text = handle.disassemble(graph, loss)
    calls = BlockArrays(list(graph.blocks.values())[1]).calls.tolist()
    tanhs = [line for line in text.splitlines() if "op 'tanh'" in line and "forward" in line]
    assert sorted(int(line.rpartition(" ")[2]) for line in tanhs) == sorted(calls)
