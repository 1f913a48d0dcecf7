"""The kernel's elementary functions: error bounds in units in the last place, and every special value."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from vpps.runtime.cpu import CpuMachine

pytestmark = pytest.mark.cpu

Function = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


# name: (true function, range of arguments, bound in ulp)
FUNCTIONS: dict[str, tuple[Function, float, float, float]] = {
    "exp": (np.exp, -87.3, 88.7, 1.5),
    "log": (np.log, 1e-37, 1e37, 1.5),
    "tanh": (np.tanh, -12.0, 12.0, 1.5),
    "sigmoid": (sigmoid, -80.0, 80.0, 3.5),
    "sin": (np.sin, -20.0, 20.0, 1.6),
    "cos": (np.cos, -20.0, 20.0, 1.6),
}


class Functions(CpuMachine):
    """The elementary functions of the kernel, called directly."""

    def apply(self, function: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        x, y = np.ascontiguousarray(x, np.float32), np.empty(x.shape, np.float32)
        code = list(FUNCTIONS).index(function)
        self._state.lib.vpps_apply(code, x.ctypes.data, y.ctypes.data, x.size)
        return y


@pytest.fixture(scope="module")
def machine() -> Iterator[Functions]:
    machine = Functions(1)
    yield machine
    machine.close()


def ulps(got: NDArray[np.float32], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Error in units in the last place of the expected single-precision number."""
    spacing = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    return np.abs(got.astype(np.float64) - expected) / spacing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_bound(machine: Functions, name: str) -> None:
    function, low, high, bound = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    x = rng.uniform(low, high, 400_003)
    if name == "log":
        x = np.concatenate([np.exp(rng.uniform(np.log(low), np.log(high), 400_003)), rng.uniform(0.5, 2, 200_000)])
    else:
        x = np.concatenate([x, rng.normal(size=200_000), rng.normal(size=100_000) * 1e-3])
    x = x.astype(np.float32)
    error = ulps(machine.apply(name, x), function(x.astype(np.float64)))
    assert error.max() <= bound, f"{error.max():.2f} ulp at {x[error.argmax()]!r}"


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_of_any_size(machine: Functions, name: str) -> None:
    """All exponents, and floats next to multiples of a quarter turn, for which the reduced angle has few digits."""
    rng = np.random.default_rng(0)
    large = rng.uniform(1, 2, 300_000) * 2.0 ** rng.integers(-30, 128, 300_000)
    quarters = rng.integers(1, 2**24, 300_000) * (np.pi / 2)
    worst = [float.fromhex("0x1.5df77p+70"), float.fromhex("0x1.f37ab6p+39"), 16367173 * 2.0**72]
    x = np.concatenate([large, quarters, worst]).astype(np.float32)
    error = ulps(machine.apply(name, x), FUNCTIONS[name][0](x.astype(np.float64)))
    assert error.max() <= 1.6, f"{error.max():.2f} ulp at {x[error.argmax()]!r}"


SPECIAL = {
    "exp": [(-np.inf, 0), (-1000, 0), (np.inf, np.inf), (1000, np.inf), (89, np.inf), (0, 1), (-0.0, 1)],
    "log": [(0, -np.inf), (-0.0, -np.inf), (np.inf, np.inf), (1, 0), (-1, np.nan), (-np.inf, np.nan)],
    "tanh": [(np.inf, 1), (-np.inf, -1), (100, 1), (-100, -1), (0, 0), (1e-40, 1e-40), (1e-20, 1e-20)],
    "sigmoid": [(np.inf, 1), (-np.inf, 0), (0, 0.5), (200, 1), (-200, 0)],
    "sin": [(np.inf, np.nan), (-np.inf, np.nan), (0, 0), (-0.0, -0.0), (1e-40, 1e-40), (-1e-20, -1e-20)],
    "cos": [(np.inf, np.nan), (-np.inf, np.nan), (0, 1), (-0.0, 1), (1e-20, 1)],
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(machine: Functions, name: str) -> None:
    x = np.array([*(a for a, _ in SPECIAL[name]), *[np.nan, -np.nan] * 20], np.float32)
    expected = np.array([*(b for _, b in SPECIAL[name]), *[np.nan] * 40], np.float32)
    np.testing.assert_array_equal(machine.apply(name, x), expected)


@pytest.mark.parametrize("name", ["exp", "log"])
def test_denormals(machine: Functions, name: str) -> None:
    x = np.linspace(-103.0, -87.5, 999) if name == "exp" else np.linspace(1e-44, 1e-38, 999)
    x = x.astype(np.float32)
    expected = FUNCTIONS[name][0](x.astype(np.float64))
    assert ulps(machine.apply(name, x), expected).max() <= 2.0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vector_and_scalar_loops_give_the_same_bits(machine: Functions, name: str) -> None:
    x = np.random.default_rng(1).uniform(0.1, 5, 61).astype(np.float32)
    whole = machine.apply(name, x)
    one_by_one = np.concatenate([machine.apply(name, x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_array_equal(whole, one_by_one)
