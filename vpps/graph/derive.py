"""Public functions derived from the op table, as Python text: one for every row that has a signature.

`primitives.py` defines the functions. Type checkers and editors read `primitives.pyi`, the same text without bodies.
After a change to the table, `python -m tests.graph.test_primitives` rewrites this file.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vpps.errors import DtypeError
from vpps.hints import ARGUMENTS, hinted
from vpps.model.model import Parameter
from vpps.ops import OPS, Form, Op
from vpps.ops.operand import Expression, Index, IntArray, record
from vpps.record.rows import Rows
from vpps.values import as_number

One = Expression | Parameter
Value = One | Rows
"""Operands of the functions; rows as operands give rows."""

Label = int | np.integer[Any] | Index
Labels = Label | IntArray | Sequence[int]

DERIVED = {op.name: op for op in OPS.values() if op.signature}


def as_constant(value: float, op: str) -> float:
    """Return an op's attribute as a number. Raises DtypeError if it is not a number."""
    number = as_number(value)
    if number is None:
        raise DtypeError(f"{op}: expected a Python number, got {value!r}")
    return number


def functions(module: str) -> dict[str, Callable[..., Expression]]:
    """Return the functions by name. They are compiled from text, so wrong arguments raise Python's own errors."""
    made: dict[str, Any] = {"__name__": module, "Value": Value, "Index": Index, "Expression": Expression}
    made |= {"record": record, "as_constant": as_constant}
    for op in DERIVED.values():
        text, file = head(op) + _body(op), f"<vpps.{op.name}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks and inspect
        exec(compile(text, file, "exec"), made)
    habits = {owner for owner, _ in ARGUMENTS}
    return {name: hinted(made[name]) if name in habits else made[name] for name in DERIVED}


def head(op: Op) -> str:
    """Return the `def` line and docstring."""
    text = _docstring(op, "\n\n    On `Rows` it acts row by row, and gives `Rows`.\n    ")
    return f'def {op.name}({_parameters(op, "Value", "int | Index")}) -> Expression:\n    """{text}"""\n'


def stub(op: Op) -> str:
    """Return the overloads for type checkers, which distinguish rows from expressions."""
    return (
        f'@overload\ndef {op.name}({_parameters(op, "One", "Label")}) -> Expression:\n    """{_docstring(op)}"""\n'
        f"@overload\ndef {op.name}({_parameters(op, 'Value', 'Labels')}) -> Rows: ...\n"
    )


def _parameters(op: Op, operand: str, index: str) -> str:
    kinds = [operand] * (op.arity or 0) + [index] * op.indices + ["float"] * len(op.attrs)
    named = zip(op.signature.split(", "), kinds, strict=True)
    parameters = ((name.partition("="), kind) for name, kind in named)
    return ", ".join(f"{name}: {kind}{default and ' = '}{default}" for (name, _, default), kind in parameters)


def _docstring(op: Op, of_rows: str = "") -> str:
    """Return the row's `doc` as a sentence, with the text that its form adds. `of_rows`: description for rows."""
    what, semicolon, rest = op.doc.partition(";")
    if op.form is Form.MAP and op.differentiable:
        what += ", element by element"
    first = what.split()[0]
    if len(first) > 1 and first.isalpha():  # otherwise the text begins with a formula
        what = what[0].upper() + what[1:]
    text = f"{what}{semicolon}{rest}.{of_rows}"
    if op.indices:
        name = op.signature.split(", ")[op.arity or 0]
        text = f"{text.rstrip()}\n\n    Args:"
        text += f"\n        {name}: an int in [0, length of the vector), or an int argument of the cell."
        text += f"\n\n    Raises:\n        IndexRangeError: `{name}` is outside of that.\n    "
    return text


def _body(op: Op) -> str:
    names = [part.partition("=")[0] for part in op.signature.split(", ")]
    operands = names[: (op.arity or 0) + op.indices]
    attrs = "".join(
        f', {a}=as_constant({n}, "{op.name}")' for a, n in zip(op.attrs, names[len(operands) :], strict=True)
    )
    return f'    return record("{op.name}", [{", ".join(operands)}]{attrs})\n'
