"""Initialisers: functions `(rng, shape) -> float array`, and their names for `Model.parameter(init=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import ModelError
from vpps.values import MAX_FLOAT32, as_number

__all__ = [
    "INITIALISERS",
    "Initialiser",
    "constant",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "normal",
    "orthogonal",
    "uniform",
]
__dir__ = __all__.copy  # completion shows nothing else

Initialiser = Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan_in, fan_out): a matrix `(out, in)` multiplies vectors of length `in`."""
    return (shape[-1], shape[0]) if len(shape) > 1 else (shape[0], shape[0]) if shape else (1, 1)


def _number(name: str, value: Any) -> float:
    number = as_number(value)
    if number is None or not 0 <= number <= MAX_FLOAT32:
        raise ModelError(f"init.{name}({value!r}): expected a finite number >= 0")
    return number


def uniform(scale: float) -> Initialiser:
    """Return an initialiser that draws uniformly from [-scale, scale)."""
    width = _number("uniform", scale)
    return lambda rng, shape: rng.uniform(-width, width, shape)


def normal(std: float) -> Initialiser:
    """Return an initialiser that draws from the normal distribution with mean 0 and standard deviation `std`."""
    deviation = _number("normal", std)
    return lambda rng, shape: rng.normal(0.0, deviation, shape)


def constant(value: float) -> Initialiser:
    """Return an initialiser that sets every element to `value`."""
    return lambda rng, shape: np.full(shape, value)


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw uniformly with variance 2 / (fan_in + fan_out) (Glorot & Bengio 2010)."""
    scale = (6.0 / sum(_fans(shape))) ** 0.5
    return rng.uniform(-scale, scale, shape)


def glorot_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw normally with variance 2 / (fan_in + fan_out) (Glorot & Bengio 2010)."""
    return rng.normal(0.0, (2.0 / sum(_fans(shape))) ** 0.5, shape)


def he_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw uniformly with variance 2 / fan_in, for relu (He et al. 2015)."""
    scale = (6.0 / _fans(shape)[0]) ** 0.5
    return rng.uniform(-scale, scale, shape)


def he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw normally with variance 2 / fan_in, for relu (He et al. 2015)."""
    return rng.normal(0.0, (2.0 / _fans(shape)[0]) ** 0.5, shape)


def orthogonal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
    """Draw orthonormal rows or columns, whichever are fewer (Saxe et al. 2014). Rank 2 only."""
    if len(shape) != 2:
        raise ValueError("a matrix")
    q, r = np.linalg.qr(rng.normal(size=(max(shape), min(shape))))
    q = q * np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices
    return q if shape[0] >= shape[1] else q.T


INITIALISERS: dict[str, Initialiser] = {
    "zeros": constant(0.0),
    "ones": constant(1.0),
    "glorot_uniform": glorot_uniform,
    "glorot_normal": glorot_normal,
    "he_uniform": he_uniform,
    "he_normal": he_normal,
    "orthogonal": orthogonal,
    "uniform": uniform(0.1),
    "normal": normal(0.1),
}
