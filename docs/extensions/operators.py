"""The op reference, of the op table (vpps/ops)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from tables import code, escaped, table

import vpps
from vpps.ops import OPS, Form, Op, Shape

HEADINGS = {
    "Element by element": (Form.MAP, Form.DROPOUT),
    "Over the whole row of a vertex": (Form.ROWWISE,),
    "Products and matrices": (Form.MATVEC, Form.PACKED_MATMUL, Form.MATMUL, Form.TRANSPOSE),
    "Over a list argument": (Form.LIST_REDUCE, Form.LIST_MAP),
    "Parts, and what is only another view": (Form.CONCAT, Form.SLICE, Form.RESHAPE),
    "Leaves": (Form.LOOKUP, Form.INPUT, Form.ZEROS, Form.PARAMETER, Form.ARGUMENT, Form.INDEX),
}

# How ops are written, where that does not follow from their signature.
WRITTEN = {
    "neg": "-x", "add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b", "scale": "x * 0.5", "shift": "x + 0.5",
    "over": "0.5 / x", "at_least": "clamp(x, low)", "at_most": "clamp(x, high=high)", "affine": "W @ x + b",
    "affine_columns": "W @ M", "affine_transposed": "W.T @ x", "greater": "a > b", "greater_equal": "a >= b",
    "equal": "eq(a, b)", "above": "x > 0.5", "below": "x < 0.5", "not_below": "x >= 0.5", "not_above": "x <= 0.5",
    "equals": "eq(x, 0.5)", "keep": "where(c, x, 0)", "drop": "where(c, 0, x)", "given": "where(c, 0.5, 0)",
    "unless": "where(c, 0, 0.5)", "matmul": "A @ B", "slice": "x[1:3]", "list_sum": "sum(xs)", "list_mean": "mean(xs)",
    "list_max": "max(xs)", "list_min": "min(xs)", "list_softmax": "softmax(xs)", "list_log_softmax": "log_softmax(xs)",
    "transpose": "A.T", "concat": "concat([a, b])", "reshape": "reshape(x, shape)",
    "lookup": "lookup(table, i)", "input": "graph.input(array)", "zeros": "graph.zeros(n)",
}  # fmt: skip

# Lengths that stand for letters: what a shape rule makes of them shows how it depends on them.
N, M, K = 7, 11, 13
LETTERS = {N: "n", M: "m", K: "k", N * M: "nm", N + M: "n + m", 1: "1"}

OPERANDS: Mapping[str, Sequence[tuple[Shape, ...]]] = {
    "affine": [((M, N), (N,), (M,))],
    "affine_columns": [((M, N), (N, K))],
    "affine_transposed": [((M, N), (M,)), ((M, N), (M, K))],
    "matmul": [((N, M), (M, K)), ((N, M), (M,))],
    "outer": [((N,), (M,))],
    "transpose": [((N, M),)],
    "concat": [((N,), (M,)), ((N, K), (M, K))],
    "lookup": [((M, N),)],
    "reshape": [((N * M,),)],
    "slice": [((N,),), ((N, M),)],
}
ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    "matmul": {"transposed_a": False, "transposed_b": False},
    "reshape": {"shape": (N, M)},
    "slice": {"start": 1, "stop": 2, "scalar": False},
    "input": {"shape": (N,)},
    "zeros": {"shape": (N,)},
    "argument": {"shape": (N,)},
}

_ANY: tuple[Shape, ...] = ((), (N,), (N, M))
# What stands in the table for shapes that many ops have in common.
SUMMARIES: Mapping[str, Sequence[tuple[tuple[Shape, ...], Shape]]] = {
    "any → the same": [((s,), s) for s in _ANY],
    "any → scalar": [((s,), ()) for s in _ANY],
    "two of one shape → scalar": [((s, s), ()) for s in _ANY],
    "two of one shape, or a scalar and any, or a matrix and its rows' shape → the wider": [
        ((a, b), a or b) for a in _ANY for b in _ANY if a == b or not a or not b
    ],
}
# The rules of ops on lists are of one element.
LISTS = {Form.LIST_REDUCE: "list of any → one such", Form.LIST_MAP: "list of any → such a list"}


def markdown() -> str:
    return "".join(_parts())


def shapes_of(op: Op) -> list[tuple[tuple[Shape, ...], Shape]]:
    """Operand shapes that the op's own rule takes, and the result's."""
    attrs = {**{name: op.samples.get(name) for name in op.attrs}, **ATTRIBUTES.get(op.name, {})}
    found = []
    for operands in OPERANDS.get(op.name) or product(_ANY, repeat=op.arity or 0):
        try:
            found.append((operands, op.shape(operands, attrs)))
        except ValueError:
            continue
    return found


def _parts() -> Iterator[str]:
    listed = [form for forms in HEADINGS.values() for form in forms]
    assert set(listed) == set(Form), f"forms without a heading: {set(Form) - set(listed)}"
    for heading, forms in HEADINGS.items():
        ops = [op for op in OPS.values() if op.form in forms]
        yield f"## {heading}\n\n"
        maps = Form.MAP in forms
        head = ("op", "written", "meaning", "shapes", "flops, floats", *["gradient reads"] * maps)
        yield table(
            head,
            (
                (
                    code(op.name),
                    code(_written(op)),
                    escaped(op.doc),
                    _shapes(op),
                    _cost(op),
                    *[_reads(op)] * maps,
                )
                for op in ops
            ),
        )


def _written(op: Op) -> str:
    if op.name in WRITTEN:
        return WRITTEN[op.name]
    signature = op.signature or (hasattr(vpps, op.name) and "x")
    return f"{op.name}({signature})" if signature else ""  # the cell compiler's own


def _shapes(op: Op) -> str:
    found = shapes_of(op)
    for words, all_alike in SUMMARIES.items():
        if found == all_alike:
            return LISTS.get(op.form, words)
    return "<br>".join(
        f"{', '.join(map(_shape, operands)) + ' ' if operands else ''}→ {_shape(result)}" for operands, result in found
    )


def _shape(shape: Shape) -> str:
    return "scalar" if shape == () else "(" + ", ".join(LETTERS.get(d, str(d)) for d in shape) + ")"


def _cost(op: Op) -> str:
    """Of one vertex, at the last shapes where all are vectors, with n = 64 and m = k = 32."""
    sizes = {N: 64, M: 32, K: 32, N * M: 64 * 32, N + M: 96}

    def sized(shape: Shape) -> Shape:
        return tuple(sizes.get(d, d) for d in shape)

    shapes = shapes_of(op)
    if not shapes:
        return ""
    operands, result = next((s for s in shapes if all(len(x) == 1 for x in s[0])), shapes[0])
    cost = op.cost([sized(x) for x in operands], sized(result))
    return f"{cost.flops}, {cost.floats}" if cost.flops or cost.floats else "none"


def _reads(op: Op) -> str:
    """What backward needs besides the result's gradient, per operand."""
    if not op.differentiable:
        return "no gradient"
    if op.form is Form.DROPOUT:
        return "nothing: the random words are drawn again"
    found = []
    for k, reads in enumerate(op.reads):
        names = {"a": "x" if op.arity == 1 else "a", "b": "b", "y": "the result"}
        what = " and ".join(names[r] for r in reads) or ("nothing: passed on" if k in op.passes else "nothing")
        found.append(what if op.arity == 1 else f"{'ab'[k]}: {what}")
    return "<br>".join(found)
