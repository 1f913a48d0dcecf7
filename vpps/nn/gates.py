"""Matrices of gates, stacked into one, so that an input takes one product; and their initial values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.init import Initialiser, glorot_uniform


class ChildMatrices:
    """Σ_l U_l h_l of ordered children: one matrix [U_1 ... U_N] or, `per_child`, N of them.

    One takes a single product, which is quicker where there are few children to multiply, above all on a GPU. Of
    matrices per child `graph.map(distinct=True)` makes products of repeated children, such as words, once.

    Args:
        input_size: length of each h_l.
        init: of the one matrix; those per child begin as parts of such a one.
        name: of the one matrix; those per child are called after it, U_1, U_2 ...
    """

    def __init__(
        self,
        model: vpps.Model,
        output_size: int,
        input_size: int,
        arity: int,
        *,
        init: Initialiser,
        per_child: bool,
        name: str = "U",
    ) -> None:
        whole = output_size, arity * input_size
        if per_child:
            shape, first = (output_size, input_size), lambda rng, _: init(rng, whole)[:, :input_size]
            self.parts = [model.parameter(f"{name}_{k}", shape, init=first) for k in range(1, arity + 1)]
        else:
            self.parts = [model.parameter(name, whole, init=init)]

    def __call__(self, hs: Sequence[vpps.Expression]) -> vpps.Expression:
        """(output_size,) of the children's states, in order."""
        if len(self.parts) == 1:
            return self.parts[0] @ vpps.concat(hs)
        y, *others = (U @ h for U, h in zip(self.parts, hs, strict=True))
        for other in others:
            y += other
        return y


def glorot_per_gate(n_gates: int) -> Initialiser:
    """Glorot & Bengio's uniform for each of the stacked matrices by itself: stacking must not shrink the weights."""

    def initialise(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
        rows, columns = shape
        return np.concatenate([glorot_uniform(rng, (rows // n_gates, columns)) for _ in range(n_gates)])

    return initialise


def gate_biases(hidden_size: int, *values: float) -> NDArray[np.float32]:
    """One constant per gate, each repeated `hidden_size` times."""
    return np.repeat(np.array(values, np.float32), hidden_size)
