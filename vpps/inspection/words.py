"""Names, for a reader, of what cells are made of: nodes as equations, views, index lists, instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vpps.graph.operand import shown
from vpps.graph.trace import Node, TracedCell
from vpps.ops import Form, Shape
from vpps.plan.instr import (
    Args,
    Beside,
    BesideGradient,
    Calls,
    Data,
    Elements,
    Ends,
    Expand,
    Instr,
    Ints,
    Listed,
    ListKey,
    Offsets,
    Positions,
    RandomKey,
    Rows,
    TableRows,
    Uses,
    View,
)
from vpps.script.instructions import BY_NAME, Kind
from vpps.script.tails import NONE, Tail, Use

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_WITH_CONSTANT = {"scale": "*", "shift": "+"}
Address = Callable[[int], str]
"""Name of what lies at an address of the pool."""


def dimensions(shape: Shape) -> str:
    """ "128", "4 x 128", "scalar"."""
    return " x ".join(map(str, shape)) or "scalar"


def equation(node: Node) -> str:
    """What a node computes, of the nodes that it reads: "tanh(n2)", "'U' @ n3 + n4"."""
    read = [f"n{j}" for j in node.inputs]
    attrs, form, name = node.attrs, node.op.form, node.op.name
    parameter = "" if node.parameter is None else f"'{node.parameter.name}'"
    if form is Form.ARGUMENT:
        return f"argument {attrs['position']}"
    if form is Form.INDEX:
        return str(attrs["constant"]) if "constant" in attrs else f"int argument {attrs['position']}"
    if form is Form.PARAMETER:
        return f"parameter {parameter}"
    if form is Form.LOOKUP:
        return f"{parameter}[{read[0]}]"
    if form in (Form.MATVEC, Form.PACKED_MATMUL):
        return " + ".join([f"{parameter} @ {read[0]}", *read[1:]])
    if name == "matmul":
        a, b = (f"{x}^T" if attrs[f"transposed_{k}"] else x for k, x in zip("ab", read, strict=True))
        return f"{a} @ {b}"
    if form is Form.SLICE:
        start = int(attrs["start"])
        length = node.shape[0] if node.shape else 1
        return f"{read[0]}[{start}]" if not node.shape else f"{read[0]}[{start}:{start + length}]"
    if name in _INFIX:
        return f" {_INFIX[name]} ".join(read)
    if name in _WITH_CONSTANT:
        return f"{read[0]} {_WITH_CONSTANT[name]} {attrs['value']:g}"
    settings = [f"{key}={value!r}" for key, value in attrs.items() if key not in ("shape", "number")]
    return f"{shown(name)}({', '.join([*filter(None, [parameter]), *read, *settings])})"


def line_of(number: int, node: Node) -> str:
    """A node as a line: "n3 = tanh(n2)  (128)", "n7 = sigmoid(n6)  (128 per element of list 1)"."""
    each = f" per element of list {node.domain}" if node.domain else ""
    of = "" if node.op.form is Form.INDEX else f"  ({dimensions(node.shape)}{each})"
    return f"n{number} = {equation(node)}{of}"


def symbol_of(cell: TracedCell, number: int) -> str:
    """A node by number and operation: "n3 tanh", "n1 'words'"; what lowering added is an output."""
    if number >= len(cell.nodes):
        return f"n{number} output"
    node = cell.nodes[number]
    if node.op.form is Form.ARGUMENT:
        return f"n{number} argument {node.attrs['position']}"
    of = f" '{node.parameter.name}'" if node.parameter is not None else ""
    return f"n{number} {shown(node.op.name)}{of}"


def said_of_list(key: ListKey) -> str:
    """What an index list holds."""
    match key:
        case Args(position):
            return f"argument {position}"
        case Elements(position):
            return f"elements of argument {position}"
        case Rows(slab):
            return f"rows of s{slab}"
        case TableRows(node):
            return f"table rows n{node}"
        case Ints(node):
            return f"ints n{node}"
        case Expand(domain, of):
            return f"{said_of_list(of)}, per element of list {domain}"
        case Offsets(_, of):
            return f"where the lists of {said_of_list(of)} begin"
        case Ends(domain):
            return f"where the rows of list {domain} begin"
        case Uses(output):
            return f"readers of output {output}"
        case Data():
            return "data of inputs"
        case Calls():
            return "call numbers"
        case Positions(domain):
            return f"places in list {domain}"
        case RandomKey():
            return "random key"
        case Beside(position):
            return f"argument {position}, of another part"
        case BesideGradient(output):
            return f"gradient of output {output}, of another part"


def said_of_view(view: View, address: Address) -> str:
    """ "s3[128:256]", "argument 1", "'b'"."""
    if view.shared:
        return address(view.address + view.offset)
    whole = f"s{view.slab}" if view.rows is None else f"[{said_of_list(view.rows)}]"
    return f"{whole}[{view.offset}:{view.offset + view.width}]"


def said_of_instr(instr: Instr, address: Address) -> str:
    """An instruction as a line: its name, its rows' width, its fields by name."""
    flags = "".join(f".{name}" for name in ("accumulate", "mean", "rows") if getattr(instr, name))
    fields = [f"{name}={said}" for name, said in _fields(instr, address)]
    per = f" per element of list {instr.domain}" if instr.domain else ""
    parts = f" in {instr.parts} parts" if instr.parts > 1 and not instr.turns else ""
    return f"{instr.name}{flags} ({instr.width}{parts}{per}) {', '.join(fields)}"


