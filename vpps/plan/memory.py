"""Where slabs lie: memory is used again when nothing will read it any more.

The periods of a launch are the stages of forward, then those of backward, then its end; a full barrier closes each of
them. `Life` says from which period to which a slab holds something. Most slabs live step by step: the rows of a step
have memory of their own. A slab that is read at the end, or after the launch, is whole: one array for all rows.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vpps.plan.distribution import ALIGN, aligned
from vpps.plan.topology import Ints, ragged

if TYPE_CHECKING:
    from vpps.plan.lower import LoweredCell
    from vpps.plan.rows import BlockPlan


class Life(Enum):
    """How long a slab holds something."""

    KEPT = auto()  # whole, to after the launch: values of vertices, and what else weight gradients read
    LATE = auto()  # whole, from the first backward step on: gradients handed back, or read by weight gradients
    ACROSS = auto()  # from a step's forward to its backward
    FORWARD = auto()  # in a step's forward alone
    BACKWARD = auto()  # in a step's backward alone
    PASSED_ON = auto()  # inference: from a step's forward to the last stage that reads it


WHOLE = (Life.KEPT, Life.LATE)
NEVER = (0, -1)  # first and last period


class Group(NamedTuple):
    """Slabs of one domain that live equally long, side by side: together a row of `width` floats."""

    life: Life
    domain: int
    width: int
    slabs: list[int]


class SlabGroups:
    """The slabs of a cell by their lives.

    Attributes:
        of_life: numbers of the groups of each life.
        group_of: number of each slab's group.
        before: `(slabs, 1)`, floats per row of the slabs that precede it in its group.
        width: likewise, of its own row.
    """

    def __init__(self, lowered: LoweredCell, training: bool) -> None:
        slabs = lowered.slabs if training else lowered.slabs[: lowered.n_forward_slabs]
        lives = _lives_in_training(lowered) if training else _lives_in_inference(lowered)
        members: dict[object, list[int]] = {}
        for i, (life, slab) in enumerate(zip(lives, slabs, strict=True)):
            # What is passed on dies when its own last reader has run.
            members.setdefault((life, slab.domain, life is Life.PASSED_ON and i), []).append(i)
        self.groups: list[Group] = []
        self.of_life: dict[Life, list[int]] = {life: [] for life in Life}
        self.group_of = np.zeros(len(slabs), np.int64)
        self.before = np.zeros((len(slabs), 1), np.int64)
        self.width = np.array([[s.width] for s in slabs], np.int64)
        for found in members.values():
            # Widths of whole cache lines first: so all of these begin at one.
            found.sort(key=lambda i: slabs[i].width % ALIGN != 0)
            ends = np.cumsum(self.width[found], axis=0)
            self.before[found] = ends - self.width[found]
            self.group_of[found] = len(self.groups)
            self.of_life[lives[found[0]]].append(len(self.groups))
            self.groups.append(Group(lives[found[0]], slabs[found[0]].domain, int(ends[-1, 0]), found))


def _lives_in_inference(lowered: LoweredCell) -> list[Life]:
    outputs = {v.slab for v in lowered.outputs}
    return [Life.PASSED_ON if i in outputs else Life.FORWARD for i in range(lowered.n_forward_slabs)]


def _lives_in_training(lowered: LoweredCell) -> list[Life]:
    forward, backward = ({v.slab for i in phase for _, v in i.views()} for phase in (lowered.forward, lowered.backward))
    late = {v.slab for g in lowered.parameter_gradients for _, v in g.instr.views()}
    late |= {g.view.slab for g in lowered.table_gradients} | {v.slab for _, v in lowered.arguments}
    if lowered.input_gradient is not None:
        late.add(lowered.input_gradient.slab)
    outputs = {v.slab for v in lowered.outputs}
    lives = []
    for i in range(len(lowered.slabs)):
        if i in outputs or (i in late and i in forward):
            lives.append(Life.KEPT)
        elif i in late:
            lives.append(Life.LATE)
        elif i not in forward:
            lives.append(Life.BACKWARD)
        else:
            lives.append(Life.ACROSS if i in backward else Life.FORWARD)
    return lives


class Arena:
    """Memory from `start` on, given away first fit.

    Attributes:
        stop: nothing beyond it was ever taken.
    """

    def __init__(self, start: int) -> None:
        self.stop = aligned(start)
        self._holes: list[tuple[int, int]] = []  # sorted, with something taken between any two
        self._dying: list[tuple[int, int, int]] = []  # heap of (last period, start, stop)

    def begin(self, period: int) -> None:
        """Free what dies before a period."""
        while self._dying and self._dying[0][0] < period:
            _, start, stop = heappop(self._dying)
            i = bisect(self._holes, (start, stop))
            if i < len(self._holes) and self._holes[i][0] == stop:
                stop = self._holes.pop(i)[1]
            if i and self._holes[i - 1][1] == start:
                i -= 1
                start = self._holes.pop(i)[0]
            self._holes.insert(i, (start, stop))

    def take(self, floats: int, last: int) -> int:
        """Whole cache lines until the end of period `last`; returns their address."""
        if not floats:
            return self.stop
        floats = aligned(floats)
        for i, (start, stop) in enumerate(self._holes):
            if stop - start > floats:
                self._holes[i] = (start + floats, stop)
                break
            if stop - start == floats:
                del self._holes[i]
                break
        else:
            start = self._holes.pop()[0] if self._holes and self._holes[-1][1] == self.stop else self.stop
            self.stop = start + floats
        heappush(self._dying, (last, start, start + floats))
        return start


class BlockMemory:
    """Memory of one block in the making.

    Attributes:
        stages: of the steps.
        n_backward: steps that run backward, the first ones.
        of_life: numbers of the groups of each life.
    """

    def __init__(self, block: BlockPlan, groups: SlabGroups) -> None:
        self.block = block
        self.groups = groups
        self.of_life = groups.of_life
        self.stages: list[int] = block.step_stage.tolist()
        self.n_backward = block.n_needed_steps
        # By group and step; of a whole group, the first step stands for all.
        n = len(self.stages)
        counts = block.count.T.tolist()
        self._rows = [[block.n_rows(g.domain)] * n if g.life in WHOLE else counts[g.domain] for g in groups.groups]
        self._at = [[0] * n for _ in groups.groups]
        self._lives = [[NEVER] * n for _ in groups.groups]

    def take(self, arena: Arena, group: int, step: int, first: int, last: int) -> None:
        """Memory for the slabs of a group, from period `first`, the present one, to `last`."""
        self._at[group][step] = arena.take(self._rows[group][step] * self.groups.groups[group].width, last)
        self._lives[group][step] = first, last

    def take_whole(self, arena: Arena, life: Life, first: int, last: int) -> None:
        """Memory for all steps of the groups of a life."""
        for group in self.of_life[life]:
            self.take(arena, group, 0, first, last)
            self._at[group] = [self._at[group][0]] * len(self.stages)

    def settle(self) -> None:
        """Set the block's bases: in each step that has it, row r of a slab lies at base + r * width."""
        block, groups = self.block, self.groups
        if len(self.stages) == 1:  # most blocks; then the step begins with row 0
            slabs = zip(groups.group_of.tolist(), groups.before[:, 0].tolist(), strict=True)
            block.bases[0, : len(groups.group_of)] = [self._at[k][0] + self._rows[k][0] * before for k, before in slabs]
            return
        firsts = block.first.T.tolist()
        before_step = [[0] * len(self.stages) if g.life in WHOLE else firsts[g.domain] for g in groups.groups]
        at, rows, first = (np.array(x, np.int64)[groups.group_of] for x in (self._at, self._rows, before_step))
        block.bases[:, : len(at)] = (at + rows * groups.before - first * groups.width).T

    def arrays(self) -> Iterable[Ints]:
        """(start, stop, first period, last period) of each array: a whole slab, or what one step has of it."""
        for k, g in enumerate(self.groups.groups):
            at, rows, lives = (np.array(x, np.int64) for x in (self._at[k], self._rows[k], self._lives[k]))
            for i in g.slabs:
                start = at + rows * self.groups.before[i, 0]
                found = np.column_stack([start, start + rows * self.groups.width[i, 0], lives])
                yield found[(rows > 0) & (lives[:, 0] <= lives[:, 1])]


