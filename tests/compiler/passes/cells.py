"""Shared by tests of passes: cells traced to lists of operations, and equality of results with passes on and off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import vpps
from tests.comparison import relative_error
from vpps.compiler.lower import LoweredCell
from vpps.compiler.passes import Passes, nodes
from vpps.compiler.prepare import live_nodes
from vpps.ops import Form
from vpps.record.trace import Int, List, TracedCell, Vector, trace

NONE = Passes(*[False] * 4)
SCHEDULES = "vector", "paper"
SOURCES = (Form.ARGUMENT, Form.INDEX, Form.PARAMETER)
Build = Callable[[vpps.Model], tuple[vpps.Graph, vpps.Expression, Sequence[vpps.Expression]]]
Results = tuple[float, Mapping[str, NDArray[np.float32]], list[NDArray[np.float32]]]


def traced(function: Callable[..., object], *kinds: object) -> TracedCell:
    """Return a cell's program. kinds: shapes of vectors, `int`, or lists that hold the shape of a list's elements."""
    made = [Int() if k is int else List(k[0]) if isinstance(k, list) else Vector(k) for k in kinds]
    return trace("cell", function, tuple(made), {})


def operations(cell: TracedCell) -> list[str]:
    """Return the names of the operations that results depend on, in order."""
    live = live_nodes(cell.nodes, cell.outputs)
    return [n.op.name for n, used in zip(cell.nodes, live, strict=True) if used and n.op.form not in SOURCES]


def lowered(handle: vpps.Handle, name: str) -> list[LoweredCell]:
    """Return a cell's parts in the latest plan."""
    assert handle._engine.plan is not None
    return [b.cell.lowered for b in handle._engine.plan.blocks if b.cell.cell.name.endswith(name)]


def notes(handle: vpps.Handle, name: str) -> list[tuple[str, str]]:
    """Return the passes' notes on a cell."""
    assert handle._engine.planner is not None
    return next(found for cell, found in handle._engine.planner.cells.notes.items() if cell.name.endswith(name))


def assert_passes_agree(build: Build, several: Sequence[Passes], vps: int = 2, seed: int = 3) -> None:
    """Assert that values are bit-identical under different passes, in training and inference, under both schedules, and
    that gradients are equal up to rounding.

    Args:
        build: makes parameters, graph, loss and values to compare; equal for equal seeds.
        several: the passes; each is compared with the first.
    """
    for schedule in SCHEDULES:
        expected, *others = (results(build, passes, schedule, vps, seed) for passes in several)
        for found in others:
            assert_same(found, expected)


def assert_node_passes_change_no_bit_forward(build: Build) -> None:
    """Compare results with and without constant folding and common subexpressions, which are otherwise always on."""
    for schedule in SCHEDULES:
        found = results(build, NONE, schedule)
        with mock.patch.object(nodes, "NODE_PASSES", ()):
            assert_same(found, results(build, NONE, schedule))


def results(build: Build, passes: Passes, schedule: str, vps: int = 2, seed: int = 3) -> Results:
    """Return the built graph's loss, gradients and values; values are also compared with those from inference."""
    model = vpps.Model(seed=seed)
    graph, loss, values = build(model)
    with vpps.Handle(model, vps=vps, schedule=schedule, passes=passes) as handle:
        got, gradients = handle.gradients(graph, loss)
        kept = [handle.value(e) for e in values]
        for a, b in zip(kept, handle.forward(graph, list(values)), strict=True):
            assert a.tobytes() == b.tobytes()
    return got, gradients, kept


def assert_same(found: Results, expected: Results) -> None:
    """Assert that loss and values are bit-identical, and gradients equal up to rounding."""
    largest = max(float(np.linalg.norm(g)) for g in expected[1].values())
    assert np.float32(found[0]).tobytes() == np.float32(expected[0]).tobytes()
    for a, b in zip(found[2], expected[2], strict=True):
        assert a.tobytes() == b.tobytes()
    for parameter, g in found[1].items():
        e = expected[1][parameter]
        small = float(np.linalg.norm(e)) < 1e-6 * largest
        error = float(np.linalg.norm(g - e)) / largest if small else relative_error(g, e)
        assert error <= 1e-5, parameter
