"""Grouping: assigns the vertices of a graph to groups of virtual processors.

Groups wait for each other only at barriers across all groups. So vertices that depend on each other belong to one
group: each connected component of the graph is assigned to a group. Two kinds do not connect their neighbours:

    sources read nothing (a table row, a graph input, zeros). If the work would otherwise be uneven, sources with many
        readers, such as the initial state of all sequences, run before everything else.
    joining vertices run after all others and use only scalars: the sum of the losses, its scale.

Group 0 runs both kinds while the other groups wait; backward runs them in the opposite order. Each group holds one copy
of the weights. All virtual processors share the gradients and the update, over all rows (flag ALL), so there are no
partial gradients to reduce.
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
    """Assignment of a graph's vertices to groups. The policy's stages are shifted to make room for sources.

    Attributes:
        first_own: first stage after the shared sources.
        first_joining: first stage of the joining vertices.
        n_components: number of connected components that have any work.
        work: for each group, the number of floats that its vertices process in forward.
    """

    first_own: int
    first_joining: int
    n_components: int
    work: NDArray[np.float64]

    def describe(self) -> str:
        """Return one line that says how evenly the work is divided and explains any imbalance."""
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
    """Return the floats that a vertex processes in forward, and the floats per element of each list argument."""
    of_domain = [0] * (cell.cell.n_domains + 1)
    for instr in cell.lowered.forward:
        of_domain[instr.domain] += _floats(instr)
    lists = cell.cell.lists
    return of_domain[0], [of_domain[d] if lists.index(d) == k else 0 for k, d in enumerate(lists)]


def _floats(instr: Instr) -> int:
    """Return the number of floats that an instruction processes for one row; for a product, the size of the matrix."""
    inner = instr.values.get("inner", 1) if "matmul" in instr.name else instr.values.get("columns", 1)
    return instr.width * inner if "matmul" in instr.name or instr.name == "matvec" else instr.width
