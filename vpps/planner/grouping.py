"""Grouping: assigns the vertices of a graph to groups of virtual processors.

Groups wait for each other only at barriers of all groups. So vertices that depend on each other belong to one group:
each connected component of the graph is assigned to a group. Two kinds of vertices do not connect their neighbours:

    sources read nothing (a row of a table, a graph input, zeros). If work would be uneven otherwise, sources with many
        readers run before everything else, such as the initial state of all sequences.
    joining vertices come last and work on scalars only: the sum of the losses, its scale. They run after all others.

Group 0 runs both kinds while the other groups wait; backward runs them in the opposite order. Each group holds the
weights once. Gradients and the update are divided among all virtual processors over all rows (flag ALL), so there are
no partial gradients to reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.encoded_cell import EncodedCell
from vpps.compiler.instr import Instr
from vpps.ops import size
from vpps.record.trace import List, TracedCell, Vector


@dataclass(frozen=True, slots=True)
class Grouping:
    """Assignment of the vertices of a graph to groups. The stages of the policy are shifted to make room for sources.

    Attributes:
        first_own: first stage after those of the shared sources.
        first_joining: first stage of the joining vertices.
        n_components: number of connected components that have any work.
        work: per group, the floats that its vertices compute with in forward.
    """

    first_own: int
    first_joining: int
    n_components: int
    work: NDArray[np.float64]

    def describe(self) -> str:
        """Return one line that says how even the work is and, if it is uneven, why."""
        shares = ", ".join(f"{share:.0%}" for share in self.work / max(self.work.sum(), 1.0))
        line = (
            f"{len(self.work)} groups have {shares} of the work of {self.n_components} unconnected parts of the graph"
        )
        if not self.some_idle:
            return line
        return f"{line}; vertices that depend on each other belong to one group, so some have nothing to do"

    @property
    def some_idle(self) -> bool:
        """True if a group has nothing to do."""
        return not self.work.all()


def is_scalar(cell: TracedCell) -> bool:
    """Return True if all operands and outputs of a cell are scalars and no parameter is a matrix."""
    shapes = [kind.shape for kind in cell.kinds if isinstance(kind, Vector | List)]
    shapes += [cell.nodes[o].shape for o in cell.outputs]
    matrices = any(len(p.shape) > 1 for p in cell.parameters)
    return not matrices and all(shape is None or size(shape) == 1 for shape in shapes)


def floats_of(cell: EncodedCell) -> tuple[int, list[int]]:
    """Return the floats that a vertex computes with in forward, and those per element of each list argument."""
    of_domain = [0] * (cell.cell.n_domains + 1)
    for instr in cell.lowered.forward:
        of_domain[instr.domain] += _floats(instr)
    lists = cell.cell.lists
    return of_domain[0], [of_domain[d] if lists.index(d) == k else 0 for k, d in enumerate(lists)]


def _floats(instr: Instr) -> int:
    """Return the floats that an instruction computes with for one row; for a product, those of the matrix."""
    inner = instr.values.get("inner", 1) if "matmul" in instr.name else instr.values.get("columns", 1)
    return instr.width * inner if "matmul" in instr.name or instr.name == "matvec" else instr.width