class SlabMemory:
    """Memory of all slabs of a launch.

    Args:
        blocks: rows of all cells; their bases are set by `for_training` or `for_inference`.
        start: where memory begins.
    """

    def __init__(self, blocks: Sequence[BlockPlan], start: int) -> None:
        self.blocks = [b for b in blocks if len(b.order)]
        self.top = max((int(b.step_stage.max()) for b in self.blocks), default=0)
        self.arena = Arena(start)
        self.made: list[BlockMemory] = []

    def backward(self, stage: int) -> int:
        """The period of a stage's backward; that of its forward is the stage itself."""
        return 2 * self.top + 1 - stage

    @property
    def end(self) -> int:
        """The last period. What lives until then is still there after the launch."""
        return 2 * self.top + 2

    def for_training(self) -> None:
        """Values of all vertices are kept."""
        arena, end = self.arena, self.end
        steps = self._make(training=True)
        for m in self.made:
            m.take_whole(arena, Life.KEPT, -1, end)
        across, forward, backward = (
            [m.of_life[life] for m in self.made] for life in (Life.ACROSS, Life.FORWARD, Life.BACKWARD)
        )
        for stage in sorted(steps):
            arena.begin(stage)
            for number, step in steps[stage]:
                m = self.made[number]
                for group in across[number]:
                    m.take(arena, group, step, stage, self.backward(stage) if step < m.n_backward else stage)
                for group in forward[number]:
                    m.take(arena, group, step, stage, stage)
        for stage in sorted(steps, reverse=True):
            now = self.backward(stage)
            arena.begin(now)
            for number, step in steps[stage]:
                m = self.made[number]
                if step == m.n_backward - 1:  # the block's last step is the first one to run backward
                    m.take_whole(arena, Life.LATE, now, end)
                if step < m.n_backward:
                    for group in backward[number]:
                        m.take(arena, group, step, now, now)
        self._settle()

    def for_inference(self, n_values: int, wanted: Ints) -> None:
        """Values are kept until the last vertex that reads them has run; the wanted ones to the end.

        Args:
            n_values: how many values the graph has.
            wanted: ids of some of them.
        """
        arena = self.arena
        readers = self._last_readers(n_values)
        readers[wanted] = self.end
        steps = self._make(training=False)
        passed_on = [list(_last_periods(m, readers)) for m in self.made]
        forward = [m.of_life[Life.FORWARD] for m in self.made]
        for stage in sorted(steps):
            arena.begin(stage)
            for number, step in steps[stage]:
                m = self.made[number]
                for group, last in passed_on[number]:
                    m.take(arena, group, step, stage, last[step])
                for group in forward[number]:
                    m.take(arena, group, step, stage, stage)
        self._settle()

    def _last_readers(self, n_values: int) -> Ints:
        """The last stage that reads each value, or -1."""
        last = np.full(n_values, -1, np.int64)
        for b in self.blocks:
            of_row = np.repeat(b.step_stage, b.count[:, 0])
            for args in b.arrays.args[b.order].T:
                np.maximum.at(last, args, of_row)
            for xs in b.arrays.lists:
                lengths = xs.ends[b.order + 1] - xs.ends[b.order]
                np.maximum.at(last, xs.elements[ragged(xs.ends, b.order)], np.repeat(of_row, lengths))
        return last

    def _make(self, training: bool) -> dict[int, list[tuple[int, int]]]:
        """Begin; returns (number of the block, step) of the steps of each stage."""
        self.made = [BlockMemory(b, b.cell.slab_groups(training)) for b in self.blocks]
        steps: dict[int, list[tuple[int, int]]] = {}
        for number, m in enumerate(self.made):
            for step, stage in enumerate(m.stages):
                steps.setdefault(stage, []).append((number, step))
        return steps

    def _settle(self) -> None:
        for m in self.made:
            m.settle()

    def arrays(self, fixed: Ints) -> Ints:
        """`(n, 4)`: start, stop, first and last period of all arrays, given the spans of those that last."""
        lasting = np.hstack([fixed, np.full_like(fixed, [-1, self.end])])
        return np.concatenate([lasting, *(a for m in self.made for a in m.arrays())])


def _last_periods(m: BlockMemory, readers: Ints) -> Iterable[tuple[int, list[int]]]:
    """For each group of outputs: when the last reader of each step's rows runs."""
    b = m.block
    found: dict[int, Ints] = {}
    for k, view in enumerate(b.cell.lowered.outputs):
        rows = readers[b.arrays.first[b.order] + k]
        steps = np.maximum(np.maximum.reduceat(rows, b.first[:, 0]), b.step_stage)
        group = int(m.groups.group_of[view.slab])
        found[group] = np.maximum(found[group], steps) if group in found else steps
    return ((group, steps.tolist()) for group, steps in found.items())
