"""Pool elements that each virtual processor touches, of rows and lists that are where they must be.

Every row of an operand lies inside one array that the pool holds at the time, every list inside one list of the script;
labels are classes of their row, or rows of their matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from vpps.errors import ScriptError
from vpps.model.optim import HYPER
from vpps.script.access import (
    Access,
    Content,
    Length,
    Reach,
    Touch,
    columns_of_tiles,
    lists,
    rows_of,
    tiles_of,
    touches,
    units_of_rows,
    word,
)
from vpps.script.disassemble import Decoded, DecodedOperand, Words
from vpps.script.instructions import Flag, Slices
from vpps.script.slices import TILE_COLUMNS, Ints, row_and_column
from vpps.script.wellformed import EVERYTHING, KnownKernel

# By names of their own: they are asked for at every step.
ALL, SAME, CHANGE, OF_ROWS = Flag.ALL.value, Access.SAME, Access.CHANGE, Content.ROWS
ELEMENTS, FIRST, LISTED = Reach.ELEMENTS, Reach.FIRST, Reach.LISTED

BEFORE = -1  # the period of writes before the launch
ONE_UNIT = np.array([0])
PERIODS_AT_ONCE = 8  # virtual processors are in a few different ones
FIXED_WORDS = {"key": 3, "hyper": len(HYPER)}  # of lists that have as many whatever the instruction


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """What a script may touch.

    Attributes:
        n_vps: virtual processors of all groups.
        groups: of virtual processors.
        panel: rows of a packed panel.
        pool_floats: floats of the pool.
        memory: `(n, 5)` arrays of the pool: start, stop, first and last period in which it is there, and the group
            whose periods these are; -1: all of them.
        periods: `(n, 2)` sorted positions of the script where a period begins, and its number, which grows with time.
            Groups come to a period at different times.
        unwritten: spans that hold nothing before the launch.
        lists: spans of the script that hold a list (or data) each.
        knows: what the kernel that runs it has code for, and holds.
    """

    n_vps: int
    groups: int
    panel: int
    pool_floats: int
    memory: Ints
    periods: Ints
    unwritten: Ints
    lists: Ints
    knows: KnownKernel = EVERYTHING


class Footprint:
    """What instructions of a script touch, with the period that they belong to."""

    def __init__(self, script: Words, layout: MemoryMap, origin: Callable[[int], str]) -> None:
        self.script = script
        self.layout = layout
        self.origin = origin
        self.panel = layout.panel
        self.n = layout.n_vps
        self.of_group = self.n // layout.groups  # virtual processors
        self.most = layout.pool_floats + len(script)  # rows of anything
        self.list_starts, self.list_stops = np.ascontiguousarray(layout.lists.T)
        # By position, of instructions: virtual processors share streams.
        self.touched: dict[int, tuple[tuple[Touch, ...], tuple[tuple[str, Length], ...]]] = {}
        self.periods: dict[int, int] = {}  # of instructions, by position
        self.now = self.latest = BEFORE  # the periods of the instruction that is executed, and of any so far
        # By period: where the arrays that are there start and stop, and their first periods, sorted by start.
        self.present: dict[int, tuple[Ints, Ints, Ints]] = {}

    def fail(self, d: Decoded, what: str) -> NoReturn:
        """Raise, in the user's words."""
        where = self.origin(d.position)
        raise ScriptError(f"word {d.position}, {d.instruction.name}{f' ({where})' if where else ''}: {what}")

    def touches(self, p: int, d: Decoded) -> Iterator[tuple[Ints, Access]]:
        """(pool elements, what is done with them) for VP p; reads first."""
        self.now = self.period_of(d)
        self.latest = max(self.latest, self.now)
        among = (p, self.n) if d.bits & ALL else (p % self.of_group, self.of_group)
        rows, units = self.slice_of(d, *among)
        if not len(units) or not (len(rows) or self.has_sum_of_none(d)):
            return
        found = self.touched.get(d.position)
        if found is None:
            found = self.touched[d.position] = touches(d), lists(d)
        touched, listed = found
        self.check_lists(d, listed, rows, units)
        for touch in touched:
            does = touch.access
            if among[0] and touch.reach is FIRST:
                continue
            cells = self.cells(d, touch, rows, units)
            if does is SAME:
                yield from self.parted(d, cells, rows, units)
            elif does is CHANGE:
                if touch.content is not Content.STATE:  # that is there before the launch
                    yield cells, Access.OWN
                yield cells, Access.WRITE
            else:
                yield cells, does

    def has_sum_of_none(self, d: Decoded) -> bool:
        """Whether an instruction has a result though there are no rows: what sums over them writes zeros."""
        return d.n == 0 and (d.instruction.slices is Slices.TILES or d.instruction.form == "ColumnSum")

    def slice_of(self, d: Decoded, index: int, count: int) -> tuple[Ints, Ints]:
        """(rows, units) that one of those who divide an instruction owns of the result; of tiles (rows, elements)."""
        if d.instruction.slices is Slices.UNITS:
            rows = rows_of(d, index, count)
            units = units_of_rows(d.width, d.parts, d.bits, self.panel, index, count)
            return np.arange(rows.start, rows.stop), units
        if d.instruction.slices is Slices.TILES:
            columns = columns_of_tiles(d)
            return np.arange(d.n), tiles_of(d.width, columns, d.parts, d.bits, self.panel, index, count)
        return ONE_UNIT, ONE_UNIT

    def check_lists(self, d: Decoded, listed: Iterable[tuple[str, Length]], rows: Ints, units: Ints) -> None:
        """Check lists that fields name, and what depends on the number of virtual processors."""
        if d.instruction.form == "Matvec" and d.parts > 1 and d.width // d.parts % self.panel:
            self.fail(d, f"its {d.parts} parts of {d.width} units are no whole panels of {self.panel}")
        for name, length in listed:
            if length is Length.ENDS:
                at = np.append(rows, rows[-1] + 1)
            elif length is Length.UNITS:
                at = rows[[0, -1]] * d.width + units[[0, -1]]
            else:
                at = rows if length is Length.ROWS else np.arange(FIXED_WORDS[name])
            found = self.list(d, word(d, name), at)
            if name == "labels" and found.max() >= (most := self._classes(d)):
                self.fail(d, f"label {found.max()} in a row of {most} classes")

    def _classes(self, d: Decoded) -> int:
        """How many things a label may stand for."""
        if d.instruction.form == "PackedRowsGradient":
            return d.width
        return word(d, "rows" if d.instruction.form == "PackedRows" else "row_width")

    def parted(self, d: Decoded, listed: Ints, rows: Ints, units: Ints) -> Iterator[tuple[Ints, Access]]:
        """Elements of listed rows that an instruction reads, apart from those that it writes as well: a unit's thread
        reads its own before it writes it."""
        own = d.fields["dst"]
        assert isinstance(own, DecodedOperand)
        counts = np.diff(self.list(d, word(d, "offsets"), np.append(rows, rows[-1] + 1)))
        written = self.grid(d, self.starts(d, own, rows), units).reshape(len(rows), -1)
        same = listed == np.repeat(written, counts, axis=0).reshape(-1)
        yield listed[~same], Access.READ
        yield listed[same], Access.SAME

    def cells(self, d: Decoded, touch: Touch, rows: Ints, units: Ints) -> Ints:
        """Pool elements that a virtual processor touches whose slice these rows and units are."""
        at, start = touch.at, touch.at.address
        mine = units if touch.width is None else ONE_UNIT if touch.width == 1 else np.arange(touch.width)
        if touch.content is OF_ROWS and touch.reach is not LISTED:
            return self.grid(d, self.starts(d, at, self.elements(d, rows) if touch.reach is ELEMENTS else rows), mine)
        match touch.reach:
            case Reach.OWN:
                return grid_of(self.starts(d, at, rows), mine)
            case Reach.LISTED:
                entries = self.list(d, 0, self.between(d, self.list(d, start, np.append(rows, rows[-1] + 1))))
                return self.grid(d, entries + at.mode, units)
            case Reach.TABLE:
                return grid_of(start + self.list(d, word(d, "table_rows"), rows) * at.stride, mine)
            case Reach.ONCE | Reach.FIRST:
                return start + mine
            case Reach.MATRIX:
                return grid_of(start + units * at.stride, mine)
            case Reach.PANELS:  # the last one's padding included
                width = word(d, "columns") if d.instruction.form == "PackedMatmul" else 1
                span = self.panel * len(mine)
                return grid_of(start + np.unique(units // width // self.panel) * span, np.arange(span))
            case Reach.TILES:
                return start + units
        columns = columns_of_tiles(d)
        row, column = row_and_column(units, columns, self.panel)
        if touch.reach is Reach.PAIRS:  # the last panel's padding included
            n_pairs = -(-columns // 2)
            start -= -(-d.width // self.panel) * self.panel * n_pairs
            return start + np.unique((row // self.panel * n_pairs + column // 2) * self.panel + row % self.panel)
        row, column = row[row < d.width], column[row < d.width]
        if touch.reach is Reach.SUMS:
            return start + np.unique(row * -(-columns // TILE_COLUMNS) + column // TILE_COLUMNS)
        if touch.reach is Reach.TRANSPOSED_PAIRS:
            height = -(-d.width // 2)
            return start + np.unique((column // self.panel * height + row // 2) * self.panel + column % self.panel)
        return start + (column // self.panel * d.width + row) * self.panel + column % self.panel

    def elements(self, d: Decoded, rows: Ints) -> Ints:
        """Rows of the list elements of vertices that lie one after the other."""
        return self.between(d, self.list(d, word(d, "elements"), np.append(rows, rows[-1] + 1)))

    def between(self, d: Decoded, ends: Ints) -> Ints:
        """Numbers from the first end of lists that follow each other to the last one."""
        if (np.diff(ends) < 0).any():
            self.fail(d, f"a list ends before it begins: rows {ends.tolist()}")
        if ends[-1] - ends[0] > self.most:
            self.fail(d, f"lists of {ends[-1] - ends[0]} rows are longer than there can be")
        return np.arange(ends[0], ends[-1])

    def starts(self, d: Decoded, operand: DecodedOperand, rows: Ints) -> Ints:
        """Where rows of an operand begin."""
        if operand.indexed:
            return self.list(d, operand.address, rows) + operand.stride
        return operand.address + rows * operand.stride

    def grid(self, d: Decoded, starts: Ints, units: Ints) -> Ints:
        """Elements of rows; each row must lie inside one array that the pool holds now."""
        outside = self.outside(starts, units)
        if len(outside):
            first, last = outside[0] + units[0], outside[0] + units[-1]
            self.fail(d, f"elements {first} to {last} are no row of one array of the pool")
        return grid_of(starts, units)

    def outside(self, starts: Ints, units: Ints) -> Ints:
        """Those of some rows that do not lie inside one array that the pool holds now."""
        if not len(units):
            return starts[:0]
        first, stops, _ = self.arrays()
        array = first.searchsorted(starts + units[0], side="right") - 1
        found: Ints = starts[(array < 0) | (starts + units[-1] >= stops[array])]
        return found

    def list(self, d: Decoded, position: int, rows: Ints) -> Ints:
        """Words of an index list."""
        at = np.asarray(position + rows, np.int64)
        if len(at):
            found = self.list_starts.searchsorted(at.min(), side="right") - 1
            if found < 0 or at.max() >= self.list_stops[found]:
                self.fail(d, f"words {at.min()} to {at.max()} are no part of one list of the script")
        values: Ints = self.script[at].astype(np.int64)
        return values

    def period_of(self, d: Decoded) -> int:
        """The period that an instruction belongs to."""
        period = self.periods.get(d.position)
        if period is None:
            positions, numbers = self.layout.periods.T
            i = int(np.searchsorted(positions, d.position, side="right")) - 1
            period = self.periods[d.position] = int(numbers[i]) if i >= 0 else -1
        return period

    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """Where the arrays that are there now start and stop, and their first periods, sorted by start."""
        found = self.present.get(self.now)
        if found is None:
            memory = self.layout.memory
            there = memory[(memory[:, 2] <= self.now) & (self.now <= memory[:, 3])]
            if len(self.present) > PERIODS_AT_ONCE:
                self.present.clear()
            starts, stops, first = np.ascontiguousarray(there[np.argsort(there[:, 0]), :3].T)
            found = self.present[self.now] = starts, stops, first
        return found


def grid_of(starts: Ints, units: Ints) -> Ints:
    """Elements of rows, one row after the other."""
    return (np.asarray(starts)[:, None] + units).reshape(-1)