def _fields(instr: Instr, address: Address) -> Iterator[tuple[str, str]]:
    for f in BY_NAME[instr.name].fields:
        if f.kind is Kind.OPERAND:
            yield f.name, said_of_view(instr.operands[f.name], address)
        elif f.kind is Kind.SEGMENTS:
            yield f.name, "(" + " ".join(said_of_view(v, address) for v in instr.operands[f.name]) + ")"
        elif f.kind is Kind.VIEWS:
            yield f.name, "(" + ", ".join(_tail_view(use, v, address) for use, v in instr.operands[f.name]) + ")"
        elif (value := instr.values.get(f.name)) is None:
            continue
        elif f.name in ("weights", "gradient", "vector"):
            yield f.name, address(value)
        elif isinstance(value, int | float):
            if value or f.name not in ("value", "shift", "matrix"):
                yield f.name, f"{value:g}" if isinstance(value, float) else str(value)
        else:
            yield f.name, f"[{said_of_list(value)}]"


def _tail_view(use: Use, what: View | Listed | float, address: Address) -> str:
    if isinstance(what, Listed):
        return f"{use.name.lower()} of [{said_of_list(what.offsets)}]" + (f" + {what.shift}" if what.shift else "")
    if isinstance(what, View):
        return ("to " if use is Use.WRITE else "") + said_of_view(what, address)
    return f"{what:g}"


def program_of(instr: Instr, address: Address) -> list[str]:
    """The program of a tail, a line for each value that it makes or stores."""
    tail: Tail | None = instr.tail
    assert tail is not None
    views = [_tail_view(use, v, address).removeprefix("to ") for use, v in instr.operands["views"]]
    names: Mapping[int, str] = dict(enumerate(views[: tail.first_step])) | {NONE: "0"}

    def name(value: int) -> str:
        return names.get(value, f"v{value}")

    lines = []
    for value, step in enumerate(tail.steps, tail.first_step):
        function = step.code.replace("::forward", "").replace("::backward", ".grad").lower()
        constant = [] if step.constant == NONE else [views[step.constant]]
        lines.append(f"v{value} = {function}({', '.join([*map(name, step.inputs), *constant])})")
    lines += [f"{view} = {name(value)}" for view, value in zip(views[tail.first_store :], tail.stores, strict=True)]
    return lines


def addresses_of(places: Mapping[Any, Any]) -> Address:
    """Names of parameters by where the pool has their weights, transposes and gradients.

    Args:
        places: of parameters, as `Distribution.physical`.
    """
    spans = sorted(
        (start, start + place.floats, f"{kind}'{p.name}'{mark}")
        for p, place in places.items()
        for kind, start, mark in (
            ("", place.weights, ""),
            ("", place.transposed, "^T"),
            ("gradient of ", place.gradient, ""),
        )
        if start
    )

    def name(address: int) -> str:
        for start, stop, found in spans:
            if start <= address < stop:
                return found if address == start else f"{found} + {address - start}"
        return f"[{address}]"

    return name
