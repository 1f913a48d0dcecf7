"""What stages and steps cost on a kind of target: barriers, and work at the speed that the width of a step allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from vpps.compiler.prepare import OUTSIDE, VIEWS
from vpps.ops import Form, size
from vpps.record.arrays import Lists
from vpps.record.trace import TracedCell
from vpps.targets import target_named


class StepLoad(NamedTuple):
    """What a step of a type has to do; of a recurrent cell, what of it goes level by level.

    Attributes:
        flops: floating point operations of a vertex, forward and backward.
        barriers: after its instructions, forward and backward.
    """

    flops: float
    barriers: int


@dataclass(frozen=True, slots=True)
class Costs:
    """A model of the time of forward and backward; `planner/native/learning.h` computes it.

    Attributes:
        barrier: seconds of a barrier, with what is dispatched between two of them.
        speed: floating point operations per second of a virtual processor in wide steps.
        fixed: what a step costs besides, however wide it is, in vertices: the weights have to be read once.
        vps: virtual processors; they share every step.
        loads: by type.
    """

    barrier: float
    speed: float
    fixed: float
    vps: int
    loads: tuple[StepLoad, ...] = ()

    def of(self, loads: Iterable[StepLoad]) -> Costs:
        """The same, for types of these loads."""
        return replace(self, loads=tuple(loads))


def costs_on(target: str, vps: int) -> Costs:
    """The model of a target, by its name, with so many virtual processors."""
    row = target_named(target)
    return Costs(row.barrier, row.speed, row.fixed, vps)


def flops(cell: TracedCell, lists: Sequence[Lists]) -> float:
    """Floating point operations of a vertex of a cell in forward; of one with list arguments, of a vertex with lists of
    mean length. (In backward the gradients take as many: weights get theirs at the end, whatever the stages.)

    Args:
        lists: its list arguments, of all vertices.
    """
    rows = [1.0] * (cell.n_domains + 1)
    for domain, xs in zip(cell.lists, lists, strict=True):
        rows[domain] = len(xs.elements) / max(len(xs.ends) - 1, 1)
    total = 0.0
    for node in cell.nodes:
        form = node.op.form
        if form in (Form.MATVEC, Form.PACKED_MATMUL) and node.parameter is not None:
            own = 2 * size(node.parameter.shape) * size(node.shape[1:])
        elif form is Form.MATMUL:
            own = node.op.cost([cell.nodes[i].shape for i in node.inputs], node.shape).flops
        else:
            own = 0 if form in (*OUTSIDE, *VIEWS) else size(node.shape)
        total += own * rows[node.domain]
    return total
