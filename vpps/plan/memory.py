"""Where slabs lie: memory is used again when nothing will read it any more.

The periods of a launch are the stages of forward, then those of backward, then its end; a full barrier closes each of
them. `Life` says from which period to which a slab holds something. Training looks at whole blocks, which costs the
host next to nothing, but for gradients that are handed back; these, and values in inference, give way step by step: a
long chain needs no more memory for them than a short one.

Groups of virtual processors do not wait for each other at the end of a stage, so each has memory of its own for what it
gives back; training then keeps the rest to the end.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from vpps.graph.arrays import Ints
from vpps.graph.levels import ragged
from vpps.plan.distribution import aligned
from vpps.plan.slabs import WHOLE, Life, SlabGroups

if TYPE_CHECKING:
    from vpps.plan.rows import BlockPlan

NEVER = (0, -1)  # first and last period


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
        groups: its slabs by their lives.
        stages: of the steps.
        steps_of_group: steps by the group that runs them.
        n_backward: steps that run backward, the first ones.
    """

    def __init__(self, block: BlockPlan, groups: SlabGroups) -> None:
        self.block = block
        self.groups = groups
        self.stages: list[int] = block.step_stage.tolist()
        self.steps_of_group: dict[int, list[int]] = {}
        for step, group in enumerate(block.step_group.tolist()):
            self.steps_of_group.setdefault(group, []).append(step)
        self.n_backward = block.n_needed_steps
        # By group and step; of a whole group, the first step stands for all.
        n = len(self.stages)
        counts = block.count.T.tolist()
        self._rows = [[block.n_rows(g.domain)] * n if g.life in WHOLE else counts[g.domain] for g in groups.groups]
        # Rows that each slab has room for: of scratch memory as many as the largest step has, so that a slab is at one
        # place in all steps, and steps may follow each other with no barrier between (plan/barriers.py).
        self._room = [list(rows) for rows in self._rows]
        self._at = [[0] * n for _ in groups.groups]
        self._lives = [[NEVER] * n for _ in groups.groups]

    def take_whole(self, arena: Arena, life: Life, first: int, last: int) -> None:
        """Memory for all rows of the slabs of a life, from period `first`, the present one, to `last`."""
        for k in self.groups.of_life[life]:
            floats = self.groups.groups[k].floats(self._rows[k][0])
            self._at[k] = [arena.take(floats, last)] * len(self.stages)
            self._lives[k][0] = first, last

    def take_scratch(self, arena: Arena, periods: Sequence[int]) -> None:
        """Memory for the slabs of every step with a period. The first period is the present one, or the last one is."""
        for k in self.groups.of_life[Life.SCRATCH]:
            rows = max(self._rows[k][: len(periods)])
            self._room[k] = [rows] * len(self.stages)
            self._at[k] = [arena.take(self.groups.groups[k].floats(rows), max(periods))] * len(self.stages)
            self._lives[k][: len(periods)] = [(now, now) for now in periods]

    def take_scratch_of(
        self, arena: Arena, steps: Sequence[int], periods: Sequence[int], life: Life = Life.SCRATCH
    ) -> None:
        """The same for some steps, all of one group, given their periods."""
        for k in self.groups.of_life[life]:
            rows = max(self._rows[k][step] for step in steps)
            at = arena.take(self.groups.groups[k].floats(rows), max(periods))
            for step, now in zip(steps, periods, strict=True):
                self._room[k][step], self._at[k][step] = rows, at
                self._lives[k][step] = now, now

    def take_forward(self, arena: Arena, steps: Sequence[int]) -> None:
        """Memory for what these steps, all of one group, have in forward alone."""
        # A stage may have two of them, of which only the first runs backward.
        for mine in ([s for s in steps if s < self.n_backward], [s for s in steps if s >= self.n_backward]):
            if mine:
                self.take_scratch_of(arena, mine, [self.stages[s] for s in mine], Life.FORWARD)

    def take_handed_back(self, arena: Arena, group: int, periods: Sequence[int], until: Sequence[int]) -> None:
        """Memory for what steps hand back, given the period of each, of which the last one is the present, and the last
        period that it is there. Steps use memory again, that of the largest first."""
        rows, room = self._rows[group], self._room[group]
        slots: list[int] = []  # rows that they have room for
        taken: list[tuple[int, int]] = []  # heap of (last period, slot)
        idle: list[tuple[int, int]] = []  # heap of (-rows, slot)
        slot_of = [0] * len(periods)
        for step in reversed(range(len(periods))):
            while taken and taken[0][0] < periods[step]:
                slot = heappop(taken)[1]
                heappush(idle, (-slots[slot], slot))
            if idle:
                slot = slot_of[step] = heappop(idle)[1]
                slots[slot] = max(slots[slot], rows[step])
            else:
                slot_of[step] = len(slots)
                slots.append(rows[step])
            heappush(taken, (until[step], slot_of[step]))
        last = max(until)
        at = [arena.take(self.groups.groups[group].floats(n), last) for n in slots]
        for step, slot in enumerate(slot_of):
            self._at[group][step], room[step] = at[slot], slots[slot]
            self._lives[group][step] = periods[step], until[step]

    def take_passed_on(self, arena: Arena, group: int, step: int, last: int) -> None:
        """Memory for what a step, whose period is the present one, passes on until period `last`."""
        self._at[group][step] = arena.take(self.groups.groups[group].floats(self._rows[group][step]), last)
        self._lives[group][step] = self.stages[step], last

    def settle(self) -> None:
        """Set the block's bases: in each step that has it, row r of a slab lies at base + r * width."""
        block, groups = self.block, self.groups
        if len(self.stages) == 1:  # most blocks; then the step begins with row 0
            at, rows = self._at, self._room
            block.bases[0, : len(groups.places)] = [
                at[k][0] + rows[k][0] * before + stagger for k, before, stagger in groups.places
            ]
            return
        firsts = block.first.T.tolist()
        before_step = [[0] * len(self.stages) if g.life in WHOLE else firsts[g.domain] for g in groups.groups]
        of_group = np.array([self._at, self._room, before_step], np.int64)
        at, rows, first = of_group[:, groups.group_of]
        block.bases[:, : len(at)] = (at + rows * groups.before + groups.stagger - first * groups.width).T

    def arrays(self) -> Iterable[Ints]:
        """(start, stop, first period, last period, group or -1 for all of them) of each array: a slab, or what one step
        has of it."""
        for k, g in enumerate(self.groups.groups):
            at, rows, room, lives = (
                np.array(x, np.int64) for x in (self._at[k], self._rows[k], self._room[k], self._lives[k])
            )
            for i in g.slabs:
                start = at + room * self.groups.before[i, 0] + self.groups.stagger[i, 0]
                group = np.full(len(rows), -1) if g.life in WHOLE else self.block.step_group
                found = np.column_stack([start, start + rows * self.groups.width[i, 0], lives, group])
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
        self._at_end: list[tuple[int, int]] = []  # spans taken there
        self._executed: Ints = np.zeros(0, np.int64)  # in training: periods, rising, in which steps are executed
        self._hurried: set[int] = set()  # those that no barrier separates from the one before

    def backward(self, stage: int) -> int:
        """The period of a stage's backward; that of its forward is the stage itself."""
        return 2 * self.top + 1 - stage

    @property
    def end(self) -> int:
        """The last period. What lives until then is still there after the launch."""
        return 2 * self.top + 2

    def for_training(self, n_values: int, forward: Sequence[int], backward: Sequence[int]) -> None:
        """Values of all vertices are kept.

        Args:
            n_values: how many values the graph has.
            forward, backward: stages that follow the one before with no barrier.
        """
        self._hurried = {*forward, *map(self.backward, backward)}
        arena, end = self.arena, self.end
        self.made = [BlockMemory(b, b.cell.slab_groups(training=True)) for b in self.blocks]
        for m in self.made:
            m.take_whole(arena, Life.KEPT, -1, end)
        run_backward = [m for m in self.made if m.n_backward]
        executed, producers = self._backward_of_values(run_backward, n_values)
        executing: list[Ints] = [m.block.step_stage for m in self.made if m.block.cell.forward and not m.block.late]
        self._executed = np.unique(np.concatenate([*executing, 2 * self.top + 1 - executed]))
        for m in sorted(self.made, key=lambda m: min(m.stages)):
            first = min(m.stages)
            self._begin(first)
            m.take_whole(
                arena, Life.ACROSS, first, self.backward(m.stages[0]) if m.n_backward else max(m.stages) + m.block.pause
            )
            m.take_forward(arena, range(len(m.stages)))
        for m in sorted(run_backward, key=lambda m: m.stages[m.n_backward - 1], reverse=True):
            periods = [self.backward(stage) for stage in m.stages[: m.n_backward]]  # the last step comes first
            self._begin(periods[-1])
            m.take_whole(arena, Life.LATE, periods[-1], end)
            for group, until in self._handed_back_until(m, executed, producers).items():
                m.take_handed_back(arena, group, periods, until)
            m.take_scratch(arena, periods)
        self._settle()

    def _begin(self, period: int) -> None:
        """Free what dies before a period; where no barrier separates it from the last one in which anything is
        executed, before that one (plan/boundaries.py).

        Nothing where nothing is executed in the period: in the stages of the chain of the loss, which runs later, no
        barrier need have come.
        """
        at = int(self._executed.searchsorted(period))
        if period in self._hurried:
            period = int(self._executed[at - 1])
        elif period != self.end and period not in self._executed[at : at + 1]:
            return
        self.arena.begin(period)

    def _backward_of_values(self, run_backward: Sequence[BlockMemory], n_values: int) -> tuple[Ints, Ints]:
        """The stages in which anything runs backward, in order; for each value that of its producer, or one beyond."""
        of_value = np.full(n_values, self.top + 1, np.int64)
        stages = []
        for m in run_backward:
            b = m.block
            if b.cell.backward:
                stages.append(b.step_stage[: m.n_backward])
                of_row = np.repeat(b.step_stage, b.count[:, 0])
                for ids in b.arrays.values:
                    of_value[ids[b.order]] = of_row
        return np.unique(np.concatenate(stages)) if stages else of_value[:0], of_value

    def _handed_back_until(self, m: BlockMemory, executed: Ints, producers: Ints) -> dict[int, list[int]]:
        """For each group of slabs that is handed back, by step, the last period that it is there: one more than it is
        read. Steps may follow each other with no barrier between, but not three of them (`CellTemplates.slab_groups`).
        """
        b, n = m.block, m.n_backward
        found: dict[int, Ints] = {}  # the stage that reads it last: backward, the lowest one
        for key, view in b.cell.handed_back if m.groups.of_life[Life.HANDED_BACK] else []:
            if view.slab < 0:
                continue
            group, _, _ = m.groups.places[view.slab]
            if m.groups.groups[group].life is not Life.HANDED_BACK:
                continue
            domain = b.cell.domain_of(key)
            of_row = np.repeat(np.arange(n), b.count[:n, domain])
            lowest = found.setdefault(group, b.step_stage[:n].copy())
            np.minimum.at(lowest, of_row, producers[b.values_read(key)[: len(of_row)]])
        # By the number of executed stages that are lower: the period of the next one to run backward, or the end.
        following = np.array([self.end, *map(self.backward, executed.tolist())], np.int64)
        return {group: following[executed.searchsorted(lowest)].tolist() for group, lowest in found.items()}

    def take_at_end(self, floats: int) -> int:
        """Memory for the last period alone, after `for_training`; returns its address."""
        self._begin(self.end)
        start = self.arena.take(floats, self.end)
        if floats:
            self._at_end.append((start, start + floats))
        return start

    def for_training_in_groups(self) -> None:
        """Values of all vertices are kept, and all gradients, but for the scratch memory of each group."""
        arena, end = self.arena, self.end
        self.made = [BlockMemory(b, b.cell.slab_groups(training=True)) for b in self.blocks]
        for m in self.made:
            for life in WHOLE:
                if m.n_backward or life is not Life.LATE:
                    m.take_whole(arena, life, -1, end)
            for steps in m.steps_of_group.values():
                m.take_forward(arena, steps)
                backward = [step for step in steps if step < m.n_backward]
                if backward:
                    m.take_scratch_of(arena, backward, [self.backward(m.stages[step]) for step in backward])
        self._settle()

    def for_inference(self, n_values: int, wanted: Ints, shared_stages: int = 0) -> None:
        """Values are kept until the last vertex that reads them has run; the wanted ones to the end, and, where there
        are groups, those that all of them may read.

        Args:
            n_values: how many values the graph has.
            wanted: ids of some of them.
            shared_stages: the first so many stages compute what all groups read.
        """
        readers = self._last_readers(n_values)
        readers[wanted] = self.end
        self.made = [BlockMemory(b, b.cell.slab_groups(training=False)) for b in self.blocks]
        steps: dict[int, dict[int, list[tuple[BlockMemory, int, list[tuple[int, list[int]]]]]]] = {}
        for m in self.made:
            m.take_whole(self.arena, Life.KEPT, -1, self.end)
            passed_on = _last_periods(m, readers)
            for group, members in m.steps_of_group.items():
                of_group = steps.setdefault(group, {})
                for step in members:
                    of_group.setdefault(m.stages[step], []).append((m, step, passed_on))
        for group, of_group in sorted(steps.items()):
            arena = self.arena if group == 0 else Arena(self.arena.stop)
            for stage in sorted(of_group):
                arena.begin(stage)
                for m, step, passed_on in of_group[stage]:
                    for slabs, last in passed_on:
                        until = self.end if stage < shared_stages else max(stage, last[step])
                        m.take_passed_on(arena, slabs, step, until)
                    mine = m.steps_of_group[group]
                    if step == mine[0]:
                        m.take_scratch_of(arena, mine, [m.stages[s] for s in mine])
            self.arena.stop = arena.stop
        self._settle()

    def _last_readers(self, n_values: int) -> Ints:
        """The last stage that reads each value, or -1."""
        last = np.full(n_values, -1, np.int64)
        for b in self.blocks:
            of_row = np.repeat(b.step_stage + b.pause, b.count[:, 0])
            for args in b.arrays.args[b.order].T:
                np.maximum.at(last, args, of_row)
            for xs in b.arrays.lists:
                lengths = xs.ends[b.order + 1] - xs.ends[b.order]
                np.maximum.at(last, xs.elements[ragged(xs.ends, b.order)], np.repeat(of_row, lengths))
        return last

    def _settle(self) -> None:
        for m in self.made:
            m.settle()

    def arrays(self, fixed: Ints) -> Ints:
        """`(n, 5)`: start, stop, first and last period and group of all arrays, given the spans of those that last."""
        lasting = np.hstack([fixed, np.full((len(fixed), 3), [-1, self.end, -1])])
        late = [(start, stop, self.end, self.end, -1) for start, stop in self._at_end]
        return np.concatenate(
            [lasting, np.array(late, np.int64).reshape(-1, 5), *(a for m in self.made for a in m.arrays())]
        )


def _last_periods(m: BlockMemory, readers: Ints) -> list[tuple[int, list[int]]]:
    """For each group of outputs: the last reader of each step's rows, or -1."""
    starts = m.block.first[:, 0]
    found: dict[int, list[int]] = {}
    for k, view in enumerate(m.block.cell.lowered.outputs):
        if m.groups.groups[m.groups.places[view.slab][0]].life is not Life.PASSED_ON:
            continue
        last = np.maximum.reduceat(readers[m.block.arrays.values[k][m.block.order]], starts).tolist()
        group = m.groups.places[view.slab][0]
        found[group] = list(map(max, found[group], last)) if group in found else last
    return list(found.items())
