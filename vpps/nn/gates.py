"""Matrices of gates, stacked into one, so that an input takes one product; and their initial values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.init import Initialiser, glorot_uniform
from vpps.values import as_flag

ChildMatrices = vpps.Parameter | tuple[vpps.Parameter, ...]
"""The matrices of ordered children: [U_1 ... U_N] side by side, or N of them."""


def child_matrices(
    model: vpps.Model,
    output_size: int,
    input_size: int,
    arity: int,
    *,
    init: Initialiser,
    per_child: bool,
    name: str = "U",
) -> ChildMatrices:
    """Declare them: one matrix or, `per_child`, a parameter for each child.

    One takes a single product, which is quicker where there are few children to multiply, above all on a GPU. Of
    matrices per child `graph.map(distinct=True)` makes products of repeated children, such as words, once.

    Args:
        input_size: length of a child's state.
        init: of the one matrix; those per child begin as parts of such a one.
        name: of the one matrix; those per child are called after it, U_1, U_2 ...
    """
    whole = output_size, arity * input_size
    if not as_flag(per_child, "per_child") or arity < 1:
        return model.parameter(name, whole, init=init)

    def part(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        return init(rng, whole)[:, : shape[1]]

    return tuple(model.parameter(f"{name}_{k}", (output_size, input_size), init=part) for k in range(1, arity + 1))


def multiply_children(U: ChildMatrices, hs: Sequence[vpps.Expression]) -> vpps.Expression:
    """Σ_l U_l h_l, (output_size,) of the children's states in order."""
    if isinstance(U, vpps.Parameter):
        return U @ vpps.concat(hs)
    y, *others = (matrix @ h for matrix, h in zip(U, hs, strict=True))
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
