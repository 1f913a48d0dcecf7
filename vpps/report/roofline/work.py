"""What a launch has to do, counted from its script: operations, bytes by what they are for, barriers.

Two counts of bytes answer two questions. What instructions **ask for**: a product reads every panel of its matrix once
for however many vectors, an elementwise instruction reads and writes its rows; that comes from whatever cache is near.
And what a phase **touches**: every float that it reads or writes once, however often it asks for it; that has to come
from where the data of the launch lives. Virtual processors that read the same rows ask for them each.

The count of weights is that of the kernel itself (`vpps.engine.timeline`), which the tests compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from vpps.kernel.render import TILES
from vpps.ops.element import FLOAT32
from vpps.planner.plan import Plan
from vpps.planner.reader import BARRIERS, STEPS, Execution, executions, walk
from vpps.planner.sections import Phase
from vpps.report.roofline.flops import has_bias, instruction_flops, list_flops, step_flops
from vpps.report.roofline.shares import Slice, Tiles, slice_of, tiles_of_slice
from vpps.script.access import Access, Content, Length, Reach, Touch, columns_of_tiles, lists, touches, word
from vpps.script.disassemble import Decoded
from vpps.script.instructions import Flag, Slices
from vpps.script.slices import TILE_COLUMNS
from vpps.script.tails import ViewUse

FLOAT = FLOAT32.bytes  # a word of the script, too
PHASES = tuple(phase.value for phase in Phase)

OUTER_ROWS = 128  # vectors of a pass of an outer product (templates/host/matrix.cuh)
BLOCK_FLOATS = 1 << 16  # of vectors that a product multiplies at a time (templates/host/products.cuh)
MATMUL_DEPTH = 128  # columns of a pass of a gradient by matrices (templates/host/matmul.cuh)

_OUTER = ("Outer", "OuterUpdate", "PackedMatmulGradient")
_UNCOUNTED = ("calls", "positions", "key", "hyper", "idle")  # lists that are small beside the rest


@dataclass(slots=True)
class Amount:
    """What instructions do.

    Attributes:
        instructions: how often virtual processors execute one.
        flops: floating-point operations, a fused multiply-add counted as two.
        weights: bytes of packed weights that products read.
        gradients: bytes of matrix gradients that outer products write and, where they add, read.
        updates: bytes of weights, transposes, gradients and moments that the optimizer's steps read and write.
        activations: bytes of rows that instructions read and write: values, their gradients, rows of tables.
        script: bytes of instructions and index lists.
        paired: operations of products in bf16, of which a processor may do two in the time of one.
    """

    instructions: int = 0
    flops: int = 0
    weights: int = 0
    gradients: int = 0
    updates: int = 0
    activations: int = 0
    script: int = 0
    paired: int = 0

    @property
    def bytes(self) -> int:
        """All that is asked for."""
        return self.weights + self.gradients + self.updates + self.activations + self.script

    @classmethod
    def sum(cls, amounts: Iterable[Amount]) -> Self:
        """Of all of them."""
        found = cls()
        for amount in amounts:
            found.add(amount)
        return found

    def add(self, other: Amount) -> None:
        """Add what others do."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    def times(self, n: int) -> Amount:
        """So much of all."""
        return Amount(*(getattr(self, f.name) * n for f in fields(self)))

    def divided(self, n: int) -> Amount:
        """The n-th part, in whole numbers."""
        return Amount(*(round(getattr(self, f.name) / n) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Touched:
    """Bytes of distinct memory that a phase needs.

    Attributes:
        matrices: packed weights that products multiply by.
        parameters: other weights, transposes, gradients and moments; what is read and written counts twice.
        activations: rows; what is written and then read counts once.
    """

    matrices: int
    parameters: int
    activations: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.matrices + self.parameters + self.activations


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch has to do.

    Attributes:
        by_kind: (phase, cell, instruction) -> amount; the cell is "" where none made the instruction.
        touched: by phase, all that it needs.
        fresh: by phase, what of that no earlier phase of the launch has touched.
        resident: bytes of memory that the launch uses: every float that it touches, once, and the script.
        barriers: that a virtual processor waits at, one after the other.
    """

    by_kind: dict[tuple[str, str, str], Amount]
    touched: dict[str, Touched]
    fresh: dict[str, Touched]
    resident: int
    barriers: int

    @property
    def total(self) -> Amount:
        """Of all instructions."""
        return Amount.sum(self.by_kind.values())

    def of_phase(self, phase: str) -> Amount:
        """Of the instructions of a phase; barriers are in none."""
        return Amount.sum(amount for key, amount in self.by_kind.items() if key[0] == phase)

    def by(self, position: int) -> dict[str, Amount]:
        """By phase (0), cell (1) or instruction (2)."""
        found: dict[str, Amount] = {}
        for key, amount in self.by_kind.items():
            found.setdefault(key[position], Amount()).add(amount)
        return found


def work_of(plan: Plan, panel: int, vectors: int | None = None) -> Work:
    """Count what the launch of a plan, and a second one that follows it, has to do.

    Args:
        panel: rows of a packed panel (`Machine.panel`).
        vectors: that a product multiplies per pass; by default those of the cpu tile with such panels.
    """
    return _Counter(plan, panel, vectors).count()


class _Counter:
    """One count."""

    def __init__(self, plan: Plan, panel: int, vectors: int | None) -> None:
        self.plan = plan
        self.script = plan.script
        self.panel = panel
        self.vectors = vectors or next((t.vectors for t in TILES.values() if t.panel == panel), 1)
        self.tails = {tail.number: tail for tail in plan.tails}
        self.n_vps, self.groups = (int(w) for w in plan.script[1:3])
        self.by_kind: dict[tuple[str, str, str], Amount] = {}
        # Bit p: phase p has read the float; bit 4 + p: it has written it.
        self.parameters = np.zeros(plan.pool_floats, np.uint8)
        self.matrices = np.zeros(plan.pool_floats, np.uint8)
        self.rows = np.zeros(plan.pool_floats, np.uint8)
        self.phase = 0
        self.marked: set[tuple[Any, ...]] = set()  # instructions and spans: many are there again and again

    def count(self) -> Work:
        """All launches."""
        waits: dict[int, int] = {}  # by launch, of the virtual processor that waits most
        for execution in executions(self.plan):
            waits[execution.launch] = max(waits.get(execution.launch, 0), self._stream(execution))
        for product in () if self.plan.continuation is None else self.plan.continuation.products:
            amount = self.by_kind.setdefault(("gradients", "", "product"), Amount())
            amount.add(Amount(instructions=1, flops=2 * product.n * product.rows * product.columns))
        touched, fresh = ({p: self._touched(k, new) for k, p in enumerate(PHASES)} for new in (False, True))
        resident = FLOAT * (int(np.count_nonzero(self.parameters | self.rows)) + len(self.script))
        return Work(self.by_kind, touched, fresh, resident, sum(waits.values()))

    def _touched(self, phase: int, new: bool) -> Touched:
        """What a phase has touched; `new`: and no earlier one."""
        before = sum(0x11 << k for k in range(phase)) if new else 0
        read, written = 1 << phase, 16 << phase
        there = (self.parameters | self.rows) & before != 0  # rows of tables are both

        def marked(where: NDArray[np.uint8], bits: int) -> int:
            return FLOAT * int(np.count_nonzero((where & bits != 0) & ~there))

        matrices = marked(self.matrices, read)
        parameters = marked(self.parameters, read) + marked(self.parameters, written) - matrices
        return Touched(matrices, parameters, marked(self.rows, read | written))

    def _stream(self, execution: Execution) -> int:
        """Count a stream; returns at how many barriers it waits."""
        waits, vps = 0, execution.vps
        for d, place in walk(self.plan, execution.entry):
            if d.instruction.form in (*BARRIERS, "End"):
                waits += d.instruction.form == "Wait"
                continue
            self.phase = PHASES.index(place.phase)
            amount = self.by_kind.setdefault((place.phase, place.cell, d.instruction.name), Amount())
            amount.instructions += len(vps)
            amount.script += FLOAT * d.words * len(vps)
            touched = touches(d)
            self._divided(d, touched, vps, amount)
            words = (self.phase, self.script[d.position : d.position + d.words].tobytes())
            if words not in self.marked:  # streams of their own have equal instructions
                self.marked.add(words)
                self._mark(d, touched)
        return waits

    # ---- what instructions do

    def _divided(self, d: Decoded, touched: tuple[Touch, ...], vps: Sequence[int], amount: Amount) -> None:
        """Add up what the virtual processors do that execute an instruction; those with equal shares do the same."""
        of_group = self.n_vps // self.groups
        for_all = d.flags & Flag.ALL
        index = ((p, self.n_vps) if for_all else (p % of_group, of_group) for p in vps)
        if d.instruction.slices is Slices.UNITS:
            for mine, times in Counter(slice_of(d, self.panel, *among) for among in index).items():
                if mine.rows and mine.units:
                    amount.add(self._sliced(d, touched, mine).times(times))
        elif d.instruction.slices is Slices.TILES:
            for tiles, times in Counter(tiles_of_slice(d, self.panel, *among) for among in index).items():
                if tiles.padded:
                    amount.add(self._tiled(d, touched, tiles).times(times))
        elif d.instruction.name == "clip":
            amount.add(Amount(flops=d.n, activations=FLOAT * d.n).times(len(vps)))

    def _sliced(self, d: Decoded, touched: tuple[Touch, ...], mine: Slice) -> Amount:
        form, amount = d.instruction.form, Amount()
        elements = self._entries(word(d, "elements"), mine) if "elements" in d.fields else 0
        if form.startswith("List"):
            amount.flops += list_flops(d, elements, mine.units)
        elif form in STEPS:
            amount.flops += mine.rows * mine.units * self._step_flops(d)
        else:
            amount.flops += instruction_flops(d, mine.rows, mine.units, self.tails)
        amount.paired = amount.flops * bool(d.flags & Flag.BF16)
        if d.flags & Flag.ACCUMULATE:
            amount.flops += mine.rows * mine.units
        rows = {
            Reach.OWN: mine.rows,
            Reach.ELEMENTS: elements,
            Reach.TABLE: mine.rows,
            Reach.ONCE: 1,
            Reach.MATRIX: mine.units,
            Reach.PANELS: mine.panels * self.panel * self._blocks(d, mine),
        }
        for touch in touched:
            if touch.reach is Reach.LISTED:
                rows[Reach.LISTED] = self._summed(touch, mine, amount)
            elif touch.content is Content.ROWS:
                amount.script += FLOAT * rows[touch.reach] * touch.at.indexed
            floats = rows[touch.reach] * (mine.units if touch.width is None else touch.width)
            self._asked(d, touch, floats, amount)
        words = {Length.ROWS: mine.rows, Length.ENDS: mine.rows + 1, Length.UNITS: mine.rows * mine.units}
        amount.script += FLOAT * sum(words[length] for name, length in lists(d) if name not in _UNCOUNTED)
        return amount

    def _asked(self, d: Decoded, touch: Touch, floats: float, amount: Amount) -> None:
        """Add the bytes that are asked for where an instruction touches so many floats."""
        n = int(FLOAT * floats) * (2 if touch.access in (Access.CHANGE, Access.ADD) else 1)
        match touch.content:
            case Content.ROWS if touch.at.address or touch.at.indexed:  # not the constant zero at the start of the pool
                amount.activations += n
            case Content.PARTIALS:
                amount.activations += n
            case Content.WEIGHTS if touch.reach is Reach.PAIRS:
                amount.updates += n
            case Content.WEIGHTS if not _on_chip(d) or d.instruction.form == "Load":
                amount.weights += n
            case Content.GRADIENT if d.instruction.form not in STEPS:
                amount.gradients += n
            case Content.GRADIENT if not _on_chip(d):
                amount.updates += n
            case Content.TRANSPOSED:
                amount.updates += n
            case Content.STATE if touch.name != "average":  # as the kernel counts
                amount.updates += n

    def _blocks(self, d: Decoded, mine: Slice) -> int:
        """How often a product passes its panels: of many vectors, blocks that stay in the cache do so one by one."""
        if d.instruction.form != "Matvec":
            return 1
        return -(-mine.rows // max(BLOCK_FLOATS // word(d, "columns"), 4 * self.vectors))

    def _summed(self, touch: Touch, mine: Slice, amount: Amount) -> int:
        """Sums of listed rows: one addition less than rows, for each sum that has any. Returns how many rows."""
        at = touch.at.address + mine.first
        ends = self.script[at : at + mine.rows + 1].astype(np.int64)
        entries, sums = int(ends[-1] - ends[0]), int(np.count_nonzero(np.diff(ends)))
        amount.flops += (entries - sums + (sums if touch.name == ViewUse.MEAN.name else 0)) * mine.units
        amount.script += FLOAT * (mine.rows + 1 + entries)
        return entries

    def _entries(self, ends: int, mine: Slice) -> int:
        """Elements of the lists of some vertices."""
        at = ends + mine.first
        return int(self.script[at + mine.rows]) - int(self.script[at])

    def _tiled(self, d: Decoded, touched: tuple[Touch, ...], mine: Tiles) -> Amount:
        form, amount, columns = d.instruction.form, Amount(), columns_of_tiles(d)
        amount.flops += instruction_flops(d, 1, mine.valid, self.tails)
        amount.paired = amount.flops * bool(d.flags & Flag.BF16)
        if form in _OUTER:
            amount.activations += self._outer_rows(d, columns, mine.padded)
            if not _on_chip(d):
                amount.gradients += FLOAT * self._passes(d) * mine.padded
        if form in STEPS:
            amount.flops += mine.valid * self._step_flops(d)
        floats = {
            Reach.TILES: mine.padded, Reach.TRANSPOSED: mine.valid, Reach.SUMS: mine.valid // TILE_COLUMNS,
            Reach.PAIRS: mine.padded / 2, Reach.TRANSPOSED_PAIRS: mine.valid / 2,
        }  # fmt: skip
        for touch in touched:
            if touch.reach in floats and not (form in _OUTER and touch.content is Content.GRADIENT):
                once = touch._replace(access=Access.WRITE) if form == "KeptGradient" else touch  # from or to the chip
                self._asked(d, once, floats[touch.reach], amount)
        return amount

    def _passes(self, d: Decoded) -> int:
        """How often an outer product reads or writes its gradient."""
        at_once = OUTER_ROWS
        if d.instruction.form == "PackedMatmulGradient":
            at_once = max(1, MATMUL_DEPTH // word(d, "columns"))
        passes = max(1, -(-d.n // at_once))
        # All passes but the first read what there is, unless the gradient is added to; the last one of an outer product
        # with a step writes none.
        return 2 * passes - (not d.flags & Flag.ACCUMULATE) - (d.instruction.form == "OuterUpdate")

    def _outer_rows(self, d: Decoded, columns: int, area: int) -> int:
        """Bytes of the vectors that an outer product reads for its tiles: a panel of rows of dy and the columns of x
        for a tile each."""
        of_matrix = word(d, "columns") if d.instruction.form == "PackedMatmulGradient" else 1
        if self.panel == 1:  # a thread block has all columns of its rows
            return FLOAT * d.n * of_matrix * (columns + -(-area // columns))
        tiles = area / (self.panel * min(TILE_COLUMNS, columns))
        return round(FLOAT * d.n * of_matrix * tiles * (self.panel + min(TILE_COLUMNS, columns)))

    def _step_flops(self, d: Decoded) -> int:
        return step_flops(d.instruction.name, not d.flags & Flag.NO_GRADIENT, bool(d.fields["average"]))

    # ---- what a phase touches

    def _mark(self, d: Decoded, touched: tuple[Touch, ...]) -> None:
        for touch in touched:
            if touch.content in (Content.PARTIALS, Content.REPORT) or (touch.name == "bias" and not has_bias(d)):
                continue
            # What the chip's copy of a gradient comes from, and a vector's gradient before an addition, is not counted.
            written_only = touch.content is Content.GRADIENT and d.instruction.form in ("KeptGradient", "ColumnSum")
            reads = touch.access not in (Access.WRITE, Access.ADD) and not written_only
            mark = (16 << self.phase) * touch.writes | (1 << self.phase) * reads
            if touch.content is Content.ROWS:
                self._mark_operand(d, touch, mark)
            else:
                self._mark_parameters(d, touch, mark)

    def _mark_operand(self, d: Decoded, touch: Touch, mark: int) -> None:
        """Mark rows of all virtual processors."""
        at, first, stop = touch.at, 0, d.n
        units = d.width if touch.width is None else touch.width
        if touch.reach is Reach.ELEMENTS:
            first, stop = (int(self.script[word(d, "elements") + k]) for k in (0, d.n))
        if touch.reach is Reach.LISTED:
            low, high = (int(self.script[at.address + k]) for k in (0, d.n))
            _mark_at(self.rows, np.unique(self.script[low:high].astype(np.int64)) + at.mode, units, mark)
        elif at.indexed:
            starts = self.script[at.address + first : at.address + stop].astype(np.int64)
            _mark_at(self.rows, np.unique(starts) + at.stride, units, mark)
        elif first < stop:
            n = stop - first if at.stride else 1
            as_strided(self.rows[at.address + first * at.stride :], (n, units), (at.stride, 1))[...] |= mark

    def _mark_parameters(self, d: Decoded, touch: Touch, mark: int) -> None:
        form, start = d.instruction.form, touch.at.address
        if (
            touch.content in (Content.WEIGHTS, Content.GRADIENT)
            and _on_chip(d)
            and form not in ("Load", "KeptGradient")
        ):
            return
        if not start or (touch.content is Content.GRADIENT and form == "OuterUpdate"):
            return
        if touch.reach is Reach.TABLE:
            at = word(d, "table_rows")
            numbers = self.script[at : at + d.n].astype(np.int64) * d.width
            _mark_at(self.parameters, start + numbers, d.width, mark)
        elif touch.reach is Reach.OWN and form == "UpdateRows":  # gradients of tables are rows
            self.rows[start : start + d.n * d.width] |= mark
        elif touch.reach is Reach.TRANSPOSED:
            self._span(start, self._size(word(d, "columns"), d.width), mark)
        elif touch.reach is Reach.TRANSPOSED_PAIRS:
            self._span(start, self._size(word(d, "columns"), -(-d.width // 2)), mark)
        elif touch.reach is Reach.PAIRS:  # before the transpose
            floats = self._size(d.width, -(-word(d, "columns") // 2))
            self._span(start - floats, floats, mark)
        else:
            rows = {Reach.OWN: d.n, Reach.ONCE: 1}.get(touch.reach)
            floats = (
                self._packed(d, touch) if rows is None else rows * (d.width if touch.width is None else touch.width)
            )
            self._span(start, floats, mark, matrix=touch.content is Content.WEIGHTS)

    def _span(self, start: int, floats: int, mark: int, matrix: bool = False) -> None:
        """Mark parameters; `matrix`: it is one that products multiply by."""
        key = start, floats, mark, matrix
        if key in self.marked:
            return
        self.marked.add(key)
        self.parameters[start : start + floats] |= mark
        if matrix:
            self.matrices[start : start + floats] |= mark

    def _packed(self, d: Decoded, touch: Touch) -> int:
        """Words of the packed matrix that an instruction names."""
        if d.instruction.form == "PackedMatmul":
            rows, columns = d.width // word(d, "columns"), word(d, "inner")
        else:
            rows, columns = d.width, columns_of_tiles(d)
        return self._size(rows, -(-columns // 2) if d.flags & Flag.PAIRS and touch.reach is Reach.PANELS else columns)

    def _size(self, rows: int, columns: int) -> int:
        return -(-rows // self.panel) * self.panel * columns


def _on_chip(d: Decoded) -> bool:
    """Whether the chip holds the matrix that an instruction names; its gradient is there, too."""
    return bool(d.fields.get("matrix"))


def _mark_at(where: NDArray[np.uint8], starts: NDArray[np.int64], units: int, mark: int) -> None:
    where[starts[:, None] + np.arange(units)] |= mark
