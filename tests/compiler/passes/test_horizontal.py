"""Horizontal fusion: products with the same vector merge if all cells agree; users still see separate parameters."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from tests.compiler.passes.cells import NONE, assert_passes_agree, notes, operations, traced
from tests.interruptions import interrupted
from tests.model.test_checkpoint import rewrite
from tests.planner.test_random_graphs import examples
from vpps.compiler.passes.cell_history import CellHistory
from vpps.compiler.passes.horizontal import find_stacks, horizontal
from vpps.compiler.passes.stacking import Stacking
from vpps.placement.stacks import Stacks
from vpps.reference import Reference, weights_of

H, IN, GATES = 64, 48, "ifou"  # rows are whole panels of every instruction set
ON, OFF = replace(NONE, horizontal=True), NONE


class Gates:
    """An LSTM in textbook form, gate by gate, and a classifier on its last state."""

    def __init__(self, model: vpps.Model, hidden: int = H, inputs: int = IN) -> None:
        self.hidden, self.inputs = hidden, inputs
        self.W = {g: model.parameter(f"W{g}", (hidden, inputs)) for g in GATES}
        self.U = {g: model.parameter(f"U{g}", (hidden, hidden)) for g in GATES}
        self.b = {g: model.parameter(f"b{g}", (hidden,), init="normal") for g in GATES}
        self.out = model.parameter("out", (5, hidden))

    @vpps.cell
    def step(
        self, x: vpps.Expression, h: vpps.Expression, c: vpps.Expression
    ) -> tuple[vpps.Expression, vpps.Expression]:
        """Return the next (h, c)."""
        i, f, o, u = (self.W[g] @ x + self.U[g] @ h + self.b[g] for g in GATES)
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f) * c
        return vpps.sigmoid(o) * vpps.tanh(c), c

    def batch(
        self, seed: int, sequences: int = 3, longest: int = 5
    ) -> tuple[vpps.Graph, vpps.Expression, list[vpps.Expression]]:
        """Record random sequences; returns the graph, the loss and the states."""
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses, states = [], []
        for _ in range(sequences):
            h = c = graph.zeros(self.hidden)
            for _ in range(rng.integers(1, longest + 1)):
                h, c = self.step(graph.input(rng.normal(size=self.inputs)), h, c)
                states.append(h)
            losses.append(vpps.cross_entropy(self.out @ h, int(rng.integers(5))))
        return graph, vpps.sum(losses), states


def stacked(stacks: Stacks) -> list[str]:
    """Return the names of each stack's members."""
    return [stack.name for stack in stacks.all]


# ---- stacked parameters


def test_gates_are_stacked_with_their_biases():
    model = vpps.Model()
    net = Gates(model)
    cell = traced(lambda x, h, c: net.step(x, h, c), (IN,), (H,), (H,))
    stacks = find_stacks([cell], list(model), 32)
    assert stacked(stacks) == ["Wi+Wf+Wo+Wu", "Ui+Uf+Uo+Uu", "bi+bf+bo+bu"]
    found, said = horizontal(cell, stacks)
    assert Counter(operations(found))["affine"] == 2
    assert Counter(operations(found))["add"] == 3  # for all gates; for their biases; for the cell's state
    assert said.startswith("4 products are one: Wi+Wf+Wo+Wu; 4 products are one: Ui+Uf+Uo+Uu; 4 sums are one")
    assert found.nodes[: len(cell.nodes)] != cell.nodes
    assert [n.shape for n in found.nodes[: len(cell.nodes)] if n.op.name == "tanh"] == [(H,), (H,)]


