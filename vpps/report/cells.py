"""What the cell compiler makes of a cell: its nodes before and after every pass, its parts, its instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from vpps.compiler.instr import Instr
from vpps.compiler.lower import LoweredCell
from vpps.compiler.passes.horizontal import horizontal
from vpps.compiler.passes.nodes import NODE_PASSES
from vpps.compiler.prepare import VIEWS, live_nodes
from vpps.errors import GraphError
from vpps.ops import Form
from vpps.planner.blocks import PlannedBlock
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.record.trace import Int, List, Node, TracedCell, Vector
from vpps.record.vertices import Block
from vpps.report.words import InstructionWords, dimensions, line_of, part_name
from vpps.text import Report, counted

TRACED = "traced"
_NO_OPERATORS = (Form.ARGUMENT, Form.PARAMETER, Form.INDEX, Form.LOOKUP, Form.CONCAT, *VIEWS)


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node of a cell.

    Attributes:
        number: of it; passes keep it, messages name it.
        op: name in the op table.
        inputs: nodes that it reads.
        parameter: its name, "" without one.
        shape: of a row of its result.
        list: number of the list for whose elements it has a row each; 0: a row for each vertex.
        line: all of that: "n3 = tanh(n2)  (128)".
    """

    number: int
    op: str
    inputs: tuple[int, ...]
    parameter: str
    shape: tuple[int, ...]
    list: int
    line: str


@dataclass(frozen=True, slots=True)
class CellStage(Report):
    """A cell as a pass left it.

    Attributes:
        name: of the pass, a field of `vpps.Passes`; "traced" of what the user's function is.
        said: what the pass did.
        nodes: those that a result depends on.
        operators: how many of them compute something.
        results: nodes that are handed out.
    """

    name: str
    said: str
    nodes: tuple[NodeLine, ...]
    operators: int
    results: tuple[int, ...]

    def text(self) -> str:
        """A heading, then a line for each node."""
        return "\n".join([self.heading(), *self.listing(), ""])

    def heading(self) -> str:
        """Name, what was done, and how much there is."""
        size = f"{counted(len(self.nodes), 'node')}, {counted(self.operators, 'operator')}"
        return f"{self.name}: {self.said + '; ' if self.said else ''}{size}"

    def listing(self) -> list[str]:
        """A line for each node, and for the results."""
        return [*(f"  {n.line}" for n in self.nodes), f"  results {', '.join(f'n{o}' for o in self.results)}"]


@dataclass(frozen=True, slots=True)
class InstructionLine:
    """An instruction of a cell.

    Attributes:
        name: in the instruction table.
        node: that it comes from.
        group: a barrier lies between instructions of different groups.
        width: floats of a row of the result.
        line: all of it: "n8 = sigmoid(n4[0:256])  (256)".
        merged: of a tail, the instructions that it is made of: name and node.
        program: of a tail, what it computes.
    """

    name: str
    node: int
    group: int
    width: int
    line: str
    merged: tuple[tuple[str, int], ...] = ()
    program: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CellCode(Report):
    """Instructions of a cell, or of a part of one.

    Attributes:
        part: "eager", "level", "lazy", or "" of a whole cell.
        phase: "forward", "backward", or "gradients": of parameters, once over all rows.
        lowered: instructions before fusion.
        fused: after it, what is executed.
    """

    part: str
    phase: str
    lowered: tuple[InstructionLine, ...]
    fused: tuple[InstructionLine, ...]

    def text(self) -> str:
        """Instructions before fusion, and after it, if that changed anything."""
        lines = [self._heading("lowered", self.lowered), *_listing(self.lowered)]
        tails = [i for i in self.fused if i.program]
        if tails:
            merged = sum(len(i.merged) for i in tails)
            said = f"{counted(merged, 'instruction')} in {counted(len(tails), 'tail')}"
            lines += [f"{self._heading('fused', self.fused)}, {said}", *_listing(self.fused)]
        return "\n".join([*lines, ""])

    def _heading(self, stage: str, instructions: Sequence[InstructionLine]) -> str:
        groups = len({i.group for i in instructions})
        barriers = f", {counted(groups - 1, 'barrier')} between" if groups > 1 else ""
        part = f", {self.part} part" if self.part else ""
        return f"{stage}: {self.phase}{part}: {counted(len(instructions), 'instruction')}{barriers}"


def _listing(instructions: Sequence[InstructionLine]) -> Iterator[str]:
    group = instructions[0].group if instructions else 0
    for i in instructions:
        if i.group != group:
            yield "  -- barrier --"
        group = i.group
        yield f"  {i.line}"
        if i.program:
            yield f"    of {', '.join(f'{name} n{node}' for name, node in i.merged)}"
            yield from (f"      {line}" for line in i.program)


