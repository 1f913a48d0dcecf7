"""Writes a script word by word, and keeps account of memory, of lists, and of where every word came from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.plan.distribution import Distribution, aligned
from vpps.script.encode import encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC, NO_FLAGS, Flag
from vpps.script.slices import sliced_by_rows

if TYPE_CHECKING:
    from vpps.plan.rows import BlockPlan
    from vpps.plan.templates import Group

Words = NDArray[np.uint32]
Ints = NDArray[np.int64]
Span = tuple[int, int]

# Signals and waits; the last word of WAIT and of BARRIER is the number of signals to wait for.
SIGNAL = plain(encode("signal", 0, 0, counter=0))
WAIT = plain(encode("wait", 0, 0, counter=0, target=0))
BARRIER = np.concatenate([SIGNAL, WAIT])


BEFORE = -1  # number of the period before the first


class Phase(Enum):
    """What a launch does, in this order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    GRADIENTS = "gradients"  # of the weights
    UPDATE = "update"


class Section(NamedTuple):
    """A run of words: those that a group of a cell's instructions made for one step, or a single instruction.

    Attributes:
        start: position of its first word in its stream.
        block, group: the cell's rows and instructions, if a cell made it.
        first: first row of the step, or one row for each repetition of the group; of a barrier, its number.
        phase: what it is for, in words.
        during: the phase of the launch that it belongs to.
    """

    start: int
    block: BlockPlan | None
    group: Group | None
    first: int | Ints
    phase: str
    during: Phase


# What a section holds, but for its position.
Origin = tuple["BlockPlan | None", "Group | None", int | Ints, str, Phase]


class Stream:
    """Instructions that one virtual processor executes, or that all of them do.

    Attributes:
        chunks: the words.
        words: their number.
        sections: where they came from, in order.
        periods: (position, number) where each period of the launch begins.
        busy: whether there are instructions after the latest signal.
        awaited: signals that it has waited for.
    """

    __slots__ = ("awaited", "busy", "chunks", "periods", "sections", "words")

    def __init__(self) -> None:
        self.chunks: list[Words] = []
        self.words = 0
        self.sections: list[Section] = []
        self.periods: list[Span] = [(0, BEFORE)]
        self.busy = False
        self.awaited = 0

    def add(self, words: Words, origin: Origin) -> None:
        """Append a section."""
        self.sections.append(Section(self.words, *origin))
        self.chunks.append(words)
        self.words += len(words)

    def section_at(self, position: int) -> Section:
        """The section that holds a position of the stream."""
        return self.sections[bisect_right(self.sections, position, key=lambda s: s.start) - 1]


