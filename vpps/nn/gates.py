"""Initial values of gates. The matrices of all gates are stacked into one, so that an input takes one product."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpps.init import Initialiser, glorot_uniform


def glorot_per_gate(n_gates: int) -> Initialiser:
    """Glorot & Bengio's uniform for each of the stacked matrices by itself: stacking must not shrink the weights."""

    def initialise(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
        rows, columns = shape
        return np.concatenate([glorot_uniform(rng, (rows // n_gates, columns)) for _ in range(n_gates)])

    return initialise


def gate_biases(hidden_size: int, *values: float) -> NDArray[np.float32]:
    """One constant per gate, each repeated `hidden_size` times."""
    return np.repeat(np.array(values, np.float32), hidden_size)
