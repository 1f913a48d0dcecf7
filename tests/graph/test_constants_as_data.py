"""Constants of bare ops are data: a new value needs no new program, and gives the same bits as a cell's constant."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import vpps
from tests.fuzz import constants
from vpps.record import trace

pytestmark = pytest.mark.cpu
X = np.array([-np.inf, -2.5, -1.0, -1e-40, -0.0, 0.0, 1e-40, 0.3, 1.0, 2.5, np.inf, np.nan], np.float32)
FINITE = X[1:-2]
WITH_GRADIENT = ("low", "high")
CONSTANTS = (0.0, -0.0, 0.3, -2.5, 1e-45, 1e39, -np.inf)
OPS: dict[str, Callable[[Any, float], Any]] = {
    "low": lambda x, c: vpps.clamp(x, low=c), "high": lambda x, c: vpps.clamp(x, high=c), "above": lambda x, c: x > c,
    "below": lambda x, c: x < c, "not below": lambda x, c: x >= c, "not above": lambda x, c: x <= c,
    "equals": lambda x, c: vpps.eq(x, c), "chosen": lambda x, c: vpps.where(x > 0, c, x),
    "otherwise": lambda x, c: vpps.where(x > 0, x, c), "over": lambda x, c: c / x,
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_bits_are_those_of_constants_in_a_cell(name: str) -> None:
    """Covers values and gradients, for expressions and for rows."""
    with vpps.Handle(vpps.Model(), vpps.SGD(lr=0.1), target="cpu", vps=1) as handle:
        for c in CONSTANTS:
            forms = [vpps.cell(lambda x, c=c: OPS[name](x, c)), lambda x, c=c: OPS[name](x, c)]
            graph = vpps.Graph()
            inputs = [(graph.input(X), graph.rows(X.reshape(3, 4))) for _ in forms]
            values = [handle.forward(graph, [form(x) for x in of]) for form, of in zip(forms, inputs, strict=True)]
            assert all(map(_same, *values)), (name, c)
            if name in WITH_GRADIENT and abs(c) < 10:
                graph = vpps.Graph()
                inputs = [(graph.input(FINITE, grad=True), graph.rows(FINITE[:, None], grad=True)) for _ in forms]
                made = [(form(x), form(rows)) for form, (x, rows) in zip(forms, inputs, strict=True)]
                handle.gradients(graph, vpps.sum([vpps.sum(x) + vpps.sum(vpps.sum(rows)) for x, rows in made]))
                of_cell, of_ops = ([handle.input_gradient(x) for x in of] for of in inputs)
                assert all(map(_same, of_cell, of_ops)), (name, c)


def _same(a: Any, b: Any) -> bool:
    a, b = (np.asarray(x, np.float32) for x in (a, b))
    return np.array_equal(np.isnan(a), np.isnan(b)) and np.array_equal(
        np.where(np.isnan(a), 0, a).view(np.uint32), np.where(np.isnan(b), 0, b).view(np.uint32)
    )


@pytest.mark.parametrize("options", [*constants.OPTIONS, "'simt', vps=2"])
def test_other_values_are_planned_by_one_program(options: str) -> None:
    """Bare ops, redefined cells, and keywords give the bits of one program per value, in another handle."""
    ops = tuple(range(len(constants.OPS)))
    steps = tuple(tuple((0.1 + 0.07 * k + 0.05 * op) * (-1) ** op for op in ops) for k in range(3))
    constants.Constants(ops, steps, options, 1).check()


def _trained(target: str, changing: bool = True) -> tuple[Any, ...]:
    """Train a recurrence in parts; returns results, reports, numbers of programs (in the history, alive, planned)."""
    gc.collect()  # garbage of earlier tests, which could otherwise be freed while programs are counted
    model, found, alive = vpps.Model(seed=1), [], []
    U, V, T = model.parameter("U", (8, 8)), model.parameter("V", (8, 8)), model.lookup("T", (5, 8))
    with vpps.Handle(model, vpps.Adam(lr=0.01), target=target, vps=2) as handle:
        for k in range(9):
            graph, t = vpps.Graph(), 0.9 - 0.01 * k * changing

            def step(word: Any, h: Any, t: float = t) -> Any:
                x = vpps.leaky_relu(V @ vpps.lookup(T, word), t / 3)
                return vpps.tanh(vpps.dropout(vpps.clamp(x + U @ h, -t, t), t / 2))

            h = graph.map(vpps.cell(step), children=[-1, 0, 1], inputs={"word": [k % 5, 1, 2]}, state=[8])[-1]
            loss = vpps.sum(vpps.square(vpps.dropout(h, t / 4)))
            handle.fb(graph, loss)
            said = handle.inspect(graph, loss).cell
            assert f"rate={t / 2!r}" in said
            found.append((said, handle.sync_get_latest_loss(), *(x.tobytes() for x in model.numpy().values())))
            alive.append(sum(type(o) is trace.TracedCell for o in gc.get_objects()))
        planned = len(handle._engine.planner.cells.notes)
    return found, len(model.cell_history.as_json()["cells"]), {*alive[5:]}, planned


@pytest.mark.parametrize("target", ["cpu", "simt"])
def test_training_with_constants_that_change(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, in_history, alive, planned = _trained(target)
    assert (in_history, len(alive), planned) == (1, 1, _trained(target, changing=False)[-1])
    monkeypatch.setattr(trace, "_OPEN", ())
    assert found == _trained(target)[0]


@pytest.mark.parametrize("in_example", [False, True])
def test_constants_of_bounds_move_no_mask_of_dropout(in_example: bool) -> None:
    """Also covers `relu`, which is one vertex."""
    model = vpps.Model(seed=3)
    found = []
    with vpps.Handle(model, vpps.SGD(lr=0.1), target="cpu", vps=1) as handle:
        for bounded in (False, True):
            graph = vpps.Graph()
            with graph.example(4) if in_example else nullcontext():
                x = graph.input(np.ones(200), grad=True)
                y = vpps.dropout(vpps.clamp(x, low=0.0) if bounded else vpps.relu(x), 0.5)
            handle.gradients(graph, vpps.sum(y), train=True)
            found.append(handle.value(y))
    assert np.array_equal(*found)
    assert 0 < found[0].sum() < 400
