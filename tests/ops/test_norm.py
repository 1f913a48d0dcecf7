"""`norm` at points without a gradient, and on non-finite values; test_magnitudes.py tests the rest."""

from __future__ import annotations

import numpy as np
import pytest

import vpps

TARGETS = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("simt", marks=pytest.mark.simt)]


@pytest.mark.parametrize("target", TARGETS)
def test_at_zero_and_beside_it(target: str) -> None:
    """Covers vectors, matrices of a cell, elements of lists and scalars."""
    of_cell = vpps.cell(lambda x: vpps.norm(vpps.reshape(x, (2, 3))))
    of_list = vpps.cell(lambda xs: vpps.sum(vpps.each(vpps.norm, xs)))
    graph = vpps.Graph()
    x = np.zeros((4, 6), np.float32)
    x[1:, 2] = 1e-30, 1e19, -1e30
    given = [graph.rows(x, grad=True) for _ in range(3)]
    scalars = graph.rows(x[:, 2], grad=True)
    found = [vpps.norm(given[0]), of_cell(given[1]), [graph.call(of_list, [row]) for row in given[2]]]
    found.append(vpps.norm(scalars))
    scale = graph.rows(1 / np.maximum(abs(x).max(1), 1e-30))  # keeps the loss finite
    loss = vpps.sum([vpps.sum([y * s for y, s in zip(ys, scale, strict=True)]) for ys in found])
    with vpps.Handle(vpps.Model(), target=target, vps=2) as handle:
        handle.gradients(graph, loss)
        expected = np.sign(x) * handle.value(scale)[:, None]
        for ys, rows in zip(found, [*given, scalars], strict=True):
            assert np.allclose([handle.value(y) for y in ys], abs(x).max(1), rtol=1e-6, atol=0)
            of_rows = expected if rows is not scalars else expected[:, 2]
            assert np.allclose(handle.input_gradient(rows), of_rows, rtol=1e-5, atol=0)


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
