"""Report on the plan of a graph: levels, stages, steps, barriers, memory, index lists, script."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vpps.compiler.instr import Data, ListKey, Offsets, Positions, RandomKey, SameRow, SameRowGradient, Uses
from vpps.compiler.slabs import WHOLE, Life
from vpps.ops.element import WORD_BYTES
from vpps.planner.blocks import PlannedBlock, stages_in_order
from vpps.planner.gathering import gathering
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.planner.reader import walk
from vpps.record.arrays import BlockArrays
from vpps.report.words import part_name, said_of_list, symbol_of
from vpps.script.instructions import INDEXED
from vpps.text import Readable, counted, in_bytes, table

MOST_ROWS = 40
"""Most levels and stages in the text; a long chain has thousands."""

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


class StepUse(NamedTuple):
    """A step: vertices of a cell that run together.

    Attributes:
        stage: number of the stage; forward runs stages in ascending order, backward in descending order.
        cell: name of the cell.
        part: "eager", "level" or "lazy" for a part of a cell, "" for a whole cell.
        phase: "forward" or "backward".
        rows: number of vertices.
    """

    stage: int
    cell: str
    part: str
    phase: str
    rows: int


class SlabUse(NamedTuple):
    """A slab, a 2-D array of a cell.

    Attributes:
        cell, part: see StepUse.
        symbol: contents of the slab: "n7 tanh", or "gradient at n7 tanh".
        per: "vertex", or "element" for a row per element of a list.
        rows, width: rows of all steps together; floats per row.
        bytes: bytes of memory that it occupies in all; fewer than all rows need if steps reuse memory.
        life: live range of the contents.
        spans: [first, last) addresses in the pool, in floats: one span per step, or one for all steps.
    """

    cell: str
    part: str
    symbol: str
    per: str
    rows: int
    width: int
    bytes: int
    life: str
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> str:
        """Rows and width: "8 x 32", or "63 x 32 (of 238)" if steps reuse memory."""
        held = -(-self.bytes // (WORD_BYTES * self.width))
        return f"{held:,} x {self.width:,}" + (f" (of {self.rows:,})" if held < self.rows else "")


class ListUse(NamedTuple):
    """An index list or other data in the script: contents with cells, number of words, and position of the first."""

    what: str
    words: int
    position: int


class PlanReport(Readable):
    """Statistics of a plan. Its `str` shows totals, then tables of levels, stages, slabs and lists.

    Attributes:
        training: True for a plan that trains, False for inference.
        vps: number of virtual processors in all groups.
        levels: for each level (longest distance from a leaf), the number of vertices by cell.
        steps: forward steps, then backward steps, in the order of execution.
        slabs, lists: the batch's memory, and the lists in the script.
        barriers: barriers per launch; one virtual processor needs none.
        barriers_of: barriers in each phase of a launch; empty for several groups.
        weight_bytes: bytes of parameters, their transposes, gradients and moments in the pool.
        slab_bytes: bytes of all slabs; slabs share memory, so this may be less than their sum.
        other_bytes: other memory of the batch: gradients of tables, partial sums.
        list_words: number of words in lists.
        instruction_words: number of words in all virtual processors' instructions.
        instructions: number of instructions; shared instructions are counted once.
    """

    def __init__(self, plan: Plan, planner: Planner) -> None:
        self._plan, self._planner = plan, planner
        distribution = planner.distribution
        blocks = [b for b in plan.blocks if len(b.order)]
        names = {id(b): (b.arrays.cell.name, part_name(planner, b)) for b in blocks}
        self.training = plan.loss_slot >= 0
        self.vps = distribution.all_vps
        self.levels = _levels(plan)
        self.steps = list(_steps(blocks, names, backward=False))
        self.steps += _steps(blocks, names, backward=True) if self.training else ()
        self.slabs = [slab for b in blocks for slab in _slabs(b, *names[id(b)], self.training)]
        self.lists = list(_lists(plan, blocks, self.training))
        self.barriers_of = _barriers(plan) if distribution.groups == 1 else {}
        self.barriers = sum(self.barriers_of.values()) if distribution.groups == 1 else plan.n_barriers
        top = max((stop for s in self.slabs for _, stop in s.spans), default=distribution.end)
        self.weight_bytes = WORD_BYTES * distribution.end
        self.slab_bytes = WORD_BYTES * (top - distribution.end)
        self.other_bytes = WORD_BYTES * (plan.pool_floats - top)
        self.list_words = sum(x.words for x in self.lists)
        self.instruction_words = sum(stream.words for _, stream in plan.streams)
        self.instructions = sum(1 for start, _ in plan.streams for _ in walk(plan, start))

    def __str__(self) -> str:
        return "\n".join("\n".join([*part, ""]) for part in self._parts())

    def _parts(self) -> Iterator[list[str]]:
        yield [f"{name:<10}{value}" for name, value in self._totals()]
        levels = [(level, cells.total(), _items(cells)) for level, cells in self.levels.items()]
        yield _first_of(("level", "vertices", "of cells"), levels, [2])
        yield self._stages()
        slabs = [(s.cell, s.part or "-", s.symbol, s.size, s.bytes, s.life, s.per) for s in self.slabs]
        yield table(("slab of", "part", "holds", "rows x width", "bytes", "life", "a row per"), slabs, (0, 1, 2, 5, 6))
        yield table(("list", "words", "at word"), self.lists)

    def _totals(self) -> Iterator[tuple[str, str]]:
        plan, planner = self._plan, self._planner
        groups = f" in {planner.distribution.groups} groups" if planner.distribution.groups > 1 else ""
        what = "training" if self.training else "inference"
        vps = counted(self.vps, "virtual processor")
        yield "plan", f"{what}, policy {planner.policy}, schedule {planner.schedule}, {vps}{groups}"
        vertices, cells = counted(plan.graph.n_calls, "vertex", "vertices"), counted(len(plan.graph.blocks), "cell")
        yield "graph", f"{vertices} of {cells}"
        forward = [s.stage for s in self.steps if s.phase == "forward"]
        backward = f", {len(self.steps) - len(forward):,} backward" if self.training else ""
        order = f"{counted(len(self.levels), 'level')}, {counted(len(set(forward)), 'stage')}"
        yield "order", f"{order}; {counted(len(forward), 'step')} forward{backward}"
        of = f" ({_items(self.barriers_of)})" if self.barriers_of else ""
        yield "barriers", f"{self.barriers:,}{of}"
        words = f"{len(plan.script):,} words, {self.instruction_words:,} of instructions, {self.list_words:,} of lists"
        yield "script", f"{counted(self.instructions, 'instruction')}; {words}"
        yield "gathered", gathering(plan).describe(self.training)
        taken = sum(s.bytes for s in self.slabs)
        shared = f" for {in_bytes(taken)} of them" if taken > self.slab_bytes else ""
        script = WORD_BYTES * len(plan.script)
        yield (
            "memory",
            f"{in_bytes(WORD_BYTES * plan.pool_floats + script)}: parameters {in_bytes(self.weight_bytes)}, "
            f"slabs {in_bytes(self.slab_bytes)}{shared}, other {in_bytes(self.other_bytes)}, script {in_bytes(script)}",
        )

    def _stages(self) -> list[str]:
        """Return the table of stages: cells and rows of each, forward and backward."""
        by_stage: dict[int, dict[str, list[str]]] = {}
        for s in self.steps:
            name = f"{s.cell} ({s.part})" if s.part else s.cell
            by_stage.setdefault(s.stage, {}).setdefault(s.phase, []).append(f"{s.rows:,} {name}")
        head = ("stage", "rows forward", "rows backward") if self.training else ("stage", "rows forward")
        phases = ("forward", "backward")[: len(head) - 1]
        rows = [
            (stage, *(", ".join(by_stage[stage].get(phase, [])) or "-" for phase in phases))
            for stage in sorted(by_stage)
        ]
        return _first_of(head, rows, (1, 2))


def _first_of(head: Sequence[str], rows: Sequence[Sequence[object]], text_columns: Sequence[int]) -> list[str]:
    """Return a table of the first rows; its last line gives the number of omitted rows, if any."""
    shown = rows if len(rows) <= MOST_ROWS else rows[: MOST_ROWS - 1]
    more = [f"... and {len(rows) - len(shown):,} more"] if len(shown) < len(rows) else []
    return [*table(head, shown, text_columns), *more]


def _items(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counts.items())


def _levels(plan: Plan) -> dict[int, Counter[str]]:
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for block in plan.graph.blocks.values():
        for level, count in Counter(BlockArrays(block).levels.tolist()).items():
            found[level][block.cell.name] += count
    return dict(sorted(found.items()))


def _steps(blocks: list[PlannedBlock], names: dict[int, tuple[str, str]], backward: bool) -> Iterator[StepUse]:
    phase = "backward" if backward else "forward"
    late = [] if backward else stages_in_order(blocks, backward, late=True)
    for stage, members in [*stages_in_order(blocks, backward), *late]:
        for number, step in members:
            block = blocks[number]
            yield StepUse(stage, *names[id(block)], phase, int(block.count[step, 0]))


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
            of = symbol_of(lowered.cell, lowered.slab_nodes[i])
            symbol = of if i < lowered.n_forward_slabs else f"gradient at {of}"
            per = "element" if group.domain else "vertex"
            rows = block.n_rows(group.domain) if group.life in WHOLE else int(count[:steps].sum())
            taken = WORD_BYTES * _union(spans)
            yield SlabUse(cell, part, symbol, per, rows, width, taken, LIVES[group.life], tuple(spans))


def _steps_with(block: PlannedBlock, life: Life, training: bool) -> int:
    """Return how many of a block's steps, from the first on, have slabs with the given live range."""
    if training and life in (Life.LATE, Life.SCRATCH, Life.HANDED_BACK):
        return block.n_needed_steps  # the steps with a backward
    return len(block.step_stage)


