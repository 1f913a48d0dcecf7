"""Matrix gradients from partial tiles: any shape, any number of vertices, the same bits for all divisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import GRADIENT_TOLERANCE, relative_error
from vpps.compiler import model_descriptor
from vpps.kernel import render
from vpps.reference import Reference, weights_of
from vpps.script import slices

pytestmark = pytest.mark.simt

# Rows, widths of the column segments, vertices. One tile and one vertex; several tiles, whose columns are in two
# segments or start at any float; several segments of vertices.
CASES = {
    "one of each": (3, (5,), 1),
    "ends of tiles": (130, (67, 2, 63), 65),
    "neighbours": (64, (64, 64), 100),
    "many vertices": (7, (13, 24), 700),
}


def gradients(case: str, vps: int, precision: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the gradients of a matrix and a bias, and the expected ones."""
    rows, widths, n = CASES[case]
    model = vpps.Model(seed=3)
    W, b = model.parameter("W", (rows, sum(widths))), model.parameter("b", (rows,))

    @vpps.cell
    def layer(*xs: vpps.Expression) -> vpps.Expression:
        return vpps.sum(vpps.tanh(W @ vpps.concat(list(xs)) + b))

    graph, random = vpps.Graph(), np.random.default_rng(1)
    values = [[random.uniform(-1, 1, width).astype(np.float32) for width in widths] for _ in range(min(n, 30))]
    inputs = [[graph.input(x) for x in xs] for xs in values]
    loss = vpps.sum([layer(*inputs[k * k % len(inputs)]) for k in range(n)])
    in_memory = vpps.ChipOptions(tiers={"W": "L2", "W^T": "L2"})  # otherwise vectors depend on how rows are dealt
    with vpps.Handle(model, target="simt", vps=vps, precision=precision, onchip=in_memory) as handle:
        _, found = handle.gradients(graph, loss)
    return found, Reference(graph, weights_of(model)).backward(loss)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_any_shape_has_the_same_bits_however_it_is_divided(
    case: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several virtual processors, or a single one that adds up all segments of a tile."""
    found, expected = gradients(case, 3, precision)
    if precision == "float32":
        for name, g in expected.items():
            assert relative_error(found[name], g) < GRADIENT_TOLERANCE, name
    for module in (model_descriptor, render, slices):
        monkeypatch.setattr(module, "SHARED_TILES", 1)
    render.render_cuda.cache_clear()
    alone, _ = gradients(case, 1, precision)
    render.render_cuda.cache_clear()
    for name, g in found.items():
        assert np.array_equal(g, alone[name]), name
