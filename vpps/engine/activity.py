"""Describes an instruction of a script in a few of the user's words: "inner: U @ [lh, rh] + b"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vpps.compiler.instr import Instr
from vpps.ops import Form
from vpps.ops.operand import shown
from vpps.planner.plan import Plan
from vpps.planner.reader import BARRIERS, PRODUCTS, STEPS, Placed
from vpps.planner.sections import Section
from vpps.record.trace import Node, TracedCell
from vpps.script.instructions import TABLE

SOURCES = (Form.ARGUMENT, Form.INDEX, Form.PARAMETER)
_DEPTH = 2  # nesting levels shown for the operands of a product; deeper levels become "..."
_KINDS = {"Load": "load"} | dict.fromkeys(BARRIERS, "waiting")
# An instruction that fuses an update with the last product of a gradient is classified as that product.
_KINDS |= dict.fromkeys({*STEPS, "SquaresMatrix", "SquaresRows", "Clip"} - {"OuterUpdate"}, "update")


@dataclass(frozen=True, slots=True)
class Activity:
    """An instruction at one position of a script, described for users.

    Attributes:
        position: index of the instruction's first word.
        name: cell and op, short enough for a bar in a chart.
        cell: name of the cell that the instruction comes from; "" if it comes from none.
        phase: "forward", "backward", "gradients" or "update".
        kind: category of its time: "compute", "load" (weights are copied to the chip), "update" or "waiting".
        instruction: name in the instruction table, such as "matvec".
        form: the instruction's C++ struct, such as "Matvec".
        rows, width: shape of the whole result, over all virtual processors.
        stage: stage of the graph; -1 if the instruction belongs to no stage.
        words: description of the instruction in messages; see `Plan.origin`.
    """

    position: int
    name: str
    cell: str
    phase: str
    kind: str
    instruction: str
    form: str
    rows: int
    width: int
    stage: int
    words: str


def activities(plan: Plan, placed: Sequence[Placed]) -> list[Activity]:
    """Return the activities for some of a plan's instructions."""
    cells = {block.arrays.cell for block in plan.blocks}
    parameters = {p.name for cell in cells for p in cell.parameters}
    names = _Names(_shortened({cell.name for cell in cells}, "."), _shortened(parameters, "/"))
    return [_activity(plan, place, names) for place in placed]


class _Names(NamedTuple):
    """Shortest unique display names within a plan, keyed by the full names of cells and parameters."""

    cells: dict[str, str]
    parameters: dict[str, str]

    def parameter(self, name: str) -> str:
        return self.parameters.get(name, name)


def _shortened(names: set[str], separator: str) -> dict[str, str]:
    """Drop the first part (instance of a cell, scope of a parameter) of each name if the rest is unique."""
    count = Counter(name.partition(separator)[2] for name in names)
    return {name: rest if count[rest := name.partition(separator)[2]] == 1 and rest else name for name in names}


def _activity(plan: Plan, place: Placed, names: _Names) -> Activity:
    position, section, offset = place
    opcode = int(plan.script[position]) & 0xFFFF
    row = TABLE[min(opcode, len(TABLE) - 1)]  # an unknown opcode ends a launch
    if section.block is None:
        name = _without_cell(section, row.form, names)
    else:
        name = _named(section, section.made_at(offset)[0], row.form, names)
    return Activity(
        position=position,
        name=name,
        cell=place.cell,
        phase=place.phase,
        kind=_KINDS.get(row.form, "compute"),
        instruction=row.name,
        form=row.form,
        rows=max(1, int(plan.script[position + 2])),
        width=int(plan.script[position + 3]),
        stage=place.stage,
        words=section.origin(offset),
    )


def _without_cell(section: Section, form: str, names: _Names) -> str:
    """Return the name of an instruction that does not come from a cell."""
    what, _, of = section.phase.partition(" of ")
    if form in BARRIERS:
        return f"{'wait at' if form == 'Wait' else 'come to'} barrier {section.barrier}"
    of = names.parameter(of.strip("'"))
    said = {
        "End": "end",
        "Loss": "report the loss",
        "Load": f"load {of}",
        "GatherSum": f"gradient of {of}",
        "SquaresMatrix": f"norm of {of}'s gradient",
        "SquaresRows": f"norm of {of}'s gradient",
        "Clip": "clip the gradients",
        "Guard": "check if the step is made",
    }
    if form.startswith("Update"):
        return f"{what.partition('.')[2]} step of {of}"
    return said.get(form, section.phase or form)


