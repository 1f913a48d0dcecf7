"""Lowers the ops on computed matrices: their products with each other and with parameters.

    Y = A B             dA = dY B^T             dB = A^T dY

share one instruction form, `matmul`; vectors are matrices with one row or column. Products with parameters have
their own instructions: a parameter is packed, and its gradient is summed over all rows after backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vpps.compiler.instr import NO_BIAS, Instr, Ints, View
from vpps.record.trace import Node
from vpps.script.instructions import Flag

if TYPE_CHECKING:
    from vpps.compiler.lower_backward import Backward
    from vpps.compiler.lower_forward import Forward


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of a product.

    Attributes:
        view: view of its floats.
        rows, columns: shape of the matrix in the product.
        transposed: True if it is stored with rows and columns exchanged.
    """

    view: View
    rows: int
    columns: int
    transposed: bool = False

    @property
    def T(self) -> Factor:
        """The transposed matrix, with the same floats."""
        return Factor(self.view, self.columns, self.rows, not self.transposed)


def product(low: Forward, i: int, node: Node, sources: list[View], dst: View) -> None:
    """Lower Y = A B."""
    _multiply(low, i, i, *_factors(low, node, sources), dst, False)


def product_backward(low: Backward, i: int, node: Node, sources: list[View], dy: View) -> None:
    """Lower dA = dY B^T and dB = A^T dY, each in the layout of its operand."""
    a, b = _factors(low, node, sources)
    d = Factor(dy, a.rows, b.columns)
    for j, operand, left, right in ((node.inputs[0], a, d, b.T), (node.inputs[1], b, a.T, d)):
        if not low.needs[j]:
            continue
        if operand.transposed:
            left, right = right.T, left.T
        low.contribute(i, j, low.width(j), partial(_multiply, low, i, j, left, right))


def _factors(low: Forward, node: Node, sources: list[View]) -> tuple[Factor, Factor]:
    """Return the operands of a product node as matrices."""
    factors = []
    for j, view, name in zip(node.inputs, sources, ("transposed_a", "transposed_b"), strict=True):
        rows, columns = (*low.nodes[j].shape, 1)[:2]
        factor = Factor(view, rows, columns)
        factors.append(factor.T if node.attrs.get(name) else factor)
    a, b = factors
    return a, b.T if node.op.name == "outer" else b


def _multiply(low: Forward, i: int, parts_of: int, a: Factor, b: Factor, dst: View, accumulate: bool) -> None:
    """Emit dst = A B. A row and a column hold the same floats, so pick the form that runs fastest."""
    if b.columns == 1:  # A b as b^T A^T
        a, b = b.T, a.T
    if 1 in (a.rows, a.columns):
        a = replace(a, transposed=False)
    if 1 in (b.rows, b.columns):
        b = replace(b, transposed=b.columns == 1)
    values = {
        "a_width": a.rows * a.columns,
        "b_width": b.rows * b.columns,
        "inner": a.columns,
        "a_transposed": int(a.transposed),
        "b_transposed": int(b.transposed),
    }
    operands = {"a": a.view, "b": b.view}
    low.emit("matmul", i, dst, values, parts_of=parts_of, accumulate=accumulate, operands=operands)


def transpose(low: Forward, i: int, j: int, source: View, dst: View, accumulate: bool = False) -> None:
    """Emit dst = transpose of a matrix with the layout of node j."""
    values = {"columns": low.nodes[j].shape[1]}
    low.emit("transpose", i, dst, values, accumulate=accumulate, operands={"a": source})


def transpose_backward(low: Backward, i: int, node: Node, dy: View) -> None:
    """Lower the gradient of a transpose: the transpose of `dy`."""
    (j,) = node.inputs
    low.contribute(i, j, low.width(j), partial(transpose, low, i, i, dy))


