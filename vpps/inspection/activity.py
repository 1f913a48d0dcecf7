"""What an instruction of a script is for, in a few of the user's words: "inner: U @ [lh, rh] + b"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vpps.graph.operand import shown
from vpps.graph.trace import Node, TracedCell
from vpps.ops import Form
from vpps.plan.instr import Instr
from vpps.plan.plan import Plan
from vpps.plan.sections import Section
from vpps.script.instructions import TABLE

SOURCES = (Form.ARGUMENT, Form.INDEX, Form.PARAMETER)
_DEPTH = 2  # of what a product multiplies; more is "..."
_BARRIERS = ("Signal", "Wait")
_UPDATES = ("UpdateMatrix", "UpdateVector", "UpdateRows", "SquaresMatrix", "SquaresRows", "Clip")
_PRODUCTS = ("Matvec", "MatvecTransposed", "PackedMatmul")


@dataclass(frozen=True, slots=True)
class Activity:
    """What virtual processors do at one position of a script.

    Attributes:
        position: of the instruction's first word.
        name: short, to stand in a bar: its cell and op.
        cell: whose instruction it is; "" where no cell made it.
        phase: "forward", "backward", "gradients" or "update".
        kind: what its time counts as: "compute", "load" (weights come to the chip), "update" or "waiting".
        instruction: in the instruction table, such as "matvec".
        form: its C++ struct, such as "Matvec".
        rows, width: of its result, that of all virtual processors together.
        stage: of the graph that it belongs to; -1 where it belongs to none.
        words: as messages call it, see `Plan.origin`.
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


def activities(plan: Plan, positions: Iterable[int]) -> dict[int, Activity]:
    """What the instructions at some positions of a plan's script are for, by position."""
    names = _Names.of(plan)
    return {position: _activity(plan, position, names) for position in positions}


@dataclass(frozen=True, slots=True)
class _Names:
    """Cells and parameters by their names, as short as they stay apart in a plan."""

    cells: dict[str, str]
    parameters: dict[str, str]

    @classmethod
    def of(cls, plan: Plan) -> _Names:
        cells = {block.arrays.cell.name for block in plan.blocks}
        parameters = {p.name for block in plan.blocks for p in block.arrays.cell.parameters}
        return cls(_shortened(cells, "."), _shortened(parameters, "/"))

    def parameter(self, name: str) -> str:
        return self.parameters.get(name, name)


def _shortened(names: set[str], separator: str) -> dict[str, str]:
    """Without the first part - instance of a cell, scope of a parameter - where that tells no two of them apart."""
    count = Counter(name.partition(separator)[2] for name in names)
    return {name: rest if count[rest := name.partition(separator)[2]] == 1 and rest else name for name in names}


def _activity(plan: Plan, position: int, names: _Names) -> Activity:
    opcode = int(plan.script[position]) & 0xFFFF
    row = TABLE[min(opcode, len(TABLE) - 1)]  # one that does not exist ends a launch
    found = plan.section_at(position)
    assert found is not None, "records are of instructions"
    section, offset = found
    if section.block is None or section.group is None:
        name, cell, stage = _without_cell(section, row.form, names), "", -1
        words = plan.origin(position)
    else:
        cell, stage = section.block.arrays.cell.name, _stage(section, offset)
        starts = section.group.starts
        within = offset % len(section.group.template)
        instr = next(i for first, i in reversed(starts) if first <= within)
        name = _named(section, instr, row.form, names)
        words = plan.origin(position)
    kind = "compute"
    if row.form in _BARRIERS:
        kind = "waiting"
    elif row.form == "Load":
        kind = "load"
    elif row.form in _UPDATES:
        kind = "update"
    return Activity(
        position=position,
        name=name,
        cell=cell,
        phase=section.during.value,
        kind=kind,
        instruction=row.name,
        form=row.form,
        rows=max(1, int(plan.script[position + 2])),
        width=int(plan.script[position + 3]),
        stage=stage,
        words=words,
    )


