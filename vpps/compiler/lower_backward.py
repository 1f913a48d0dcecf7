"""Lowers a traced cell: the backward instructions, and the gradients of the cell's parameters.

Backward is in gather form: no instruction adds to memory that another vertex's instruction writes. A vertex stores one
gradient row per argument. The vertex that produced the argument sums the rows of all uses (`gather_sum`), in fixed
order, through a reverse index list. So there are no atomic additions, and sums are reproducible.

A gradient that equals another one (add, concat, slices, sums of lists) is a view and costs nothing. Contributions to a
broadcast scalar, to a parameter vector, or to a vertex's value used by list elements have memory of their own, and are
reduced (`gather_sum`, `sum`, `column_sum`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from vpps.compiler import matrices
from vpps.compiler.instr import (
    NO_BIAS,
    Args,
    Elements,
    Instr,
    Ints,
    Offsets,
    ParameterGradient,
    SameRow,
    SameRowGradient,
    TableGradient,
    View,
)
from vpps.compiler.lower_forward import Forward
from vpps.compiler.prepare import VIEWS, offset_in_root, root
from vpps.model.model import Lookup, Parameter
from vpps.ops import Form
from vpps.record.trace import Node
from vpps.script.instructions import Flag


class Backward(Forward):
    """Emits a cell's backward instructions."""

    def claim(self, j: int) -> tuple[View, bool]:
        """Return the view for a contribution to node j's gradient, and True if the contribution must be added."""
        whole, offset = root(self.nodes, j), offset_in_root(self.nodes, j)
        if whole not in self.storage:
            self.storage[whole] = self.slab(whole, self.width(whole), self.nodes[whole].domain)
            self.covered[whole] = np.zeros(self.width(whole), bool)
        view = self.storage[whole].part(offset, self.width(j))
        written = self.covered[whole][offset : offset + view.width]
        if written.any():
            self._clear(whole, offset, view.width)
            return view, True
        written[:] = True
        return view, False

    def _clear(self, i: int, offset: int, width: int) -> None:
        """Zero the units of [offset, offset + width) that no instruction has written."""
        covered = self.covered[i][offset : offset + width]
        edges = np.flatnonzero(np.diff(covered, prepend=True, append=True))
        for begin, end in edges.reshape(-1, 2).tolist():
            self.emit("zero", i, self.storage[i].part(offset + begin, end - begin))
        covered[:] = True

    def _take_back(self, k: int, o: int) -> None:
        """Take the gradient of an output from the rows in which the output's only reader left it."""
        dy = View(-1, SameRowGradient(k), 0, 0, self.width(o), 0)
        if self.uses[o] == 1:
            self.alias[o] = dy
        else:
            self._copy(o, o, dy)

    def _copy(self, i: int, j: int, dy: View) -> None:
        """Copy `dy`, the gradient of node i, to the gradient of node j."""
        dst, accumulate = self.claim(j)
        self.emit("copy", i, dst, {"value": 0.0}, accumulate=accumulate, operands={"a": dy})

    def _backward(self, i: int, node: Node) -> None:
        form = node.op.form
        if form in VIEWS:
            return  # the gradient is part of the operand's gradient
        if i in self.storage and i not in self.alias:
            self._clear(i, 0, self.width(i))
        dy = self.alias.get(i) or self.storage.get(i)
        if dy is None:
            return  # no gradient flows into the node
        if form is Form.ARGUMENT:
            self._hand_back(i, dy)
        elif form in (Form.PARAMETER, Form.LOOKUP) and node.finds_matrix_in_memory:
            matrices.rows_of_packed_backward(self, i, node, dy)
        elif form is Form.LOOKUP:
            assert isinstance(node.parameter, Lookup)
            self.out.table_gradients.append(TableGradient(node.parameter, Ints(node.inputs[0]), dy))
        elif form is Form.INPUT:
            self.out.input_gradient = dy
        elif form is Form.PARAMETER:  # the cell reads slices of the parameter
            assert node.parameter is not None
            self._parameter_sum(i, node.parameter, dy)
        elif form is Form.MATVEC:
            self._backward_product(i, node, dy)
        elif form is Form.CONCAT:
            offset = 0
            for j in node.inputs:
                if self.needs[j]:
                    self.pass_on(i, j, dy.part(offset, self.width(j)))
                offset += self.width(j)
        elif form is Form.PACKED_MATMUL:
            matrices.packed_product_backward(self, i, node, dy)
        elif form is Form.MATMUL:
            matrices.product_backward(self, i, node, [self.view_of(j) for j in node.inputs], dy)
        elif form is Form.TRANSPOSE:
            matrices.transpose_backward(self, i, node, dy)
        elif form is Form.LIST_MAP or (form is Form.LIST_REDUCE and node.op.device):
            # The gradient reads the results if the op has one for each element, else the elements.
            views = {"a": self.view_of(i if node.domain else node.inputs[0]), "dy": dy}
            self._over_lists(f"{node.op.name}.grad0", i, node, views, *self.claim(node.inputs[0]))
        elif form is Form.LIST_REDUCE:
            self._backward_list(i, node, dy)
        elif form is Form.DROPOUT:
            self.contribute(i, node.inputs[0], self.width(i), partial(self._dropout, i, node, dy))
        elif form in (Form.MAP, Form.ROWWISE):
            self._backward_plain(i, node, dy)

    def _backward_plain(self, i: int, node: Node, dy: View) -> None:
        operands = [self.view_of(j) for j in node.inputs[: node.op.arity]]
        sources = dict(zip("abcd", [*operands, self.view_of(i), dy], strict=False))
        for k, j in enumerate(node.inputs[: node.op.arity]):
            if not self.needs[j]:
                continue
            if k in node.op.passes:
                self.pass_on(i, j, dy)
                continue
            by_rows = node.op.form is Form.ROWWISE
            values = self._row_values(operands[0].width, node) if by_rows else {"value": node.attrs.get("value", 0.0)}
            write = partial(self.emit, f"{node.op.name}.grad{k}", i, values=values, by_rows=by_rows, operands=sources)
            self.contribute(i, j, self.width(j if by_rows else i), write)

    def _backward_product(self, i: int, node: Node, dy: View) -> None:
        matrix, x = node.parameter, node.inputs[0]
        assert matrix is not None
        place = self.places[matrix]
        if len(node.inputs) > 1 and self.needs[node.inputs[1]]:
            self.pass_on(i, node.inputs[1], dy)
        if self.needs[x]:
            write = partial(self._transposed_product, i, x, matrix, dy)
            self.contribute(i, x, matrix.shape[1], write)
        if matrix.trainable:
            instr = Instr(
                "outer",
                i,
                node.domain,
                matrix.shape[0],
                1,
                {"dy": dy, "x": self.segments(x)},
                {"gradient": place.gradient, "columns": matrix.shape[1]},
                rounds=place.rounds & ~Flag.PAIRS,
            )
            self.add_parameter_gradient(matrix, instr)

    def _transposed_product(self, i: int, x: int, matrix: Parameter, dy: View, dst: View, accumulate: bool) -> None:
        """Emit dst = W^T dy, from a stored transpose, or from W: each owner of W's rows adds its part of the sum."""
        place = self.places[matrix]
        if place.on_chip is not None and place.on_chip.atomic:
            rows = place.on_chip.rows
            assert rows is not None
            if not accumulate:
                self.emit("zero", i, dst, parts_of=x)
            values = {"weights": place.weights, "columns": matrix.shape[1], "matrix": rows.number}
            n, operands = matrix.shape[0], {"dst": dst, "x": dy}
            added = Instr("matvec_transposed", i, dst.domain, n, operands=operands, values=values)
            self.emit_to.append(replace(added, parts=rows.word, turns=True))
            return
        dealt = place.on_chip.transposed if place.on_chip is not None else None
        values = {"weights": place.transposed, "columns": matrix.shape[0], "matrix": dealt.number if dealt else 0}
        factors = {"bias": NO_BIAS, "x": [dy]}
        self.emit(
            "matvec", i, dst, values, parts_of=x, accumulate=accumulate, operands=factors, dealt=dealt,
            rounds=place.rounds,
        )  # fmt: skip

    def _backward_list(self, i: int, node: Node, dy: View) -> None:
        j = node.inputs[0]
        if node.op.name == "list_mean":
            domain = self.nodes[j].domain
            scaled = self.slab(i, dy.width, 0)
            offsets = Offsets(domain, self.view_of(j).row_list(domain))
            self.emit("divide_by_count", i, scaled, {"offsets": offsets}, operands={"src": dy})
            dy = scaled
        self.pass_on(i, j, dy)

    def contribute(self, i: int, j: int, width: int, write: Callable[..., None]) -> None:
        """Let `write(dst=, accumulate=)` compute node i's contribution to node j's gradient, rows of `width` floats.

        If j has fewer rows or floats (a broadcast scalar, a vertex's value used by list elements, a parameter), the
        contribution has memory of its own and is reduced.
        """
        node, target = self.nodes[i], self.nodes[j]
        if not self.is_vector(j) and width == self.width(j) and node.domain == target.domain:
            dst, accumulate = self.claim(j)
            write(dst=dst, accumulate=accumulate)
            return
        own = self.slab(i, width, node.domain)
        write(dst=own, accumulate=False)
        self.reduce_into(i, j, own)

    def pass_on(self, i: int, j: int, dy: View) -> None:
        """Pass `dy`, the gradient of node i, to node j unchanged: as a view if it is j's only gradient, else copied."""
        while self.nodes[j].op.form is Form.RESHAPE and self.uses[j] == 1:
            j = self.nodes[j].inputs[0]
        node, target = self.nodes[i], self.nodes[j]
        # A reduction of a list hands its gradient, one row per vertex, to each element of the list.
        same_rows = node.domain == target.domain or node.op.form is Form.LIST_REDUCE
        if self.is_vector(j) or dy.width != self.width(j) or not same_rows:
            self.reduce_into(i, j, dy)
        elif target.op.form is Form.ARGUMENT:
            self._hand_back(j, dy)
        elif self.uses[j] == 1 and target.op.form not in VIEWS:
            self.alias[j] = dy
        else:
            self._copy(i, j, dy)

    def _hand_back(self, argument: int, dy: View) -> None:
        """Let the producer of an argument find a gradient row for it in `dy`."""
        key = self.view_of(argument).rows
        assert isinstance(key, Args | Elements | SameRow)
        self.out.arguments.append((key, dy))

    def reduce_into(self, i: int, j: int, source: View) -> None:
        """Add `source`, a gradient of node i with more rows or floats than node j has, to j's gradient."""
        domain, target = self.nodes[i].domain, self.nodes[j]
        if source.width != self.width(j):  # a scalar that was broadcast: sum the units
            single = self.slab(i, 1, source.domain)
            values = {"row_width": source.width, "labels": None, "value": 0.0}
            self.emit("sum", i, single, values, by_rows=True, operands={"a": source})
            source = single
        if self.is_vector(j):
            assert target.parameter is not None
            self._parameter_sum(i, target.parameter, source)
        elif domain != target.domain:  # a value of the vertex, used by each of its list elements
            dst, accumulate = self.claim(j)
            self._reduce_list(i, source, dst, domain, accumulate=accumulate)
        else:
            self._copy(i, j, source)

    def _parameter_sum(self, i: int, parameter: Parameter, source: View) -> None:
        """Let the gradient of a parameter vector be the sum of `source` over all rows of node i's domain."""
        domain = source.domain or self.nodes[i].domain
        values = {"vector": self.places[parameter].gradient}
        instr = Instr("column_sum", i, domain, source.width, 1, {"src": source}, values)
        self.add_parameter_gradient(parameter, instr)

    def add_parameter_gradient(self, parameter: Parameter, instr: Instr) -> None:
        """Add an instruction that contributes to a parameter's gradient, over the rows of all groups."""
        self.out.parameter_gradients.append(ParameterGradient(parameter, replace(instr, for_all=self.groups > 1)))
