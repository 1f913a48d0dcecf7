"""Compiles, divides and encodes the cells of a model for one distribution of its parameters and one schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.instr import Instr
from vpps.compiler.passes import Passes, dead_outputs, lazy_batching
from vpps.compiler.passes.dead_outputs import ALL_READ, Unread
from vpps.compiler.passes.lazy_batching import Batching, CellPart
from vpps.compiler.passes.nodes import Note, compiled
from vpps.compiler.phases import EncodedPart, encode_parts
from vpps.compiler.prepare import live_nodes
from vpps.compiler.slabs import Life
from vpps.errors import ModelError
from vpps.placement.distribution import Distribution
from vpps.record.trace import TracedCell
from vpps.text import counted

_SAID = {Batching.EAGER: "before the first level", Batching.LEVEL: "level by level", Batching.LAZY: "after the last"}
_NO_OPERATORS = ("argument", "parameter", "index", "lookup", "slice", "reshape", "concat")


class EncodedCells:
    """Compiles cells, divides recurrent ones into parts, and encodes them, each once.

    Args:
        distribution: locations of the parameters, and number of virtual processors.
        exclusive: True if every virtual processor has its own script.
        passes: passes of the cell compiler.

    Attributes:
        notes: the passes' effects on each cell's nodes: name of the pass, and a sentence.
    """

    def __init__(self, distribution: Distribution, exclusive: bool, passes: Passes) -> None:
        self.distribution = distribution
        self.exclusive = exclusive
        self.passes = passes
        self.notes: dict[TracedCell, list[Note]] = {}
        self._encode = partial(EncodedCell, distribution, exclusive, passes.fusion)
        self._compiled: dict[TracedCell, TracedCell] = {}
        self._without: dict[tuple[TracedCell, Unread], TracedCell] = {}
        self._cells: dict[tuple[TracedCell, Unread, bool], EncodedCell] = {}
        self._parts: dict[tuple[TracedCell, frozenset[int], frozenset[int]], tuple[CellPart, ...]] = {}
        self._of_parts: dict[tuple[tuple[CellPart, ...], Unread, bool], list[EncodedPart]] = {}

    def compiled(self, cell: TracedCell) -> TracedCell:
        """Return the cell after the passes on its nodes. Raises ModelError if it uses another model's parameter."""
        known = self._compiled.get(cell)
        if known is None:
            for p in cell.parameters:
                if p not in self.distribution.places:
                    raise ModelError(f"cell {cell.name!r} uses {p!r}, which belongs to another model than the handle's")
            known, notes = compiled(cell, self.distribution.stacks)
            self.notes[cell] = notes if self.passes.horizontal else notes[:-1]  # the last is about horizontal fusion
            self._compiled[cell] = known
        return known

    def without(self, cell: TracedCell, unread: Unread) -> TracedCell:
        """Return the cell after the passes on its nodes, without some outputs, for inference."""
        key = cell, unread
        known = self._without.get(key)
        if known is None:
            known = self._without[key] = dead_outputs.without(self.compiled(cell), unread)
            self._compiled[known] = known
            self.notes[cell].append(("dead_outputs", dead_outputs.said(cell, unread, training=False)))
        return known

    def encoded(self, cell: TracedCell, unread: Unread = ALL_READ, training: bool = True) -> EncodedCell:
        """Return the encoded cell, without gradients for the unread outputs.

        With fusion, inference uses a separate encoded cell, which stores no values for backward. Raises ModelError
        if the cell uses another model's parameter.
        """
        training = training or not self.passes.fusion
        key = cell, unread, training
        known = self._cells.get(key)
        if known is None:
            known = self._cells[key] = self._encode(self.compiled(cell), training=training, unread=unread)
        return known

    def note_unread(self, cell: TracedCell, unread: Unread) -> None:
        """Add a note that some outputs of a cell have no backward."""
        self.compiled(cell)
        note = "dead_outputs", dead_outputs.said(cell, unread, training=True)
        if note not in self.notes[cell]:
            self.notes[cell].append(note)

    def explain(self) -> list[tuple[str, list[Note]]]:
        """Return the name and notes of each cell with several operators; a note is (pass or direction, sentence)."""
        found = []
        for cell, notes in self.notes.items():
            in_parts = next((p for (whole, *_), p in self._parts.items() if whole is cell and p), ())
            encoded = [t for (parts, *_), ts in self._of_parts.items() if parts == in_parts and in_parts for t in ts]
            templates = [t.cell for t in encoded[: len(in_parts)]]
            templates = templates or [t for (whole, *_), t in self._cells.items() if whole is cell][:1]
            if len(templates) > 1 or (templates and not templates[0].lowered.is_bare):
                streams = bool(in_parts) and self.streams(in_parts, training=True)
                found.append((cell.name, _describe(notes, in_parts, templates, streams)))
        return found

    def split(self, cell: TracedCell, gathered: frozenset[int], scattered: frozenset[int]) -> tuple[CellPart, ...]:
        """Return the parts of a recurrent cell (passes/lazy_batching.py)."""
        key = cell, gathered, scattered
        if key not in self._parts:
            self._parts[key] = lazy_batching.split(self.compiled(cell), gathered, scattered)
        return self._parts[key]

    def part_of(self, cell: TracedCell) -> CellPart | None:
        """Return the part whose program is this cell, or None."""
        return next((part for parts in self._parts.values() for part in parts if part.cell is cell), None)

    def encoded_parts(
        self, parts: tuple[CellPart, ...], unread: Unread = ALL_READ, training: bool = True
    ) -> list[EncodedPart]:
        """Return the encoded parts of a cell; the arguments are those of `encoded`."""
        training = training or not self.passes.fusion
        key = parts, unread, training
        known = self._of_parts.get(key)
        if known is None:
            known = self._of_parts[key] = encode_parts(parts, self._encode, unread, training)
        return known

    def streams(self, parts: tuple[CellPart, ...], training: bool, unread: Unread = ALL_READ) -> bool:
        """Return True if the eager part of a cell may run while virtual processors wait. It must not wait itself, nor
        use memory that is reused after its stage; which memory is reused depends on the unread outputs."""
        if not self.passes.streaming or self.exclusive:
            return False
        if [part.batching for part in parts[:2]] != [Batching.EAGER, Batching.LEVEL]:
            return False  # no part runs level by level, so none waits
        cell, level = (of_part.cell for of_part in self.encoded_parts(parts)[:2])
        groups = self.encoded_parts(parts, unread, training)[0].cell.slab_groups(training)
        if len(cell.forward) != 1 or groups.of_life[Life.FORWARD if training else Life.SCRATCH]:
            return False
        return not level.may_follow(level, len(level.forward) - 1, backward=False)  # otherwise the level never waits


def _describe(
    notes: Iterable[Note], parts: Sequence[CellPart], encoded: Sequence[EncodedCell], streams: bool
) -> list[Note]:
    """Return the passes' effects on a cell, and its instruction counts. `encoded`: its parts, or the whole cell."""
    lines = [*notes]
    instructions = [i for t in encoded for i in (*t.lowered.forward, *t.lowered.backward)]
    if parts:
        said = [f"{_operators(part.cell)} {_SAID[part.batching]}" for part in parts]
        lines.append(("lazy_batching", f"in {len(parts)} parts: {'; '.join(said)}"))
    if streams:
        lines.append(("streaming", "the eager part runs in the pauses between levels, if it is large"))
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
    """Describe how many instructions a direction has, and how many barriers inside its parts."""
    instructions = sum(len(instrs) for instrs, _ in directions)
    inside = sum(max(len(groups) - 1, 0) for _, groups in directions)
    barriers = counted(inside, "barrier") if inside else "no barrier"
    return f"{counted(instructions, 'instruction')} per step, {barriers} between them"
