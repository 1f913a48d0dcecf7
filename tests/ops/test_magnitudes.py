"""Values and gradients of every op over all magnitudes match independent formulas (tests/fuzz/magnitudes.py)."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from tests.fuzz.magnitudes import CONSTANTS, FORMULAS, Magnitudes
from vpps.values import single_factors

pytestmark = pytest.mark.cpu

TARGETS = [pytest.param("cpu"), pytest.param("simt", marks=pytest.mark.simt)]


@pytest.mark.parametrize("form", ["rows", "cell"])
@pytest.mark.parametrize("name", FORMULAS)
def test_value_and_gradient_are_the_exact_ones_rounded(name: str, form: str) -> None:
    for width in (2, 5, 33):
        Magnitudes(name, 1, width, 60, form).check()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("below", [1e4, 1e9, 1e30, np.inf])
def test_a_gold_class_far_below_the_others_gets_softmax_less_one(below: float, target: str) -> None:
    graph = vpps.Graph()
    x = graph.input(np.array([0, -below, 0, 0, 0], np.float32), grad=True)
    loss = vpps.cross_entropy(x, 1)
    with vpps.Handle(vpps.Model(), target=target) as handle:
        handle.forward(graph, [loss], train=True, keep=True)
        handle.backward([1])
        assert np.allclose(handle.input_gradient(x), [0.25, -1, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("value", [*CONSTANTS, 1e-300, 5e-324, 1e300, 0.0, -np.inf])
@pytest.mark.parametrize("power", [1, -1])
def test_factors_are_numbers_of_float32(value: float, power: int) -> None:
    if value == 0 and power < 0:
        return
    factors = single_factors(value, power)
    with np.errstate(over="ignore"):
        assert value in (0, -np.inf) or all(np.isfinite(np.float32(f)) and np.float32(f) for f in factors)
    if 1e-80 < abs(value) < 1e80:
        assert np.prod(factors) == pytest.approx(value**power, rel=1e-15)
