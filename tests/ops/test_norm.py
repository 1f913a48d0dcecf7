"""`norm` is right where the square of an element leaves float32, and where its formula has no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps

SCALES = (1e-30, 1e-19, 1.0, 1e19, 1e30)
TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]

direct = np.random.default_rng(1).normal(size=(len(SCALES) + 1, 6))
X = (np.array([*SCALES, 0.0])[:, None] * direct).astype(np.float32)


@vpps.cell
def of_cell(x: vpps.Expression) -> vpps.Expression:
    return vpps.norm(vpps.reshape(x, (2, 3)))


@vpps.cell
def of_list(xs: list[vpps.Expression]) -> vpps.Expression:
    return vpps.sum(vpps.each(vpps.norm, xs))


FORMS: dict[str, Callable[[vpps.Rows], Any]] = {
    "expressions": lambda rows: [vpps.norm(x) for x in rows],
    "rows": vpps.norm,
    "cell": lambda rows: [of_cell(x) for x in rows],
    "list": lambda rows: [of_list([x]) for x in rows],
}


@pytest.mark.parametrize("target", TARGETS)
def test_values_and_gradients_at_all_magnitudes_and_at_zero(target: str) -> None:
    graph = vpps.Graph()
    given = {name: graph.rows(X, grad=True) for name in FORMS}
    found = {name: form(given[name]) for name, form in FORMS.items()}
    alone = graph.rows(X[:, 0], grad=True)
    found["scalars"] = vpps.norm(alone)
    with vpps.Handle(vpps.Model(), target=target, vps=2) as handle:
        # Each weighed by 1 / its magnitude, so that the loss is finite.
        weights = graph.rows(1 / np.array([*SCALES, 1.0]))
        loss = vpps.sum([vpps.sum([y * w for y, w in zip(ys, weights, strict=True)]) for ys in found.values()])
        handle.gradients(graph, loss)
        exact = X.astype(np.float64)
        norms = np.linalg.norm(exact, axis=1)
        slopes = exact / np.where(norms == 0, 1, norms)[:, None] / np.array([*SCALES, 1.0])[:, None]
        for name, rows in given.items():
            values = [handle.value(y) for y in found[name]]
            assert np.allclose(values, norms, rtol=1e-6, atol=0), name
            assert np.allclose(handle.input_gradient(rows), slopes, rtol=1e-5, atol=0), name
        assert np.array_equal([handle.value(y) for y in found["scalars"]], abs(X[:, 0]))
        assert handle.input_gradient(alone)[-1] == 0


@pytest.mark.cpu
def test_what_is_not_finite_is_not_hidden() -> None:
    graph = vpps.Graph()
    values = [[np.inf, 1.0], [-np.inf, np.inf], [np.nan, 1.0], [0.0, np.nan], [3e38, 1e38]]
    with vpps.Handle(vpps.Model(), train=False) as handle:
        found = handle.forward(graph, [vpps.norm(graph.input(x)) for x in values])
    assert np.array_equal(found[:4], [np.inf, np.inf, np.nan, np.nan], equal_nan=True)
    assert found[4] == pytest.approx(np.hypot(3e38, 1e38), rel=1e-6)


@pytest.mark.host
def test_abs_is_the_function() -> None:
    x = vpps.Graph().zeros(3)
    assert abs(x).shape == (3,)
