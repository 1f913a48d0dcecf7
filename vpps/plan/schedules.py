"""Schedules: how the steps of all stages become instructions of the virtual processors.

`vector`: an instruction covers all vertices of a step; all execute the same stream and own a slice of each result.
`paper`: the published VPPS scheme (section III-B1), to compare with: an instruction per vertex and op, each in the
script of one virtual processor, the least loaded one; products run where rows of the matrix are held. Kernel, order of
every sum and end of launch are the same, so both give the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from vpps.plan.barriers import owners_of
from vpps.plan.boundaries import Members, Since, Stages, boundaries, fillers, groups_of, turns
from vpps.plan.instr import reading_load
from vpps.plan.rows import BlockPlan
from vpps.plan.sections import Phase, Words
from vpps.plan.templates import Group
from vpps.plan.writer import ScriptWriter, WrittenStream

Ints = NDArray[np.int64]


class Schedule(Protocol):
    """Writes the steps of one launch.

    Attributes:
        exclusive: every virtual processor has a script of its own.
        runs_chains_late: forward leaves the chain of the loss out (plan/loss_chain.py), which runs beside backward.
    """

    exclusive: ClassVar[bool]
    runs_chains_late: ClassVar[bool]

    def __init__(self, writer: ScriptWriter) -> None: ...

    def decide(self, blocks: Sequence[BlockPlan]) -> tuple[list[int], list[int]]:
        """Decide, for training, between which stages there are no barriers: the stages of forward, and those of
        backward, that follow the one before without."""
        ...

    def steps(self, blocks: Sequence[BlockPlan], backward: bool, period: Callable[[int], int], training: bool) -> None:
        """Write the forward steps of all stages, or the backward ones, last stage first; `period` numbers stages."""
        ...

    def report(self, write: Callable[[], None]) -> None:
        """Have the loss reported, by what `write` writes, when it is there."""
        ...

    def end_backward(self) -> None:
        """Write a barrier behind backward, if there is none yet."""
        ...

    def meet(self, why: str) -> None:
        """Write a barrier, and what has not been written yet of the chain of the loss."""
        ...


class VectorSchedule:
    """Vector instructions in one stream for all."""

    exclusive: ClassVar[bool] = False
    runs_chains_late: ClassVar[bool] = True

    def __init__(self, writer: ScriptWriter) -> None:
        self.writer = writer
        self._late: deque[Callable[[], None]] = deque()  # what is written behind the next barriers, one after the other
        self._free: dict[bool, list[bool]] = {}  # by direction, see `boundaries`
        self._turns = False
        self._why = ""  # a barrier would come next

    def decide(self, blocks: Sequence[BlockPlan]) -> tuple[list[int], list[int]]:
        """See Schedule. The constants that backward begins with are written before the first stage, so that at least
        one barrier must lie between."""
        n_vps = self.writer.n_vps
        forward, backward = (stages_in_order(blocks, direction) for direction in (False, True))
        self._free[False], since = boundaries(blocks, forward, False, Since(), n_vps)
        inside = any(len(groups_of(blocks[number], False)) > 1 for _, members in forward for number, _ in members)
        some = inside or not all(self._free[False])
        self._turns = some and turns(blocks, since, backward[0][1] if backward else ())
        self._free[True], since = boundaries(blocks, backward, True, since if self._turns else Since(), n_vps)
        first = [stage for stage, _ in backward[:1]] if self._turns else []
        hurried = [
            [stage for (stage, _), free in zip(stages[1:], self._free[direction], strict=True) if free]
            for direction, stages in ((False, forward), (True, backward))
        ]
        return hurried[0], first + hurried[1]

    def steps(self, blocks: Sequence[BlockPlan], backward: bool, period: Callable[[int], int], training: bool) -> None:
        """Cells of one stage share its barriers: their groups run side by side."""
        filled, stages = self.filled(blocks, backward), stages_in_order(blocks, backward)
        stream = self.writer.streams[0]
        if backward and not self._turns:
            self.barrier(self._why, stream)
        free = self._free[backward] if training else [False] * len(stages[1:])
        self.run(blocks, filled, stages, backward, period, free, stream)
        for _, members in stages_in_order(blocks, backward, late=True):
            self._late.append(partial(self._write, blocks, filled, members))
        if stages and not training:
            self.barrier(self._why, stream)

    def _write(self, blocks: Sequence[BlockPlan], filled: list[list[list[Words]]], members: Members) -> None:
        """Write a stage of the chain of the loss, the instructions of which need no barriers between them."""
        for number, step in members:
            block = blocks[number]
            row = int(block.first[step, 0])
            for groups, words_of in zip(block.cell.forward, filled[number], strict=True):
                for group, words in zip(groups, words_of, strict=True):
                    self.writer.section(words[step], block, group, row, "forward", during=Phase.FORWARD)

    def report(self, write: Callable[[], None]) -> None:
        """See Schedule: behind the chain of the loss."""
        self._late.append(write)

    def end_backward(self) -> None:
        """See Schedule."""
        self.barrier(self._why, self.writer.streams[0])

    def meet(self, why: str) -> None:
        """See Schedule."""
        self.barrier(why, self.writer.streams[0])
        while self._late:
            self.barrier("for the loss", self.writer.streams[0])

    def barrier(self, why: str, stream: WrittenStream) -> None:
        """A barrier, and behind it what of the chain of the loss has waited for one."""
        self.writer.barrier_of_group(why, stream.group)
        if self._late:
            self._late.popleft()()

    def run(
        self,
        blocks: Sequence[BlockPlan],
        filled: list[list[list[Words]]],
        stages: Stages,
        backward: bool,
        period: Callable[[int], int],
        free: Sequence[bool],
        stream: WrittenStream,
    ) -> None:
        """Write stages that the virtual processors of a stream run.

        Args:
            free: whether each but the first follows the one before with no barrier.
        """
        for k, (stage, members) in enumerate(stages):
            if k and not free[k - 1]:
                self.barrier(self._why, stream)
            self.writer.begin_period(period(stage))
            self.stage(blocks, filled, members, backward, stage, stream)
            self._why = _why(backward, stage)

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
        stream: WrittenStream,
    ) -> None:
        """Write some steps of one stage."""
        phase = "backward" if backward else "forward"
        n_groups = max(len(filled[number]) for number, _ in members)
        for k in range(n_groups):
            if k:
                self.barrier(_why(backward, stage), stream)
            filling = fillers(blocks, stage, members, backward) if k == n_groups - 1 else ()
            for number, step in [*(m for m in members if m not in filling), *filling]:
                if filling and (number, step) == filling[0]:
                    self.writer.signal_early(stream)
                if k < len(filled[number]):
                    block = blocks[number]
                    row = int(block.first[step, 0])
                    for group, words in zip(groups_of(block, backward)[k], filled[number][k], strict=True):
                        self.writer.section(words[step], block, group, row, phase, (stream,))


def _why(backward: bool, stage: int) -> str:
    return f"{'backward' if backward else 'forward'}, stage {stage}"


class PaperSchedule:
    """Instructions of single vertices, each given to the virtual processor with the least load so far.

    The load of an instruction is the length of the rows that it reads. A product is executed by all virtual processors
    that hold rows of the matrix (VPPS: that cache them), each computing its own rows, and weighs more.
    """

    exclusive: ClassVar[bool] = True
    runs_chains_late: ClassVar[bool] = False
    PRODUCT_LOAD = 4  # how much more a product weighs: every float of its vector meets many rows

    def __init__(self, writer: ScriptWriter) -> None:
        self.writer = writer
        self.load = np.zeros(writer.n_vps)

    def decide(self, blocks: Sequence[BlockPlan]) -> tuple[list[int], list[int]]:
        """See Schedule."""
        return [], []

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

    def report(self, write: Callable[[], None]) -> None:
        """See Schedule: a barrier lies between the chain of the loss and this."""
        write()

    def end_backward(self) -> None:
        """See Schedule: a barrier follows each stage."""

    def meet(self, why: str) -> None:
        """See Schedule."""
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

    def _least_loaded(self, n: int, load: int) -> Ints:
        """Who executes each of n instructions of equal load, one after the other given to the least loaded."""
        # The j-th one that a virtual processor gets comes when its load is that of j more: the n smallest of all these.
        loads = (self.load[:, None] + load * np.arange(n)).reshape(-1)
        chosen: Ints = np.argsort(loads, kind="stable")[:n] // n
        self.load += load * np.bincount(chosen, minlength=len(self.load))
        return chosen


def n_steps(block: BlockPlan, backward: bool) -> int:
    """Steps of a cell that run: all of them forward, the needed ones backward."""
    return block.n_needed_steps if backward else len(block.step_stage)


def stages_in_order(
    blocks: Sequence[BlockPlan], backward: bool, late: bool = False
) -> list[tuple[int, list[tuple[int, int]]]]:
    """(stage, its steps as (block number, step)), in order of execution; stages in which nothing runs are left out.

    Args:
        late: those of the chain of the loss that run beside backward; else all others.
    """
    members: dict[int, list[tuple[int, int]]] = {}
    for number, block in enumerate(blocks):
        if groups_of(block, backward) and block.late == late:
            for step, stage in enumerate(block.step_stage[: n_steps(block, backward)].tolist()):
                members.setdefault(stage, []).append((number, step))
    return sorted(members.items(), reverse=backward)


WRITERS: dict[str, type[Schedule]] = {"vector": VectorSchedule, "paper": PaperSchedule}
