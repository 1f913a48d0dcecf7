"""Gate matrices and their initial values. The matrices are stacked into one, so that an input needs one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.init import Initialiser, glorot_uniform
from vpps.values import as_flag

ChildMatrices = vpps.Parameter | tuple[vpps.Parameter, ...]
"""Matrices of ordered children: one matrix [U_1 ... U_N], or N matrices."""


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
    """Declare the children's matrices: a single matrix, or with `per_child` one parameter for each child.

    A single matrix needs only one product, which is faster for few children, especially on a GPU. With a matrix per
    child, `graph.map(distinct=True)` multiplies repeated children, such as words, only once.

    Args:
        input_size: length of a child's state.
        init: initialiser of the single matrix. Each child's matrix starts as a part of such a matrix.
        name: name of the single matrix, and prefix of the children's names: U_1, U_2 ...
    """
    whole = output_size, arity * input_size
    if not as_flag(per_child, "per_child") or arity < 1:
        return model.parameter(name, whole, init=init)

    def part(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        return init(rng, whole)[:, : shape[1]]

    return tuple(model.parameter(f"{name}_{k}", (output_size, input_size), init=part) for k in range(1, arity + 1))


def multiply_children(U: ChildMatrices, hs: Sequence[vpps.Expression]) -> vpps.Expression:
    """Return Σ_l U_l h_l, of shape (output_size,), for the children's states in order."""
    if isinstance(U, vpps.Parameter):
        return U @ vpps.concat(hs)
    y, *others = (matrix @ h for matrix, h in zip(U, hs, strict=True))
    for other in others:
        y += other
    return y


def glorot_per_gate(n_gates: int) -> Initialiser:
    """Return an initialiser with Glorot & Bengio's uniform for each gate, because stacking must not shrink weights."""

    def initialise(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.floating]:
        rows, columns = shape
        return np.concatenate([glorot_uniform(rng, (rows // n_gates, columns)) for _ in range(n_gates)])

    return initialise


def gate_biases(hidden_size: int, *values: float) -> NDArray[np.float32]:
    """Return one constant per gate, each repeated `hidden_size` times."""
    return np.repeat(np.array(values, np.float32), hidden_size)
