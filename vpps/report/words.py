"""Formats the parts of cells for readers: nodes as equations, views, index lists, instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vpps.compiler.instr import (
    NO_BIAS,
    Args,
    Calls,
    Data,
    Elements,
    Ends,
    Expand,
    IndexList,
    Instr,
    Ints,
    Listed,
    ListKey,
    Offsets,
    Positions,
    RandomKey,
    SameRow,
    SameRowGradient,
    TableRows,
    Uses,
    View,
)
from vpps.compiler.lower import LoweredCell
from vpps.model.model import Parameter
from vpps.ops import Form, Shape
from vpps.ops.operand import shown
from vpps.placement.distribution import ParameterPlace
from vpps.planner.blocks import PlannedBlock
from vpps.planner.planner import Planner
from vpps.record.trace import Node, TracedCell
from vpps.script.instructions import BY_NAME, Kind
from vpps.script.tails import NONE, ViewUse

_PLAIN = ("a", "b", "c", "d", "weights", "src")  # operands that need no name
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "greater": ">", "greater_equal": ">="}
_WITH_CONSTANT = {"scale": "*", "shift": "+", "above": ">", "below": "<", "not_below": ">=", "not_above": "<="}
_OF_LISTS: dict[type, str] = {
    Args: "argument {0.position}",
    Elements: "elements of argument {0.position}",
    TableRows: "table rows n{0.node}",
    Ints: "ints n{0.node}",
    Ends: "where the rows of list {0.domain} begin",
    Uses: "readers of result {0.output}",
    Data: "data of inputs",
    Calls: "call numbers",
    Positions: "places in list {0.domain}",
    RandomKey: "random key",
    SameRow: "argument {0.position}",
    SameRowGradient: "gradient of result {0.output}",
}


def dimensions(shape: Shape) -> str:
    """Format a shape as "128", "4 x 128" or "scalar"."""
    return " x ".join(map(str, shape)) or "scalar"


def equation(node: Node) -> str:
    """Format a node as an equation of its inputs: "tanh(n2)", "'U' @ n3 + n4"."""
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
        flipped = "^T" if name == "affine_transposed" else ""
        return " + ".join([f"{parameter}{flipped} @ {read[0]}", *read[1:]])
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


def part_name(planner: Planner, block: PlannedBlock) -> str:
    """Return "eager", "level" or "lazy" for a part of a cell, "" for a whole cell."""
    part = planner.cells.part_of(block.arrays.cell)
    return "" if part is None else part.batching.name.lower()


def line_of(number: int, node: Node) -> str:
    """Format a node as a line: "n3 = tanh(n2)  (128)", "n7 = sigmoid(n6)  (128 per element of list 1)"."""
    each = f" per element of list {node.domain}" if node.domain else ""
    of = "" if node.op.form is Form.INDEX else f"  ({dimensions(node.shape)}{each})"
    return f"n{number} = {equation(node)}{of}"


def symbol_of(cell: TracedCell, number: int) -> str:
    """Name a node by number and operation: "n3 tanh", "n1 'words'"; nodes that lowering added are called outputs."""
    if number >= len(cell.nodes):
        return f"n{number} output"
    node = cell.nodes[number]
    if node.op.form is Form.ARGUMENT:
        return f"n{number} argument {node.attrs['position']}"
    of = f" '{node.parameter.name}'" if node.parameter is not None else ""
    return f"n{number} {shown(node.op.name)}{of}"


def said_of_list(key: ListKey, slabs: Sequence[str] = ()) -> str:
    """Describe the contents of an index list; `slabs` are the names of slabs."""
    match key:
        case IndexList(slab):
            return f"rows of {slabs[slab] if slabs else f's{slab}'}"
        case Expand(domain, of):
            return f"{said_of_list(of, slabs)}, per element of list {domain}"
        case Offsets(_, of):
            return f"where the lists of {said_of_list(of, slabs)} begin"
    return _OF_LISTS[type(key)].format(key)


class InstructionWords:
    """Formats the instructions of a lowered cell. Names slabs after the nodes whose values ("n7") or gradients ("dn7")
    they hold, and addresses after their parameters."""

    def __init__(self, lowered: LoweredCell, places: Mapping[Parameter, ParameterPlace]) -> None:
        self.slabs = slab_names(lowered)
        self._widths = [slab.width for slab in lowered.slabs]
        self._parameters = sorted(
            (start, start + place.floats, f"{kind}'{p.name}'{mark}")
            for p, place in places.items()
            for kind, start, mark in (
                ("", place.weights, ""),
                ("", place.transposed, "^T"),
                ("gradient of ", place.gradient, ""),
            )
            if start
        )

    def line(self, instr: Instr) -> str:
        """Format an instruction, such as "n8 = sigmoid(n4[0:256])  (256)"."""
        if instr.tail is not None:
            return f"tail {instr.tail.number:#010x}  ({instr.width})"
        flags = "".join(f".{name}" for name in ("accumulate", "mean") if getattr(instr, name))
        fields = dict(self._fields(instr))
        dst = fields.pop("dst", "")
        fields.pop("columns", "")  # implied by the operand
        fields = {name: fields[name] for name in sorted(fields, key=lambda name: name != "weights")}
        operands = [text if name in _PLAIN else f"{name}={text}" for name, text in fields.items()]
        parts = f" in {instr.parts} parts" if instr.parts > 1 and not instr.turns else ""
        per = f" per element of list {instr.domain}" if instr.domain else ""
        made = f"{dst} = " if dst else ""
        return f"{made}{instr.name}{flags}({', '.join(operands)})  ({instr.width}{parts}{per})"

    def program(self, instr: Instr) -> list[str]:
        """Format the program of a tail, a line per computed or stored value; empty for other instructions."""
        tail = instr.tail
        if tail is None:
            return []
        views = [self._tail_view(use, v) for use, v in instr.operands["views"]]
        names = dict(enumerate(views[: tail.first_step])) | {NONE: "0"}

        def name(value: int) -> str:
            return names.get(value, f"v{value}")

        lines = []
        for value, step in enumerate(tail.steps, tail.first_step):
            function = step.code.replace("::forward", "").replace("::backward", ".grad").lower()
            function += "0" if function.endswith(".grad") else ""
            constant = [] if step.constant == NONE else [views[step.constant]]
            lines.append(f"v{value} = {function}({', '.join([*map(name, step.inputs), *constant])})")
        stores = zip(views[tail.first_store :], tail.stores, strict=True)
        return lines + [f"{view} = {name(value)}" for view, value in stores]

    def _fields(self, instr: Instr) -> Iterator[tuple[str, str]]:
        for f in BY_NAME[instr.name].fields:
            if f.kind is Kind.OPERAND:
                if instr.operands[f.name] != NO_BIAS:
                    yield f.name, self._view(instr.operands[f.name])
            elif f.kind is Kind.SEGMENTS:
                yield f.name, "(" + " ".join(map(self._view, instr.operands[f.name])) + ")"
            elif f.kind is Kind.VIEWS:
                continue  # `program` formats the views of a tail
            elif (value := instr.values.get(f.name)) is None:
                continue
            elif f.name in ("weights", "gradient", "vector"):
                yield f.name, self._address(value)
            elif isinstance(value, int | float):
                if value or f.name not in ("value", "shift", "matrix"):
                    yield f.name, f"{value:g}" if isinstance(value, float) else str(value)
            else:
                yield f.name, f"[{said_of_list(value, self.slabs)}]"

    def _view(self, view: View) -> str:
        """Format a view, such as "n4[128:256]", "[argument 1]" or "'b'"."""
        if view.shared:
            return self._address(view.address + view.offset)
        if view.rows is None:
            name, whole = self.slabs[view.slab], not view.offset and view.width == self._widths[view.slab]
        else:
            name, whole = f"[{said_of_list(view.rows, self.slabs)}]", not view.offset
        return name if whole else f"{name}[{view.offset}:{view.offset + view.width}]"

    def _tail_view(self, use: ViewUse, what: View | Listed | float | int) -> str:
        if isinstance(what, Listed):
            shift = f" from {what.shift}" if what.shift else ""
            return f"{use.name.lower()}[{said_of_list(what.offsets, self.slabs)}]{shift}"
        if use is ViewUse.RESULT:
            return f"result[{what}]"
        return self._view(what) if isinstance(what, View) else f"{what:g}"

    def _address(self, address: int) -> str:
        for start, stop, found in self._parameters:
            if start <= address < stop:
                return found if address == start else f"{found}[{address - start}:]"
        return f"[{address}]"


def slab_names(lowered: LoweredCell) -> list[str]:
    """Name slabs: "n7" for the values of node 7, "dn7" for its gradients, "dn7'" for a second such slab."""
    found: list[str] = []
    for i, node in enumerate(lowered.slab_nodes):
        name = f"n{node}" if i < lowered.n_forward_slabs else f"dn{node}"
        while name in found:
            name += "'"
        found.append(name)
    return found
