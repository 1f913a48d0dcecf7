"""Computes the pool elements that each virtual processor touches, and checks rows, lists and labels.

Every row of an operand must be inside one array that the pool holds at the time, and every list inside one list of the
script. Labels must be valid classes for their row, or valid rows of their matrix.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    partial_tiles_of,
    rows_of,
    touches,
    units_of_rows,
    word,
)
from vpps.script.disassemble import Decoded, DecodedOperand, Words
from vpps.script.instructions import Flag, Slices
from vpps.script.slices import GRADIENT_ROWS, TILE_COLUMNS, GradientTiles, Ints, row_and_column, tile_elements
from vpps.script.wellformed import EVERYTHING, KnownKernel

# Module-level names are faster, and every step tests these.
ALL, SAME, CHANGE, OF_ROWS = Flag.ALL.value, Access.SAME, Access.CHANGE, Content.ROWS
ELEMENTS, FIRST, LISTED = Reach.ELEMENTS, Reach.FIRST, Reach.LISTED

BEFORE = -1  # the period of writes before the launch
ONE_UNIT = np.array([0])
PERIODS_AT_ONCE = 8  # cached periods: virtual processors are in only a few at a time
FIXED_WORDS = {"key": 3, "hyper": len(HYPER)}  # number of words in lists of fixed length


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Memory that a script may touch.

    Attributes:
        n_vps: number of virtual processors in all groups.
        groups: number of groups of virtual processors.
        panel: rows of a packed panel.
        pool_floats: floats of the pool.
        memory: `(n, 5)` arrays of the pool: start, stop, first and last period of its live range, and the group whose
            periods these are; -1: all groups.
        periods: `(n, 2)` sorted script positions where a period begins, and the period's number, which grows with time.
            Groups reach a period at different times.
        unwritten: spans of the pool that have no values before the launch.
        lists: spans of the script, each with one list (or data).
        knows: instructions, tails and matrices of the kernel that runs the script.
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


class Cells:
    """Elements of the pool: the same ascending units of several rows, row after row.

    Attributes:
        start, stop: bounds of the elements.
        is_run: True if the elements are all those between the bounds, in order.
    """

    def __init__(self, starts: range | Ints, units: Ints = ONE_UNIT) -> None:
        self.starts, self.units = starts, units
        self.start = self.stop = 0
        n, width = len(starts), len(units)
        step = width if n == 1 else starts.step if isinstance(starts, range) else 0
        if n and width:
            low, high = (starts[0], starts[-1]) if step else (np.min(starts), np.max(starts))
            self.start, self.stop = int(low + units[0]), int(high + units[-1]) + 1
        self.is_run = step == width and self.stop - self.start == n * width

    @cached_property
    def at(self) -> slice | Ints:
        """The NumPy index of the elements: a slice if possible, which is far faster."""
        if self.is_run:
            return slice(self.start, self.stop)
        return (np.asarray(self.starts)[:, None] + self.units).reshape(-1)

    @property
    def numbers(self) -> Ints:
        """The number of each element."""
        return np.arange(self.start, self.stop) if isinstance(self.at, slice) else self.at

    def meets(self, other: Cells) -> bool:
        """Return True if the two may have elements in common."""
        return self.start < other.stop and other.start < self.stop


class Footprint:
    """Accesses by a script's instructions, each in its instruction's period."""

    def __init__(self, script: Words, layout: MemoryMap, origin: Callable[[int], str]) -> None:
        self.script = script
        self.layout = layout
        self.origin = origin
        self.panel = layout.panel
        self.n = layout.n_vps
        self.of_group = self.n // layout.groups  # virtual processors per group
        self.most = layout.pool_floats + len(script)  # upper bound of all numbers of rows
        self.list_starts, self.list_stops = layout.lists.T.tolist()
        self.period_starts, self.periods = layout.periods.T.tolist()
        # Cache by position of the instruction: virtual processors share streams.
        self.touched: dict[int, tuple[tuple[Touch, ...], tuple[tuple[str, Length], ...]]] = {}
        self.now = self.latest = BEFORE  # the period of the current instruction, and the latest period so far
        self.present: dict[int, tuple[Sequence[int], Ints, Ints, Ints]] = {}  # period -> result of `arrays`

    def fail(self, d: Decoded, what: str) -> NoReturn:
        """Raise ScriptError, with the instruction in the user's terms."""
        where = self.origin(d.position)
        raise ScriptError(f"word {d.position}, {d.instruction.name}{f' ({where})' if where else ''}: {what}")

    def touches(self, p: int, d: Decoded) -> Iterator[tuple[Cells, Access]]:
        """Yield (pool elements, access) for VP p, reads first."""
        i = bisect_right(self.period_starts, d.position) - 1
        self.now = self.periods[i] if i >= 0 else BEFORE
        self.latest = max(self.latest, self.now)
        among = (p, self.n) if d.bits & ALL else (p % self.of_group, self.of_group)
        rows, units = self.slice_of(d, *among)
        is_sum = d.instruction.slices is Slices.TILES or d.instruction.form == "ColumnSum"  # zeros if there are no rows
        if not len(units) or not (len(rows) or (is_sum and d.n == 0)):
            return
        touched, listed = self.touched.get(d.position) or self.touched.setdefault(d.position, (touches(d), lists(d)))
        self.check_lists(d, listed, rows, units)
        for touch in touched:
            does = touch.access
            if among[0] and touch.reach is FIRST:
                continue
            cells = self.cells(d, touch, rows, units)
            if does is SAME:
                yield from self.parted(d, cells, rows, units)
            elif does is CHANGE:
                if touch.content is not Content.STATE:  # state has values before the launch
                    yield cells, Access.OWN
                yield cells, Access.WRITE
            else:
                yield cells, does

    def slice_of(self, d: Decoded, index: int, count: int) -> tuple[range, Ints]:
        """Return the slice of virtual processor `index`: (rows, units) of the result, or for tiles (rows, elements)."""
        if d.instruction.slices is Slices.UNITS:
            return rows_of(d, index, count), units_of_rows(d.width, d.parts, d.bits, self.panel, index, count)
        if d.instruction.form == "OuterTiles":
            if word(d, "turn") >= count:
                self.fail(d, f"turn {word(d, 'turn')} is not one of {count} virtual processors")
            return range(d.n), partial_tiles_of(d, index, count)
        if d.instruction.slices is Slices.TILES:
            columns = columns_of_tiles(d)
            return range(d.n), tile_elements(d.width, columns, self.panel, index, count)
        return range(1), ONE_UNIT

    def check_lists(self, d: Decoded, listed: Iterable[tuple[str, Length]], rows: range, units: Ints) -> None:
        """Check the lists that fields name, and check that parts are whole panels."""
        if d.instruction.form == "Matvec" and d.parts > 1 and d.width // d.parts % self.panel:
            self.fail(d, f"its {d.parts} parts of {d.width} units are not whole panels of {self.panel}")
        for name, length in listed:
            if length is Length.ENDS:
                at = range(rows.start, rows.stop + 1)
            elif length is Length.UNITS:
                at = range(rows[0] * d.width + int(units[0]), rows[-1] * d.width + int(units[-1]) + 1)
            else:
                at = rows if length is Length.ROWS else range(FIXED_WORDS[name])
            found = self.list(d, word(d, name), at)
            if name == "labels" and found.max() >= (most := self._classes(d)):
                self.fail(d, f"label {found.max()} is out of range: there are {most} classes")

    def _classes(self, d: Decoded) -> int:
        """Return the number of classes, or rows, that a label may name."""
        if d.instruction.form == "PackedRowsGradient":
            return d.width
        return word(d, "rows" if d.instruction.form == "PackedRows" else "row_width")

    def parted(self, d: Decoded, listed: Cells, rows: range, units: Ints) -> Iterator[tuple[Cells, Access]]:
        """Yield the elements of listed rows. Those that the instruction also writes are yielded separately, because a
        thread reads its own unit before it writes it."""
        own = d.fields["dst"]
        assert isinstance(own, DecodedOperand)
        written = self.grid(d, self.starts(d, own, rows), units)
        if not written.meets(listed):
            yield listed, Access.READ
            return
        counts = np.diff(self.list(d, word(d, "offsets"), range(rows.start, rows.stop + 1)))
        same = listed.numbers == np.repeat(written.numbers.reshape(len(rows), -1), counts, axis=0).reshape(-1)
        yield Cells(listed.numbers[~same]), Access.READ
        yield Cells(listed.numbers[same]), Access.SAME

    def cells(self, d: Decoded, touch: Touch, rows: range, units: Ints) -> Cells:
        """Return the pool elements of an access by the virtual processor that owns these rows and units."""
        at, start, panel = touch.at, touch.at.address, self.panel
        mine = units if touch.width is None else ONE_UNIT if touch.width == 1 else np.arange(touch.width)
        if touch.content is OF_ROWS and touch.reach is not LISTED:
            if touch.reach is ELEMENTS:  # the elements of successive vertices are successive rows
                rows = self.between(d, word(d, "elements"), rows)
            return self.grid(d, self.starts(d, at, rows), mine)
        match touch.reach:
            case Reach.OWN:
                return Cells(self.starts(d, at, rows), mine)
            case Reach.LISTED:
                entries = self.list(d, 0, self.between(d, start, rows))
                return self.grid(d, entries + at.mode, units)
            case Reach.TABLE:
                return Cells(start + self.list(d, word(d, "table_rows"), rows) * at.stride, mine)
            case Reach.ONCE | Reach.FIRST | Reach.TILES:
                return Cells(range(start, start + 1), mine)
            case Reach.MATRIX:
                return Cells(start + units * at.stride, mine)
            case Reach.PANELS:  # with the padding of the last panel
                width = word(d, "columns") if d.instruction.form == "PackedMatmul" else 1
                span = panel * len(mine)
                return Cells(start + np.unique(units // width // panel) * span, np.arange(span))
        columns = columns_of_tiles(d)
        if touch.reach in (Reach.PARTIAL, Reach.PARTIAL_SUMS, Reach.STORED):
            return self.partial_cells(d, touch.reach, start, units, columns)
        row, column = row_and_column(units, columns, panel)
        if touch.reach is Reach.PAIRS:  # with the padding of the last panel
            n_pairs = -(-columns // 2)
            start -= -(-d.width // panel) * panel * n_pairs
            return Cells(start + np.unique((row // panel * n_pairs + column // 2) * panel + row % panel))
        row, column = row[row < d.width], column[row < d.width]
        if touch.reach is Reach.SUMS:
            return Cells(start + np.unique(row * -(-columns // TILE_COLUMNS) + column // TILE_COLUMNS))
        if touch.reach is Reach.TRANSPOSED_PAIRS:
            height = -(-d.width // 2)
            return Cells(start + np.unique((column // panel * height + row // 2) * panel + column % panel))
        return Cells(start + (column // panel * d.width + row) * panel + column % panel)

    def partial_cells(self, d: Decoded, reach: Reach, start: int, units: Ints, columns: int) -> Cells:
        """Return the elements of a gradient's partial tiles, or of the sums beside them."""
        found = GradientTiles.of(d.n, d.width, columns)
        tall, wide = GRADIENT_ROWS, TILE_COLUMNS
        size = tall * wide
        if reach is Reach.PARTIAL:
            return Cells(start + units * size, np.arange(size))
        if reach is Reach.PARTIAL_SUMS:
            tile, part = np.divmod(units[units // found.stored % found.across == 0], found.stored)
            row = tile[:, None] // found.across * tall + np.arange(tall)
            return Cells((start + part[:, None] * d.width + row)[row < d.width])
        row, column = row_and_column(units, columns, self.panel)
        tile = (row // tall * found.across + column // wide) * found.stored
        at = start + tile * size + row % tall * wide + column % wide
        return Cells((at[:, None] + np.arange(found.stored) * size).reshape(-1))

    def between(self, d: Decoded, offsets: int, rows: range) -> range:
        """Return the range from the beginning of the first row's list to the end of the last one, without gaps."""
        ends = self.list(d, offsets, range(rows.start, rows.stop + 1))
        if np.count_nonzero(ends[1:] < ends[:-1]):
            self.fail(d, f"a list ends before it begins: rows {ends.tolist()}")
        if ends[-1] - ends[0] > self.most:
            self.fail(d, f"lists of {ends[-1] - ends[0]} rows are longer than possible")
        return range(int(ends[0]), int(ends[-1]))

    def starts(self, d: Decoded, operand: DecodedOperand, rows: range) -> range | Ints:
        """Return the positions at which an operand's rows start."""
        if operand.indexed:
            return self.list(d, operand.address, rows) + operand.stride
        address, stride = operand.address, operand.stride
        first, last = address + rows.start * stride, address + rows.stop * stride
        return range(first, last, stride) if stride else np.full(len(rows), address)

    def grid(self, d: Decoded, starts: range | Ints, units: Ints) -> Cells:
        """Return the elements of rows; each row must be inside one array that the pool holds now."""
        cells = Cells(starts, units)
        if len(outside := self.outside(cells)):
            first, last = outside[0] + units[0], outside[0] + units[-1]
            self.fail(d, f"elements {first} to {last} are not a row of one array of the pool")
        return cells

    def outside(self, cells: Cells) -> range | Ints:
        """Return the starts of rows that are not inside one array that the pool holds now."""
        there, first, stops, _ = self.arrays()
        array = bisect_right(there, cells.start) - 1
        if cells.start == cells.stop or (array >= 0 and cells.stop <= stops[array]):
            return range(0)
        starts, units = np.asarray(cells.starts), cells.units
        array_of = first.searchsorted(starts + units[0], side="right") - 1
        found: Ints = starts[(array_of < 0) | (starts + units[-1] >= stops[array_of])]
        return found

    def list(self, d: Decoded, position: int, rows: range) -> Ints:
        """Return an index list's words for some rows."""
        start, stop = position + rows.start, position + rows.stop
        found = bisect_right(self.list_starts, start) - 1
        if start < stop and (found < 0 or stop > self.list_stops[found]):
            self.fail(d, f"words {start} to {stop - 1} are not part of one list of the script")
        return self.script[start:stop].astype(np.int64)

    def arrays(self) -> tuple[Sequence[int], Ints, Ints, Ints]:
        """Return the arrays that are live now, sorted: starts as a list and as an array, stops, and first periods."""
        found = self.present.get(self.now)
        if found is None:
            memory = self.layout.memory
            there = memory[(memory[:, 2] <= self.now) & (self.now <= memory[:, 3])]
            if len(self.present) > PERIODS_AT_ONCE:
                self.present.clear()
            starts, stops, first = np.ascontiguousarray(there[np.argsort(there[:, 0]), :3].T)
            found = self.present[self.now] = starts.tolist(), starts, stops, first
        return found
