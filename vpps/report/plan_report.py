"""What the host makes of a graph: levels, stages, steps, barriers, memory, index lists, script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vpps.ops.element import WORD_BYTES
from vpps.report.gathering import Gathering
from vpps.text import Report, counted, in_bytes, table

MOST_ROWS = 40
"""Levels and stages of which text shows the first ones only: a long chain has thousands."""


@dataclass(frozen=True, slots=True)
class LevelUse:
    """Vertices of a level, those whose longest distance from a leaf it is, counted by cell."""

    level: int
    cells: dict[str, int]


@dataclass(frozen=True, slots=True)
class StepUse:
    """Vertices of a cell that run together.

    Attributes:
        stage: number of the stage; forward runs stages upwards, backward downwards.
        cell: name of the cell.
        part: "eager", "level" or "lazy" of a cell in parts, "" of a whole one.
        phase: "forward" or "backward".
        rows: vertices.
        first_row: in the slabs of the cell.
    """

    stage: int
    cell: str
    part: str
    phase: str
    rows: int
    first_row: int


@dataclass(frozen=True, slots=True)
class SlabUse:
    """A 2-D array of a cell.

    Attributes:
        cell, part: see StepUse.
        symbol: what it holds: "n7 tanh", or "gradient at n7 tanh".
        node: number of that node in the cell.
        per: "vertex", or "element" where it has a row for each element of a list.
        rows, width: of all steps together; floats of a row.
        bytes: of memory that it takes, at one time or another: less than rows x width where steps use it again.
        life: how long it holds something.
        spans: [first, last) addresses in the pool, in floats: a span for each step, or for all of them.
    """

    cell: str
    part: str
    symbol: str
    node: int
    per: str
    rows: int
    width: int
    bytes: int
    life: str
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> str:
        """Rows and width: "8 x 32", or "63 x 32 (of 238)" of one whose steps use memory in turns."""
        held = -(-self.bytes // (WORD_BYTES * self.width))
        return f"{held:,} x {self.width:,}" + (f" (of {self.rows:,})" if held < self.rows else "")


@dataclass(frozen=True, slots=True)
class ListUse:
    """An index list, or other data that the script carries.

    Attributes:
        what: it holds, of which cells.
        words: its length.
        position: of its first word in the script.
    """

    what: str
    words: int
    position: int


@dataclass(frozen=True, slots=True)
class PlanReport(Report):
    """A plan in numbers.

    Attributes:
        training: whether it trains; else it only evaluates.
        policy, schedule: by whose names it was made.
        vps: virtual processors of all groups.
        groups: of them.
        vertices, cells: of the graph.
        levels: longest distances from a leaf.
        stages: how many there are in forward.
        steps: forward, then backward, in the order of execution.
        barriers: of a launch; one virtual processor needs none.
        barriers_of: those of each phase of it, where there is one group.
        launches: that a step takes.
        slabs, lists: memory of the batch, data in the script.
        weight_bytes: parameters, their transposes, gradients and moments in the pool.
        slab_bytes: memory of all slabs; they share it, so that it may be less than the sum of them.
        other_bytes: the rest of the batch's memory: gradients of tables, partial sums.
        script_words: all words.
        header_words: magic, sizes, where virtual processors begin.
        list_words: those of lists.
        gathering: what is read through index lists, and what needs none.
        instruction_words: those of instructions, of all virtual processors.
        instructions: how many, each once where virtual processors share them.
    """

    training: bool
    policy: str
    schedule: str
    vps: int
    groups: int
    vertices: int
    cells: int
    levels: tuple[LevelUse, ...]
    stages: int
    steps: tuple[StepUse, ...]
    barriers: int
    barriers_of: dict[str, int]
    launches: int
    slabs: tuple[SlabUse, ...]
    lists: tuple[ListUse, ...]
    weight_bytes: int
    slab_bytes: int
    other_bytes: int
    script_words: int
    header_words: int
    list_words: int
    gathering: Gathering
    instruction_words: int
    instructions: int

    @property
    def bytes(self) -> int:
        """All memory of a launch: pool and script."""
        return self.weight_bytes + self.slab_bytes + self.other_bytes + WORD_BYTES * self.script_words

    def as_json(self) -> dict[str, Any]:
        """All attributes, and the total of `bytes`."""
        return {**Report.as_json(self), "bytes": self.bytes}

    def text(self) -> str:
        """Totals, then tables of levels, stages, slabs and lists."""
        return "\n".join("\n".join([*part, ""]) for part in self._parts())

    def _parts(self) -> Iterator[list[str]]:
        yield [f"{name:<10}{value}" for name, value in self._totals()]
        levels = [(x.level, sum(x.cells.values()), _items(x.cells)) for x in self.levels]
        yield _first_of(("level", "vertices", "of cells"), levels, [2])
        yield self._stages()
        slabs = [(s.cell, s.part or "-", s.symbol, s.size, s.bytes, s.life, s.per) for s in self.slabs]
        yield table(("slab of", "part", "holds", "rows x width", "bytes", "life", "a row per"), slabs, (0, 1, 2, 5, 6))
        yield table(("list", "words", "at word"), [(x.what, x.words, x.position) for x in self.lists])

    def _totals(self) -> Iterator[tuple[str, str]]:
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        what = "training" if self.training else "inference"
        vps = counted(self.vps, "virtual processor")
        yield "plan", f"{what}, policy {self.policy}, schedule {self.schedule}, {vps}{groups}"
        yield "graph", f"{counted(self.vertices, 'vertex', 'vertices')} of {counted(self.cells, 'cell')}"
        forward = sum(s.phase == "forward" for s in self.steps)
        backward = f", {len(self.steps) - forward:,} backward" if self.training else ""
        levels, stages = counted(len(self.levels), "level"), counted(self.stages, "stage")
        yield "order", f"{levels}, {stages}; {counted(forward, 'step')} forward{backward}"
        of = f" ({_items(self.barriers_of)})" if self.barriers_of else ""
        yield "barriers", f"{self.barriers:,}{of}; {counted(self.launches, 'launch', 'launches')}"
        words = f"{self.script_words:,} words, {self.instruction_words:,} of instructions, {self.list_words:,} of lists"
        yield "script", f"{counted(self.instructions, 'instruction')}; {words}"
        yield "gathered", self.gathering.describe(self.training)
        taken = sum(s.bytes for s in self.slabs)
        shared = f" for {in_bytes(taken)} of them" if taken > self.slab_bytes else ""
        yield (
            "memory",
            f"{in_bytes(self.bytes)}: parameters {in_bytes(self.weight_bytes)}, slabs {in_bytes(self.slab_bytes)}"
            f"{shared}, other {in_bytes(self.other_bytes)}, script {in_bytes(WORD_BYTES * self.script_words)}",
        )

    def _stages(self) -> list[str]:
        """What runs in each stage, forward and backward."""
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
    """A table of the first rows, and if there are many how many it leaves out."""
    shown = rows if len(rows) <= MOST_ROWS else rows[: MOST_ROWS - 1]
    more = [f"... and {len(rows) - len(shown):,} more"] if len(shown) < len(rows) else []
    return [*table(head, shown, text_columns), *more]


def _items(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in counts.items())