def _union(spans: list[tuple[int, int]]) -> int:
    """Return the number of floats in the union of sorted spans."""
    total = end = 0
    for start, stop in spans:
        total += max(stop, end) - max(start, end)
        end = max(stop, end)
    return total


def _barriers(plan: Plan) -> dict[str, int]:
    """Count the barriers of each phase; a barrier is counted once for all its virtual processors."""
    found = dict.fromkeys((s.during, s.barrier) for _, stream in plan.streams for s in stream.sections if s.barrier)
    return dict(Counter(phase for phase, _ in found))


def _lists(plan: Plan, blocks: list[PlannedBlock], training: bool) -> Iterator[ListUse]:
    spans = [(start, stop) for start, stop in plan.account.lists.tolist() if stop > start]
    starts = np.array([start for start, _ in spans], np.int64)
    said: list[dict[str, dict[str, None]]] = [{} for _ in spans]  # contents -> cells
    before: dict[int, str] = {}  # contents of the list before an offset list
    for block in blocks:
        n_keys = len(block.cell.keys) if training else block.cell.n_forward_keys
        for key in list(block.cell.keys)[:n_keys]:
            if isinstance(key, SameRow | SameRowGradient) or not _holds(block, key):
                continue
            position = int(block.lists[list(block.cell.keys).index(key)])
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
                for at in address[mode & INDEXED != 0][:1].tolist():  # empty if all rows have a constant stride
                    k = int(starts.searchsorted(at, "right")) - 1
                    said[k].setdefault(said_of_list(key), {})[block.arrays.cell.name] = None
    for k, (start, stop) in enumerate(spans):
        names = [what if what == _USES else f"{', '.join(cells)}: {what}" for what, cells in said[k].items()]
        names = names or [before.get(k, _LATER)]
        yield ListUse("; ".join(names), stop - start, start)


def _holds(block: PlannedBlock, key: ListKey) -> bool:
    """Return True if a block's list is not empty."""
    if isinstance(key, Uses | RandomKey | Offsets | Data):
        return True
    domain = key.domain if isinstance(key, Positions) else block.cell.domain_of(key)
    return block.n_rows(domain) > 0