# Cells of 8 x 8 matrices A, B and C, a 16 x 8 matrix D, biases a and b; T is not trained, G has another optimizer.
ALL = "A @ x + B @ x + C @ x"
BIASED = "vpps.tanh(A @ x + a) * (b + B @ x)"
STACKED: list[tuple[list[str], list[str]]] = [
    ([ALL], ["A+B+C"]), (["A @ x, D @ x"], []), (["A @ x, T @ x"], []), (["A @ x, G @ x"], []),
    ([ALL, "C @ x"], ["A+B"]), (["A @ y + B @ y, C @ x", ALL], ["A+B"]), ([ALL, "A @ x, B @ y"], []),
    (["A @ x + (B @ x) * (A @ x)"], []), ([ALL, "(A @ vpps.reshape(vpps.concat([x, y]), (8, 2)))[0]"], ["B+C"]),
    ([BIASED], ["A+B", "a+b"]), ([BIASED, "x * a"], ["A+B"]), ([BIASED, "vpps.tanh(A @ x + b) * (B @ x + a)"], ["A+B"]),
    (["vpps.tanh(A @ x + a) * (B @ x + a)"], ["A+B"]),
]  # fmt: skip


@pytest.mark.parametrize("cells, names", STACKED)
def test_members_are_alike_and_have_the_same_uses(cells: list[str], names: list[str]):
    model = vpps.Model()
    given: dict[str, Any] = {x: model.parameter(x, (16 if x == "D" else 8, 8), trainable=x != "T") for x in "ABCDTG"}
    given |= {x: model.parameter(x, (8,)) for x in "ab"} | {"vpps": vpps}
    made = [traced(lambda x, y, text=text: eval(text, given | {"x": x, "y": y}), (8,), (8,)) for text in cells]

    def found(panel: int) -> Stacks:
        return find_stacks(made, list(model), panel, lambda p: "other" if p.name == "G" else None)

    assert stacked(found(8)) == names
    assert stacked(found(32)) == []  # rows must be whole panels
    if cells == [ALL]:
        assert horizontal(made[0], found(32))[1] == (
            "unstacked, as their rows, training or other uses differ: A and B and C"
        )
    if "a+b" not in names and BIASED in cells:
        assert operations(horizontal(made[0], found(8))[0]).count("add") == 2  # biases are added gate by gate


# ---- results


def one_layer(model: vpps.Model):
    """No vector has a gradient: the weights' sums are the same, stacked or not."""
    A, B = (model.parameter(f"P{k}", (H, IN)) for k in range(2))
    a, b = (model.parameter(name, (H,), init="normal") for name in "ab")

    @vpps.cell
    def layer(x):
        return vpps.sum(vpps.tanh(A @ x + a) * vpps.sigmoid(B @ x + b))

    def batch(seed: int) -> tuple[vpps.Graph, vpps.Expression]:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        return graph, vpps.sum([layer(graph.input(rng.normal(size=IN))) for _ in range(5)])

    return batch


def bits(weights: dict[str, NDArray[np.float32]]) -> dict[str, bytes]:
    return {name: w.tobytes() for name, w in weights.items()}


@pytest.mark.cpu
@pytest.mark.parametrize("optimizer", [vpps.SGD(lr=0.1, weight_decay=0.01), vpps.Adam(lr=0.01)], ids=["SGD", "Adam"])
def test_members_are_trained_as_by_themselves(optimizer: vpps.Optimizer, tmp_path: Path):
    results = []
    for passes in (OFF, ON):
        model = vpps.Model(seed=5)
        batch = one_layer(model)
        with vpps.Handle(model, optimizer, passes=passes, vps=2, ema=0.9) as handle:
            for seed in range(3):
                handle.fb(*batch(seed))
            handle.fb(*batch(3), accumulate=True)
            handle.fb(*batch(4), accumulate=True)
            model.save(tmp_path / "accumulated.safetensors")
            model["P1"].assign(model["P1"].numpy() * 0.5)
            model["b"].assign(np.ones(H))
            gradients = handle.gradients(*batch(9))[1]
            handle.fb(*batch(5))
            model.save(tmp_path / "model.safetensors")
            assert len(handle._engine.store.distribution.stacks.all) == (2 if passes.horizontal else 0)
        results.append(
            [bits(gradients), bits(model.numpy()), bits({p.name: p.average() for p in model})]
            + [bits(m) for m in model.optimizer_state.moments.values()]
            + [bits(load_file(tmp_path / f"{name}.safetensors")) for name in ("model", "accumulated")]
        )
    assert results[0] == results[1]


