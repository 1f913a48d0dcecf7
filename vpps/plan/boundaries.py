"""Between which stages barriers are left out: decided before slabs get memory, and before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vpps.plan.passes.lazy_batching import STAGES, Batching
from vpps.plan.rows import BlockPlan
from vpps.plan.templates import Group

Members = Sequence[tuple[int, int]]  # of a stage: (block number, step)
Stages = Sequence[tuple[int, Members]]


@dataclass
class Since:
    """What virtual processors have executed since their last barrier.

    Attributes:
        groups: (block number, group).
        of_one_stage: all of it belongs to one stage.
        others: in between, blocks have begun that took no part in the stage before.
        pauses: they have signalled for the next barrier already, so there must be one.
    """

    groups: set[tuple[int, int]] = field(default_factory=set)
    of_one_stage: bool = True
    others: bool = False
    pauses: bool = False


def groups_of(block: BlockPlan, backward: bool) -> list[list[Group]]:
    """A cell's groups, between one barrier and the next."""
    return block.cell.backward if backward else block.cell.forward


def fillers(blocks: Sequence[BlockPlan], stage: int, members: Members, backward: bool) -> Members:
    """The steps of a stage that fill the pause at its end."""
    if backward or stage % STAGES != Batching.LEVEL:
        return ()
    return [(number, step) for number, step in members if blocks[number].pause]


def boundaries(
    blocks: Sequence[BlockPlan], stages: Stages, backward: bool, since: Since, n_vps: int
) -> tuple[list[bool], Since]:
    """Whether each stage but the first follows the one before with no barrier between; and what has been executed
    since the last barrier when all are over.

    Args:
        stages: of one direction, in order.
        since: the same, before.
        n_vps: virtual processors that wait for each other.
    """
    free: list[bool] = []
    before: Members = ()
    for stage, members in stages:
        if before:
            free.append(_follows(blocks, since, before, members, backward))
            since = since if free[-1] else Since()
        n_groups = max(len(groups_of(blocks[number], backward)) for number, _ in members)
        since = since if n_groups == 1 else Since()
        since.of_one_stage = not since.groups
        since.groups |= {(n, n_groups - 1) for n, _ in members if len(groups_of(blocks[n], backward)) == n_groups}
        since.pauses = n_vps > 1 and bool(fillers(blocks, stage, members, backward))
        before = members
    return free, since


def _follows(blocks: Sequence[BlockPlan], since: Since, before: Members, members: Members, backward: bool) -> bool:
    """Whether a stage may follow another with no barrier between.

    Blocks get memory again that others have given back, but only behind a barrier that lies before or after the stage
    before. So where others take part than those of the stage before, not even two barriers in turn may be left out.
    """
    others = not {number for number, _ in members} <= {number for number, _ in before}
    if since.pauses or ((others or since.others) and not since.of_one_stage):
        return False
    free = all(
        blocks[number].cell.may_follow(blocks[other].cell, group, backward)
        for number, _ in members
        for other, group in since.groups
    )
    since.others |= free and others
    return free


def turns(blocks: Sequence[BlockPlan], since: Since, members: Members) -> bool:
    """Whether backward may begin with no barrier behind forward.

    Args:
        members: the first stage of backward.
    """
    free = (
        since.of_one_stage
        and not since.pauses
        and len(members) > 0
        and all(
            blocks[number].cell.may_turn(blocks[other].cell, group)
            for number, _ in members
            for other, group in since.groups
        )
    )
    since.others |= free
    return free