@dataclass(frozen=True, slots=True)
class CellReport(Report):
    """A cell, from what was traced to instructions.

    Attributes:
        name: of the user's function.
        arguments: what it takes: "128", "int", "list of 128".
        vertices: of the graph.
        stages: what was traced, then what each pass left.
        parts: eager, level and lazy ones of a cell of a recurrence, where it is split; stages of their own.
        code: instructions, by part and phase.
        bare: it is a single operation.
    """

    name: str
    arguments: tuple[str, ...]
    vertices: int
    stages: tuple[CellStage, ...]
    parts: tuple[CellStage, ...]
    code: tuple[CellCode, ...]
    bare: bool

    def text(self) -> str:
        """Stages, parts and instructions."""
        takes = f" of ({', '.join(self.arguments)})"
        lines = [f"cell {self.name}{takes}, {counted(self.vertices, 'vertex', 'vertices')}", ""]
        before: CellStage | None = None
        for stage in self.stages:
            same = before is not None and (before.nodes, before.results) == (stage.nodes, stage.results)
            lines += [stage.heading(), *(["  unchanged"] if same else stage.listing()), ""]
            before = stage
        lines += [part.text() for part in self.parts]
        lines += [code.text() for code in self.code if code.lowered]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CellsReport(Report):
    """The cells of a graph.

    Attributes:
        cells: in the order of their first call.
    """

    cells: tuple[CellReport, ...]

    def text(self) -> str:
        """One after the other, but for single operations, if there are others."""
        shown = [cell for cell in self.cells if not cell.bare] or self.cells
        return "\n".join(cell.text() for cell in shown)

    def named(self, name: str) -> CellsReport:
        """The cells of a name, or with that name after a dot. Raises GraphError if there is none."""
        found = tuple(c for c in self.cells if c.name == name or c.name.endswith(f".{name}"))
        if not found:
            raise GraphError(
                f"there is no cell {name!r} in the graph; there are {', '.join(c.name for c in self.cells)}"
            )
        return replace(self, cells=found)


def cells_report(plan: Plan, planner: Planner) -> CellsReport:
    """What became of each cell of a graph, whose plan a planner has made."""
    blocks: dict[TracedCell, list[PlannedBlock]] = {cell: [] for cell in plan.graph.blocks}
    for b in plan.blocks:
        blocks[b.arrays.block.pattern].append(b)
    training = plan.loss_slot >= 0
    recorded = plan.graph.blocks
    return CellsReport(tuple(_report(recorded[cell], found, planner, training) for cell, found in blocks.items()))


def _report(recorded: Block, blocks: Sequence[PlannedBlock], planner: Planner, training: bool) -> CellReport:
    cell, constants = recorded.pattern, recorded.cell.constants
    stages = list(_stages(cell, planner, constants))
    dead = [note for note in planner.cells.notes.get(cell, ()) if note[0] == "dead_outputs"]
    parts = []
    code: list[CellCode] = []
    for b in blocks:
        name = part_name(planner, b)
        if name:
            parts.append(_stage(f"lazy_batching: {name}", "", b.arrays.cell, constants))
        elif not training and dead:
            stages.append(_stage(*dead[-1], b.arrays.cell, constants))
        code += _code(b.cell.lowered, name, planner, training, constants)
    if dead and (training or parts):
        stages.append(_stage(*dead[-1], planner.cells.compiled(cell), constants))
    bare = all(b.cell.lowered.is_bare for b in blocks)
    return CellReport(cell.name, tuple(_arguments(cell)), len(recorded), tuple(stages), tuple(parts), tuple(code), bare)


def _stages(cell: TracedCell, planner: Planner, constants: tuple[float, ...]) -> Iterator[CellStage]:
    """A cell before and after the passes on its nodes."""
    yield _stage(TRACED, "", cell, constants)
    for name, node_pass in NODE_PASSES:
        if getattr(planner.passes, name):
            cell, said = node_pass(cell)
            yield _stage(name, said, cell, constants)
    if planner.passes.horizontal:
        cell, said = horizontal(cell, planner.distribution.stacks, planner.passes.cell_layout)
        yield _stage("horizontal", said, cell, constants)


def _stage(name: str, said: str, cell: TracedCell, constants: tuple[float, ...]) -> CellStage:
    cell = cell.closed(constants)
    live = live_nodes(cell.nodes, cell.outputs)
    nodes = tuple(_node(i, n) for i, n in enumerate(cell.nodes) if live[i])
    operators = sum(n.op.form not in _NO_OPERATORS for n, is_live in zip(cell.nodes, live, strict=True) if is_live)
    return CellStage(name, said, nodes, operators, cell.outputs)


def _node(number: int, n: Node) -> NodeLine:
    parameter = "" if n.parameter is None else n.parameter.name
    return NodeLine(number, n.op.name, n.inputs, parameter, n.shape, n.domain, line_of(number, n))


def _code(
    lowered: LoweredCell, part: str, planner: Planner, training: bool, constants: tuple[float, ...]
) -> Iterator[CellCode]:
    cell, exclusive = lowered.cell.closed(constants), planner.schedule.exclusive
    as_before = lowered.first_same_row, lowered.taken_back, training, lowered.unread
    unfused, lowered = (
        LoweredCell(cell, planner.distribution, exclusive, passes, *as_before)
        for passes in (replace(planner.passes, fusion=False), planner.passes)
    )
    before, after = (InstructionWords(code, planner.distribution.physical) for code in (unfused, lowered))
    yield CellCode(part, "forward", _lines(unfused.forward, before), _lines(lowered.forward, after))
    if training:
        yield CellCode(part, "backward", _lines(unfused.backward, before), _lines(lowered.backward, after))
        plain, fused = ([g.instr for g in x.parameter_gradients] for x in (unfused, lowered))
        yield CellCode(part, "gradients", _lines(plain, before), _lines(fused, after))


def _lines(instructions: Sequence[Instr], words: InstructionWords) -> tuple[InstructionLine, ...]:
    return tuple(  # in the order of execution
        InstructionLine(i.name, i.node, i.group, i.width, words.line(i), i.merged, tuple(words.program(i)))
        for i in sorted(instructions, key=lambda i: i.group)
    )


def _arguments(cell: TracedCell) -> Iterator[str]:
    for kind in cell.kinds:
        match kind:
            case Vector(shape):
                yield dimensions(shape)
            case Int():
                yield "int"
            case List(shape):
                yield "list" if shape is None else f"list of {dimensions(shape)}"