class Run:
    """Trains with cells that agree on the stacks, and with cells that do not."""

    def __init__(self, model: vpps.Model) -> None:
        self.model = model
        self.net = Gates(model)

    def train(self, handle: vpps.Handle, kinds: tuple[int, ...]) -> dict[str, bytes]:
        for kind in kinds:
            graph, loss, states = self.net.batch(kind)
            if kind == 0:  # a single matrix
                loss = loss + vpps.sum(vpps.tanh(self.net.U["f"] @ states[0]))
            elif kind == 2:  # two gates, in a different order
                U = self.net.U
                two = vpps.cell(lambda h, U=U: vpps.tanh(U["u"] @ h) * vpps.sigmoid(U["i"] @ h))
                loss = loss + vpps.sum(two(states[0]))
            handle.fb(graph, loss)
        return bits(self.model.numpy())

    def handle(self) -> vpps.Handle:
        return vpps.Handle(self.model, vpps.Adam(lr=0.01), target="cpu", vps=2, passes=ON)


@pytest.mark.cpu
@pytest.mark.parametrize("again", ["handle", "model", "restore", "trace"])
@pytest.mark.parametrize("order", [(0, 1, 1, 2), (2, 1, 0, 1)])
def test_a_resumed_run_stacks_what_one_without_a_break_does(again: str, order: tuple[int, ...], tmp_path: Path):
    """Earlier cells determine the stacks, and so the order in which gradients are summed."""
    path = tmp_path / "model.safetensors"
    run = Run(vpps.Model(seed=6))
    with run.handle() as handle:
        at_once = run.train(handle, order)
    for stop in (1, 2):
        run = Run(vpps.Model(seed=6))
        with run.handle() as handle:
            run.train(handle, order[:stop])
            run.model.save(path)
            if again == "trace":  # a different engine runs in between
                with handle.trace():
                    run.train(handle, order[stop:3])
                assert run.train(handle, order[3:]) == at_once
            elif again == "restore":  # the same engine, which has seen other cells in between
                run.train(handle, order[stop:])
                run.model.restore(path)
                assert run.train(handle, order[stop:]) == at_once
        if again == "model":
            run = Run(vpps.Model(seed=0))
            run.model.restore(path)
        if again in ("handle", "model"):
            with run.handle() as handle:
                assert run.train(handle, order[stop:]) == at_once


def aside(kind: str, net: Gates) -> tuple[vpps.Graph, vpps.Expression]:
    """Return a graph whose cell has a product that training does not have."""
    graph, _, states = net.batch(0, 1, 2)
    U = net.U["f"].model["other"] if kind == "another matrix" else net.U["f"]

    @vpps.cell
    def product(h):
        return U @ h if kind != "matrix by matrix" else vpps.reshape(U @ vpps.outer(h, h), (-1,))

    return graph, vpps.sum(vpps.tanh(product(states[0])))


@cache
def trained_beside(kind: str, target: str) -> dict[str, bytes]:
    """Run four steps, each preceded by calls of this kind."""
    model = vpps.Model(seed=6)
    net = Gates(model, hidden=32, inputs=32)
    model.parameter("other", (32, 32))
    seen = []
    with vpps.Handle(model, vpps.Adam(lr=0.01), target=target, vps=4, passes=ON) as handle:
        for step in range(4):
            if kind:
                graph, loss = aside(kind, net)
                expected = Reference(graph, weights_of(model))
                assert relative_error(handle.forward(graph, [loss])[0], expected.value(loss)) <= FORWARD_TOLERANCE
                _, gradients = handle.gradients(graph, loss)
                for name, gradient in expected.backward(loss).items():
                    found = gradients.get(name, np.zeros_like(gradient))
                    assert relative_error(found, gradient) <= GRADIENT_TOLERANCE, name
                handle.inspect(graph, loss)
            graph, loss, _ = net.batch(step, 1, 3)
            handle.fb(graph, loss, accumulate=step == 1)
            seen.append(stacked(handle._engine.store.distribution.stacks))
    assert seen == [["Wi+Wf+Wo+Wu", "Ui+Uf+Uo+Uu", "bi+bf+bo+bu"]] * 4
    return bits(model.numpy())


