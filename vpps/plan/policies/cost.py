"""What stages and steps cost on a kind of target: barriers, and work at the speed that the width of a step allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vpps.graph.arrays import BlockArrays, Ints
from vpps.graph.trace import TracedCell
from vpps.ops import Form, size
from vpps.plan.passes.lazy_batching import SOURCES
from vpps.plan.policies.typed_graph import TypedGraph
from vpps.plan.prepare import VIEWS


@dataclass(frozen=True, slots=True)
class Costs:
    """A model of time, forward alone: backward has the same stages and steps.

    Attributes:
        barrier: seconds that a stage costs besides its work.
        narrow, wide: floating point operations per second of a virtual processor in a step of one vertex, and in one of
            `full` or more.
        full: how many vertices that takes.
        vps: virtual processors; they share every step.
        work: by type, floating point operations of a vertex.
    """

    barrier: float
    narrow: float
    wide: float
    full: int
    vps: int
    work: Sequence[float] = ()

    def of(self, work: Sequence[float]) -> Costs:
        """The same, for types of this work."""
        return replace(self, work=tuple(work))

    def step(self, a: int, n: int) -> float:
        """Seconds of a step of n vertices of a type."""
        share = (min(n, self.full) - 1) / (self.full - 1)
        return n * self.work[a] / (self.vps * (self.narrow + (self.wide - self.narrow) * share))

    def in_barriers(self, a: int, n: int) -> float:
        """The same in barriers."""
        return self.step(a, n) / self.barrier

    def seconds(self, graph: TypedGraph, stages: Ints) -> float:
        """Seconds of all vertices of a graph in such stages."""
        if not graph.n:
            return 0.0
        n_stages = int(stages.max()) + 1
        sizes = np.bincount(stages * graph.n_types + graph.type_of, minlength=n_stages * graph.n_types)
        steps = np.flatnonzero(sizes)
        of_steps = zip((steps % graph.n_types).tolist(), sizes[steps].tolist(), strict=True)
        return self.barrier * n_stages + sum(self.step(a, n) for a, n in of_steps)


# cpu: a signal and a wait between two threads take 0.2 to 0.4 us, a stage has one or two of them, and instructions that
# are dispatched; products run at 100 GFLOP/s for one vector and 280 from eight on (a core with AVX-512).
# cuda: a barrier of all multiprocessors takes 1.2 to 1.5 us; one of 132 reaches a fraction of 67 TFLOP/s.
# simt emulates a GPU, and is planned for as one.
_PER_TARGET = {
    "cpu": Costs(barrier=1e-6, narrow=1e11, wide=2.8e11, full=8, vps=1),
    "cuda": Costs(barrier=2e-6, narrow=5e10, wide=2.5e11, full=8, vps=1),
}


def costs_on(target: str, vps: int) -> Costs:
    """The model of a target ("cpu", "cuda", "simt") with so many virtual processors."""
    return replace(_PER_TARGET["cpu" if target == "cpu" else "cuda"], vps=vps)


def flops(cell: TracedCell, block: BlockArrays) -> float:
    """Floating point operations of a vertex of a cell; of one with list arguments, of a vertex of mean length.

    Args:
        cell: the program, or a part of it.
        block: the vertices.
    """
    rows = [1.0] * (cell.n_domains + 1)
    for domain, xs in zip(block.cell.lists, block.lists, strict=True):
        rows[domain] = len(xs.elements) / max(len(block.calls), 1)
    total = 0.0
    for node in cell.nodes:
        form = node.op.form
        if form in (Form.MATVEC, Form.PACKED_MATMUL) and node.parameter is not None:
            own = 2 * size(node.shape) * node.parameter.shape[1]
        elif form is Form.MATMUL:
            own = node.op.cost([cell.nodes[i].shape for i in node.inputs], node.shape).flops
        else:
            own = 0 if form in (*SOURCES, *VIEWS) else size(node.shape)
        total += own * rows[node.domain]
    return total
