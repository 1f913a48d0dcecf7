"""Which vertices each group of virtual processors runs: no group waits for another one but at barriers of all.

Vertices that depend on each other belong together: the connected components of the graph are dealt to groups. Two kinds
of vertices do not connect what they touch:

    sources read nothing (a row of a table, a graph input, zeros). Those with many readers, such as the initial state of
        all sequences, run before everything else where work would be uneven otherwise.
    joining vertices come last and have to do with scalars alone: the sum of the losses, its scale. They run after all.

Both are run by group 0 while the others wait; backward in the opposite order. Each group holds the weights once.
Gradients and the update are divided among all virtual processors over all rows (flag ALL), so there are no partial
gradients to reduce.
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
    """How the vertices of a graph are dealt to groups.

    Attributes:
        first_own: stages of the policy are moved: those before this one are of shared sources.
        first_joining: stages from this one on are those of joining vertices.
        n_components: of the graph, those with any work.
        work: of each group: floats that its vertices compute with, in forward.
    """

    first_own: int
    first_joining: int
    n_components: int
    work: NDArray[np.float64]

    def describe(self) -> str:
        """One line: how even the work is, and why if it is not."""
        shares = ", ".join(f"{share:.0%}" for share in self.work / max(self.work.sum(), 1.0))
        line = (
            f"{len(self.work)} groups have {shares} of the work of {self.n_components} unconnected parts of the graph"
        )
        if not self.some_idle:
            return line
        return f"{line}; vertices that depend on each other belong to one group, so some have nothing to do"

    @property
    def some_idle(self) -> bool:
        """Whether a group has nothing to do."""
        return not self.work.all()


def is_scalar(cell: TracedCell) -> bool:
    """Whether all that a cell reads and gives is scalar, and none of its parameters is a matrix."""
    shapes = [kind.shape for kind in cell.kinds if isinstance(kind, Vector | List)]
    shapes += [cell.nodes[o].shape for o in cell.outputs]
    matrices = any(len(p.shape) > 1 for p in cell.parameters)
    return not matrices and all(shape is None or size(shape) == 1 for shape in shapes)


def floats_of(cell: EncodedCell) -> tuple[int, list[int]]:
    """Floats that a vertex of a cell computes with in forward, and for each element of every list argument."""
    of_domain = [0] * (cell.cell.n_domains + 1)
    for instr in cell.lowered.forward:
        of_domain[instr.domain] += _floats(instr)
    lists = cell.cell.lists
    return of_domain[0], [of_domain[d] if lists.index(d) == k else 0 for k, d in enumerate(lists)]


def _floats(instr: Instr) -> int:
    """Floats that an instruction computes with for one row: of a product, those of the matrix."""
    inner = instr.values.get("inner", 1) if "matmul" in instr.name else instr.values.get("columns", 1)
    return instr.width * inner if "matmul" in instr.name or instr.name == "matvec" else instr.width
