"""The blocks of a graph as they are planned: those of a recurrence in up to three parts (plan/phases.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vpps.graph.arrays import BlockArrays, Ints
from vpps.graph.trace import TracedCell
from vpps.plan.passes.lazy_batching import STAGES, Batching, Part
from vpps.plan.passes.streaming import BEFORE, pauses
from vpps.plan.phases import crossing
from vpps.plan.topology import Topology


@dataclass(frozen=True, slots=True)
class Piece:
    """A block, or a part of one.

    Attributes:
        stage, group: of each vertex; no group where there is one only.
        parts: of the block that it is of; none where it is whole.
        number: in `parts`.
        streams: it is an eager part, of which steps may run in the pauses between levels.
    """

    arrays: BlockArrays
    stage: Ints
    group: Ints | None
    parts: tuple[Part, ...] = ()
    number: int = 0
    streams: bool = False


Splitter = Callable[[TracedCell, frozenset[int], frozenset[int]], tuple[Part, ...]]


def pieces(
    topology: Topology,
    stages: Sequence[Ints],
    groups: Sequence[Ints | None],
    split: Splitter | None,
    at_once: bool,
    streams: Callable[[tuple[Part, ...]], bool],
) -> tuple[list[Piece], int, int]:
    """What is planned of a graph.

    Args:
        stages, groups: of each vertex, by block.
        split: gives the parts of a block's cell, from the positions of its gathered arguments and its scattered
            outputs; None to leave all cells whole.
        at_once: eager parts run in one stage before the first level, lazy ones in one after the last; else in stages of
            their own before and after each.
        streams: whether the eager part may be dealt to the pauses between levels, too.

    Returns:
        The pieces, the number of values that they produce, and by what the numbers of stages were multiplied.
    """
    found, next_value = topology.recurrence, topology.n_values
    parts: list[tuple[Part, ...]] = [()] * len(topology.blocks)
    if split is not None:
        for number, b in enumerate(topology.blocks):
            if found.recurrent[found.component[number]] and len(b.calls):
                parts[number] = split(b.cell, *crossing(topology, number))
    if not any(parts):
        whole = [Piece(*each) for each in zip(topology.blocks, stages, groups, strict=True)]
        return whole, next_value, 1
    result: list[Piece] = []
    for number, (b, stage, group) in enumerate(zip(topology.blocks, stages, groups, strict=True)):
        if not parts[number]:
            result.append(Piece(b, stage * STAGES + Batching.LEVEL, group))
            continue
        members = found.members(found.component[number])
        first = min(int(stages[m].min()) for m in members if len(stages[m]))
        last = max(int(stages[m].max()) for m in members if len(stages[m]))
        made: dict[Batching, BlockArrays] = {}
        for k, part in enumerate(parts[number]):
            made[part.batching], next_value = _part_arrays(b, part, made, next_value)
            own = stage
            if at_once and part.batching is not Batching.LEVEL:
                own = np.full_like(stage, first if part.batching is Batching.EAGER else last)
            own = own * STAGES + part.batching
            paused = at_once and part.batching is Batching.EAGER and streams(parts[number])
            if paused:
                pause = pauses(stage - first)
                own = np.where(pause == BEFORE, own, (pause + first) * STAGES + Batching.LEVEL)
            result.append(Piece(made[part.batching], own, group, parts[number], k, paused))
    return result, next_value, STAGES


def _part_arrays(
    whole: BlockArrays, part: Part, made: dict[Batching, BlockArrays], next_value: int
) -> tuple[BlockArrays, int]:
    """The vertices of a part; what only crosses gets new value ids."""
    n = len(whole.calls)
    arrays = object.__new__(BlockArrays)
    arrays.block, arrays.cell, arrays.calls, arrays.levels = whole.block, part.cell, whole.calls, whole.levels
    arrays.values = []
    for k in part.outputs:
        if k >= 0:
            arrays.values.append(whole.values[k])
        else:
            arrays.values.append(np.arange(next_value, next_value + n))
            next_value += n
    crossing = [made[c.batching].values[c.output] for c in part.crossings]
    arrays.args = np.column_stack([whole.args[:, list(part.vectors)], *crossing])
    arrays.ints = whole.ints[:, list(part.ints)]
    arrays.lists = [whole.lists[k] for k in part.lists]
    arrays.data = whole.data
    return arrays, next_value
