"""Which parameters of a model are stacked: decided anew as cells come, layers are frozen, optimizer groups change."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from vpps.graph.trace import TracedCell
from vpps.model import Lookup, Model, Parameter
from vpps.ops import Form
from vpps.optim import Optimizer
from vpps.plan.passes import Passes
from vpps.plan.passes.cell_history import CellHistory
from vpps.plan.passes.common_subexpressions import by_bits
from vpps.plan.passes.horizontal import find_stacks
from vpps.plan.passes.nodes import simplified
from vpps.plan.stacks import NO_STACKS


class Stacking:
    """The stacks that all cells seen so far agree on.

    Args:
        panel: rows of a packed panel of the target.
        apart: names of matrices, or of their transposes (`U^T`), that the user wants to find by themselves.
        history: what has been seen before; goes on here. Default: nothing.

    Attributes:
        stacks: as of the latest `see`.
        history: what has been seen.
    """

    def __init__(
        self,
        model: Model,
        passes: Passes,
        panel: int,
        apart: Collection[str] = (),
        history: CellHistory | None = None,
    ) -> None:
        self.stacks = NO_STACKS
        self._model = model
        self._passes = passes
        self._panel = panel
        self._apart = {name.removesuffix("^T") for name in apart}
        self.adopt(CellHistory() if history is None else history)

    def adopt(self, history: CellHistory) -> None:
        """Go on with another history; the stacks stay until the next `see`."""
        self.history = history
        # Programs that differ: whoever defines a cell anew for every batch makes many alike.
        self._programs: dict[Any, TracedCell] = {}
        self._simplified_for = -1  # the model's layout: what is frozen has no gradient, which leaves less to compute
        self._found_for: tuple[int, int, tuple[str, ...]] | None = None

    def see(self, cells: Iterable[TracedCell], optimizer: Optimizer) -> bool:
        """Take cells into account. Whether other parameters are stacked than before."""
        layout = self._model.layout_version
        if self._simplified_for != layout:
            self._simplified_for, self._programs = layout, {}
            for cell in self.history.cells:
                self._programs.setdefault(*self._program(cell))
        for cell in cells:
            if any(not isinstance(p, Lookup) for p in cell.parameters):
                structure, simple = self._program(cell)
                if structure not in self._programs:
                    self._programs[structure] = simple
                    self.history.cells.append(cell)
        found_for = len(self._programs), layout, tuple(optimizer.groups)
        if not self._passes.horizontal or found_for == self._found_for:
            return False
        self._found_for = found_for

        def rule_of(p: Parameter) -> str | None:
            return optimizer.group_of(p.name)

        allowed = [p for p in self._model if p.name not in self._apart and not isinstance(p, Lookup)]
        programs, history = list(self._programs.values()), self.history
        stacks = find_stacks(programs, allowed, self._panel, rule_of, self._passes.cell_layout, history.orders)
        history.orders = stacks.orders
        if stacks.same_as(self.stacks):
            return False
        self.stacks = stacks
        return True

    def _program(self, cell: TracedCell) -> tuple[Any, TracedCell]:
        simple = simplified(cell, self._passes)[0]
        return _structure(simple), simple


def _structure(cell: TracedCell) -> Any:
    """All of a cell that stacking depends on. Of attributes that is where a slice begins, and which are equal."""
    alike: dict[Any, int] = {}
    return cell.outputs, tuple(
        (
            n.op.name,
            n.inputs,
            n.shape,
            n.domain,
            n.parameter,
            n.attrs["start"]
            if n.op.form is Form.SLICE
            else alike.setdefault(by_bits(n.attrs), len(alike))
            if n.op.form is not Form.INDEX
            else 0,
        )
        for n in cell.nodes
    )


def tried(history: CellHistory, parameters: Collection[Parameter]) -> CellHistory:
    """A history of which nobody knows whether it is one, after all has been done with it that `see` would do."""
    programs = [simplified(cell, Passes())[0] for cell in history.cells]
    find_stacks(programs, parameters, 1, before=history.orders)
    return history
