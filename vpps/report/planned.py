"""Takes a plan apart: makes a PlanReport of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from vpps.compiler.instr import Data, ListKey, Offsets, Positions, RandomKey, SameRow, SameRowGradient, Uses
from vpps.compiler.slabs import WHOLE, Life
from vpps.ops.element import WORD_BYTES
from vpps.planner.blocks import PlannedBlock, stages_in_order
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.planner.reader import walk
from vpps.record.arrays import BlockArrays
from vpps.report.gathering import gathering
from vpps.report.plan_report import LevelUse, ListUse, PlanReport, SlabUse, StepUse
from vpps.report.words import part_name, said_of_list, symbol_of
from vpps.script.instructions import HEADER_WORDS, INDEXED

LIVES = {
    Life.KEPT: "kept to the end",
    Life.ACROSS: "forward to backward",
    Life.LATE: "backward to the end",
    Life.SCRATCH: "one step",
    Life.FORWARD: "one step of forward",
    Life.PASSED_ON: "until its last reader",
    Life.HANDED_BACK: "until its last reader",
}
_USES = "where those of each value begin"
_LATER = "for the end of the launch"


def plan_report(plan: Plan, planner: Planner) -> PlanReport:
    """What a plan consists of that a planner has made."""
    training = plan.loss_slot >= 0
    blocks = [b for b in plan.blocks if len(b.order)]
    names = {id(b): (b.arrays.cell.name, part_name(planner, b)) for b in blocks}
    steps = [*_steps(blocks, names, backward=False), *(_steps(blocks, names, backward=True) if training else ())]
    slabs = tuple(slab for b in blocks for slab in _slabs(b, *names[id(b)], training))
    lists = tuple(_lists(plan, blocks, training))
    distribution = planner.distribution
    top = max((stop for s in slabs for _, stop in s.spans), default=distribution.end)
    n_vps = distribution.all_vps
    barriers = _barriers(plan) if distribution.groups == 1 else {}
    return PlanReport(
        training=training,
        policy=planner.policy,
        schedule=planner.schedule.name,
        vps=n_vps,
        groups=distribution.groups,
        vertices=plan.graph.n_calls,
        cells=len(plan.graph.blocks),
        levels=tuple(_levels(plan)),
        stages=len({s.stage for s in steps if s.phase == "forward"}),
        steps=tuple(steps),
        barriers=plan.n_barriers if distribution.groups > 1 else sum(barriers.values()),
        barriers_of=barriers,
        launches=plan.launches,
        slabs=slabs,
        lists=lists,
        weight_bytes=WORD_BYTES * distribution.end,
        slab_bytes=WORD_BYTES * (top - distribution.end),
        other_bytes=WORD_BYTES * (plan.pool_floats - top),
        script_words=len(plan.script),
        header_words=HEADER_WORDS + n_vps,
        list_words=sum(x.words for x in lists),
        gathering=gathering(plan),
        instruction_words=sum(stream.words for _, stream in plan.streams),
        instructions=sum(1 for start, _ in plan.streams for _ in walk(plan, start)),
    )


def _levels(plan: Plan) -> Iterator[LevelUse]:
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for block in plan.graph.blocks.values():
        for level, count in Counter(BlockArrays(block).levels.tolist()).items():
            found[level][block.cell.name] += count
    for level in sorted(found):
        yield LevelUse(level, dict(found[level]))


def _steps(blocks: list[PlannedBlock], names: dict[int, tuple[str, str]], backward: bool) -> Iterator[StepUse]:
    phase = "backward" if backward else "forward"
    late = [] if backward else stages_in_order(blocks, backward, late=True)
    for stage, members in [*stages_in_order(blocks, backward), *late]:
        for number, step in members:
            block = blocks[number]
            rows, first = int(block.count[step, 0]), int(block.first[step, 0])
            yield StepUse(stage, *names[id(block)], phase, rows, first)


def _slabs(block: PlannedBlock, cell: str, part: str, training: bool) -> Iterator[SlabUse]:
    lowered = block.cell.lowered
    for group in block.cell.slab_groups(training).groups:
        steps = _steps_with(block, group.life, training)
        if not steps:
            continue
        count, first = block.count[:, group.domain], block.first[:, group.domain]
        for i in group.slabs:
            width = lowered.slabs[i].width
            if group.life in WHOLE:
                start = int(block.bases[0, i])
                spans = [(start, start + block.n_rows(group.domain) * width)]
            else:
                starts = (block.bases[:steps, i] + first[:steps] * width).tolist()
                spans = [(s, s + n * width) for s, n in zip(starts, count[:steps].tolist(), strict=True)]
            spans = sorted({s for s in spans if s[1] > s[0]})
            node = lowered.slab_nodes[i]
            of = symbol_of(lowered.cell, node)
            symbol = of if i < lowered.n_forward_slabs else f"gradient at {of}"
            per = "element" if group.domain else "vertex"
            rows = block.n_rows(group.domain) if group.life in WHOLE else int(count[:steps].sum())
            taken = WORD_BYTES * _union(spans)
            yield SlabUse(cell, part, symbol, node, per, rows, width, taken, LIVES[group.life], tuple(spans))


def _steps_with(block: PlannedBlock, life: Life, training: bool) -> int:
    """How many of a block's steps, the first ones, have slabs of a life."""
    if training and life in (Life.LATE, Life.SCRATCH, Life.HANDED_BACK):
        return block.n_needed_steps  # those that run backward
    return len(block.step_stage)


