"""Account of a plan, computed on request by compiled code: the origin of each word, in the user's terms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpps.compiler.encoded_cell import EncodedCell, Group
from vpps.model.model import Lookup, Parameter
from vpps.placement.update import Ending
from vpps.planner.blocks import PlannedBlock
from vpps.planner.native.interface import PHASES, AccountResult, IntPair, Origin, Reason, SectionResult
from vpps.planner.native.memory import numbers_at
from vpps.planner.sections import Section, Stream
from vpps.record.ranges import Ints

_REASONS = {
    Reason.NONE: "",
    Reason.FORWARD: "forward, stage {}",
    Reason.BACKWARD: "backward, stage {}",
    Reason.GROUPS: "of all groups",
    Reason.LOSS: "for the loss",
    Reason.GRADIENTS: "before the gradients",
    Reason.UPDATE: "before the update",
    Reason.CLIPPING: "before clipping",
}
_BY_ITSELF = {
    Origin.END: "",
    Origin.LOSS: "loss",
    Origin.CONSTANTS: "input of 'the loss'",
    Origin.GUARD: "guard",
    Origin.CLIP: "clip",
}
_OF_PARAMETER = {
    Origin.LOAD: "load",
    Origin.SUM: "gather_sum",
}


class Account:
    """Parts of a plan that a launch does not need, copied from the library's account of its latest plan.

    Args:
        cells: the blocks' encoded cells.

    Attributes:
        lists: sorted spans of the script that each hold a list (or data).
        periods: (position in the script, number) for the start of each period of the launch.
        memory: spans of the pool that are allocated for the whole launch.
        begins: positions of the streams in the script.
    """

    def __init__(self, noted: AccountResult, n_words: int, cells: Sequence[EncodedCell], ending: Ending) -> None:
        lists = _pairs(noted.lists, noted.n_lists)
        self.lists = lists[np.lexsort(lists.T[::-1])]
        self.periods = _pairs(noted.periods, noted.n_periods)
        self.memory = _pairs(noted.allocated, noted.n_allocated)
        streams = _pairs(noted.streams, noted.n_streams)
        self.begins: list[int] = streams[:, 0].tolist()
        self._sections = numbers_at(noted.sections, noted.n_sections, len(SectionResult._fields_))
        self._n_sections = streams[:, 1]
        self._rows = numbers_at(noted.rows, noted.n_rows)
        self._n_words = n_words
        self._cells = cells
        self._ending = ending
        self._parameters = list(ending.distribution.physical)

    def streams(self, blocks: Sequence[PlannedBlock]) -> list[tuple[int, Stream]]:
        """Return the streams of instructions with their origins, each with its position in the script."""
        names = [name for name, *_ in SectionResult._fields_]
        n_rows, run = (self._sections[:, names.index(name)] for name in ("n_rows", "run"))
        rows = np.split(self._rows, np.cumsum(n_rows)[:-1])
        shared: dict[tuple[int, bytes], Ints] = {}  # several virtual processors execute the same rows
        sections = []
        for numbers, mine, number in zip(self._sections.tolist(), rows, run.tolist(), strict=True):
            section = SectionResult(*numbers)
            first = shared.setdefault((number, mine.tobytes()), mine) if number else section.first
            block = blocks[section.block] if section.block >= 0 else None
            group, text = self._origin_of(section)
            sections.append(Section(section.start, block, group, first, text, PHASES[section.during]))
        ends = np.cumsum(self._n_sections).tolist()
        begins = self.begins
        return [
            (begin, Stream(end - begin, sections[first:last]))
            for begin, end, first, last in zip(begins, [*begins[1:], self._n_words], [0, *ends], ends, strict=False)
        ]

    def _origin_of(self, section: SectionResult) -> tuple[Group | None, str]:
        """Return the instruction group of a section, if it belongs to a cell, and the section's purpose."""
        made = Origin(section.origin)
        if made is Origin.BARRIER:
            return None, _REASONS[Reason(section.a)].format(section.b)
        if made in _BY_ITSELF:
            return None, _BY_ITSELF[made]
        if section.block < 0:
            p = self._parameters[section.a]
            return None, f"{_OF_PARAMETER.get(made) or self._instruction(made, p)} of {p.name!r}"
        cell, a, b = self._cells[section.block], section.a, section.b
        if made is Origin.FORWARD:
            return cell.forward[a][b], "forward"
        if made is Origin.BACKWARD:
            return cell.backward[a][b], "backward"
        if made is Origin.WATCH:
            return cell.watches[b], "gradients"
        contribution = cell.gradients[b]
        group: Group | None = contribution.group
        if made is Origin.STEPPED:
            group = cell.fused(contribution, self._ending)
        elif made is Origin.TILES:
            group = contribution.tiles
        return group, f"gradient of {contribution.gradient.parameter.name!r}"

    def _instruction(self, made: Origin, p: Parameter) -> str:
        """Return the instruction's name: a parameter's optimizer step, or the sum of its squared gradient."""
        packed = self._ending.distribution.is_packed(p)
        if made is Origin.SQUARE:
            return "squares_matrix" if packed else "squares_rows"
        kind = "rows" if isinstance(p, Lookup) else "matrix" if packed else "vector"
        return f"update_{kind}.{self._ending.rule}"


def _pairs(at: int, n: int) -> Ints:
    """Return a copy of n IntPairs at an address."""
    return numbers_at(at, n, len(IntPair._fields_))
