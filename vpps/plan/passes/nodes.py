"""Runs the passes that work on the nodes of a cell."""

from __future__ import annotations

from collections.abc import Callable

from vpps.graph.trace import TracedCell
from vpps.plan.passes import Passes
from vpps.plan.passes.common_subexpressions import common_subexpressions
from vpps.plan.passes.constants import fold_constants
from vpps.plan.passes.horizontal import horizontal
from vpps.plan.stacks import Stacks

Note = tuple[str, str]  # name of a pass (a field of `Passes`), what it did to a cell
NodePass = Callable[[TracedCell], tuple[TracedCell, str]]

# In this order: what was folded may be written twice.
NODE_PASSES: tuple[tuple[str, NodePass], ...] = (
    ("constants", fold_constants),
    ("common_subexpressions", common_subexpressions),
)


def simplified(cell: TracedCell, passes: Passes) -> tuple[TracedCell, list[Note]]:
    """The cell after the passes that need to know nothing else, and what each of them did."""
    notes: list[Note] = []
    for name, node_pass in NODE_PASSES:
        if getattr(passes, name):
            cell, said = node_pass(cell)
            notes.append((name, said))
    return cell, notes


def compiled(cell: TracedCell, passes: Passes, stacks: Stacks) -> tuple[TracedCell, list[Note]]:
    """The cell after these passes and horizontal fusion, which needs the stacks that all cells agree on."""
    cell, notes = simplified(cell, passes)
    if passes.horizontal:
        cell, said = horizontal(cell, stacks, passes.cell_layout)
        notes.append(("horizontal", said))
    return cell, notes
