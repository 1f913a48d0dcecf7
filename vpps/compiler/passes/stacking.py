"""Which parameters of a model are stacked: decided anew as cells come, layers are frozen, optimizer groups change."""

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
    """The stacks that all cells agree on that a model is trained with. For a call that is no step of training, and
    whose cells cannot do with them, those that its cells agree on, too: whatever is called between steps, they have
    the same stacks, and the same bits.

    Args:
        panel: rows of a packed panel of the target.
        apart: names of matrices, or of their transposes (`U^T`), that the user wants to find by themselves.
        history: what the model has been trained with before; goes on here. Default: nothing.
        taken: the steps that a parameter has taken, say: equal for all of a stack.

    Attributes:
        stacks: as of the latest `see`; another object when they are others.
        cells: that had a say in them; another object when they are others.
        history: what the model has been trained with.
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
        """Go on with another history; the stacks stay until the next `see`."""
        self.history = history
        self.let_go()
        self._for_all: tuple[Stacks, tuple[TracedCell, ...]] | None = None
        self._wanted: tuple[Stacks, tuple[TracedCell, ...]] | None = None  # by the latest `see`

    def let_go(self) -> None:
        """Forget what cells are; the next `see` finds it out again."""
        self._seen_for: tuple[int, tuple[str, ...]] | None = None
        # Cells whose programs differ: whoever defines a cell anew for every batch makes many alike.
        self._first_of: dict[Any, TracedCell] = {}
        self._first: dict[TracedCell, TracedCell | None] = {}
        self._seen: set[TracedCell] = set()  # those that have no say, or are like one that steps have had
        self._simple: dict[TracedCell, TracedCell] = {}

    def see(self, cells: Collection[TracedCell], optimizer: Optimizer, trains: bool = True) -> None:
        """Find stacks for the cells of a graph. Where Ctrl-C comes, the next call finds them.

        Args:
            trains: for a step of training, which has a say in the stacks of all that follow.
        """
        seen_for = self._model.layout_version, tuple(optimizer.groups)
        if self._seen_for != seen_for:  # what is frozen has no gradient, which leaves less to compute
            self.let_go()
            self._trained = dict.fromkeys(first for cell in self.history.cells if (first := self._first_like(cell)))
            self._beside: dict[TracedCell, bool] = {}  # cells of other calls: whether they can do with what was decided
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
        """Stop stacking parameters of which a step moves some and not others; called after `see`. Returns True if there
        were such; the next `see` then finds other stacks."""
        stacks = [stack for stack in self._decided[0].all if stack.trainable]
        apart = {p.name for stack in stacks for p in _differing(stack, [p in moved for p in stack.members])}
        if apart:
            self.history.apart |= apart
            self._seen_for = None
        return bool(apart)

    def has_seen(self, cells: Collection[TracedCell]) -> bool:
        """Whether steps with all of them were seen, so that another one would change nothing."""
        return self._seen.issuperset(cells)

    def _new(self, cells: Collection[TracedCell]) -> list[TracedCell]:
        """First cells with programs that no step has had; notes all others."""
        firsts = {cell: self._first_like(cell) for cell in cells}
        self._seen.update(cell for cell, first in firsts.items() if first is None or first in self._trained)
        return [first for first in dict.fromkeys(firsts.values()) if first is not None and first not in self._trained]

    def _decide(self, optimizer: Optimizer) -> None:
        """For steps of training."""
        self._decided = self._agreed(list(self._trained), optimizer)
        self.history.orders = self._decided[0].orders
        self._beside = {first: self._can_do(first) for first in self._beside}
        self._for_all = None

    def _agreed(self, cells: Sequence[TracedCell], optimizer: Optimizer) -> tuple[Stacks, tuple[TracedCell, ...]]:
        """Stacks for cells."""
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
        """The first cell with an equal program; None for one without parameters, which has no say."""
        if cell not in self._first:
            first = None
            if any(not isinstance(p, Lookup) for p in cell.parameters):
                simple = simplified(cell)[0]
                first = self._first_of.setdefault(_structure(simple), cell)
                self._simple.setdefault(first, simple)
            self._first[cell] = first
        return self._first[cell]


def _differing(stack: Stack, taken: list[Any]) -> list[Parameter]:
    """The members of which something else holds than of most."""
    most = max(taken, key=taken.count)
    return [p for p, one in zip(stack.members, taken, strict=True) if one != most]


def _structure(cell: TracedCell) -> Any:
    """All of a cell that stacking depends on. Of attributes that is where a slice begins, and which are equal."""
    live = live_nodes(cell.nodes, cell.outputs)
    of = [(n.op.name, n.parameter) for n, used in zip(cell.nodes, live, strict=True) if used]
    of = [(op, p) for op, p in of if p is not None and not isinstance(p, Lookup)]
    if len({(op, p.shape) for op, p in of if p is not None}) == len(of):
        return tuple(of)  # no two to be stacked: nothing else counts, such as the shapes of what they multiply
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
    """A history of which nobody knows whether it is one, after all has been done with it that `see` would do."""
    history = CellHistory.from_json(raw, named)
    programs = [simplified(cell)[0] for cell in history.cells]
    find_stacks(programs, parameters, 1, before=history.orders)
    return history
