"""What the cell compiler did to each cell: a part of `handle.explain()`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.instr import Instr
from vpps.compiler.passes.lazy_batching import Batching, CellPart
from vpps.compiler.passes.nodes import Note
from vpps.compiler.prepare import live_nodes
from vpps.record.trace import TracedCell
from vpps.text import counted

_SAID = {Batching.EAGER: "before the first level", Batching.LEVEL: "level by level", Batching.LAZY: "after the last"}
_NO_OPERATORS = ("argument", "parameter", "index", "lookup", "slice", "reshape", "concat")


def describe(
    notes: Iterable[Note], parts: Sequence[CellPart], encoded: Sequence[EncodedCell], streams: bool
) -> list[Note]:
    """Lines about a cell: what each pass did, and what became of the cell.

    Args:
        notes: of the passes on its nodes.
        parts: of the cell; none where it is whole.
        encoded: its encoded parts, or the whole.
        streams: its eager part may run in the pauses between levels.
    """
    lines = [*notes]
    instructions = [i for t in encoded for i in (*t.lowered.forward, *t.lowered.backward)]
    if parts:
        said = [f"{_operators(part.cell)} {_SAID[part.batching]}" for part in parts]
        lines.append(("lazy_batching", f"in {len(parts)} parts: {'; '.join(said)}"))
    if streams:
        lines.append(("streaming", "what is eager runs in the pauses between levels, if there is much of it"))
    tails = [i for i in instructions if i.tail is not None]
    if tails:
        lines.append(("fusion", f"{sum(len(i.tail.steps) for i in tails if i.tail)} operations in {len(tails)} tails"))
    lines.append(("forward", _counted([(t.lowered.forward, t.forward) for t in encoded])))
    lines.append(("backward", _counted([(t.lowered.backward, t.backward) for t in encoded])))
    return lines


def _operators(cell: TracedCell) -> str:
    live = live_nodes(cell.nodes, cell.outputs)
    names = [n.op.name for n, is_live in zip(cell.nodes, live, strict=True) if is_live]
    names = [name for name in names if name not in _NO_OPERATORS]
    few = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    if not names:
        return "no operator"
    return f"{counted(len(names), 'operator')} ({few})"


def _counted(directions: Sequence[tuple[Sequence[Instr], Sequence[object]]]) -> str:
    """How many instructions a direction has, and the barriers inside each part."""
    instructions = sum(len(instrs) for instrs, _ in directions)
    inside = sum(max(len(groups) - 1, 0) for _, groups in directions)
    barriers = counted(inside, "barrier") if inside else "no barrier"
    return f"{counted(instructions, 'instruction')} for a step of it, {barriers} between them"