@pytest.mark.usefixtures("roomy_kernels")
@pytest.mark.parametrize(
    "kind, target",
    [
        *(pytest.param(k, "cpu", marks=pytest.mark.cpu) for k in ("member", "matrix by matrix", "another matrix")),
        pytest.param("matrix by matrix", "simt", marks=pytest.mark.simt),
    ],
)
def test_calls_between_steps_change_no_bit_of_them(kind: str, target: str, monkeypatch: pytest.MonkeyPatch):
    """Only steps determine the stacks and the weights on the chip; other calls use another layout if necessary."""
    monkeypatch.setenv("VPPS_SIMT_RACES", "0")  # kernels compile sooner
    assert trained_beside(kind, target) == trained_beside("", target)


@pytest.mark.host
def test_ctrl_c_while_stacks_are_found_loses_no_cell() -> None:
    model = vpps.Model(seed=6)
    net = Gates(model)
    model.parameter("other", (H, H))
    graphs = [net.batch(0)[0], aside("member", net)[0]]
    stacking = Stacking(model, ON, 1)
    rule = vpps.SGD(lr=0.1)

    def work() -> None:
        nonlocal stacking
        stacking = Stacking(model, ON, 1)
        for graph in graphs:
            stacking.see(graph.blocks, rule)

    work()
    expected = stacked(stacking.stacks)
    assert "Ui+Uo+Uu" in expected
    for came in interrupted(work, every=601):
        assert came
        for graph in graphs:
            stacking.see(graph.blocks, rule)
        assert stacked(stacking.stacks) == expected
        assert len(stacking.history.cells) == len(set(stacking.history.cells)) == 3


