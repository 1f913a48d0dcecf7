"""Writes a script word by word, and keeps account of memory, of lists, and of where every word came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.plan.distribution import Distribution, aligned
from vpps.plan.sections import Ints, Phase, Section, Stream, Words
from vpps.script.encode import barrier, encode, plain, signal, wait
from vpps.script.instructions import COUNTERS, HEADER_WORDS, MAGIC, NO_FLAGS, Flag, instruction_of
from vpps.script.slices import sliced_by_rows

if TYPE_CHECKING:
    from vpps.plan.rows import BlockPlan
    from vpps.plan.templates import Group

Span = tuple[int, int]


# By number of the counter.
SIGNALS = [signal(counter) for counter in range(COUNTERS)]
WAITS = [wait(counter) for counter in range(COUNTERS)]
BARRIERS = [barrier(counter) for counter in range(COUNTERS)]


BEFORE = -1  # number of the period before the first


# What a section holds, but for its position.
Origin = tuple["BlockPlan | None", "Group | None", int | Ints, str, Phase]


class WrittenStream(Stream):
    """Instructions that one virtual processor executes, or that all of a group do.

    Attributes:
        group: whose they are.
        chunks: the words.
        periods: (position, number) where each period of the launch begins.
        busy: whether there are instructions after the latest signal.
        awaited: signals that it has waited for.
        unmet: whether there are instructions after the latest signal to other groups.
        met: signals of all groups that it has waited for.
        barriers: of its group alone, so far.
        signalled: for the next barrier, before what is executed until then; that is ordered by the one after it.
    """

    __slots__ = (
        "awaited",
        "barriers",
        "busy",
        "chunks",
        "group",
        "met",
        "periods",
        "signalled",
        "unmet",
    )

    def __init__(self, group: int = 0) -> None:
        super().__init__(0, [])
        self.group = group
        self.unmet = False
        self.met = 0
        self.barriers = 0
        self.chunks: list[Words] = []
        self.periods: list[Span] = [(0, BEFORE)]
        self.busy = False
        self.signalled = False
        self.awaited = 0

    def add(self, words: Words, origin: Any) -> None:
        """Append a section."""
        self.sections.append(Section(self.words, *origin))
        self.chunks.append(words)
        self.words += len(words)


class ScriptWriter:
    """A script in the making.

    All barriers share one counter, which counts signals. Who executed something since the last barrier signals; before
    anything more is executed, whoever does waits for all signals given so far. A virtual processor that takes no part
    neither signals nor waits. What it did before is ordered nonetheless: others waited for it, then signalled.

    Where there are groups, each has a stream and a counter for the barriers among its virtual processors. Barriers of
    all groups follow the same rule on one more counter: who executed something since the last one of these signals.

    Args:
        exclusive: every virtual processor has a stream of its own; else all of a group share one.

    Attributes:
        streams: the instructions, those of the second launch once `next_launch` has begun it.
        entries: position of the entry points of the second launch; 0 where there is none.
        lists: spans of the index lists and input data.
        memory: spans of the pool that were taken for the whole launch.
        periods: after `finish`, (position, number) where each period of the launch begins.
        during: phase of the launch that the next instructions belong to.
        names: of the instructions that no cell made.
    """

    def __init__(self, distribution: Distribution, exclusive: bool = False) -> None:
        self.n_vps = distribution.n_vps
        self.panel = distribution.panel
        self.exclusive = exclusive
        self.groups = distribution.groups
        self.all_vps = distribution.all_vps
        self.streams = (
            [WrittenStream() for _ in range(self.n_vps)]
            if exclusive
            else [WrittenStream(g) for g in range(self.groups)]
        )
        self.lists: list[Span] = []
        self.memory: list[Span] = []
        self.periods: list[Span] = []
        self.during = Phase.FORWARD
        self.names: set[str] = set()
        self.entries = 0
        self._first_launch: list[WrittenStream] = []
        self._entry_points = np.zeros(0, np.uint32)  # of the second launch; `finish` fills them in
        self._signals = [0] * self.groups
        self._meetings = 0  # signals to all groups
        self._shared_barriers = 0  # of all streams
        self._why = ""
        self._period = BEFORE
        self._cursor = distribution.end
        header = plain([MAGIC, self.all_vps, self.groups, 0] + [0] * self.all_vps)
        self._data = [header]
        self._data_words = len(header)

    @property
    def n_barriers(self) -> int:
        """Barriers so far, of the group that has most."""
        if self.groups == 1:
            return self._shared_barriers
        return self._shared_barriers + max(stream.barriers for stream in self.streams)

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
        streams: Iterable[WrittenStream] | None = None,
        during: Phase | None = None,
    ) -> None:
        """Add what a group of a cell's instructions makes for one step, to all streams or some.

        Args:
            during: the phase that it belongs to, if that is not the present one.
        """
        for stream in self.streams if streams is None else streams:
            self._join(stream)
            stream.add(words, (block, group, first, phase, during or self.during))

    def instruction(
        self,
        name: str,
        n: int,
        width: int,
        flags: Flag = NO_FLAGS,
        /,
        *,
        parts: int = 1,
        of: str = "",
        during: Phase | None = None,
        **fields: Any,
    ) -> None:
        """Add an instruction that no cell made; for all virtual processors, if it is divided among them.

        Args:
            of: the parameter that it works on, for messages.
            during: as of `section`.
        """
        if self.is_for_all:
            flags |= Flag.ALL
        words = plain(encode(name, n, width, parts, flags, **fields))
        self.names.add(instruction_of(name, fields).name)
        for stream in self.streams[:1] if name in ("input", "loss") else self.streams:
            self._join(stream)
            stream.add(words, (None, None, 0, f"{name} of {of!r}" if of else name, during or self.during))

    def row_flag(self, width: int) -> Flag:
        """How an instruction on rows of this width is sliced."""
        n_vps = self.all_vps if self.is_for_all else self.n_vps
        return Flag.ROWS if sliced_by_rows(width, 1, self.panel, n_vps) else NO_FLAGS

    @property
    def is_for_all(self) -> bool:
        """Whether instructions are divided among the virtual processors of all groups: at the end of a launch."""
        return self.groups > 1 and self.during in (Phase.GRADIENTS, Phase.UPDATE)

    def barrier(self, why: str) -> None:
        """What comes now is executed after all that came before. One virtual processor needs nothing for that."""
        self._shared_barriers += 1
        if self.all_vps == 1:
            return
        self._why = why
        if self.groups > 1:
            self._meet()
            return
        for stream in self.streams:
            if stream.busy:
                self._signals[0] += 1 if self.exclusive else self.n_vps
                if self.exclusive:  # others may wait for it, whether or not it goes on
                    stream.add(SIGNALS[0], (None, None, self.n_barriers, why, self.during))
                stream.busy = False

    def signal_early(self, stream: WrittenStream) -> None:
        """Let the virtual processors of a stream signal for the next barrier now, and go on meanwhile."""
        if self.n_vps > 1:
            self._join(stream)
            stream.add(SIGNALS[stream.group], (None, None, self.n_barriers, self._why, self.during))
            stream.signalled = True

    def barrier_of_group(self, why: str, group: int) -> None:
        """What a group executes from now on comes after all that it executed before."""
        if self.groups == 1:
            self.barrier(why)
            return
        stream = self.streams[group]
        stream.barriers += 1
        if stream.busy and self.n_vps > 1:
            self._why = why
            self._signals[group] += self.n_vps
            stream.busy = False

    def _meet(self) -> None:
        """A barrier of all groups. Whose group alone has come to one just before leaves that out."""
        for stream in self.streams:
            assert not stream.signalled, "a pause ends at a barrier of the group"
            if stream.unmet:
                stream.add(SIGNALS[self.groups], (None, None, self.n_barriers, self._why, self.during))
                self._meetings += self.n_vps
            stream.busy = stream.unmet = False
            if self._signals[stream.group] > stream.awaited:
                self._signals[stream.group] = stream.awaited
                stream.barriers -= 1

    def _join(self, stream: WrittenStream) -> None:
        """Let a stream wait for the signals given so far, if it has not."""
        stream.busy = stream.unmet = True
        if stream.awaited < self._signals[stream.group]:
            words = (WAITS if self.exclusive or stream.signalled else BARRIERS)[stream.group].copy()
            stream.signalled = False
            words[-1] = stream.awaited = self._signals[stream.group]
            stream.add(words, (None, None, self.n_barriers, self._why, self.during))
        if stream.met < self._meetings:
            words = WAITS[self.groups].copy()
            words[-1] = stream.met = self._meetings
            stream.add(words, (None, None, self.n_barriers, self._why, self.during))
        if stream.periods[-1][1] != self._period:
            stream.periods.append((stream.words, self._period))

    def next_launch(self) -> None:
        """What follows is for a second launch of the script, whose virtual processors begin at other entry points."""
        assert not self.entries
        self._first_launch = self.streams
        self.streams = [WrittenStream(stream.group) for stream in self.streams]
        self._entry_points = np.zeros(self.all_vps, np.uint32)  # kept, not copied, by `place_list`
        self.entries = self.place_list(self._entry_points)
        self._signals, self._meetings = [0] * self.groups, 0  # its counters are others

    def finish(self) -> tuple[Words, list[tuple[int, Stream]]]:
        """The script, and its streams by the position where they begin."""
        end = plain(encode("end", 0, 0))
        chunks, position = self._data, self._data_words
        found: list[tuple[int, Stream]] = []
        for stream in (*self._first_launch, *self.streams):
            stream.add(end, (None, None, 0, "", self.during))
            found.append((position, stream))
            chunks.extend(stream.chunks)
            self.periods.extend((position + first, number) for first, number in stream.periods)
            position += stream.words
        starts = [start for start, _ in found]
        n = len(self.streams)
        if self.entries:
            self._entry_points[:] = starts[n:] if self.exclusive else np.repeat(starts[n:], self.n_vps)
        script = np.concatenate(chunks)
        script[3] = len(script)
        script[HEADER_WORDS : HEADER_WORDS + self.all_vps] = (
            starts[:n] if self.exclusive else np.repeat(starts[:n], self.n_vps)
        )
        return script, found


def spans(found: Sequence[Span]) -> NDArray[np.int64]:
    """Spans as a sorted `(n, 2)` array."""
    return np.array(sorted(found), np.int64).reshape(-1, 2)
