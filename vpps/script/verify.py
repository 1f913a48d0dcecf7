"""The verifier: executes a script on shadow memory and checks the rules of the virtual processors.

    - an instruction is one that the kernel has code for, and agrees with itself (wellformed.py);
    - every row of an operand lies inside one array that the pool holds at the time, every list inside one list of the
      script;
    - labels are classes of their row;
    - nothing is read that was not written: weights, moments, averages and what was accumulated of gradients are there
      before the launch, the rest is not, nor is anything in an array that takes the place of others;
    - every virtual processor reaches its end: each wait gets its signals, there is no cycle;
    - a counter reaches a number that somebody waits for by the same signals whatever the order of execution;
    - whatever one virtual processor reads or overwrites of another's was ordered by signals and waits before
      (read after write, write after read, write after write);
    - threads of one virtual processor do not meet within an instruction: nothing is written twice, nor read by another
      thread than the one that writes it;
    - matrices are taken to the chip first of all, and each before its first product.

What follows the first launch of a script - products of matrices, then a second launch - is the same history: each
begins when all that came before is over.

Order is tracked by vector clocks, so it holds for any arrangement of signals and waits, not only for full barriers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from vpps.errors import ScriptError
from vpps.optim import HYPER
from vpps.script.disassemble import Decoded, Operand, Words, decode, entry_points
from vpps.script.instructions import BY_NAME, Flag, Kind, Role, Slices
from vpps.script.products import Product, Sequel, entered_at
from vpps.script.slices import TILE_COLUMNS, share, tiles, turn_owners, unit_owners
from vpps.script.tails import Use
from vpps.script.wellformed import EVERYTHING, MOMENTS, Knowledge, complaints, single

# What watches tell the guard: it lies with the counters, and stands here as one of the first floats of the pool, which
# no operand names.
_MARK = 8

Ints = NDArray[np.int64]


class Access(Enum):
    """What an instruction does with elements of the pool."""

    READ = "read"  # by any of its threads
    OWN = "read own"  # by the thread alone that writes the unit
    SAME = "read the same"  # of elements that the same thread writes, wherever among those
    WRITE = "write"
    ADD = "add"  # atomically: additions of several virtual processors need no order


READ, OWN, SAME, WRITE, ADD = Access.READ, Access.OWN, Access.SAME, Access.WRITE, Access.ADD
READS = READ, OWN, SAME

# As plain ints: they are asked for at every step.
ACCUMULATE, ALL, ALONE, CHAINED, NO_GRADIENT, OWNED, ROWS, TURNS = (
    Flag[name].value for name in ("ACCUMULATE", "ALL", "ALONE", "CHAINED", "NO_GRADIENT", "OWNED", "ROWS", "TURNS")
)

BEFORE, NEVER = -1, -2  # periods of writes: before the launch, and not at all
ONE_UNIT = np.array([0])
PERIODS_AT_ONCE = 8  # virtual processors are in a few different ones


@dataclass(frozen=True, slots=True)
class Layout:
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
    knows: Knowledge = EVERYTHING


def verify(
    script: Words,
    layout: Layout,
    origin: Callable[[int], str] = lambda position: "",
    sequel: Sequel | None = None,
) -> None:
    """Check a script, and what follows its first launch.

    Raises ScriptError naming the instruction and, through `origin`, the user's cell and op.
    """
    Verifier(script, layout, origin, sequel).run()


class Verifier:
    """One execution."""

    def __init__(
        self, script: Words, layout: Layout, origin: Callable[[int], str], sequel: Sequel | None = None
    ) -> None:
        self.script = script
        self.decoded: dict[int, tuple[Decoded, ...]] = {}  # virtual processors share streams
        self.periods: dict[int, int] = {}  # of instructions, by position
        self.list_starts, self.list_stops = np.ascontiguousarray(layout.lists.T)
        self.sequel = sequel
        self.layout = layout
        self.origin = origin
        self.panel = layout.panel
        self.n = layout.n_vps
        self.of_group = self.n // layout.groups  # virtual processors
        self.clock = np.eye(self.n, dtype=np.int64)  # clock[p][q]: what p knows of q's time
        self.written_in = np.full(layout.pool_floats, BEFORE)  # the period of each element's latest write
        for start, stop in layout.unwritten:
            self.written_in[start:stop] = NEVER
        self.now = self.latest = BEFORE  # the periods of the instruction that is executed, and of any so far
        # By period: where the arrays that are there start and stop, and their first periods, sorted by start.
        self.present: dict[int, tuple[Ints, Ints, Ints]] = {}
        self.written_by = np.zeros(layout.pool_floats, np.int16)
        self.written_at = np.zeros(layout.pool_floats, np.int64)
        self.place = np.full(layout.pool_floats, -1)  # of an element among those that an instruction writes
        self.most = layout.pool_floats + len(script)  # rows of anything
        self.loaded: list[set[int]] = [set() for _ in range(self.n)]  # matrices on the chip, by virtual processor
        self.left: list[list[Ints]] = [[] for _ in range(self.n)]  # what a product reads whose result a tail takes
        self.read_at = np.zeros((self.n, layout.pool_floats), np.int64)
        self.added_at: dict[int, Ints] = {}
        self.counters: dict[int, list[Ints]] = {}  # what the first k signals made known
        self.signals: dict[int, list[tuple[int, Decoded, Ints]]] = {}  # who gave each, where, and what it knew
        self.targets: dict[int, set[int]] = {}  # what has been waited for

    def fail(self, d: Decoded, what: str) -> NoReturn:
        """Raise, in the user's words."""
        where = self.origin(d.position)
        raise ScriptError(f"word {d.position}, {d.instruction.name}{f' ({where})' if where else ''}: {what}")

    def run(self) -> None:
        """All that happens."""
        self.launch(entry_points(self.script))
        if self.sequel is None:
            return
        self.join()
        for product in self.sequel.products:
            self.multiply(product)
        if self.sequel.entries:
            self.launch(entry_points(entered_at(self.script, self.sequel.entries)))

    def launch(self, entries: list[int]) -> None:
        """One launch: let the virtual processors run in turn, each until it must wait.

        Args:
            entries: where each begins.
        """
        if len(entries) != self.n:
            raise ScriptError(f"the script is for {len(entries)} virtual processors, not {self.n}")
        streams = [self.instructions(e) for e in entries]
        waiting: list[Decoded | None] = [next(s) for s in streams]
        while any(waiting):
            moved = False
            for p, stream in enumerate(streams):
                d = waiting[p]
                while d is not None and self.step(p, d):
                    moved = True
                    d = None if d.instruction.name == "end" else next(stream)
                waiting[p] = d
            if not moved:
                stuck = [f"VP {p} at word {d.position}" for p, d in enumerate(waiting) if d is not None]
                raise ScriptError(f"deadlock: nothing signals what {', '.join(stuck)} wait for")
        self.check_counters()

    def instructions(self, position: int) -> Iterator[Decoded]:
        """Those of a virtual processor that begins at a position, to its end."""
        before: Decoded | None = None
        while True:
            found = self.decoded.get(position)
            if found is None:
                d = decode(self.script, position)
                for complaint in complaints(d, self.layout.knows, self.most):
                    self.fail(d, complaint)
                found = self.decoded[position] = tuple(_halves(d))
            self.check_behind(before, found[0])
            yield from found
            position += found[0].words
            before = found[0]

    def check_behind(self, before: Decoded | None, d: Decoded) -> None:
        """Loads come first of all. A product that leaves its result on the chip is followed by a tail that takes parts
        of it, of the same rows and units; no other tail takes any."""
        if d.instruction.form == "Load" and before is not None and before.instruction.form != "Load":
            self.fail(d, "loads are executed at the beginning only")
        views = d.fields["views"] if d.instruction.name == "tail" else []
        assert isinstance(views, list)
        taken = [operand.address for operand, use in views if use == Use.RESULT]
        chained = before is not None and bool(before.bits & CHAINED)
        if chained != bool(taken):
            wrong = "takes no result of the product before it" if chained else "no product has left a result for it"
            self.fail(d, wrong)
        if before is None or not chained:
            return
        alike = d.n == before.n and d.width * before.parts == before.width and d.parts == 1
        if not alike or (before.bits | d.bits) & (ACCUMULATE | ALONE | ROWS | TURNS) or (before.bits ^ d.bits) & ALL:
            self.fail(d, "its rows and units are not those of the product that leaves it a result")
        if max(taken) >= before.parts:
            self.fail(d, f"takes part {max(taken)} of a result that has {before.parts}")

    def check_counters(self) -> None:
        """Whoever gives a later signal must know of all those that somebody waits for: else it might come before them,
        and the wait be over too early."""
        for counter, targets in self.targets.items():
            signals = self.signals[counter]
            # What everyone knew who gave a signal from the k-th on.
            known = np.minimum.accumulate([clock for _, _, clock in reversed(signals)])[::-1]
            for target in targets:
                if target < len(signals) and (known[target] < self.counters[counter][target - 1]).any():
                    p, d, _ = next(s for s in signals[target:] if (s[2] < self.counters[counter][target - 1]).any())
                    self.fail(
                        d,
                        f"VP {p} may signal too early: counter {counter} may reach {target}, which is waited for, "
                        "before all have given the signals that are meant",
                    )

    def join(self) -> None:
        """The launch has ended: all know of all that was done, and the next one has counters of its own."""
        now = self.clock.diagonal().copy()
        self.clock[:] = now
        np.fill_diagonal(self.clock, now + 1)
        self.counters.clear()
        self.signals.clear()
        self.targets.clear()
        for loaded in self.loaded:
            loaded.clear()

    def multiply(self, product: Product) -> None:
        """Check a product between two launches, and note what it writes."""
        where = f"the product for the gradient of {product.name!r}"
        gradient = product.gradient + np.arange(product.rows * product.columns)
        touched = [("G", gradient[:1], product.rows * product.columns, product.accumulate)]
        for side, at, width in (("dY", product.dy, product.rows), ("X", product.x, product.columns)):
            touched.append((side, at.address + np.arange(product.n) * at.stride, width, True))
        for side, starts, width, read in touched:
            units = np.arange(width)
            self.now = self.latest
            outside = self.outside(starts, units)
            if len(outside):
                raise ScriptError(f"{where}: {width} elements of {side} from {outside[0]} on are no row of one array")
            cells = _grid(starts, units)
            missing = cells[self.stale(cells)]
            if read and len(missing):
                raise ScriptError(f"{where}: reads element {missing[0]} of {side}, which nothing has written")
        self.written_in[gradient] = self.now

    def step(self, p: int, d: Decoded) -> bool:
        """Execute one instruction of VP p; False if it must wait."""
        name = d.instruction.name
        if name == "signal":
            seen = self.counters.setdefault(self.word(d, "counter"), [])
            seen.append(np.maximum(seen[-1], self.clock[p]) if seen else self.clock[p].copy())
            self.signals.setdefault(self.word(d, "counter"), []).append((p, d, self.clock[p].copy()))
            self.clock[p, p] += 1
        elif name == "wait":
            seen = self.counters.get(self.word(d, "counter"), [])
            target = self.word(d, "target")
            if len(seen) < target:
                return False
            # A counter tells only that `target` signals came, not whose: the first ones, in the order they were given.
            if target:
                self.targets.setdefault(self.word(d, "counter"), set()).add(target)
                self.clock[p] = np.maximum(self.clock[p], seen[target - 1])
        else:
            if d.instruction.on_chip:
                self.hold(p, d)
            accesses = [(cells, access) for cells, access in self.touches(p, d) if len(cells)]
            for cells, _ in accesses:
                if cells.view(np.uint64).max() >= self.layout.pool_floats:  # those below 0 too
                    self.fail(d, f"touches element {cells.max()} of a pool of {self.layout.pool_floats}")
            self.within(p, d, accesses)
            for cells, access in accesses:
                self.access(p, d, cells, access)
        return True

    def hold(self, p: int, d: Decoded) -> None:
        """Check that VP p takes a matrix to the chip once, and before it multiplies by it."""
        matrix, loaded = self.word(d, "matrix"), self.loaded[p]
        if d.instruction.form == "Load":
            if matrix in loaded:
                self.fail(d, f"matrix {matrix} is on the chip already")
            loaded.add(matrix)
        elif d.instruction.form in ("Matvec", "MatvecTransposed") and matrix not in loaded:
            self.fail(d, f"matrix {matrix} has not been loaded")
        if d.n:
            return
        # With no rows, device code looks up the row before the first all the same, and uses nothing of it.
        for name in ("dy", "bias"):
            operand = d.fields.get(name)
            if isinstance(operand, Operand):
                start = operand.address - operand.stride
                if operand.indexed or not 0 <= start <= self.layout.pool_floats - d.width:
                    self.fail(d, f"there is nothing before the first row of {name}, which is looked up")
        segments = d.fields.get("x")
        for operand, _ in segments if isinstance(segments, list) else []:
            if operand.indexed and not 1 <= operand.address <= len(self.script):
                self.fail(d, "there is no word before the list of x, which is looked up")

    def within(self, p: int, d: Decoded, accesses: list[tuple[Ints, Access]]) -> None:
        """Check that the threads of VP p do not meet within an instruction, nor in one and the tail that is executed
        with it, where nothing orders them."""
        written = [cells for cells, access in accesses if access is WRITE]
        read = [(cells, access) for cells, access in accesses if access is READ or access is OWN]
        if d.bits & CHAINED:
            self.left[p] = [cells for cells, _ in read]
            return
        read.extend((cells, READ) for cells in self.left[p])
        self.left[p] = []
        begins = np.cumsum([0, *map(len, written)]).tolist()
        for begin, cells in zip(begins, written, strict=False):
            self.place[cells] = np.arange(begin, begin + len(cells))
        for begin, cells in zip(begins, written, strict=False):
            twice = self.place[cells] != np.arange(begin, begin + len(cells))
            if np.count_nonzero(twice):
                self.fail(d, f"writes element {cells[twice][0]} twice")
        added = [cells for cells, access in accesses if access is ADD]
        for cells in added:
            self.place[cells] = begins[-1]
        for cells, access in read:
            at = self.place[cells]
            met = np.flatnonzero(at >= 0)
            if len(met):
                own = [b for b, w in zip(begins, written, strict=False) if access is OWN and len(w) == len(cells)]
                others = met[~np.isin(at[met] - met, own)]
                if len(others):
                    self.fail(d, f"one thread reads element {cells[others[0]]}, another one writes it")
        for cells in (*written, *added):
            self.place[cells] = -1

    def access(self, p: int, d: Decoded, cells: Ints, access: Access) -> None:
        """Check one access to pool elements against the accesses before it, and note it."""
        if self.n > 1:  # there is nobody to race with else
            self.order(p, d, cells, access)
        now = self.clock[p, p]
        if access is WRITE:
            self.written_by[cells] = p
            self.written_at[cells] = now
            self.written_in[cells] = self.now
        else:
            stale = self.stale(cells)
            if np.count_nonzero(stale):
                self.fail(d, f"reads element {cells[stale][0]}, which nothing has written")
            if access is ADD:
                self.added_at.setdefault(p, np.zeros(self.layout.pool_floats, np.int64))[cells] = now
            else:
                self.read_at[p][cells] = now

    def order(self, p: int, d: Decoded, cells: Ints, access: Access) -> None:
        """Check that VP p knows of all that others did with some elements, as far as that matters to its access.

        What it did itself is never later than what it knows of its own time.
        """
        known = self.clock[p]
        late = self.written_at[cells] > known[self.written_by[cells]]
        if np.count_nonzero(late):  # quicker than any()
            kind = "read after write" if access in READS else "write after write"
            e = int(cells[late][0])
            self.fail(d, f"{kind} race of VP {p} with VP {self.written_by[e]} on element {e}")
        if access is not ADD:
            for q, added in self.added_at.items():
                if q != p and (added[cells] > known[q]).any():
                    self.fail(d, f"{'write' if access is WRITE else 'read'} after add race of VP {p} with VP {q}")
        if access not in READS:
            late = (self.read_at[:, cells] > known[:, None]).any(axis=1)
            if late.any():
                self.fail(d, f"write after read race of VP {p} with VP {late.argmax()}")

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

    def stale(self, cells: Ints) -> NDArray[np.bool_]:
        """Which elements hold nothing of the arrays that are in their places now."""
        starts, _, first = self.arrays()
        array = starts.searchsorted(cells, side="right") - 1
        found: NDArray[np.bool_] = self.written_in[cells] < first[array]
        return found

    # ---- what an instruction touches

    def word(self, d: Decoded, name: str) -> int:
        value = d.fields[name]
        assert isinstance(value, int)
        return value

    def touches(self, p: int, d: Decoded) -> Iterator[tuple[Ints, Access]]:
        """(pool elements, what is done with them) for VP p; reads first."""
        self.now = self.period_of(d)
        self.latest = max(self.latest, self.now)
        if d.instruction.slices is Slices.UNITS:
            yield from self.sliced(p, d)
        elif d.instruction.slices is Slices.TILES:
            yield from self.tiled(p, d)
        elif d.instruction.name == "clip":
            yield self.word(d, "partials") + np.arange(d.n), READ
        elif d.instruction.name == "guard":
            yield np.array([self.word(d, "loss"), _MARK]), READ
        elif d.instruction.name == "loss" and self.among(p, d)[0] == 0:
            yield np.array([self.word(d, "source")]), READ
            yield np.array([self.word(d, "slot")]), WRITE
        if d.instruction.name in ("clip", "guard") and p == 0:
            yield np.array([self.word(d, "left_out")]), WRITE

    def among(self, p: int, d: Decoded) -> tuple[int, int]:
        """(index, number) of VP p among those that divide an instruction: its group, or all."""
        return (p, self.n) if d.bits & ALL else (p % self.of_group, self.of_group)

    def owned(self, p: int, d: Decoded) -> tuple[Ints, Ints]:
        """(rows, units) that VP p owns of the result."""
        if d.bits & ALONE:
            return np.arange(d.n), np.arange(d.width)
        if d.bits & ROWS:
            lo, hi = share(d.n, *self.among(p, d))
            return np.arange(lo, hi), np.arange(d.width)
        return np.arange(d.n), self.units(p, d)

    def units(self, p: int, d: Decoded) -> Ints:
        """Units of the result, or rows of a matrix on the chip, that VP p owns."""
        return _units(d.width, d.parts, 0 if d.bits & TURNS else self.panel, *self.among(p, d))

    def sliced(self, p: int, d: Decoded) -> Iterator[tuple[Ints, Access]]:
        rows, units = self.owned(p, d)
        if not len(units):
            return
        if not len(rows):
            if d.n == 0 and d.instruction.form == "ColumnSum":  # the sum over no rows is written, too: zeros
                yield from self.special(p, d, rows, units)
            return
        writes: list[Ints] = []
        for f in d.instruction.fields:
            value = d.fields[f.name]
            if f.kind is Kind.OPERAND:
                assert isinstance(value, Operand)
                if f.role is Role.WRITE and d.bits & CHAINED:
                    continue  # the tail behind it takes the result
                mine = units
                if f.role in (Role.READ_ROWS, Role.ADD):
                    wide = f.width != "row_width" or f.name not in single(d.instruction)
                    mine = np.arange(self.word(d, f.width) if f.width else d.width) if wide else ONE_UNIT
                of = self.elements(d, rows) if f.elements else rows
                cells = self.cells(d, value, of, ONE_UNIT if value.scalar and f.broadcast else mine)
                if f.role is Role.WRITE:
                    writes.append(cells)
                elif f.role is Role.ADD:
                    yield cells, ADD
                else:  # a product looks up biases ahead
                    yield cells, OWN if f.role is Role.READ and f.name != "bias" else READ
            elif f.kind is Kind.SEGMENTS:
                assert isinstance(value, list)
                for operand, width in value:
                    yield self.cells(d, operand, rows, np.arange(width)), READ
            elif f.kind is Kind.VIEWS:
                assert isinstance(value, list)
                for operand, use in value:
                    if use in (Use.SUM, Use.MEAN):
                        yield self.listed_rows(d, operand.address, operand.mode, rows, units), READ
                    elif use in (Use.READ, Use.WRITE):
                        cells = self.cells(d, operand, rows, ONE_UNIT if operand.scalar else units)
                        if use == Use.READ:
                            yield cells, OWN
                        else:
                            writes.append(cells)
        yield from self.special(p, d, rows, units)
        for cells in writes:
            if d.bits & ACCUMULATE:
                yield cells, OWN
            yield cells, WRITE

    def elements(self, d: Decoded, rows: Ints) -> Ints:
        """Rows of the list elements of vertices that lie one after the other."""
        first = self.list(d, self.word(d, "elements"), np.append(rows, rows[-1] + 1))
        return self.between(d, first)

    def between(self, d: Decoded, ends: Ints) -> Ints:
        """Numbers from the first end of lists that follow each other to the last one."""
        if (np.diff(ends) < 0).any():
            self.fail(d, f"a list ends before it begins: rows {ends.tolist()}")
        if ends[-1] - ends[0] > self.most:
            self.fail(d, f"lists of {ends[-1] - ends[0]} rows are longer than there can be")
        return np.arange(ends[0], ends[-1])

    def listed_rows(self, d: Decoded, offsets: int, shift: int, rows: Ints, units: Ints) -> Ints:
        """Elements of the rows that CSR offsets list for some rows, each `shift` floats in."""
        ends = self.list(d, offsets, np.append(rows, rows[-1] + 1))
        entries = self.list(d, 0, self.between(d, ends))
        return self.grid(d, entries + shift, units)

    def special(self, p: int, d: Decoded, rows: Ints, units: Ints) -> Iterator[tuple[Ints, Access]]:
        """Accesses that fields other than operands stand for."""
        name = d.instruction.form
        if name.startswith("Row") and self.word(d, "labels"):
            labels = self.list(d, self.word(d, "labels"), rows)
            if labels.max() >= self.word(d, "row_width"):
                self.fail(d, f"label {labels.max()} in a row of {self.word(d, 'row_width')} classes")
        elif name == "Dropout":
            self.list(d, self.word(d, "calls"), rows)
            if self.word(d, "positions"):
                self.list(d, self.word(d, "positions"), rows)
            self.list(d, self.word(d, "key"), np.arange(3))
        elif name == "Input":
            self.list(d, self.word(d, "data"), rows[[0, -1]] * d.width + units[[0, -1]])
        elif name == "Watch":
            yield np.array([_MARK]), ADD
        elif name == "DivideByCount":
            self.list(d, self.word(d, "offsets"), np.append(rows, rows[-1] + 1))
        if name == "GatherSum":
            # A row may be among those that it is the sum of: a unit's thread reads it before it writes it.
            offsets, own = self.word(d, "offsets"), d.fields["dst"]
            assert isinstance(own, Operand)
            listed = self.listed_rows(d, offsets, self.word(d, "shift"), rows, units)
            counts = np.diff(self.list(d, offsets, np.append(rows, rows[-1] + 1)))
            written = self.cells(d, own, rows, units).reshape(len(rows), -1)
            same = listed == np.repeat(written, counts, axis=0).reshape(-1)
            yield listed[~same], READ
            yield listed[same], SAME
        elif name == "PackedMatmul":
            panels = np.unique(units // self.word(d, "columns") // self.panel)
            span = self.panel * self.word(d, "inner")
            yield _grid(self.word(d, "weights") + panels * span, np.arange(span)), READ
        elif name == "Matvec":
            if d.parts > 1 and d.width // d.parts % self.panel:
                self.fail(d, f"its {d.parts} parts of {d.width} units are no whole panels of {self.panel}")
            # Panels of the rows that this VP computes; the last one's padding included.
            panels = np.unique(units // self.panel)
            span = self.panel * self.word(d, "columns")
            yield _grid(self.word(d, "weights") + panels * span, np.arange(span)), READ
        elif name in ("Load", "MatvecTransposed"):
            columns = self.word(d, "columns")
            yield _grid(self.word(d, "weights") + units * columns, np.arange(columns)), READ
        elif name == "ColumnSum":
            if d.bits & ACCUMULATE:
                yield self.word(d, "vector") + units, OWN
            yield self.word(d, "vector") + units, WRITE
        elif name == "SquaresRows":
            yield _grid(self.word(d, "gradient") + rows * d.width, units), READ
            yield self.word(d, "partials") + rows, WRITE
        elif name in ("UpdateVector", "UpdateRows"):
            at = self.list(d, self.word(d, "table_rows"), rows) if name == "UpdateRows" else np.array([0])
            if name == "UpdateRows" and self.word(d, "average"):
                self.list(d, self.word(d, "idle"), rows)
            if not d.bits & NO_GRADIENT:
                source = rows if name == "UpdateRows" else np.array([0])
                yield _grid(self.word(d, "gradient") + source * d.width, units), OWN
            for m in self.stepped(d):
                yield _grid(self.word(d, m) + at * d.width, units), WRITE

    def stepped(self, d: Decoded) -> list[str]:
        """What a step of an optimizer changes; the place of its hyper-parameters is checked."""
        self.list(d, self.word(d, "hyper"), np.arange(len(HYPER)))
        moments = MOMENTS[d.instruction.name.partition(".")[2]]
        return ["weights", *(f"moment{k}" for k in range(moments)), *(["average"] if self.word(d, "average") else [])]

    def tiled(self, p: int, d: Decoded) -> Iterator[tuple[Ints, Access]]:
        form = d.instruction.form
        columns = self.word(d, "inner" if form == "PackedMatmulGradient" else "columns")
        across = -(-columns // TILE_COLUMNS)
        if d.bits & OWNED:  # panels are single rows
            mine = (self.units(p, d)[:, None] * across + np.arange(across)).reshape(-1)
        else:
            mine = np.arange(*share(tiles(d.width, columns, self.panel), *self.among(p, d)))
        lanes = np.arange(self.panel)
        packed = []
        for t in mine.tolist():
            panel, from_ = t // across, t % across * TILE_COLUMNS
            span = np.arange(from_, min(from_ + TILE_COLUMNS, columns))
            packed.append(_grid((panel * columns + span) * self.panel, lanes))
        if not packed:
            return
        cells = np.concatenate(packed)
        if form in ("Outer", "OuterUpdate", "PackedMatmulGradient"):
            dy = d.fields["dy"]
            assert isinstance(dy, Operand)
            rows = np.arange(d.n)
            width = d.width * (self.word(d, "columns") if form == "PackedMatmulGradient" else 1)
            yield self.cells(d, dy, rows, np.arange(width)), READ
            segments = d.fields["x"]
            assert isinstance(segments, list)
            for operand, width in segments:
                yield self.cells(d, operand, rows, np.arange(width)), READ
            if d.bits & ACCUMULATE:
                yield self.word(d, "gradient") + cells, OWN
            # With no rows at all, a gradient that is not added to becomes zero.
            yield self.word(d, "gradient") + cells, WRITE
        if form in ("Outer", "PackedMatmulGradient"):
            return
        if form == "KeptGradient":
            yield self.word(d, "gradient") + cells, OWN
            yield self.word(d, "gradient") + cells, WRITE
        if form == "SquaresMatrix":
            yield self.word(d, "gradient") + cells, READ
            panel_rows = mine // across * self.panel
            rows = (panel_rows[:, None] + lanes).reshape(-1)
            column = np.repeat(mine % across, self.panel)
            inside = rows < d.width
            yield self.word(d, "partials") + rows[inside] * across + column[inside], WRITE
        elif form in ("UpdateMatrix", "OuterUpdate"):
            if form == "UpdateMatrix" and not d.bits & NO_GRADIENT:
                yield self.word(d, "gradient") + cells, OWN
            for name in self.stepped(d):
                yield self.word(d, name) + cells, WRITE
            # The transpose of an owned element: column c of row r lies in panel c // PANEL, column r, lane c % PANEL.
            columns_of, rows_of = [], []
            for t in mine.tolist():
                panel, from_ = t // across, t % across * TILE_COLUMNS
                c = np.arange(from_, min(from_ + TILE_COLUMNS, columns))
                r = np.arange(panel * self.panel, min((panel + 1) * self.panel, d.width))
                columns_of.append(np.repeat(c, len(r)))
                rows_of.append(np.tile(r, len(c)))
            c, r = np.concatenate(columns_of), np.concatenate(rows_of)
            yield self.word(d, "transposed") + (c // self.panel * d.width + r) * self.panel + c % self.panel, WRITE

    def cells(self, d: Decoded, operand: Operand, rows: Ints, units: Ints) -> Ints:
        """Pool elements of an operand."""
        if operand.indexed:
            starts = self.list(d, operand.address, rows) + operand.stride
        else:
            starts = operand.address + rows * operand.stride
        return self.grid(d, starts, units)

    def grid(self, d: Decoded, starts: Ints, units: Ints) -> Ints:
        """Elements of rows; each row must lie inside one array that the pool holds now."""
        outside = self.outside(starts, units)
        if len(outside):
            first, last = outside[0] + units[0], outside[0] + units[-1]
            self.fail(d, f"elements {first} to {last} are no row of one array of the pool")
        return _grid(starts, units)

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


def _halves(d: Decoded) -> Iterator[Decoded]:
    """An instruction, a barrier as the two that it stands for."""
    if d.instruction.name == "barrier":
        for name in ("signal", "wait"):
            yield replace(d, instruction=BY_NAME[name])
    else:
        yield d


@lru_cache(maxsize=1024)
def _units(width: int, parts: int, panel: int, index: int, n: int) -> Ints:
    """Units of a row, or rows of a matrix that is dealt in turns (panel 0), that one of n virtual processors owns."""
    owners = unit_owners(width, parts, panel, n) if panel else turn_owners(width, parts, n)
    found = np.flatnonzero(owners == index)
    found.flags.writeable = False  # it is shared
    return found


def _grid(starts: Ints, units: Ints) -> Ints:
    return (np.asarray(starts)[:, None] + units).reshape(-1)
