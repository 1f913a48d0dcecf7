"""Decides which parameters are stacked; decides again whenever cells, frozen layers or optimizer groups change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any

from vpps.compiler.passes import Passes
from vpps.compiler.passes.cell_history import CellHistory
from vpps.compiler.passes.common_subexpressions import by_bits
from vpps.compiler.passes.horizontal import find_stacks, serves
from vpps.compiler.passes.nodes import simplified
from vpps.compiler.prepare import live_nodes
from vpps.model.model import Lookup, Model, Parameter
from vpps.model.optim import Optimizer
from vpps.ops import Form
from vpps.placement.stacks import NO_STACKS, Stack, Stacks
from vpps.record.trace import TracedCell


class Stacking:
    """The stacks that suit all cells with which a model is trained. If another call, such as inference, has cells that
    cannot use them, it gets stacks that suit its cells as well. So calls between training steps change neither the
    stacks nor the bits of the steps.

    Args:
        panel: rows of a packed panel of the target.
        apart: names of matrices, or of their transposes (`U^T`), that the user wants unstacked.
        history: earlier training history of the model, which is extended. Default: empty.
        taken: function of a parameter, such as its number of steps; its result must be equal for a whole stack.

    Attributes:
        stacks: the stacks for the latest `see`; a new object only if they change.
        cells: the cells that decided the stacks; a new object only if they change.
        history: the training history of the model.
    """

    def __init__(
        self,
        model: Model,
        passes: Passes,
        panel: int,
        apart: Collection[str] = (),
        history: CellHistory | None = None,
        taken: Callable[[Parameter], Any] = lambda p: 0,
    ) -> None:
        self._taken = taken
        self.stacks = NO_STACKS
        self.cells: tuple[TracedCell, ...] = ()
        self._model = model
        self._passes = passes
        self._panel = panel
        self._apart = {name.removesuffix("^T") for name in apart}
        self.adopt(CellHistory() if history is None else history)

    def adopt(self, history: CellHistory) -> None:
        """Continue with another history; the stacks do not change until the next `see`."""
        self.history = history
        self.let_go()
        self._for_all: tuple[Stacks, tuple[TracedCell, ...]] | None = None
        self._wanted: tuple[Stacks, tuple[TracedCell, ...]] | None = None  # by the latest `see`

    def let_go(self) -> None:
        """Clear the caches of cells; the next `see` fills them again."""
        self._seen_for: tuple[int, tuple[str, ...]] | None = None
        # The first cell with each program: a user who redefines a cell for every batch makes many equal cells.
        self._first_of: dict[Any, TracedCell] = {}
        self._first: dict[TracedCell, TracedCell | None] = {}
        self._seen: set[TracedCell] = set()  # cells that do not influence stacking, or equal a trained one
        self._simple: dict[TracedCell, TracedCell] = {}

    def see(self, cells: Collection[TracedCell], optimizer: Optimizer, trains: bool = True) -> None:
        """Find stacks for the cells of a graph. If Ctrl-C interrupts the call, the next call finds them.

        Args:
            trains: True for a training step, which influences the stacks of all later calls.
        """
        seen_for = self._model.layout_version, tuple(optimizer.groups)
        if self._seen_for != seen_for:  # frozen parameters have no gradients, so more nodes are folded
            self.let_go()
            self._trained = dict.fromkeys(first for cell in self.history.cells if (first := self._first_like(cell)))
            self._beside: dict[TracedCell, bool] = {}  # cells of other calls -> True if the stacks suit them
            self._decide(optimizer)
            self._seen_for = seen_for
        new = [] if self.has_seen(cells) else self._new(cells)
        if trains and new:
            self._seen_for = None
            self.history.cells.extend(new)
            self._trained.update(dict.fromkeys(new))
            self._decide(optimizer)
            self._seen_for = seen_for
            self._seen.update(cells)
        wanted = self._decided
        if not trains and new:
            for first in new:
                if first not in self._beside:
                    self._for_all = None
                    self._beside[first] = self._can_do(first)
            if not self._trained or not all(self._beside[first] for first in new):
                if self._for_all is None:
                    self._for_all = self._agreed([*self._trained, *self._beside], optimizer)
                wanted = self._for_all
        if wanted is self._wanted:
            return
        stacks, self.cells = wanted
        if not stacks.same_as(self.stacks):
            self.stacks = stacks
        self._wanted = wanted

    def part(self, moved: Container[Parameter]) -> bool:
        """Undo every stack in which a step updates only some of the members; call after `see`. Returns True if there
        were such stacks; the next `see` then finds others."""
        stacks = [stack for stack in self._decided[0].all if stack.trainable]
        apart = {p.name for stack in stacks for p in _differing(stack, [p in moved for p in stack.members])}
        if apart:
            self.history.apart |= apart
            self._seen_for = None
        return bool(apart)

    def has_seen(self, cells: Collection[TracedCell]) -> bool:
        """Return True if training steps have used all of these cells, so that another step changes nothing."""
        return self._seen.issuperset(cells)

    def _new(self, cells: Collection[TracedCell]) -> list[TracedCell]:
        """Return the first cell of each program that no training step has used; mark all other cells as seen."""
        firsts = {cell: self._first_like(cell) for cell in cells}
        self._seen.update(cell for cell, first in firsts.items() if first is None or first in self._trained)
        return [first for first in dict.fromkeys(firsts.values()) if first is not None and first not in self._trained]

    def _decide(self, optimizer: Optimizer) -> None:
        """Decide the stacks for training steps."""
        self._decided = self._agreed(list(self._trained), optimizer)
        self.history.orders = self._decided[0].orders
        self._beside = {first: self._can_do(first) for first in self._beside}
        self._for_all = None

    def _agreed(self, cells: Sequence[TracedCell], optimizer: Optimizer) -> tuple[Stacks, tuple[TracedCell, ...]]:
        """Return the stacks that suit the given cells, and these cells."""
        if not self._passes.horizontal:
            return NO_STACKS, tuple(cells)

        def rule_of(p: Parameter) -> str | None:
            return optimizer.group_of(p.name)

        programs, before = [self._simple[cell] for cell in cells], self.history.orders
        while True:
            apart = self._apart | self.history.apart
            allowed = [p for p in self._model if p.name not in apart and not isinstance(p, Lookup)]
            found = find_stacks(programs, allowed, self._panel, rule_of, before)
            stacks = [stack for stack in found.all if stack.trainable]
            differing = {p.name for stack in stacks for p in _differing(stack, list(map(self._taken, stack.members)))}
            if not differing:
                return found, tuple(cells)
            self.history.apart |= differing

    def _can_do(self, cell: TracedCell) -> bool:
        return serves(self._decided[0], self._simple[cell])

    def _first_like(self, cell: TracedCell) -> TracedCell | None:
        """Return the first cell with an equal program; None for a cell without parameters, which affects no stack."""
        if cell not in self._first:
            first = None
            if any(not isinstance(p, Lookup) for p in cell.parameters):
                simple = simplified(cell)[0]
                first = self._first_of.setdefault(_structure(simple), cell)
                self._simple.setdefault(first, simple)
            self._first[cell] = first
        return self._first[cell]


def _differing(stack: Stack, taken: list[Any]) -> list[Parameter]:
    """Return the stack members whose value in `taken` differs from the most common value."""
    most = max(taken, key=taken.count)
    return [p for p, one in zip(stack.members, taken, strict=True) if one != most]


def _structure(cell: TracedCell) -> Any:
    """Return a key of all that stacking depends on: of attributes, only a slice's start and the equality of others."""
    live = live_nodes(cell.nodes, cell.outputs)
    of = [(n.op.name, n.parameter) for n, used in zip(cell.nodes, live, strict=True) if used]
    of = [(op, p) for op, p in of if p is not None and not isinstance(p, Lookup)]
    if len({(op, p.shape) for op, p in of if p is not None}) == len(of):
        return tuple(of)  # no two parameters can be stacked, so nothing else in the cell matters
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


def read_history(
    raw: Mapping[str, Any], named: Mapping[str, Parameter | None], parameters: Collection[Parameter]
) -> CellHistory:
    """Read an untrusted history, and run on it everything that `see` would run, so that errors are raised here."""
    history = CellHistory.from_json(raw, named)
    programs = [simplified(cell)[0] for cell in history.cells]
    find_stacks(programs, parameters, 1, before=history.orders)
    return history