class ScriptWriter:
    """A script in the making.

    All barriers share one counter, which counts signals. Who executed something since the last barrier signals; before
    anything more is executed, whoever does waits for all signals given so far. A virtual processor that takes no part
    neither signals nor waits. What it did before is ordered nonetheless: others waited for it, then signalled.

    Args:
        exclusive: every virtual processor has a stream of its own; else all share one.

    Attributes:
        streams: the instructions, those of the second launch once `next_launch` has begun it.
        entries: position of the entry points of the second launch; 0 where there is none.
        lists: spans of the index lists and input data.
        memory: spans of the pool that were taken for the whole launch.
        n_barriers: barriers so far.
        periods: after `finish`, (position, number) where each period of the launch begins.
        during: phase of the launch that the next instructions belong to.
        names: of the instructions that no cell made.
    """

    def __init__(self, distribution: Distribution, exclusive: bool = False) -> None:
        self.n_vps = distribution.n_vps
        self.panel = distribution.panel
        self.exclusive = exclusive
        self.streams = [Stream() for _ in range(self.n_vps if exclusive else 1)]
        self.lists: list[Span] = []
        self.memory: list[Span] = []
        self.periods: list[Span] = []
        self.n_barriers = 0
        self.during = Phase.FORWARD
        self.names: set[str] = set()
        self.entries = 0
        self._first_launch: list[Stream] = []
        self._entry_points = np.zeros(0, np.uint32)  # of the second launch; `finish` fills them in
        self._signals = 0
        self._why = ""
        self._period = BEFORE
        self._cursor = distribution.end
        header = plain([MAGIC, self.n_vps, 1, 0] + [0] * self.n_vps)
        self._data = [header]
        self._data_words = len(header)

    @property
    def pool_floats(self) -> int:
        """Floats of the pool that the script uses."""
        return self._cursor

    def place_list(self, values: NDArray[Any]) -> int:
        """Add an index list (or the bits of floats); returns its position."""
        start = self._data_words
        self._data.append(values.astype(np.uint32, copy=False))
        self._data_words += len(values)
        self.lists.append((start, self._data_words))
        return start

    def extend(self, stop: int) -> None:
        """The pool up to `stop` is used, too: by slabs, which share it."""
        self._cursor = aligned(max(stop, self._cursor))

    def begin_period(self, number: int) -> None:
        """What follows is a new period of the launch (plan/memory.py); it begins when its first instruction may."""
        self._period = number

    def take(self, floats: int) -> int:
        """Memory for the whole launch; returns its address."""
        start = self._cursor
        self._cursor = aligned(start + floats)
        if floats:
            self.memory.append((start, start + floats))
        return start

    # ---- instructions

    def section(
        self,
        words: Words,
        block: BlockPlan,
        group: Group,
        first: int | Ints,
        phase: str,
        streams: Iterable[Stream] | None = None,
    ) -> None:
        """Add what a group of a cell's instructions makes for one step, to all streams or some."""
        for stream in self.streams if streams is None else streams:
            self._join(stream)
            stream.add(words, (block, group, first, phase, self.during))

    def instruction(
        self, name: str, n: int, width: int, flags: Flag = NO_FLAGS, /, *, parts: int = 1, **fields: Any
    ) -> None:
        """Add an instruction that no cell made; for all virtual processors, if it is divided among them."""
        words = plain(encode(name, n, width, parts, flags, **fields))
        self.names.add(name)
        for stream in self.streams[:1] if name == "loss" else self.streams:
            self._join(stream)
            stream.add(words, (None, None, 0, name, self.during))

    def row_flag(self, width: int) -> Flag:
        """How an instruction on rows of this width is sliced."""
        return Flag.ROWS if sliced_by_rows(width, 1, self.panel, self.n_vps) else NO_FLAGS

    def barrier(self, why: str) -> None:
        """What comes now is executed after all that came before. One virtual processor needs nothing for that."""
        self.n_barriers += 1
        if self.n_vps == 1:
            return
        self._why = why
        for stream in self.streams:
            if stream.busy:
                self._signals += 1 if self.exclusive else self.n_vps
                if self.exclusive:  # others may wait for it, whether or not it goes on
                    stream.add(SIGNAL, (None, None, self.n_barriers, why, self.during))
                stream.busy = False

    def _join(self, stream: Stream) -> None:
        """Let a stream wait for the signals given so far, if it has not."""
        stream.busy = True
        if stream.awaited < self._signals:
            words = (WAIT if self.exclusive else BARRIER).copy()
            words[-1] = stream.awaited = self._signals
            stream.add(words, (None, None, self.n_barriers, self._why, self.during))
        if stream.periods[-1][1] != self._period:
            stream.periods.append((stream.words, self._period))

    def next_launch(self) -> None:
        """What follows is for a second launch of the script, whose virtual processors begin at other entry points."""
        assert not self.entries
        self._first_launch = self.streams
        self.streams = [Stream() for _ in self.streams]
        self._entry_points = np.zeros(self.n_vps, np.uint32)  # kept, not copied, by `place_list`
        self.entries = self.place_list(self._entry_points)
        self._signals = 0  # its counters are others

    def finish(self) -> tuple[Words, list[tuple[int, Stream]]]:
        """The script, and its streams by the position where they begin."""
        end = plain(encode("end", 0, 0))
        chunks, found, position = self._data, [], self._data_words
        for stream in (*self._first_launch, *self.streams):
            stream.add(end, (None, None, 0, "", self.during))
            found.append((position, stream))
            chunks.extend(stream.chunks)
            self.periods.extend((position + first, number) for first, number in stream.periods)
            position += stream.words
        starts = [start for start, _ in found]
        n = len(self.streams)
        if self.entries:
            self._entry_points[:] = starts[n:] if self.exclusive else starts[n]
        script = np.concatenate(chunks)
        script[3] = len(script)
        script[HEADER_WORDS : HEADER_WORDS + self.n_vps] = starts[:n] if self.exclusive else starts[0]
        return script, found


def spans(found: Sequence[Span]) -> NDArray[np.int64]:
    """Spans as a sorted `(n, 2)` array."""
    return np.array(sorted(found), np.int64).reshape(-1, 2)