def _named(section: Section, instr: Instr, form: str, names: _Names) -> str:
    """Return the name of a cell's instruction."""
    assert section.block is not None
    program = section.block.arrays.cell
    cell = names.cells[program.name]
    if section.phase.startswith("gradient of "):
        of = names.parameter(section.phase.removeprefix("gradient of ").strip("'"))
        step = " and step" if form in ("OuterUpdate", "StepTiles") else ""
        return f"{cell}: gradient{step} of {of}"
    if form == "Watch":
        return f"{cell}: check if gradients are finite"
    node = program.nodes[instr.node] if instr.node < len(program.nodes) else None
    backward = section.phase == "backward"
    if instr.tail is not None:
        ops = dict.fromkeys(step.code.partition("::")[0] for step in instr.tail.steps)
        what = ", ".join(_op_of(device) for device in ops) or "copies"
    elif node is None:
        what = "outputs"
    elif form in PRODUCTS:
        return f"{cell}: {_product(program, node, backward, names)}"
    elif backward and instr.name in ("gather_sum", "sum", "column_sum", "zero"):
        return f"{cell}: gradients of results" if instr.name == "gather_sum" else f"{cell}: sum of gradients"
    else:
        what = _op_name(node)
    return (cell if _is_bare(program) else f"{cell}: {what}") + (" backward" if backward else "")


def _product(cell: TracedCell, node: Node, backward: bool, names: _Names) -> str:
    """Format a product with a parameter as an expression."""
    if backward:
        matrix = _matrix_below(cell, node, names)
        return f"{matrix}ᵀ @ gradient" if matrix else "@ backward"
    return _expression(cell, node, names, _DEPTH + 1)


def _matrix_below(cell: TracedCell, node: Node, names: _Names) -> str:
    """Return the name of the matrix in a node's product; the node is the product itself, or adds a bias to it."""
    for n in (node, *(cell.nodes[i] for i in node.inputs)):
        if n.parameter is not None and shown(n.op.name) == "@":
            return names.parameter(n.parameter.name) + _flipped(n)
    return ""


def _expression(cell: TracedCell, node: Node, names: _Names, depth: int) -> str:
    """Format a node as the user might have written it."""
    if node.op.form is Form.ARGUMENT:
        position = node.attrs.get("position", -1)
        return cell.argument_names[position] if 0 <= position < len(cell.argument_names) else "x"
    if node.op.form is Form.PARAMETER and node.parameter is not None:
        return names.parameter(node.parameter.name)
    if node.op.form is Form.LOOKUP and node.parameter is not None:
        return f"{names.parameter(node.parameter.name)}[i]"
    if depth == 0:
        return "..."
    inputs = [_expression(cell, cell.nodes[i], names, depth - 1) for i in node.inputs]
    if node.op.form is Form.SLICE:
        return f"{inputs[0]}[{node.attrs['start']}:{node.attrs['stop']}]"
    if node.op.form is Form.CONCAT:
        return f"[{', '.join(inputs)}]"
    if shown(node.op.name) == "@" and node.parameter is not None:
        return f"{names.parameter(node.parameter.name)}{_flipped(node)} @ {', '.join(inputs)}"
    if node.op.name == "add":
        return " + ".join(inputs)
    return f"{_op_name(node)}(...)"


def _flipped(node: Node) -> str:
    """Return the suffix for the matrix's name in a product: ".T" or nothing."""
    return ".T" if node.op.name == "affine_transposed" else ""


def _op_name(node: Node) -> str:
    """Return an op's name for users: the reduction of a list is named after the plain function."""
    return shown(node.op.name).removeprefix("list_")


def _op_of(device: str) -> str:
    """Return the op that a device function's name stands for: "LeakyRelu" is leaky_relu."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in device).lstrip("_")


def _is_bare(cell: TracedCell) -> bool:
    """Return True if a cell consists of a single op."""
    return sum(node.op.form not in SOURCES for node in cell.nodes) == 1