def packed_product(low: Forward, i: int, node: Node, dst: View) -> None:
    """Lower Y = W M. W is a parameter, or a transposed one; M may be a vector if W is transposed."""
    assert node.parameter is not None
    place, (rows, columns) = low.places[node.parameter], node.parameter.shape
    weights, shape = place.factor, (rows, columns)
    if node.op.name == "affine_transposed":
        weights, shape = place.transposed, (columns, rows)
    operands, is_vector = low.segments(node.inputs[0]), len(node.shape) == 1
    _multiply_packed(low, i, i, weights, shape, place.rounds, operands, dst=dst, accumulate=False, is_vector=is_vector)


def packed_product_backward(low: Backward, i: int, node: Node, dy: View) -> None:
    """Lower dM = W^T dY, and dW, the sum of dY M^T over all rows of the cell, which runs after backward.

    If Y = W^T M, then dM = W dY and dW is the sum of M dY^T.
    """
    (j,), matrix = node.inputs, node.parameter
    assert matrix is not None
    place, (rows, inner), is_vector = low.places[matrix], matrix.shape, len(node.shape) == 1
    transposed = node.op.name == "affine_transposed"
    if low.needs[j]:
        weights, shape = (place.factor, (rows, inner)) if transposed else (place.transposed, (inner, rows))
        write = partial(_multiply_packed, low, i, j, weights, shape, place.rounds, [dy], is_vector=is_vector)
        low.contribute(i, j, low.width(j), write)
    if matrix.trainable:
        operands = {"dy": low.view_of(j), "x": [dy]} if transposed else {"dy": dy, "x": low.segments(j)}
        values = {"gradient": place.gradient, "columns": inner, "matrix": 0}
        if not is_vector:
            values = {"gradient": place.gradient, "inner": inner, "columns": node.shape[1]}
        name = "outer" if is_vector else "packed_matmul_gradient"
        rounds = place.rounds & ~Flag.PAIRS
        low.add_parameter_gradient(matrix, Instr(name, i, node.domain, rows, 1, operands, values, rounds=rounds))


def _multiply_packed(
    low: Forward,
    i: int,
    parts_of: int,
    weights: int,
    shape: tuple[int, int],
    rounds: Flag,
    x: list[View],
    dst: View,
    accumulate: bool,
    is_vector: bool,
) -> None:
    """Emit dst = packed weights times a vector, or times a matrix; the segments x hold its rows."""
    rows, inner = shape
    name, operands = "packed_matmul", dict[str, Any](x=x)
    values = {"weights": weights, "inner": inner, "columns": dst.width // rows}
    if is_vector:
        name, operands, values = (
            "matvec",
            {"bias": NO_BIAS, "x": x},
            {"weights": weights, "columns": inner, "matrix": 0},
        )
    low.emit(name, i, dst, values, parts_of=parts_of, accumulate=accumulate, operands=operands, rounds=rounds)


def rows_of_packed(low: Forward, i: int, node: Node, dst: View) -> None:
    """Lower a parameter of rank 2 to a computed matrix: all of its rows, or the row of a lookup."""
    p = node.parameter
    assert p is not None
    rows = low.granule * -(-p.shape[0] // low.granule)
    values = {"weights": low.places[p].weights, "rows": rows, "columns": p.shape[1], "labels": _row_number(node)}
    low.emit("packed_rows", i, dst, values)


def rows_of_packed_backward(low: Backward, i: int, node: Node, dy: View) -> None:
    """Lower the gradient of `rows_of_packed`, for all rows of the cell after backward."""
    p = node.parameter
    assert p is not None
    values = {
        "gradient": low.places[p].gradient,
        "columns": p.shape[1],
        "dy_width": dy.width,
        "labels": _row_number(node),
    }
    instr = Instr("packed_rows_gradient", i, node.domain, p.shape[0], 1, {"dy": dy}, values)
    low.add_parameter_gradient(p, instr)


def _row_number(node: Node) -> Ints | None:
    """Return a lookup's list of row numbers, or None."""
    return Ints(node.inputs[0]) if node.inputs else None
