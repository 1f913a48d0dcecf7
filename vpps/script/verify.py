"""The verifier: executes a script on shadow memory and checks the rules of the virtual processors.

    - the kernel has code for every instruction, and the instruction's words are consistent (wellformed.py);
    - every row of an operand is inside one array that the pool holds at the time, every list inside one list of the
      script;
    - labels are valid classes for their row;
    - every element is written before it is read. Weights, moments, averages and accumulated gradients have values
      before the launch. An array that reuses memory has none at first;
    - every virtual processor reaches its end: each wait gets its signals, and there is no cycle;
    - in every order of execution, the same signals bring a counter to a number that is waited for;
    - signals and waits order the accesses of two virtual processors to an element (read after write, write after read,
      write after write);
    - threads of one virtual processor do not race within an instruction: no element is written twice, or read by
      a thread other than its writer;
    - matrices are loaded onto the chip before anything else, each before its first product. No product uses them after
      partial tiles of gradients are computed, which may overwrite them.

Later launches of a script continue the same history: each begins when everything before it has ended.

Vector clocks track the order, so the check is valid for any arrangement of signals and waits, not only full barriers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vpps.errors import ScriptError
from vpps.script.access import Access, word
from vpps.script.disassemble import Decoded, Words, decode, entered_at, entry_points
from vpps.script.footprint import BEFORE, Cells, Footprint, MemoryMap
from vpps.script.instructions import BY_NAME, Flag
from vpps.script.slices import Ints
from vpps.script.tails import ViewUse
from vpps.script.wellformed import diagnostics
from vpps.text import counted

READ, OWN, SAME, WRITE, ADD = Access.READ, Access.OWN, Access.SAME, Access.WRITE, Access.ADD
READS = READ, OWN, SAME

# Plain ints are faster, and every step tests these.
ACCUMULATE, ALL, ALONE, CHAINED, ROWS, TURNS = (
    Flag[name].value for name in ("ACCUMULATE", "ALL", "ALONE", "CHAINED", "ROWS", "TURNS")
)

NEVER = -2  # stands for the period of the last write if an element was never written


def verify(
    script: Words,
    layout: MemoryMap,
    origin: Callable[[int], str] = lambda position: "",
    divisions: Sequence[int] = (),
) -> None:
    """Check a script.

    Args:
        divisions: positions of the later launches' entry points.

    Raises ScriptError with the instruction and, through `origin`, the user's cell and op.
    """
    Verifier(script, layout, origin).run(divisions)


class Verifier(Footprint):
    """One execution of a script by the verifier."""

    def __init__(self, script: Words, layout: MemoryMap, origin: Callable[[int], str]) -> None:
        super().__init__(script, layout, origin)
        self.decoded: dict[int, tuple[Decoded, ...]] = {}  # cache: virtual processors share streams
        self.clock = np.eye(self.n, dtype=np.int64)  # vector clocks: clock[p][q] is the time of q that p knows
        self.written_in = np.full(layout.pool_floats, BEFORE)  # the period of each element's latest write
        for start, stop in layout.unwritten:
            self.written_in[start:stop] = NEVER
        self.written_by = np.zeros(layout.pool_floats, np.int64)  # int64 is the fastest index for NumPy
        self.written_at = np.zeros(layout.pool_floats, np.int64)
        self.place = np.zeros(layout.pool_floats, np.int64)  # position of an element among an instruction's writes
        self.loaded: list[set[int]] = [set() for _ in range(self.n)]  # matrices on the chip, by virtual processor
        self.left: list[list[Cells]] = [[] for _ in range(self.n)]  # reads of a chained product, for its tail
        self.reads, self.adds = (Latest(layout.pool_floats, self.n) for _ in range(2))
        self.counters: dict[int, list[Ints]] = {}  # counter -> clock after the first k signals
        self.signals: dict[int, list[tuple[int, Decoded, Ints]]] = {}  # counter -> (VP, instruction, VP's clock)
        self.targets: dict[int, set[int]] = {}  # counter -> signal counts that were waited for

    def run(self, divisions: Sequence[int] = ()) -> None:
        """Execute all launches of the script."""
        self.launch(entry_points(self.script))
        for division in divisions:
            self.join()
            self.launch(entry_points(entered_at(self.script, division)))

    def launch(self, entries: list[int]) -> None:
        """Execute one launch: the virtual processors run in turn, each until it must wait.

        Args:
            entries: entry point of each virtual processor.
        """
        if len(entries) != self.n:
            raise ScriptError(f"the script is for {counted(len(entries), 'virtual processor')}, not {self.n}")
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
                raise ScriptError(f"deadlock: signals never come for {', '.join(stuck)}")
        self.check_counters()

    def instructions(self, position: int) -> Iterator[Decoded]:
        """Yield and check the instructions of a virtual processor from a position to its end."""
        before: Decoded | None = None
        while True:
            found = self.decoded.get(position)
            if found is None:
                d = decode(self.script, position)
                for diagnostic in diagnostics(d, self.layout.knows, self.most):
                    self.fail(d, diagnostic)
                halves = ("signal", "wait") if d.instruction.name == "barrier" else ()
                found = self.decoded[position] = tuple(replace(d, instruction=BY_NAME[half]) for half in halves) or (d,)
            self.check_behind(before, found[0])
            yield from found
            position += found[0].words
            before = found[0]

    def check_behind(self, before: Decoded | None, d: Decoded) -> None:
        """Check an instruction against the one before it. Loads come first. A tail must follow a chained product, and
        read parts of its result with the same rows and units; no other tail reads a result on the chip."""
        if d.instruction.form == "Load" and before is not None and before.instruction.form != "Load":
            self.fail(d, "loads are executed at the beginning only")
        views = d.fields["views"] if d.instruction.name == "tail" else []
        assert isinstance(views, list)
        taken = [operand.address for operand, use in views if use == ViewUse.RESULT]
        chained = before is not None and bool(before.bits & CHAINED)
        if chained != bool(taken):
            wrong = "does not read the result of the product before" if chained else "no product left a result for it"
            self.fail(d, wrong)
        if before is None or not chained:
            return
        alike = d.n == before.n and d.width * before.parts == before.width and d.parts == 1
        if not alike or (before.bits | d.bits) & (ACCUMULATE | ALONE | ROWS | TURNS) or (before.bits ^ d.bits) & ALL:
            self.fail(d, "its rows and units are not those of the product that leaves it a result")
        if max(taken) >= before.parts:
            self.fail(d, f"takes part {max(taken)} of a result that has {before.parts}")

    def check_counters(self) -> None:
        """Check that each later signal is ordered after all signals of a wait: otherwise it could come before them and
        end the wait too early."""
        for counter, targets in self.targets.items():
            signals = self.signals[counter]
            # The minimum of the clocks of the VPs that gave the k-th signal or a later one.
            known = np.minimum.accumulate([clock for _, _, clock in reversed(signals)])[::-1]
            for target in targets:
                if target < len(signals) and (known[target] < self.counters[counter][target - 1]).any():
                    p, d, _ = next(s for s in signals[target:] if (s[2] < self.counters[counter][target - 1]).any())
                    self.fail(
                        d,
                        f"VP {p} may signal too early: counter {counter} may reach {target}, which a VP waits for, "
                        "before all signals of that wait have come",
                    )

    def join(self) -> None:
        """End a launch: every virtual processor now knows of all accesses, and counters restart."""
        now = self.clock.diagonal().copy()
        self.clock[:] = now
        np.fill_diagonal(self.clock, now + 1)
        self.counters.clear()
        self.signals.clear()
        self.targets.clear()
        for loaded in self.loaded:
            loaded.clear()

    def step(self, p: int, d: Decoded) -> bool:
        """Execute one instruction of VP p; False if it must wait."""
        name = d.instruction.name
        if name == "signal":
            seen = self.counters.setdefault(word(d, "counter"), [])
            seen.append(np.maximum(seen[-1], self.clock[p]) if seen else self.clock[p].copy())
            self.signals.setdefault(word(d, "counter"), []).append((p, d, self.clock[p].copy()))
            self.clock[p, p] += 1
        elif name == "wait":
            seen = self.counters.get(word(d, "counter"), [])
            target = word(d, "target")
            if len(seen) < target:
                return False
            # A counter holds the number of signals, not who gave them: assume that the first `target` of them arrived.
            if target:
                self.targets.setdefault(word(d, "counter"), set()).add(target)
                self.clock[p] = np.maximum(self.clock[p], seen[target - 1])
        else:
            if "matrix" in d.fields and d.instruction.on_chip:
                self.hold(p, d)
            elif d.instruction.form in ("OuterTiles", "SumTiles", "StepTiles"):
                self.loaded[p].clear()  # partial tiles may overwrite the weights
            accesses = [(cells, access) for cells, access in self.touches(p, d) if cells.start < cells.stop]
            for cells, _ in accesses:
                if cells.start < 0 or cells.stop > self.layout.pool_floats:
                    self.fail(d, f"touches element {cells.stop - 1} of a pool of {self.layout.pool_floats}")
            self.within(p, d, accesses)
            for cells, access in accesses:
                self.access(p, d, cells, access)
        return True

    def hold(self, p: int, d: Decoded) -> None:
        """Check that VP p loads a matrix onto the chip once, and before its first product."""
        matrix, loaded = word(d, "matrix"), self.loaded[p]
        if d.instruction.form == "Load":
            if matrix in loaded:
                self.fail(d, f"matrix {matrix} is on the chip already")
            loaded.add(matrix)
        elif d.instruction.form in ("Matvec", "MatvecTransposed") and matrix not in loaded:
            self.fail(d, f"matrix {matrix} has not been loaded")

    def within(self, p: int, d: Decoded, accesses: list[tuple[Cells, Access]]) -> None:
        """Check that the threads of VP p do not race within an instruction. A chained product and its tail count as
        one: nothing orders threads between the two."""
        written = [cells for cells, access in accesses if access is WRITE]
        read = [(cells, access) for cells, access in accesses if access is READ or access is OWN]
        if d.bits & CHAINED:
            self.left[p] = [cells for cells, _ in read]
            return
        read.extend((cells, READ) for cells in self.left[p])
        self.left[p] = []
        added = [cells for cells, access in accesses if access is ADD]
        read = [(cells, access) for cells, access in read if any(map(cells.meets, (*written, *added)))]
        if not read and all(w.is_run for w in written) and not any(w.meets(x) for w, x in combinations(written, 2)):
            return
        each = [cells.numbers for cells in written]
        every = np.concatenate([*each, np.arange(0)])
        places = np.arange(1, len(every) + 1)
        self.place[every] = places
        twice = every[self.place[every] != places]
        if len(twice):
            self.fail(d, f"writes element {twice[0]} twice")
        for cells in added:
            self.place[cells.at] = len(every) + 1
        begins = np.cumsum([1, *map(len, each)])
        for cells, access in read:
            at = self.place[cells.at]
            met = np.flatnonzero(at)
            if len(met):
                own = [b for b, w in zip(begins, each, strict=False) if access is OWN and len(w) == len(at)]
                others = met[~np.isin(at[met] - met, own)]
                if len(others):
                    self.fail(d, f"one thread reads element {cells.numbers[others[0]]}, another thread writes it")
        for cells in (*written, *added):
            self.place[cells.at] = 0

    def access(self, p: int, d: Decoded, cells: Cells, access: Access) -> None:
        """Check one access to pool elements against the accesses before it, and record it."""
        if self.n > 1:  # a single virtual processor cannot race
            self.order(p, d, cells, access)
        if access is WRITE:
            self.written_in[cells.at] = self.now
            return
        if np.count_nonzero(stale := self.stale(cells)):
            self.fail(d, f"reads element {cells.numbers[stale][0]}, which nothing has written")

    def order(self, p: int, d: Decoded, cells: Cells, access: Access) -> None:
        """Check that all conflicting accesses by other VPs are ordered before this access of VP p, and record it.

        VP p's own accesses are never later than its own time, so they always pass the check.
        """
        known = self.clock[p]
        # count_nonzero is faster than any().
        if np.count_nonzero(late := self.written_at[cells.at] > known[self.written_by[cells.at]]):
            kind = "read after write" if access in READS else "write after write"
            e = int(cells.numbers[late][0])
            self.fail(d, f"{kind} race of VP {p} with VP {self.written_by[e]} on element {e}")
        if access is not ADD and (q := self.adds.unknown(cells, known)) is not None:
            self.fail(d, f"{'write' if access is WRITE else 'read'} after add race of VP {p} with VP {q}")
        if access not in READS and (q := self.reads.unknown(cells, known)) is not None:
            self.fail(d, f"write after read race of VP {p} with VP {q}")
        if access is WRITE:
            self.written_by[cells.at], self.written_at[cells.at] = p, known[p]
        else:
            (self.adds if access is ADD else self.reads).note(p, cells, known)

    def stale(self, cells: Cells) -> NDArray[np.bool_]:
        """Return a mask of the elements that were last written before their current array was allocated."""
        there, starts, _, first = self.arrays()
        array: int | Ints = bisect_right(there, cells.start) - 1
        if array != bisect_right(there, cells.stop - 1) - 1:
            array = starts.searchsorted(cells.numbers, side="right") - 1
        found: NDArray[np.bool_] = self.written_in[cells.at] < first[array]
        return found


class Latest:
    """The latest reads of pool elements, or additions to them, by virtual processor and time. Earlier accesses that
    are ordered before the latest access are dropped: a clock that includes the latest access includes them.

    Args:
        elements: number of elements of the pool.
        n: number of virtual processors.
    """

    def __init__(self, elements: int, n: int) -> None:
        self.by = np.zeros(elements, np.int64)
        self.at = np.zeros(elements, np.int64)
        self.is_shared = np.zeros(elements, np.bool_)
        # By element and virtual processor. The system allocates only written pages, and few elements are shared.
        self.shared_at = np.zeros((elements, n), np.int64)
        self.any, self.any_shared = False, False

    def note(self, p: int, cells: Cells, known: Ints) -> None:
        """Record an access by VP p, whose clock is `known`."""
        self.any = True
        by, at = self.by[cells.at], self.at[cells.at]
        if np.count_nonzero(unknown := at > known[by]):
            shared = cells.numbers[unknown]
            self.shared_at[shared, by[unknown]] = at[unknown]
            self.is_shared[shared] = self.any_shared = True
        self.by[cells.at], self.at[cells.at] = p, known[p]

    def unknown(self, cells: Cells, known: Ints) -> int | None:
        """Return a virtual processor whose recorded access to one of some elements is later than `known`, or None."""
        if not self.any:
            return None
        by = self.by[cells.at]
        if np.count_nonzero(late := self.at[cells.at] > known[by]):
            return int(by[late][0])
        if self.any_shared and np.count_nonzero(shared := self.is_shared[cells.at]):
            others = (self.shared_at[cells.numbers[shared]] > known).any(axis=0)
            if np.count_nonzero(others):
                return int(others.argmax())
        return None