def _without_cell(section: Section, form: str, names: _Names) -> str:
    """The name of an instruction that no cell made."""
    what, _, of = section.phase.partition(" of ")
    if form in _BARRIERS:
        return f"{'wait at' if form == 'Wait' else 'come to'} barrier {section.first}"
    of = names.parameter(of.strip("'"))
    said = {
        "End": "end",
        "Loss": "report the loss",
        "Load": f"load {of}",
        "GatherSum": f"gradient of {of}",
        "SquaresMatrix": f"norm of {of}'s gradient",
        "SquaresRows": f"norm of {of}'s gradient",
        "Clip": "clip the gradients",
        "Guard": "whether the step is made",
        "KeptGradient": f"{what.replace('_', ' ')} of {of}",
    }
    if form.startswith("Update"):
        return f"{what.partition('.')[2]} step of {of}"
    return said.get(form, section.phase or form)


def _named(section: Section, instr: Instr, form: str, names: _Names) -> str:
    """The name of a cell's instruction."""
    assert section.block is not None
    program = section.block.arrays.cell
    cell = names.cells[program.name]
    if section.phase.startswith("gradient of "):
        of = names.parameter(section.phase.removeprefix("gradient of ").strip("'"))
        step = " and step" if form == "OuterUpdate" else ""
        return f"{cell}: gradient{step} of {of}"
    if form == "Watch":
        return f"{cell}: whether gradients are finite"
    node = program.nodes[instr.node] if instr.node < len(program.nodes) else None
    backward = section.phase == "backward"
    if instr.tail is not None:
        ops = dict.fromkeys(step.code.partition("::")[0] for step in instr.tail.steps)
        what = ", ".join(_op_of(device) for device in ops) or "copies"
    elif node is None:
        what = "outputs"
    elif form in _PRODUCTS:
        what = _product(program, node, backward, names)
        return f"{cell}: {what}"
    elif backward and instr.name in ("gather_sum", "sum", "column_sum", "zero"):
        return f"{cell}: gradients of results" if instr.name == "gather_sum" else f"{cell}: sum of gradients"
    else:
        what = _op_name(node)
    if not backward:
        return cell if _is_bare(program) else f"{cell}: {what}"
    return f"{cell} backward" if _is_bare(program) else f"{cell}: {what} backward"


def _product(cell: TracedCell, node: Node, backward: bool, names: _Names) -> str:
    """A product with a parameter, as an expression."""
    if backward:
        matrix = _matrix_below(cell, node, names)
        return f"{matrix}ᵀ @ gradient" if matrix else "@ backward"
    return _expression(cell, node, names, _DEPTH + 1)


def _matrix_below(cell: TracedCell, node: Node, names: _Names) -> str:
    """Name of the matrix whose product a node is, or adds a bias to."""
    for n in (node, *(cell.nodes[i] for i in node.inputs)):
        if n.parameter is not None and len(n.parameter.shape) == 2 and n.op.form is not Form.LOOKUP:
            return names.parameter(n.parameter.name)
    return ""


def _expression(cell: TracedCell, node: Node, names: _Names, depth: int) -> str:
    """A node as the user might have written it."""
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
        return f"{names.parameter(node.parameter.name)} @ {', '.join(inputs)}"
    if node.op.name == "add":
        return " + ".join(inputs)
    return f"{_op_name(node)}(...)"


def _op_name(node: Node) -> str:
    """An op as the user calls it: what a list is reduced by is no function of its own to him."""
    return shown(node.op.name).removeprefix("list_")


def _op_of(device: str) -> str:
    """The op whose device functions these are: "LeakyRelu" is leaky_relu."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in device).lstrip("_")


def _is_bare(cell: TracedCell) -> bool:
    """Whether a cell is a single op."""
    return sum(node.op.form not in SOURCES for node in cell.nodes) == 1


def _stage(section: Section, offset: int) -> int:
    """The stage that a cell's section belongs to; -1 for weight gradients, which belong to all."""
    assert section.block is not None
    assert section.group is not None
    if section.phase not in ("forward", "backward"):
        return -1
    repetition = offset // max(1, len(section.group.template))
    row = section.first if isinstance(section.first, int) else int(section.first[repetition])
    block = section.block
    step = int(np.searchsorted(block.first[:, 0], row, side="right")) - 1
    return int(block.step_stage[step])
