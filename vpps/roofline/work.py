"""What a launch has to do, counted from its script: operations, bytes by what they are for, barriers.

Two counts of bytes answer two questions. What instructions **ask for**: a product reads every panel of its matrix once
for however many vectors, an elementwise instruction reads and writes its rows; that comes from whatever cache is near.
And what a phase **touches**: every float that it reads or writes once, however often it asks for it; that has to come
from where the data of the launch lives. Virtual processors that read the same rows ask for them each.

The count of weights is that of the kernel itself (`vpps.inspection.timeline`), which the tests compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from vpps.kernel.render import TILES
from vpps.optim import OPTIMIZERS
from vpps.plan.plan import Plan
from vpps.plan.sections import Phase
from vpps.roofline.flops import has_bias, instruction_flops, list_flops, step_flops
from vpps.roofline.shares import Slice, Tiles, slice_of, tiles_of
from vpps.script.disassemble import Decoded, Operand, entry_points, instructions
from vpps.script.instructions import Flag, Kind, Role
from vpps.script.products import entered_at
from vpps.script.slices import TILE_COLUMNS
from vpps.script.tails import Use

FLOAT = 4  # bytes; a word of the script, too
PHASES = tuple(phase.value for phase in Phase)

OUTER_ROWS = 128  # vectors of a pass of an outer product (templates/host/matrix.cuh)
BLOCK_FLOATS = 1 << 16  # of vectors that a product multiplies at a time (there)
MATMUL_DEPTH = 128  # columns of a pass of a gradient by matrices (templates/host/matmul.cuh)

_MOMENTS = {rule.name: len(rule.moments) for rule in OPTIMIZERS}
_UPDATES = ("UpdateMatrix", "UpdateVector", "UpdateRows", "OuterUpdate")
_SUMS = (Use.SUM, Use.MEAN)


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
    """

    instructions: int = 0
    flops: int = 0
    weights: int = 0
    gradients: int = 0
    updates: int = 0
    activations: int = 0
    script: int = 0

    @property
    def bytes(self) -> int:
        """All that is asked for."""
        return self.weights + self.gradients + self.updates + self.activations + self.script

    def add(self, other: Self) -> None:
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
        n_vps: virtual processors.
    """

    by_kind: dict[tuple[str, str, str], Amount]
    touched: dict[str, Touched]
    fresh: dict[str, Touched]
    resident: int
    barriers: int
    n_vps: int

    @property
    def total(self) -> Amount:
        """Of all instructions."""
        return self._sum(lambda key: True)

    def of_phase(self, phase: str) -> Amount:
        """Of the instructions of a phase; barriers are in none."""
        return self._sum(lambda key: key[0] == phase)

    def by(self, position: int) -> dict[str, Amount]:
        """By phase (0), cell (1) or instruction (2)."""
        found: dict[str, Amount] = {}
        for key, amount in self.by_kind.items():
            found.setdefault(key[position], Amount()).add(amount)
        return found

    def _sum(self, wanted: Any) -> Amount:
        found = Amount()
        for key, amount in self.by_kind.items():
            if wanted(key):
                found.add(amount)
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
        waited = self._launch(entry_points(self.script))
        sequel = self.plan.sequel
        if sequel is not None:
            for product in sequel.products:
                amount = self.by_kind.setdefault(("gradients", "", "product"), Amount())
                amount.instructions += 1
                amount.flops += 2 * product.n * product.rows * product.columns
        if sequel is not None and sequel.entries:
            waited += self._launch(entry_points(entered_at(self.script, sequel.entries)))
        touched, fresh = ({p: self._touched(k, new) for k, p in enumerate(PHASES)} for new in (False, True))
        resident = FLOAT * (int(np.count_nonzero(self.parameters | self.rows)) + len(self.script))
        return Work(self.by_kind, touched, fresh, resident, waited, self.n_vps)

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

    def _launch(self, entries: list[int]) -> int:
        """Count the streams of a launch; returns how many barriers the virtual processor waits at that waits most."""
        waits = 0
        for entry in dict.fromkeys(entries):
            vps = [p for p, e in enumerate(entries) if e == entry]
            waits = max(waits, self._stream(entry, vps))
        return waits

    def _stream(self, entry: int, vps: list[int]) -> int:
        waits = 0
        for d, phase, cell in self._placed(entry):
            name = d.instruction.name
            if name in ("signal", "wait", "barrier", "end"):
                waits += name in ("wait", "barrier")
                continue
            self.phase = PHASES.index(phase)
            amount = self.by_kind.setdefault((phase, cell, name), Amount())
            amount.instructions += len(vps)
            amount.script += FLOAT * d.words * len(vps)
            self._divided(d, vps, amount)
            words = (self.phase, self.script[d.position : d.position + d.words].tobytes())
            if words not in self.marked:  # streams of their own have equal instructions
                self.marked.add(words)
                self._mark(d)
        return waits

    def _placed(self, entry: int) -> Iterator[tuple[Decoded, str, str]]:
        """Instructions of a stream with their phase and cell."""
        start, stream = next(s for s in self.plan.streams if s[0] == entry)
        sections = stream.sections
        number = 0
        for d in instructions(self.script, entry):
            offset = d.position - start
            while number + 1 < len(sections) and sections[number + 1].start <= offset:
                number += 1
            section = sections[number]
            yield d, section.during.value, section.block.arrays.cell.name if section.block is not None else ""

    # ---- what instructions do

    def _divided(self, d: Decoded, vps: list[int], amount: Amount) -> None:
        """Add up what the virtual processors do that execute an instruction; those with equal shares do the same."""
        of_group = self.n_vps // self.groups
        index = ((p, self.n_vps) if d.flags & Flag.ALL else (p % of_group, of_group) for p in vps)
        match d.instruction.slices.name:
            case "UNITS":
                shares = Counter(slice_of(d, self.panel, *among) for among in index)
                for mine, times in shares.items():
                    self._sliced(d, mine, times, amount)
            case "TILES":
                columns = _word(d, "inner" if d.instruction.form == "PackedMatmulGradient" else "columns")
                for tiles, times in Counter(tiles_of(d, columns, self.panel, *among) for among in index).items():
                    self._tiled(d, columns, tiles, times, amount)
            case _ if d.instruction.name == "clip":
                amount.add(Amount(flops=d.n, activations=FLOAT * d.n).times(len(vps)))

    def _sliced(self, d: Decoded, mine: Slice, times: int, total: Amount) -> None:
        form, amount = d.instruction.form, Amount()
        if mine.is_empty:
            return
        elements = self._listed(d, "elements", mine) if "elements" in d.fields else 0
        if form.startswith("List"):
            amount.flops += list_flops(d, elements, mine.units)
            amount.script += FLOAT * (mine.rows + 1)
        elif form in ("UpdateVector", "UpdateRows"):
            self._stepped(d, mine.rows * mine.units, 0, amount)
            amount.script += FLOAT * mine.rows * (form == "UpdateRows")
        else:
            amount.flops += instruction_flops(d, mine.rows, mine.units, self.tails)
        if d.flags & Flag.ACCUMULATE:
            amount.flops += mine.rows * mine.units
        for operand, width, role, of_elements in _operands(d):
            rows = elements if of_elements else mine.rows
            whole = role in (Role.READ_ROWS, Role.ADD)
            units = 1 if operand.scalar else width if whole else mine.units
            twice = role is Role.ADD or (role is Role.WRITE and bool(d.flags & Flag.ACCUMULATE))
            if operand.address or operand.indexed:  # not the constant zero at the start of the pool
                amount.activations += FLOAT * rows * units * (1 + twice)
            amount.script += FLOAT * rows * operand.indexed
        self._special(d, mine, amount)
        total.add(amount.times(times))

    def _special(self, d: Decoded, mine: Slice, amount: Amount) -> None:
        """Accesses that fields other than operands stand for."""
        form = d.instruction.form
        if form == "Matvec" and not _on_chip(d):
            # Of many vectors, blocks that stay in the cache pass all panels, one block after the other.
            at_once = max(BLOCK_FLOATS // _word(d, "columns"), 4 * self.vectors)
            blocks = -(-mine.rows // at_once)
            amount.weights += FLOAT * blocks * mine.panels * self.panel * _word(d, "columns")
        elif form == "PackedMatmul":
            amount.weights += FLOAT * mine.panels * self.panel * _word(d, "inner")
        elif form == "Load":
            amount.weights += FLOAT * mine.units * _word(d, "columns")
        elif form == "GatherSum":
            self._summed(d, _word(d, "offsets"), bool(d.flags & Flag.MEAN), mine, amount)
        elif form == "Tail":
            for operand, use in _pairs(d, "views"):
                if use in _SUMS:
                    self._summed(d, operand.address, use == Use.MEAN, mine, amount)
        elif form == "DivideByCount":
            amount.script += FLOAT * (mine.rows + 1)
        elif form == "Input":
            amount.script += FLOAT * mine.rows * mine.units
        elif form.startswith("Row") and d.fields["labels"]:
            amount.script += FLOAT * mine.rows
        elif form == "ColumnSum":
            amount.gradients += FLOAT * mine.units * (2 if d.flags & Flag.ACCUMULATE else 1)
        elif form == "SquaresRows":
            amount.gradients += FLOAT * mine.rows * mine.units
            amount.activations += FLOAT * mine.rows

    def _summed(self, d: Decoded, offsets: int, mean: bool, mine: Slice, amount: Amount) -> None:
        """Sums of listed rows: one addition less than rows, for each sum that has any."""
        ends = self.script[offsets + mine.first : offsets + mine.first + mine.rows + 1].astype(np.int64)
        entries, sums = int(ends[-1] - ends[0]), int(np.count_nonzero(np.diff(ends)))
        amount.flops += (entries - sums + (sums if mean else 0)) * mine.units
        amount.activations += FLOAT * entries * mine.units
        amount.script += FLOAT * (mine.rows + 1 + entries)

    def _listed(self, d: Decoded, name: str, mine: Slice) -> int:
        """Elements of the lists of some vertices."""
        at = _word(d, name) + mine.first
        return int(self.script[at + mine.rows]) - int(self.script[at])

    def _tiled(self, d: Decoded, columns: int, mine: Tiles, times: int, total: Amount) -> None:
        form, amount = d.instruction.form, Amount()
        if not mine.padded:
            return
        amount.flops += instruction_flops(d, 1, mine.valid, self.tails)
        adds = bool(d.flags & Flag.ACCUMULATE)
        if form in ("Outer", "OuterUpdate", "PackedMatmulGradient"):
            at_once = OUTER_ROWS
            if form == "PackedMatmulGradient":
                at_once = max(1, MATMUL_DEPTH // _word(d, "columns"))
            passes = max(1, -(-d.n // at_once))
            # All passes but the first read what there is, unless the gradient is added to; the last one of an
            # outer product with a step writes none.
            touches = 2 * passes - (not adds) - (form == "OuterUpdate")
            if not _on_chip(d):
                amount.gradients += FLOAT * touches * mine.padded
            amount.activations += self._outer_rows(d, columns, mine.padded)
        if form in ("KeptGradient", "SquaresMatrix"):
            amount.gradients += FLOAT * mine.padded
        if form == "SquaresMatrix":
            amount.activations += FLOAT * (mine.valid // TILE_COLUMNS)
        if form in ("UpdateMatrix", "OuterUpdate"):
            self._stepped(d, mine.padded, mine.valid, amount)
        total.add(amount.times(times))

    def _outer_rows(self, d: Decoded, columns: int, area: int) -> int:
        """Bytes of the vectors that an outer product reads for its tiles: a panel of rows of dy and the columns of x
        for a tile each."""
        of_matrix = _word(d, "columns") if d.instruction.form == "PackedMatmulGradient" else 1
        if self.panel == 1:  # a thread block has all columns of its rows
            return FLOAT * d.n * of_matrix * (columns + -(-area // columns))
        tiles = area / (self.panel * min(TILE_COLUMNS, columns))
        return round(FLOAT * d.n * of_matrix * tiles * (self.panel + min(TILE_COLUMNS, columns)))

    def _stepped(self, d: Decoded, padded: int, valid: int, amount: Amount) -> None:
        """The optimizer's step of some weights: of a matrix those with padding, and those in its transpose."""
        form, rule = d.instruction.form, d.instruction.name.rpartition(".")[2]
        has_gradient = not d.flags & Flag.NO_GRADIENT
        has_average = bool(d.fields["average"])
        reads_gradient = has_gradient and form != "OuterUpdate" and not _on_chip(d)
        amount.flops += (valid or padded) * step_flops(d.instruction.name, has_gradient, has_average)
        amount.updates += FLOAT * (padded * (2 + reads_gradient + 2 * _MOMENTS[rule]) + valid)

    # ---- what a phase touches

    def _mark(self, d: Decoded) -> None:
        form = d.instruction.form
        written, read = 16 << self.phase, 1 << self.phase
        if d.instruction.slices.name == "UNITS":
            n, first = d.n, 0
            for operand, width, role, of_elements in _operands(d):
                units = 1 if operand.scalar else width
                if of_elements:
                    at = _word(d, "elements")
                    first, stop = int(self.script[at]), int(self.script[at + d.n])
                    n = stop - first
                mark = written if role in (Role.WRITE, Role.ADD) else read
                self._mark_rows(self.rows, operand, first if of_elements else 0, n if of_elements else d.n, units, mark)
            if form == "GatherSum":
                self._mark_listed(d, _word(d, "offsets"), _word(d, "shift"))
            if form == "Tail":
                for operand, use in _pairs(d, "views"):
                    if use in _SUMS:
                        self._mark_listed(d, operand.address, operand.mode)
        self._mark_parameters(d, read, written)

    def _mark_rows(self, where: NDArray[np.uint8], operand: Operand, first: int, n: int, units: int, mark: int) -> None:
        """Mark rows `first` to `first + n` of an operand."""
        if not n or not units:
            return
        if operand.indexed:
            starts = self.script[operand.address + first : operand.address + first + n].astype(np.int64)
            _mark_at(where, np.unique(starts) + operand.stride, units, mark)
        else:
            start, stride = operand.address + first * operand.stride, operand.stride
            if stride == 0:
                n = 1
            as_strided(where[start:], (n, units), (stride, 1))[...] |= mark

    def _mark_listed(self, d: Decoded, offsets: int, shift: int) -> None:
        low, high = int(self.script[offsets]), int(self.script[offsets + d.n])
        starts = np.unique(self.script[low:high].astype(np.int64))
        _mark_at(self.rows, starts + shift, d.width, 1 << self.phase)

    def _mark_parameters(self, d: Decoded, read: int, written: int) -> None:
        form = d.instruction.form
        packed = self._packed(d)
        if form in ("Matvec", "PackedMatmul", "Load") and not (form == "Matvec" and _on_chip(d)):
            self._span(_word(d, "weights"), packed, read, matrix=True)
        elif form in ("Outer", "PackedMatmulGradient", "SquaresMatrix", "KeptGradient"):
            if not _on_chip(d) or form == "KeptGradient":
                reads = form == "SquaresMatrix" or bool(d.flags & Flag.ACCUMULATE)
                writes = 0 if form == "SquaresMatrix" else written
                self._span(_word(d, "gradient"), packed, writes | (read if reads else 0))
        elif form == "ColumnSum":
            self._span(_word(d, "vector"), d.width, written)
        elif form == "SquaresRows":
            self._span(_word(d, "gradient"), d.n * d.width, read)
        if form in ("Outer", "OuterUpdate", "PackedMatmulGradient"):
            of_matrix = _word(d, "columns") if form == "PackedMatmulGradient" else 1
            dy = d.fields["dy"]
            assert isinstance(dy, Operand)
            self._mark_rows(self.rows, dy, 0, d.n, d.width * of_matrix, read)
            for operand, width in _pairs(d, "x"):
                self._mark_rows(self.rows, operand, 0, d.n, width, read)
        if form in _UPDATES:
            self._mark_step(d, packed, read, written)

    def _mark_step(self, d: Decoded, packed: int, read: int, written: int) -> None:
        form = d.instruction.form
        kept = [_word(d, name) for name in ("weights", "moment0", "moment1", "average") if _word(d, name)]
        if form == "UpdateRows":
            at = _word(d, "table_rows")
            numbers = self.script[at : at + d.n].astype(np.int64) * d.width
            for start in kept:
                _mark_at(self.parameters, start + numbers, d.width, read | written)
            self.rows[_word(d, "gradient") : _word(d, "gradient") + d.n * d.width] |= read
            return
        floats = d.width if form == "UpdateVector" else packed
        for start in kept:
            self._span(start, floats, read | written)
        if form != "OuterUpdate" and not d.flags & Flag.NO_GRADIENT and not _on_chip(d):
            self._span(_word(d, "gradient"), floats, read)
        if "transposed" in d.fields and _word(d, "transposed"):
            rows = -(-_word(d, "columns") // self.panel) * self.panel
            self._span(_word(d, "transposed"), rows * d.width, written)

    def _span(self, start: int, floats: int, mark: int, matrix: bool = False) -> None:
        """Mark parameters; `matrix`: it is one that products multiply by."""
        key = start, floats, mark, matrix
        if key in self.marked:
            return
        self.marked.add(key)
        self.parameters[start : start + floats] |= mark
        if matrix:
            self.matrices[start : start + floats] |= mark

    def _packed(self, d: Decoded) -> int:
        """Floats of the packed matrix that an instruction names."""
        form = d.instruction.form
        if form == "PackedMatmul":
            rows, columns = d.width // _word(d, "columns"), _word(d, "inner")
        elif form == "PackedMatmulGradient":
            rows, columns = d.width, _word(d, "inner")
        elif "columns" in d.fields:
            rows, columns = d.width, _word(d, "columns")
        else:
            return 0
        return -(-rows // self.panel) * self.panel * columns


def _operands(d: Decoded) -> Iterator[tuple[Operand, int, Role, bool]]:
    """(operand, width, role, whether it has a row per list element) of all rows that an instruction names itself."""
    if d.instruction.slices.name != "UNITS":
        return
    for f in d.instruction.fields:
        value = d.fields[f.name]
        if f.kind is Kind.OPERAND:
            assert isinstance(value, Operand)
            if (f.name == "bias" and not has_bias(d)) or (f.name == "dst" and d.flags & Flag.CHAINED):
                continue
            yield value, _word(d, f.width) if f.width else d.width, f.role, f.elements
        elif f.kind is Kind.SEGMENTS:
            for operand, width in _pairs(d, f.name):
                yield operand, width, f.role, False
        elif f.kind is Kind.VIEWS:
            for operand, use in _pairs(d, f.name):
                if use in (Use.READ, Use.WRITE):
                    yield operand, d.width, Role.WRITE if use == Use.WRITE else Role.READ, False


def _on_chip(d: Decoded) -> bool:
    """Whether the chip holds the matrix that an instruction names; its gradient is there, too."""
    return bool(d.fields.get("matrix"))


def _pairs(d: Decoded, name: str) -> list[tuple[Operand, int]]:
    value = d.fields[name]
    assert isinstance(value, list)
    return value


def _word(d: Decoded, name: str) -> int:
    value = d.fields[name]
    assert isinstance(value, int)
    return value


def _mark_at(where: NDArray[np.uint8], starts: NDArray[np.int64], units: int, mark: int) -> None:
    where[(starts[:, None] + np.arange(units)).reshape(-1)] |= mark
