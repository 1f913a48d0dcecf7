"""What tests of passes share: traced cells as lists of operations, and equality of results with a pass on and off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

import vpps
from tests.comparison import relative_error
from vpps.compiler.lower import LoweredCell
from vpps.compiler.passes import Passes
from vpps.compiler.prepare import live_nodes
from vpps.ops import Form
from vpps.record.trace import Int, List, TracedCell, Vector, trace

NONE = Passes(*[False] * 10)
SOURCES = (Form.ARGUMENT, Form.INDEX, Form.PARAMETER)
Build = Callable[[vpps.Model], tuple[vpps.Graph, vpps.Expression, Sequence[vpps.Expression]]]


def traced(function: Callable[..., object], *kinds: object) -> TracedCell:
    """A cell's program; kinds are shapes of vectors, `int`, or lists that hold the shape of a list's elements."""
    made = [Int() if k is int else List(k[0]) if isinstance(k, list) else Vector(k) for k in kinds]
    return trace("cell", function, tuple(made), {})


def operations(cell: TracedCell) -> list[str]:
    """Names of the operations that results depend on, in order."""
    live = live_nodes(cell.nodes, cell.outputs)
    return [n.op.name for n, used in zip(cell.nodes, live, strict=True) if used and n.op.form not in SOURCES]


def lowered(handle: vpps.Handle, name: str) -> list[LoweredCell]:
    """What the latest plan has of a cell, part by part."""
    assert handle._engine.plan is not None
    return [b.cell.lowered for b in handle._engine.plan.blocks if b.cell.cell.name.endswith(name)]


def notes(handle: vpps.Handle, name: str) -> list[tuple[str, str]]:
    """What passes say of a cell."""
    assert handle._engine.planner is not None
    return next(found for cell, found in handle._engine.planner.cells.notes.items() if cell.name.endswith(name))


def only(name: str) -> Passes:
    """One pass switched on."""
    return replace(NONE, **{name: True})


def assert_pass_changes_no_bit_forward(build: Build, name: str, vps: int = 2, seed: int = 3) -> None:
    """See `assert_passes_agree`: with nothing but one pass, and without it."""
    assert_passes_agree(build, (NONE, only(name)), vps, seed)


def assert_passes_agree(build: Build, several: Sequence[Passes], vps: int = 2, seed: int = 3) -> None:
    """Values are equal to the bit with some passes and with others, in training and inference, under both schedules;
    gradients to rounding.

    Args:
        build: makes parameters, graph, loss and values to compare; the same ones for equal seeds.
        several: the passes; the first are what the others are compared with.
    """
    for schedule in ("vector", "paper"):
        results = []
        for passes in several:
            model = vpps.Model(seed=seed)
            graph, loss, values = build(model)
            with vpps.Handle(model, vps=vps, schedule=schedule, passes=passes) as handle:
                got, gradients = handle.gradients(graph, loss)
                kept = [handle.value(e) for e in values]
                for a, b in zip(kept, handle.forward(graph, list(values)), strict=True):
                    assert a.tobytes() == b.tobytes()
            results.append((got, gradients, kept))
        expected, expected_gradients, expected_values = results[0]
        largest = max(float(np.linalg.norm(g)) for g in expected_gradients.values())
        for got, gradients, kept in results[1:]:
            assert np.float32(got).tobytes() == np.float32(expected).tobytes()
            for a, b in zip(kept, expected_values, strict=True):
                assert a.tobytes() == b.tobytes(), schedule
            for parameter, g in gradients.items():
                e = expected_gradients[parameter]
                small = float(np.linalg.norm(e)) < 1e-6 * largest
                error = float(np.linalg.norm(g - e)) / largest if small else relative_error(g, e)
                assert error <= 1e-5, parameter
