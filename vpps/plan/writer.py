"""Writes a script word by word, and keeps account of memory, of lists, and of where every word came from."""

from __future__ import annotations

from collections.abc import Sequence
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
Span = tuple[int, int]

# Signal, then wait for everyone; the last word is the target.
BARRIER = plain([*encode("signal", 0, 0, counter=0), *encode("wait", 0, 0, counter=0, target=0)])


class Section(NamedTuple):
    """A run of words: those that a group of a cell's instructions made for one step, or a single instruction.

    Attributes:
        start: position of its first word.
        block, group: the cell's rows and instructions, if a cell made it.
        first: first row of the step; of a barrier, its number.
        phase: what it is for, in words.
    """

    start: int
    block: BlockPlan | None
    group: Group | None
    first: int
    phase: str


class ScriptWriter:
    """A script in the making.

    Attributes:
        position: number of words so far.
        lists: spans of the index lists and input data.
        memory: spans of the pool that the batch has taken.
        sections: where the words came from.
        n_barriers: full barriers so far.
    """

    def __init__(self, distribution: Distribution) -> None:
        self.n_vps = distribution.n_vps
        self.panel = distribution.panel
        self.position = 0
        self.lists: list[Span] = []
        self.memory: list[Span] = []
        self.sections: list[Section] = []
        self.n_barriers = 0
        self._cursor = distribution.end
        self._chunks: list[Words] = []
        self.append(plain([MAGIC, self.n_vps, 1, 0] + [0] * self.n_vps))

    @property
    def pool_floats(self) -> int:
        """Floats of the pool that the script uses."""
        return self._cursor

    def append(self, words: Words) -> int:
        """Add words; returns their position."""
        start = self.position
        self._chunks.append(words)
        self.position += len(words)
        return start

    def place_list(self, values: NDArray[Any]) -> int:
        """Add an index list (or the bits of floats); returns its position."""
        start = self.append(values.astype(np.uint32, copy=False))
        self.lists.append((start, self.position))
        return start

    def take(self, floats: int) -> int:
        """Memory for the batch; returns its address."""
        start = self._cursor
        self._cursor = aligned(start + floats)
        if floats:
            self.memory.append((start, start + floats))
        return start

    def section(self, words: Words, block: BlockPlan, group: Group, first: int, phase: str) -> None:
        """Add what a group of a cell's instructions makes for one step."""
        self.sections.append(Section(self.position, block, group, first, phase))
        self.append(words)

    def instruction(self, name: str, n: int, width: int, flags: Flag = NO_FLAGS, /, **fields: Any) -> None:
        """Add an instruction that no cell made."""
        self.sections.append(Section(self.position, None, None, 0, name))
        self.append(plain(encode(name, n, width, 1, flags, **fields)))

    def row_flag(self, width: int) -> Flag:
        """How an instruction on rows of this width is sliced."""
        return Flag.ROWS if sliced_by_rows(width, 1, self.panel, self.n_vps) else NO_FLAGS

    def barrier(self, why: str) -> None:
        """A full barrier. One virtual processor needs none."""
        self.n_barriers += 1
        if self.n_vps > 1:
            self.sections.append(Section(self.position, None, None, self.n_barriers, why))
            words = BARRIER.copy()
            words[-1] = self.n_vps * self.n_barriers
            self.append(words)

    def finish(self, entry: int) -> Words:
        """The script, all virtual processors beginning at `entry`."""
        self.instruction("end", 0, 0)
        script = np.concatenate(self._chunks)
        script[3] = len(script)
        script[HEADER_WORDS : HEADER_WORDS + self.n_vps] = entry
        return script


def spans(found: Sequence[Span]) -> NDArray[np.int64]:
    """Spans as a sorted `(n, 2)` array."""
    return np.array(sorted(found), np.int64).reshape(-1, 2)
