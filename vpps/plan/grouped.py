"""Schedule `vector` for groups of virtual processors: each has its own steps, its own stream and its own barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from vpps.plan.grouping import Grouping
from vpps.plan.rows import BlockPlan
from vpps.plan.schedules import VectorSchedule, stages_in_order
from vpps.plan.writer import ScriptWriter


class GroupedSchedule(VectorSchedule):
    """A stream for each group; barriers of all groups only around what group 0 runs for all (plan/grouping.py)."""

    def __init__(self, writer: ScriptWriter, grouping: Grouping) -> None:
        super().__init__(writer)
        self._grouping = grouping

    def steps(self, blocks: Sequence[BlockPlan], backward: bool, period: Callable[[int], int], training: bool) -> None:
        """Shared sources, then every group's own vertices, then what joins them; backward the other way round."""
        writer, filled = self.writer, self.filled(blocks, backward)
        groups = [b.step_group.tolist() for b in blocks]
        for _, stages in groupby(stages_in_order(blocks, backward), lambda found: self._part(found[0])):
            part = list(stages)
            for stream in writer.streams:
                mine = [
                    (stage, [(number, step) for number, step in members if groups[number][step] == stream.group])
                    for stage, members in part
                ]
                own = [(stage, members) for stage, members in mine if members]
                self.run(blocks, filled, own, backward, period, training, stream)
            writer.barrier("of all groups")

    def _part(self, stage: int) -> int:
        return (stage >= self._grouping.first_own) + (stage >= self._grouping.first_joining)
