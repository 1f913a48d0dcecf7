"""Lowers the ops on computed matrices: one instruction for all their products, and parameters times matrices.

    Y = A B             dA = dY B^T             dB = A^T dY

are one instruction form, `matmul`, of which vectors are matrices of one row or column. A parameter times a matrix is
the `matvec` that multiplies vectors, with a row per vertex and column: `repeat` rows for each vertex.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from vpps.graph.trace import Node
from vpps.plan.instr import NO_BIAS, Instr, ParameterGradient, View

if TYPE_CHECKING:
    from vpps.plan.lower import Lowering


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of a product.

    Attributes:
        view: its floats.
        rows, columns: of the matrix that multiplies.
        transposed: it is stored with rows and columns exchanged.
    """

    view: View
    rows: int
    columns: int
    transposed: bool = False

    @property
    def T(self) -> Factor:
        """The transpose: the same floats."""
        return Factor(self.view, self.columns, self.rows, not self.transposed)


def product(low: Lowering, i: int, node: Node, dst: View) -> None:
    """Y = A B."""
    _multiply(low, i, i, *_factors(low, node), dst, False)


def product_backward(low: Lowering, i: int, node: Node, dy: View) -> None:
    """dA = dY B^T and dB = A^T dY, each in the layout of its operand."""
    a, b = _factors(low, node)
    d = Factor(dy, a.rows, b.columns)
    for j, operand, left, right in ((node.inputs[0], a, d, b.T), (node.inputs[1], b, a.T, d)):
        if not low.needs[j]:
            continue
        if operand.transposed:
            left, right = right.T, left.T
        low.contribute(i, j, low.width(j), partial(_multiply, low, i, j, left, right))


def _factors(low: Lowering, node: Node) -> tuple[Factor, Factor]:
    """The operands of a product node as matrices."""
    (a, b), found = node.inputs, []
    for j, name in ((a, "transposed_a"), (b, "transposed_b")):
        rows, columns = (*low.nodes[j].shape, 1)[:2]
        factor = Factor(low.view_of(j), rows, columns)
        found.append(factor.T if node.attrs.get(name) else factor)
    left, right = found
    return left, right.T if node.op.name == "outer" else right


def _multiply(low: Lowering, i: int, parts_of: int, a: Factor, b: Factor, dst: View, accumulate: bool) -> None:
    """dst = A B. A row and a column hold the same floats: of equal forms, the one that the instruction is fast at."""
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


def transpose(low: Lowering, i: int, j: int, source: View, dst: View, accumulate: bool = False) -> None:
    """dst = transpose of a matrix laid out like node j."""
    values = {"columns": low.nodes[j].shape[1]}
    low.emit("transpose", i, dst, values, accumulate=accumulate, operands={"a": source})


def transpose_backward(low: Lowering, i: int, node: Node, dy: View) -> None:
    """The gradient's transpose."""
    (j,) = node.inputs
    low.contribute(i, j, low.width(j), partial(transpose, low, i, i, dy))


def rows_product(low: Lowering, i: int, node: Node, dst: View) -> None:
    """dst = X W^T: W times every row of X."""
    assert node.parameter is not None
    x = low.operand_rows[i] = _whole(low, i, low.view_of(node.inputs[0]))
    _multiply_rows(low, i, low.places[node.parameter].weights, x, node.shape[0], dst, False)


def rows_product_backward(low: Lowering, i: int, node: Node, dy: View) -> None:
    """dX = dY W, and the gradient of W over the rows of all vertices."""
    (j,), matrix, n = node.inputs, node.parameter, node.shape[0]
    assert matrix is not None
    place = low.places[matrix]
    dy = _whole(low, i, dy)
    if low.needs[j]:
        low.contribute(i, j, low.width(j), partial(_multiply_rows, low, i, place.transposed, dy, n))
    if matrix.trainable:
        rows, columns = matrix.shape
        operands = {"dy": dy.part(0, rows), "x": [low.operand_rows[i].part(0, columns)]}
        values = {"gradient": place.gradient, "columns": columns}
        instr = Instr("outer", i, node.domain, rows, 1, operands, values, repeat=n)
        low.out.parameter_gradients.append(ParameterGradient(matrix, instr))


def _multiply_rows(low: Lowering, i: int, weights: int, x: View, n: int, dst: View, accumulate: bool) -> None:
    """dst = packed weights times each of the n rows of x."""
    if not _is_whole(low, dst):
        product = low.slab(dst.width, dst.domain)
        _multiply_rows(low, i, weights, x, n, product, False)
        low.emit("copy", i, dst, {"value": 0.0}, accumulate=accumulate, operands={"a": product})
        return
    row, columns = dst.part(0, dst.width // n), x.width // n
    operands = {"bias": NO_BIAS, "x": [x.part(0, columns)]}
    values = {"weights": weights, "columns": columns}
    low.emit("matvec", i, row, values, accumulate=accumulate, operands=operands, repeat=n)


def _is_whole(low: Lowering, view: View) -> bool:
    """Whether the view is a slab, so that the rows of its matrices lie one after the other."""
    return view.slab >= 0 and view.width == low.out.slabs[view.slab].width


def _whole(low: Lowering, i: int, view: View) -> View:
    """The view if it is a slab of node i's domain, else a copy that is."""
    domain = low.nodes[i].domain
    if _is_whole(low, view) and view.domain == domain:
        return view
    copy = low.slab(view.width, domain)
    low.emit("copy", i, copy, {"value": 0.0}, operands={"a": view})
    return copy