def places(x: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return every position in a JSON tree: its container and its key."""
    for key in x if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
        found.append((x, key))
        places(x[key], found)
    return found


@pytest.mark.cpu
@pytest.mark.parametrize("seed", range(2))
def test_a_forged_history_is_refused_or_harmless(seed: int, tmp_path: Path):
    """A history affects only the stacks: training with an accepted history equals training without it."""
    path = tmp_path / "model.safetensors"
    run = Run(vpps.Model(seed=6))
    with run.handle() as handle:
        run.train(handle, (0, 2))
    run.model.save(path)
    intact = path.read_bytes()
    graph, loss, _ = run.net.batch(1)
    with run.handle() as handle:
        expected = handle.gradients(graph, loss)[1]
    values = [None, True, -1, 0, 1, 3, 7, 2**70, 0.5, "Uf", "tanh", "slice", "affine", [], [1], {}, [[3]]]
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(100):
        path.write_bytes(intact)

        def forge(tensors: Any, description: Any) -> None:
            found = places(description["history"], [])
            where, key = found[rng.integers(len(found))]
            if rng.integers(4):
                where[key] = values[rng.integers(len(values))]
            else:
                del where[key]

        rewrite(path, forge)
        try:
            run.model.restore(path)
        except vpps.CheckpointError:
            refused += 1
            continue
        with run.handle() as handle:
            found = handle.gradients(graph, loss)[1]
        assert max(relative_error(found[name], g) for name, g in expected.items()) < 1e-5
    assert refused > 50


@pytest.mark.host
def test_a_history_is_read_as_it_was_written():
    model = vpps.Model(seed=1)
    A, B = (model.parameter(name, (H, 8)) for name in "AB")
    b, E = model.parameter("b", (H,)), model.lookup("E", (5, 8))

    def varied(x: Any, k: Any, xs: Any) -> Any:
        rows = vpps.reshape(vpps.concat([x, vpps.lookup(E, k)]), (2, 8))
        m = vpps.transpose(rows) @ rows
        parts = [A @ x * 0.5 + b, vpps.dropout(B @ x, 0.25)[2 : H - 2], vpps.reshape(m, (64,))]
        attended = vpps.each(lambda y: vpps.tanh(A @ y), xs)
        return vpps.concat(parts), vpps.softmax(vpps.sum(attended)), vpps.lookup(E, 3), vpps.pick(x, 2)

    program = vpps.cell(varied)
    graph = vpps.Graph()
    x = graph.input(np.zeros(8))
    program(x, 1, [x, x])
    cells = [cell for cell in graph.blocks if cell.parameters]
    history = CellHistory(cells, ((B, A),))
    raw = json.loads(json.dumps(history.as_json()))
    again = CellHistory.from_json(raw, {p.name: p for p in model})
    assert again.orders == history.orders
    assert [(c.nodes, c.outputs) for c in again.cells] == [(c.nodes, c.outputs) for c in cells]
    without = CellHistory.from_json(raw, {"A": A, "B": None, "b": b, "E": E})
    assert without == CellHistory([], ((A,),))


@pytest.mark.cpu
def test_cells_that_differ_in_a_number_alone():
    """The ops on a product's parts, each with its own constants, determine if biases are stacked."""
    model = vpps.Model(seed=1)
    A, B = (model.parameter(name, (H, 8)) for name in "AB")
    a, b = (model.parameter(name, (H,), init="normal") for name in "ab")

    def build(s: float, t: float) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        y, z = vpps.cell(lambda x: ((A @ x) * s + a, (B @ x) * t + b))(graph.input(np.arange(8.0)))
        return graph, vpps.sum(y * z)

    with vpps.Handle(model, target="cpu", passes=ON) as handle, vpps.Handle(model, train=False, passes=OFF) as plain:
        for s, t, names in ((2.0, 2.0, ["A+B", "a+b"]), (2.0, 3.0, ["A+B"]), (5.0, 5.0, ["A+B"])):
            graph, loss = build(s, t)
            assert handle.gradients(graph, loss)[0] == plain.forward(graph, [loss])[0]
            assert stacked(handle._engine.store.distribution.stacks) == names


@pytest.mark.cpu
@pytest.mark.parametrize("change", ["cell", "freeze", "group", "freeze all"])
def test_what_no_longer_agrees_is_placed_apart(change: str):
    weights = []
    for passes in (OFF, ON):
        model = vpps.Model(seed=7)
        net = Gates(model)
        rule = vpps.Adam(lr=0.01)
        with vpps.Handle(model, rule, passes=passes) as handle:
            for seed in range(3):
                graph, loss, _ = net.batch(seed)
                handle.fb(graph, loss, accumulate=seed == 2)
            before = stacked(handle._engine.store.distribution.stacks)
            graph, loss, states = net.batch(3)
            changed = []
            if change == "cell":
                loss = loss + vpps.sum(vpps.tanh(net.U["f"] @ states[0]))
            elif change == "group":
                rule.groups = {"Uf": {"lr": 0.1}}
            else:
                changed = [net.U["f"]] if change == "freeze" else [*net.U.values()]
            for frozen in (True, False):
                for p in changed:
                    p.trainable = not frozen
                kept = {p: p.numpy() for p in model}
                for _ in range(2):
                    handle.fb(graph, loss)
                assert [p for p in model if np.array_equal(p.numpy(), kept[p])] == (changed if frozen else [])
                if not frozen or passes is OFF:
                    continue
                assert before == ["Wi+Wf+Wo+Wu", "Ui+Uf+Uo+Uu", "bi+bf+bo+bu"]
                after = stacked(handle._engine.store.distribution.stacks)
                assert after == (before if change == "freeze all" else ["Wi+Wf+Wo+Wu", "Ui+Uo+Uu", "bo+bu"])
                assert change == "freeze all" or "Uf" not in notes(handle, "step")[-1][1]
        weights.append(model.numpy())
    for name, w in weights[0].items():
        assert relative_error(weights[1][name], w) <= 1e-5, name


@pytest.mark.cpu
@examples(17)
@given(
    cells=st.lists(
        st.lists(st.tuples(*(st.integers(0, n) for n in (3, 3, 3, 9))), min_size=1, max_size=7), min_size=1, max_size=3
    )
)
def test_random_products(cells: list[list[tuple[int, int, int, int]]]):
    """Cells agree on some stacks and not on others, or add to only part of a stack."""

    def build(model):
        matrices = [model.parameter(f"P{k}", (32, 32)) for k in range(4)]
        biases = [model.parameter(f"b{k}", (32,), init="normal") for k in range(3)]

        def made_of(drawn):
            @vpps.cell
            def cell(x, xs):
                values = [x, vpps.sum(xs), vpps.tanh(x)]
                for matrix, value, bias, how in drawn:
                    y = matrices[matrix] @ values[value % len(values)]
                    y = y + biases[bias] if bias < 3 else y
                    if how < 3:
                        y = y + matrices[how] @ values[how]
                    elif how < 5:
                        y = values[-1] + y
                    elif how == 5:
                        y = vpps.sum(vpps.each(lambda e, w=matrices[matrix]: vpps.tanh(w @ e) * biases[0], xs)) + y
                    values.append(y if how == 9 else vpps.tanh(y))
                return values[-3:]

            return cell

        rng = np.random.default_rng(0)
        graph = vpps.Graph()
        values = [graph.input(rng.normal(size=32)) for _ in range(3)]
        for drawn in [*cells, *cells]:
            values.extend(made_of(drawn)(values[-1], values[:2]))
        return graph, vpps.sum([vpps.dot(v, values[0]) for v in values]), values

    assert_passes_agree(build, (OFF, ON))


@pytest.mark.simt
@pytest.mark.usefixtures("roomy_kernels")
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"ownership": "round-robin"}])
def test_a_stack_is_what_the_chip_holds(options: dict[str, object]):
    model = vpps.Model(seed=9)
    graph, loss, states = Gates(model, 24, 20).batch(0, sequences=2, longest=3)
    with vpps.Handle(model, target="cpu", passes=OFF) as plain:
        expected = plain.gradients(graph, loss)
        values = [plain.value(s) for s in states]
    with vpps.Handle(model, target="simt", passes=ON, onchip=vpps.ChipOptions(**options)) as handle:
        got = handle.gradients(graph, loss)
        for state, value in zip(states, values, strict=True):
            assert relative_error(handle.value(state), value) <= 1e-5
        assert "Ui+Uf+Uo+Uu" in handle.explain()
        held = {p.name for p, place in handle._engine.store.distribution.physical.items() if place.on_chip is not None}
        assert held >= {"Wi+Wf+Wo+Wu", "Ui+Uf+Uo+Uu"}
        handle.fb(graph, loss)
    assert abs(got[0] - expected[0]) <= 1e-5
    for name, g in expected[1].items():
        assert relative_error(got[1][name], g) <= 1e-4, name
        assert np.isfinite(model[name].numpy()).all()


@pytest.mark.simt
def test_what_the_user_forces_stays_apart():
    model = vpps.Model(seed=9)
    graph, loss, _ = Gates(model, 24, 20).batch(0, sequences=1, longest=2)
    forced = vpps.ChipOptions(tiers={"Uf^T": "L2"})
    with vpps.Handle(model, target="simt", passes=ON, onchip=forced) as handle:
        handle.gradients(graph, loss)
        assert stacked(handle._engine.store.distribution.stacks) == ["Wi+Wf+Wo+Wu", "Ui+Uo+Uu", "bo+bu"]
