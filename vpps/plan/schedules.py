"""Schedules: how the steps of all stages become instructions of the virtual processors.

`vector`: an instruction covers all vertices of a step; all execute the same stream and own a slice of each result.
`paper`: the published VPPS scheme (section III-B1), to compare with: an instruction per vertex and op, each in the
script of one virtual processor, the least loaded one; products run where rows of the matrix are held. Kernel, order of
every sum and end of launch are the same, so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from vpps.plan.barriers import owners_of
from vpps.plan.instr import Instr
from vpps.plan.passes.lazy_batching import STAGES, Batching
from vpps.plan.rows import BlockPlan
from vpps.plan.templates import Group
from vpps.plan.writer import ScriptWriter, Stream, Words

Ints = NDArray[np.int64]
Members = Sequence[tuple[int, int]]  # of a stage: (block number, step)


class Schedule(Protocol):
    """Writes the steps of one launch.

    Attributes:
        exclusive: every virtual processor has a script of its own.
    """

    exclusive: ClassVar[bool]

    def __init__(self, writer: ScriptWriter) -> None: ...

    def steps(self, blocks: Sequence[BlockPlan], backward: bool, period: Callable[[int], int], training: bool) -> None:
        """Write the forward steps of all stages, or the backward ones, last stage first; `period` numbers stages."""
        ...


class VectorSchedule:
    """Vector instructions in one stream for all."""

    exclusive: ClassVar[bool] = False

    def __init__(self, writer: ScriptWriter) -> None:
        self.writer = writer

    def steps(self, blocks: Sequence[BlockPlan], backward: bool, period: Callable[[int], int], training: bool) -> None:
        """Cells of one stage share its barriers: their groups run side by side."""
        filled = self.filled(blocks, backward)
        self.run(blocks, filled, stages_in_order(blocks, backward), backward, period, training, self.writer.streams[0])

    def run(
        self,
        blocks: Sequence[BlockPlan],
        filled: list[list[list[Words]]],
        stages: Sequence[tuple[int, Members]],
        backward: bool,
        period: Callable[[int], int],
        training: bool,
        stream: Stream,
    ) -> None:
        """Write stages that the virtual processors of a stream run, with a barrier after each unless the next may
        follow freely: then every virtual processor goes on with what it has computed itself."""
        since: set[tuple[int, int]] = set()  # the last barrier: (block number, group)
        for k, (stage, members) in enumerate(stages):
            after = stages[k + 1][1] if k + 1 < len(stages) else ()
            self.writer.begin_period(period(stage))
            last = self.stage(blocks, filled, members, backward, stage, stream)
            since = since | last if any(group == 0 for _, group in last) else last
            if stream.signalled:  # it fills the pause of a barrier that must come
                after = ()
            if training and after and _free(blocks, since, members, after, backward):
                continue
            since = set()
            self.writer.barrier_of_group(_why(backward, stage), stream.group)

    def filled(self, blocks: Sequence[BlockPlan], backward: bool) -> list[list[list[Words]]]:
        """By block, between one barrier and the next, by group: the words of all steps, a row for each."""
        filled: list[list[list[Words]]] = []
        for block in blocks:
            n = n_steps(block, backward)
            groups = groups_of(block, backward) if n else []
            bases, first, count = block.bases[:n], block.first[:n], block.count[:n]
            filled.append([[g.template.fill(bases, first, count) for g in between] for between in groups])
        return filled

    def stage(
        self,
        blocks: Sequence[BlockPlan],
        filled: list[list[list[Words]]],
        members: Members,
        backward: bool,
        stage: int,
        stream: Stream,
    ) -> set[tuple[int, int]]:
        """Write some steps of one stage. Returns what comes after its last barrier inside: (block number, group)."""
        phase = "backward" if backward else "forward"
        n_groups = max(len(filled[number]) for number, _ in members)
        for k in range(n_groups):
            if k:
                self.writer.barrier_of_group(_why(backward, stage), stream.group)
            last = not backward and k == n_groups - 1
            fillers = [m for m in members if last and blocks[m[0]].pause and stage % STAGES == Batching.LEVEL]
            for number, step in [*(m for m in members if m not in fillers), *fillers]:
                if fillers and (number, step) == fillers[0]:
                    self.writer.signal_early(stream)
                if k < len(filled[number]):
                    block = blocks[number]
                    row = int(block.first[step, 0])
                    for group, words in zip(groups_of(block, backward)[k], filled[number][k], strict=True):
                        self.writer.section(words[step], block, group, row, phase, (stream,))
        return {(number, n_groups - 1) for number, _ in members if len(filled[number]) == n_groups}


def _why(backward: bool, stage: int) -> str:
    return f"{'backward' if backward else 'forward'}, stage {stage}"


def _free(
    blocks: Sequence[BlockPlan], since: Set[tuple[int, int]], members: Members, after: Members, backward: bool
) -> bool:
    """Whether a stage may follow another with no barrier between.

    Only cells of the stage before may take part: others may get memory that it has just given back.
    """
    if not {number for number, _ in after} <= {number for number, _ in members}:
        return False
    return all(
        blocks[number].cell.may_follow(blocks[other].cell, group, backward)
        for number, _ in after
        for other, group in since
    )


class PaperSchedule:
    """Instructions of single vertices, each given to the virtual processor with the least load so far.

    The load of an instruction is the length of the rows that it reads. A product is executed by all virtual processors
    that hold rows of the matrix (VPPS: that cache them), each computing its own rows, and weighs more.
    """

    exclusive: ClassVar[bool] = True
    PRODUCT_LOAD = 4  # how much more a product weighs: every float of its vector meets many rows

    def __init__(self, writer: ScriptWriter) -> None:
        self.writer = writer
        self.load = np.zeros(writer.n_vps)

    def steps(self, blocks: Sequence[BlockPlan], backward: bool, period: Callable[[int], int], training: bool) -> None:
        """A barrier after every level of ops, for those who take part."""
        phase = "backward" if backward else "forward"
        for stage, members in stages_in_order(blocks, backward):
            why = f"{phase}, stage {stage}"
            self.writer.begin_period(period(stage))
            levels = [groups_of(blocks[number], backward) for number, _ in members]
            for k in range(max(map(len, levels))):
                for (number, step), groups in zip(members, levels, strict=True):
                    for group in groups[k] if k < len(groups) else []:
                        self._vertices(blocks[number], step, group, phase)
                self.writer.barrier(why)

    def _vertices(self, block: BlockPlan, step: int, group: Group, phase: str) -> None:
        """One instruction for each row of a step."""
        ((_, instr),) = group.starts
        start, n = block.first[step, instr.domain], int(block.count[step, instr.domain])
        if n == 0:
            return
        rows = np.arange(start, start + n)
        first = np.zeros((n, block.first.shape[1]), np.int64)
        first[:, instr.domain] = rows
        words = group.template.fill(block.bases[step : step + 1], first, np.ones_like(first))
        vertices = block.vertex_of(rows, instr.domain)
        streams = self.writer.streams
        load = reading_load(instr)
        if not instr.alone:
            owners = np.unique(owners_of(instr, self.writer.panel, self.writer.n_vps))
            self.load[owners] += n * load * self.PRODUCT_LOAD
            everyone = [streams[vp] for vp in owners.tolist()]
            self.writer.section(words.reshape(-1), block, group, vertices, phase, everyone)
            return
        chosen = self._least_loaded(n, load)
        for vp in np.unique(chosen).tolist():
            mine = chosen == vp
            self.writer.section(words[mine].reshape(-1), block, group, vertices[mine], phase, [streams[vp]])

    def _least_loaded(self, n: int, load: float) -> Ints:
        """Who executes each of n instructions of equal load, one after the other given to the least loaded."""
        # The j-th one that a virtual processor gets comes when its load is that of j more: the n smallest of all these.
        loads = (self.load[:, None] + load * np.arange(n)).reshape(-1)
        chosen: Ints = np.argsort(loads, kind="stable")[:n] // n
        self.load += load * np.bincount(chosen, minlength=len(self.load))
        return chosen


def reading_load(instr: Instr) -> float:
    """Floats of the rows that an instruction reads; at least those that it writes (VPPS III-B1)."""
    views = [view.width for _, view in instr.views()]
    return float(max(sum(views) - instr.width, instr.width))


def groups_of(block: BlockPlan, backward: bool) -> list[list[Group]]:
    """A cell's groups, between one barrier and the next."""
    return block.cell.backward if backward else block.cell.forward


def n_steps(block: BlockPlan, backward: bool) -> int:
    """Steps of a cell that run: all of them forward, the needed ones backward."""
    return block.n_needed_steps if backward else len(block.step_stage)


def stages_in_order(blocks: Sequence[BlockPlan], backward: bool) -> list[tuple[int, list[tuple[int, int]]]]:
    """(stage, its steps as (block number, step)), in order of execution; stages in which nothing runs are left out."""
    members: dict[int, list[tuple[int, int]]] = {}
    for number, block in enumerate(blocks):
        if groups_of(block, backward):
            for step, stage in enumerate(block.step_stage[: n_steps(block, backward)].tolist()):
                members.setdefault(stage, []).append((number, step))
    return sorted(members.items(), reverse=backward)


SCHEDULES: dict[str, type[Schedule]] = {"vector": VectorSchedule, "paper": PaperSchedule}
