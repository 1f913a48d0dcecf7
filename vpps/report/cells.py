"""Report on the compilation of cells: nodes before and after every pass, parts, instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
from vpps.record.trace import Int, List, TracedCell, Vector
from vpps.record.vertices import Block
from vpps.report.words import InstructionWords, dimensions, line_of, part_name
from vpps.text import Text, counted

_NO_OPERATORS = (Form.ARGUMENT, Form.PARAMETER, Form.INDEX, Form.LOOKUP, Form.CONCAT, *VIEWS)

Stage = tuple[str, str, TracedCell]
"""Name of a pass, description of its changes, resulting cell."""


def cells_text(plan: Plan, planner: Planner, name: str | None = None) -> Text:
    """Report on each cell of a planned graph. Omit single operations if there are other cells.

    Args:
        name: show only the cells with this name, or with this name after a dot.

    Raises:
        GraphError: there is no such cell.
    """
    blocks: dict[TracedCell, list[PlannedBlock]] = {cell: [] for cell in plan.graph.blocks}
    for b in plan.blocks:
        blocks[b.arrays.block.pattern].append(b)
    if name is None:
        shown = [cell for cell, found in blocks.items() if not all(b.cell.lowered.is_bare for b in found)]
        shown = shown or list(blocks)
    else:
        shown = [cell for cell in blocks if f".{cell.name}".endswith(f".{name}")]
        if not shown:
            known = ", ".join(cell.name for cell in blocks)
            raise GraphError(f"there is no cell {name!r} in the graph; there are {known}")
    training = plan.loss_slot >= 0
    found = (_paragraphs(plan.graph.blocks[cell], blocks[cell], planner, training) for cell in shown)
    return Text("\n".join(line for paragraphs in found for lines in paragraphs for line in (*lines, "")))


def _paragraphs(
    recorded: Block, blocks: Sequence[PlannedBlock], planner: Planner, training: bool
) -> Iterator[Iterable[str]]:
    """Yield the stages, parts and instructions of a cell."""
    cell, constants = recorded.pattern, recorded.cell.constants
    takes = ", ".join(_arguments(cell))
    yield [f"cell {cell.name} of ({takes}), {counted(len(recorded), 'vertex', 'vertices')}"]
    parts = [part_name(planner, b) for b in blocks]
    before: list[str] = []
    for stage in _stages(cell, blocks, any(parts), planner, training):
        heading, *nodes = _stage(*stage, constants)
        yield [heading, *(["  unchanged"] if nodes == before else nodes)]
        before = nodes
    for b, part in zip(blocks, parts, strict=True):
        if part:
            yield _stage(f"lazy_batching: {part}", "", b.arrays.cell, constants)
    for b, part in zip(blocks, parts, strict=True):
        yield from _code(b.cell.lowered, part, planner, training, constants)


def _stages(
    cell: TracedCell, blocks: Sequence[PlannedBlock], in_parts: bool, planner: Planner, training: bool
) -> Iterator[Stage]:
    """Yield the traced cell, then the result of each pass on its nodes."""
    traced = cell
    yield "traced", "", cell
    for name, node_pass in NODE_PASSES:
        cell, said = node_pass(cell)
        yield name, said, cell
    if planner.passes.horizontal:
        cell, said = horizontal(cell, planner.distribution.stacks)
        yield "horizontal", said, cell
    for name, said in [note for note in planner.cells.notes.get(traced, ()) if note[0] == "dead_outputs"][-1:]:
        if training or in_parts:
            yield name, said, planner.cells.compiled(traced)
        else:
            yield from ((name, said, b.arrays.cell) for b in blocks)


def _stage(name: str, said: str, cell: TracedCell, constants: tuple[float, ...]) -> list[str]:
    """Format a heading, a line for each node that a result depends on, and the results."""
    cell = cell.closed(constants)
    live = live_nodes(cell.nodes, cell.outputs)
    nodes = [(i, node) for i, node in enumerate(cell.nodes) if live[i]]
    operators = sum(node.op.form not in _NO_OPERATORS for _, node in nodes)
    size = f"{counted(len(nodes), 'node')}, {counted(operators, 'operator')}"
    return [
        f"{name}: {f'{said}; ' if said else ''}{size}",
        *(f"  {line_of(i, node)}" for i, node in nodes),
        f"  results {', '.join(f'n{o}' for o in cell.outputs)}",
    ]


def _code(
    lowered: LoweredCell, part: str, planner: Planner, training: bool, constants: tuple[float, ...]
) -> Iterator[list[str]]:
    """Yield the instructions of a cell or part by phase: before fusion, and after it if fusion changed anything."""
    cell, exclusive = lowered.cell.closed(constants), planner.cells.exclusive
    as_before = lowered.first_same_row, lowered.taken_back, training, lowered.unread
    unfused, fused = (
        LoweredCell(cell, planner.distribution, exclusive, fusion, *as_before)
        for fusion in (False, planner.passes.fusion)
    )
    before, after = (InstructionWords(code, planner.distribution.physical) for code in (unfused, fused))
    phases: list[tuple[str, Sequence[Instr], Sequence[Instr]]] = [("forward", unfused.forward, fused.forward)]
    if training:
        gradients = [[g.instr for g in code.parameter_gradients] for code in (unfused, fused)]
        phases += [("backward", unfused.backward, fused.backward), ("gradients", gradients[0], gradients[1])]
    suffix = f", {part} part" if part else ""
    for phase, plain, instructions in phases:
        if plain:
            lines = [_heading(f"lowered: {phase}{suffix}", plain), *_listing(plain, before)]
            if tails := [i for i in instructions if i.tail is not None]:
                merged = counted(sum(len(i.merged) for i in tails), "instruction")
                heading = _heading(f"fused: {phase}{suffix}", instructions)
                lines += [f"{heading}, {merged} in {counted(len(tails), 'tail')}", *_listing(instructions, after)]
            yield lines


def _heading(what: str, instructions: Sequence[Instr]) -> str:
    groups = len({i.group for i in instructions})
    barriers = f", {counted(groups - 1, 'barrier')} between" if groups > 1 else ""
    return f"{what}: {counted(len(instructions), 'instruction')}{barriers}"


def _listing(instructions: Sequence[Instr], words: InstructionWords) -> Iterator[str]:
    """Format instructions in the order of execution."""
    in_order = sorted(instructions, key=lambda i: i.group)
    group = in_order[0].group
    for i in in_order:
        if i.group != group:
            yield "  -- barrier --"
        group = i.group
        yield f"  {words.line(i)}"
        if i.tail is not None:
            yield f"    of {', '.join(f'{name} n{node}' for name, node in i.merged)}"
            yield from (f"      {line}" for line in words.program(i))


def _arguments(cell: TracedCell) -> Iterator[str]:
    for kind in cell.kinds:
        match kind:
            case Vector(shape):
                yield dimensions(shape)
            case Int():
                yield "int"
            case List(shape):
                yield "list" if shape is None else f"list of {dimensions(shape)}"
