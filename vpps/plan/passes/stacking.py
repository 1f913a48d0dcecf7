"""Which parameters of a model are stacked: decided anew as cells come, layers are frozen, optimizer groups change."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from vpps.graph.trace import TracedCell
from vpps.model import Lookup, Model, Parameter
from vpps.optim import Optimizer
from vpps.plan.passes import Passes
from vpps.plan.passes.horizontal import find_stacks
from vpps.plan.passes.nodes import simplified
from vpps.plan.stacks import NO_STACKS


class Stacking:
    """The stacks that all cells seen so far agree on.

    Args:
        panel: rows of a packed panel of the target.
        apart: names of matrices, or of their transposes (`U^T`), that the user wants to find by themselves.

    Attributes:
        stacks: as of the latest `see`.
    """

    def __init__(self, model: Model, passes: Passes, panel: int, apart: Collection[str] = ()) -> None:
        self.stacks = NO_STACKS
        self._model = model
        self._passes = passes
        self._panel = panel
        self._apart = {name.removesuffix("^T") for name in apart}
        # Programs that differ: whoever defines a cell anew for every batch makes many alike.
        self._programs: dict[Any, TracedCell] = {}
        self._found_for: tuple[int, int, tuple[str, ...]] | None = None

    def see(self, cells: Iterable[TracedCell], optimizer: Optimizer) -> bool:
        """Take cells into account. Whether other parameters are stacked than before."""
        if not self._passes.horizontal:
            return False
        for cell in cells:
            simple = simplified(cell, self._passes)[0]
            self._programs.setdefault(_structure(simple), simple)
        found_for = len(self._programs), self._model.layout_version, tuple(optimizer.groups)
        if found_for == self._found_for:
            return False
        self._found_for = found_for

        def rule_of(p: Parameter) -> str | None:
            return optimizer.group_of(p.name)

        allowed = [p for p in self._model if p.name not in self._apart and not isinstance(p, Lookup)]
        cells, layout = list(self._programs.values()), self._passes.cell_layout
        stacks = find_stacks(cells, allowed, self._panel, rule_of, layout, self.stacks)
        if stacks.same_as(self.stacks):
            return False
        self.stacks = stacks
        return True


def _structure(cell: TracedCell) -> Any:
    """All of a cell that stacking depends on."""
    return tuple((n.op.name, n.inputs, n.shape, n.domain, n.parameter) for n in cell.nodes), cell.outputs
