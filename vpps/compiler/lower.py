"""Lowers a traced cell to instructions: forward, backward, and the gradients of its parameters."""

from __future__ import annotations

from collections.abc import Collection

from vpps.compiler.barriers import assign_groups
from vpps.compiler.instr import Args, Elements, Instr, ParameterGradient, SameRow, Slab, TableGradient, Uses, View
from vpps.compiler.lower_backward import Backward
from vpps.compiler.passes.chaining import chain
from vpps.compiler.passes.fusion import drop_unused_slabs, fuse
from vpps.placement.distribution import Distribution
from vpps.record.trace import TracedCell


class LoweredCell:
    """Instructions of a cell for one distribution.

    Args:
        exclusive: True if all instructions of a vertex are in one virtual processor's script (schedule "paper"), except
            products: the owners of the matrix's rows execute those.
        fusion: True to fuse the elementwise operators between products into one instruction.
        first_same_row: position of the first argument that is a value from another part of the cell, in the same rows.
        taken_back: outputs whose only gradient comes from another part of the cell, in the same rows.
        training: False for inference, which has no backward and stores no values for it.
        unread: outputs that nothing reads, and that therefore get no gradient.

    Attributes:
        cell: the traced cell.
        slabs: memory that each vertex (or list element) needs; inference uses the first `n_forward_slabs`.
        slab_nodes: for each slab, the node whose value, gradient, or contribution to other gradients it holds.
        forward, backward: instructions in order, with their barrier groups.
        parameter_gradients: contributions to dense gradients, to run once over all rows.
        table_gradients: sparse gradients of table rows.
        outputs: view of each output's value.
        arguments: (index list key of the argument, view of the gradient row it hands back), in fixed order.
        is_bare: True if the cell is a single op.
        input_gradient: view of a graph input's gradient, if the user wants it.
    """

    def __init__(
        self,
        cell: TracedCell,
        distribution: Distribution,
        exclusive: bool,
        fusion: bool,
        first_same_row: int | None = None,
        taken_back: Collection[int] = (),
        training: bool = True,
        unread: Collection[int] = (),
    ) -> None:
        self.cell = cell
        self.unread = unread
        self.first_same_row = len(cell.kinds) if first_same_row is None else first_same_row
        self.taken_back = taken_back
        self.slabs: list[Slab] = []
        self.slab_nodes: list[int] = []
        self.n_forward_slabs = 0
        self.forward: list[Instr] = []
        self.backward: list[Instr] = []
        self.parameter_gradients: list[ParameterGradient] = []
        self.table_gradients: list[TableGradient] = []
        self.outputs: list[View] = []
        self.arguments: list[tuple[Args | Elements | SameRow, View]] = []
        self.input_gradient: View | None = None
        self.is_bare = False
        Lowering(self, distribution, exclusive).run(training, fusion)

    def read_at_the_end(self) -> list[View]:
        """Return the views that other vertices, parameter gradients and the user read."""
        found = [*self.outputs, *(view for _, view in self.arguments)]
        for g in self.parameter_gradients:
            found.extend(view for _, view in g.instr.views())
        found.extend(g.view for g in self.table_gradients)
        if self.input_gradient is not None:
            found.append(self.input_gradient)
        return found


class Lowering(Backward):
    """The lowering pass of one cell."""

    def run(self, training: bool, fusion: bool) -> None:
        """Fill in the LoweredCell."""
        for i in self.order:
            if self.live[i]:
                self._forward(i, self.nodes[i])
        self.out.outputs = [self.view_of(o) for o in self.outputs]
        self.out.n_forward_slabs = len(self.out.slabs)
        if training:
            self._all_backward()
        self.out.is_bare = self._is_bare
        if fusion and not self.out.is_bare:
            fuse(self.out)
        for instrs in (self.out.forward, self.out.backward):
            assign_groups(instrs, self.granule, self.n_vps, self.exclusive)
        if fusion and not self.exclusive:
            chain(self.out, self.n_vps)
            drop_unused_slabs(self.out)

    def _all_backward(self) -> None:
        self.emit_to = self.out.backward
        for k, o in enumerate(self.outputs):
            if k in self.out.unread:
                continue
            if self.needs[o] and k in self.out.taken_back:
                self._take_back(k, o)
            elif self.needs[o]:
                dst, accumulate = self.claim(o)
                self.emit("gather_sum", o, dst, values={"offsets": Uses(k), "shift": 0}, accumulate=accumulate)
        for i in reversed(self.order):
            if self.live[i] and self.needs[i]:
                self._backward(i, self.nodes[i])