def _union(spans: list[tuple[int, int]]) -> int:
    """Floats in any of some sorted spans."""
    total = end = 0
    for start, stop in spans:
        total += max(stop, end) - max(start, end)
        end = max(stop, end)
    return total


def _barriers(plan: Plan) -> dict[str, int]:
    """Of each phase; every barrier by its number, whoever takes part."""
    found = dict.fromkeys(
        (s.during.value, s.barrier) for _, stream in plan.streams for s in stream.sections if s.barrier
    )
    return dict(Counter(phase for phase, _ in found))


def _lists(plan: Plan, blocks: list[PlannedBlock], training: bool) -> Iterator[ListUse]:
    spans = [(start, stop) for start, stop in plan.lists.tolist() if stop > start]
    starts = np.array([start for start, _ in spans], np.int64)
    said: list[dict[str, dict[str, None]]] = [{} for _ in spans]  # what -> cells
    before: dict[int, str] = {}  # what the list before one holds
    for block in blocks:
        n_keys = len(block.cell.keys) if training else block.cell.n_forward_keys
        for key in list(block.cell.keys)[:n_keys]:
            if isinstance(key, SameRow | SameRowGradient) or not _holds(block, key):
                continue
            position = block.list_position(key)
            k = int(starts.searchsorted(position, "right")) - 1
            what = said_of_list(key)
            if isinstance(key, Uses):
                what, before[k - 1] = _USES, "gradients that the readers of each value hand back"
            elif isinstance(key, Offsets):
                before[k - 1] = said_of_list(key.of)
            said[k].setdefault(what, {})[block.arrays.cell.name] = None
        for key, operands in block.cell.row_lists(training):
            for operand in operands:
                address, mode = block.operand_words(operand)
                for at in address[mode & INDEXED != 0][:1].tolist():  # nothing where all rows lie at a stride
                    k = int(starts.searchsorted(at, "right")) - 1
                    said[k].setdefault(said_of_list(key), {})[block.arrays.cell.name] = None
    for k, (start, stop) in enumerate(spans):
        names = [what if what == _USES else f"{', '.join(cells)}: {what}" for what, cells in said[k].items()]
        names = names or [before.get(k, _LATER)]
        yield ListUse("; ".join(names), stop - start, start)


def _holds(block: PlannedBlock, key: ListKey) -> bool:
    """Whether a list of a block has any words."""
    if isinstance(key, Uses | RandomKey | Offsets | Data):
        return True
    domain = key.domain if isinstance(key, Positions) else block.cell.domain_of(key)
    return block.n_rows(domain) > 0
