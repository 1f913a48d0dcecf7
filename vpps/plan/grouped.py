"""Schedule `vector` for groups of virtual processors: each has its own steps, its own stream and its own barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import ClassVar

from vpps.plan.boundaries import Since, boundaries
from vpps.plan.grouping import Grouping
from vpps.plan.rows import BlockPlan
from vpps.plan.schedules import VectorSchedule, stages_in_order
from vpps.plan.writer import ScriptWriter


class GroupedSchedule(VectorSchedule):
    """A stream for each group; barriers of all groups only around what group 0 runs for all (plan/grouping.py)."""

    runs_chains_late: ClassVar[bool] = False

    def __init__(self, writer: ScriptWriter, grouping: Grouping) -> None:
        super().__init__(writer)
        self._grouping = grouping

    def decide(self, blocks: Sequence[BlockPlan]) -> tuple[list[int], list[int]]:
        """See Schedule: groups get no memory again, so it need not be known before."""
        return [], []

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
                free = [False] * len(own[1:])
                if training:
                    free, _ = boundaries(blocks, own, backward, Since(), writer.n_vps)
                self.run(blocks, filled, own, backward, period, free, stream)
                if own:
                    self.barrier(self._why, stream)
            writer.barrier("of all groups")

    def report(self, write: Callable[[], None]) -> None:
        """See Schedule: all groups have met since the loss was computed."""
        write()

    def end_backward(self) -> None:
        """See Schedule: all groups have met."""

    def meet(self, why: str) -> None:
        """See Schedule."""
        self.writer.barrier(why)

    def _part(self, stage: int) -> int:
        return (stage >= self._grouping.first_own) + (stage >= self._grouping.first_joining)
