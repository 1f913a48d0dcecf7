"""Lowers a traced cell to instructions: forward, backward, and the gradients of its parameters.

Backward is in gather form (design 4.6): nothing adds into memory that another vertex's instruction writes. A vertex
stores one gradient row per argument; the vertex that produced the argument sums the rows of all its uses, in fixed
order, through a reverse index list. Where a gradient is the gradient of something else unchanged (add, concat, slices,
sums of lists), it is a view of it and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from vpps.graph.trace import Node, TracedCell
from vpps.model import Lookup, Parameter
from vpps.ops import Form, size
from vpps.ops.dropout import threshold
from vpps.plan import lists, matrices
from vpps.plan.barriers import assign_groups
from vpps.plan.distribution import Dealt, Distribution
from vpps.plan.instr import (
    NO_BIAS,
    Args,
    Beside,
    BesideGradient,
    Calls,
    Data,
    Elements,
    Expand,
    Instr,
    Ints,
    ListKey,
    Offsets,
    ParameterGradient,
    Positions,
    RandomKey,
    Slab,
    TableGradient,
    TableRows,
    Uses,
    View,
)
from vpps.plan.passes import Passes
from vpps.plan.passes.chaining import chain
from vpps.plan.passes.fusion import drop_unused_slabs, fuse
from vpps.plan.prepare import VIEWS, execution_order, live_nodes, offset_of, parts_of_units, prepare
from vpps.script.slices import sliced_by_rows

# Of a product's operand. An instruction names them all, and must fit into what a GPU has at hand of the script
# (SCRIPT_WORDS of vpps/kernel/chip.py). Longer concatenations are made.
MAX_SEGMENTS = 256

# Nodes that compute nothing.
SOURCES = (Form.ARGUMENT, Form.INDEX, Form.PARAMETER, *VIEWS)


class LoweredCell:
    """Instructions of a cell for one distribution.

    Args:
        exclusive: each vertex's instructions will be in the script of one virtual processor (schedule "paper"), but for
            products, which those execute that hold rows of the matrix.
        passes: of the cell compiler.
        first_beside: arguments from this position on are values of other parts of the cell, in the same rows.
        taken_back: outputs whose gradient one other part hands back, in the same rows, and nothing else does.
        training: False for inference alone: no backward, and nothing is kept for one.
        unread: outputs that nothing reads: no gradient comes back from them.

    Attributes:
        cell: the traced cell.
        slabs: memory that each vertex (or list element) needs; the first `n_forward_slabs` of them for inference.
        slab_nodes: of each slab, the node whose value, gradient, or contribution to other gradients it holds.
        forward, backward: instructions in order, with their barrier groups.
        parameter_gradients: contributions to dense gradients, to run once over all rows.
        table_gradients: sparse ones.
        outputs: view of each output's value.
        arguments: (index list key of the argument, view of the gradient row it hands back), in fixed order.
        is_bare: it is a single op.
        input_gradient: view of a graph input's gradient, if it was asked for.
        unfused: how many instructions forward and backward had before fusion.
    """

    def __init__(
        self,
        cell: TracedCell,
        distribution: Distribution,
        exclusive: bool,
        passes: Passes,
        first_beside: int | None = None,
        taken_back: Collection[int] = (),
        training: bool = True,
        unread: Collection[int] = (),
    ) -> None:
        self.cell = cell
        self.unread = unread
        self.first_beside = len(cell.kinds) if first_beside is None else first_beside
        self.taken_back = taken_back
        self.slabs: list[Slab] = []
        self.slab_nodes: list[int] = []
        self.n_forward_slabs = 0
        self.forward: list[Instr] = []
        self.backward: list[Instr] = []
        self.parameter_gradients: list[ParameterGradient] = []
        self.table_gradients: list[TableGradient] = []
        self.outputs: list[View] = []
        self.arguments: list[tuple[Args | Elements | Beside, View]] = []
        self.input_gradient: View | None = None
        self.is_bare = False
        self.unfused = 0, 0
        Lowering(self, distribution, exclusive, passes).run(training)

    def read_at_the_end(self) -> list[View]:
        """What is read of a vertex by other vertices, by the gradients of parameters, and by the user."""
        found = [*self.outputs, *(view for _, view in self.arguments)]
        for g in self.parameter_gradients:
            found.extend(view for _, view in g.instr.views())
        found.extend(g.view for g in self.table_gradients)
        if self.input_gradient is not None:
            found.append(self.input_gradient)
        return found


class Lowering:
    """The pass itself; state that is dropped afterwards."""

    def __init__(self, result: LoweredCell, distribution: Distribution, exclusive: bool, passes: Passes) -> None:
        self.out = result
        self.exclusive = exclusive
        self.passes = passes
        self.places = distribution.physical
        self.n_vps = distribution.n_vps
        self.groups = distribution.groups
        self.granule = distribution.panel
        self.nodes, self.outputs = prepare(result.cell)
        self.order = execution_order(self.nodes)
        self.live = live_nodes(self.nodes, self.outputs)
        self.read = [o for k, o in enumerate(self.outputs) if k not in result.unread]
        self.leads_to_read = live_nodes(self.nodes, self.read)
        self.uses = self._uses()
        self.needs = self._needs()
        self.parts = parts_of_units(self.nodes, self.live, self.granule)
        self.view: list[View | None] = [None] * len(self.nodes)
        # Gradients: where each node's is collected, and which units of it have been written so far.
        self.storage: dict[int, View] = {}
        self.covered: dict[int, np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self.alias: dict[int, View] = {}
        self.emit_to = result.forward

    # ---- analysis

    def _uses(self) -> list[int]:
        uses = [0] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            if self.leads_to_read[i]:
                for j in node.inputs:
                    uses[j] += 1
        for o in self.read:
            uses[o] += 1
        return uses

    @property
    def _is_bare(self) -> bool:
        """Whether the cell is a single op, as a bare one on a graph is: those never take a kernel of their own."""
        return sum(live and node.op.form not in SOURCES for live, node in zip(self.live, self.nodes, strict=True)) < 2

    def _needs(self) -> list[bool]:
        """Which nodes have a gradient that something wants."""
        needs = [False] * len(self.nodes)
        for i in self.order:
            if not self.leads_to_read[i]:
                continue
            node = self.nodes[i]
            form = node.op.form
            if form is Form.ARGUMENT:
                needs[i] = True
            elif form is Form.INPUT:
                needs[i] = node.attrs["grad"]
            elif not node.op.differentiable:
                needs[i] = False
            else:
                trained = node.parameter is not None and node.parameter.trainable
                needs[i] = trained or any(needs[j] for j in node.inputs)
        return needs

    def width(self, i: int) -> int:
        """Floats of a row of node i."""
        return size(self.nodes[i].shape)

    # ---- emission

    def run(self, training: bool) -> None:
        """Fill the LoweredCell."""
        for i in self.order:
            if self.live[i]:
                self._forward(i, self.nodes[i])
        self.out.outputs = [self.view_of(o) for o in self.outputs]
        self.out.n_forward_slabs = len(self.out.slabs)
        if training:
            self._all_backward()
        self.out.is_bare = self._is_bare
        self.out.unfused = len(self.out.forward), len(self.out.backward)
        if self.passes.fusion and not self.out.is_bare:
            fuse(self.out, self.passes.recompute)
        for instrs in (self.out.forward, self.out.backward):
            assign_groups(instrs, self.granule, self.n_vps, self.exclusive or not self.passes.alignment)
        if self.passes.fusion and self.passes.alignment and not self.exclusive:
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

    def emit(
        self,
        name: str,
        node: int,
        dst: View,
        values: dict[str, Any] | None = None,
        parts_of: int | None = None,
        by_rows: bool = False,
        accumulate: bool = False,
        mean: bool = False,
        gathers: tuple[View, ...] = (),
        operands: dict[str, Any] | None = None,
        lists_of: int = 0,
        dealt: Dealt | None = None,
    ) -> None:
        """Append an instruction that writes `dst`, dealt like node `parts_of` (default: `node`) if that is as wide.

        One that works on the lists of domain `lists_of` counts vertices, whatever rows it writes. `dealt` says who owns
        the rows of a matrix on the chip, and so the units of its products.
        """
        model = node if parts_of is None else parts_of
        parts = self.parts[model] if dst.width == self.width(model) else 1
        if name == "matvec" and dst.width // parts % self.granule:
            parts = 1  # a product computes whole panels
        by_units = dealt is not None
        rows = not self.exclusive and (by_rows or sliced_by_rows(dst.width, parts, self.granule, self.n_vps))
        if dealt is not None:
            parts = dealt.word
        self.emit_to.append(
            Instr(
                name,
                node,
                0 if lists_of else dst.domain,
                dst.width,
                parts,
                {"dst": dst, **(operands or {})},
                values or {},
                rows and not by_units,
                accumulate,
                mean,
                gathers,
                lists_of,
                alone=self.exclusive and name != "matvec",
                turns=dealt is not None and dealt.turn > 0,
            )
        )

    def slab(self, node: int, width: int, domain: int) -> View:
        """A new slab for something of a node, as a view of its whole rows."""
        self.out.slabs.append(Slab(width, domain))
        self.out.slab_nodes.append(node)
        return View(len(self.out.slabs) - 1, None, 0, 0, width, domain)

    def view_of(self, i: int) -> View:
        """The rows of node i's value."""
        v = self.view[i]
        assert v is not None
        return v

    def segments(self, i: int) -> list[View]:
        """The pieces of the operand of a product; a concatenation used by products only is never made."""
        if self.view[i] is not None:
            return [self.view_of(i)]
        return [v for j in self.nodes[i].inputs for v in self.segments(j)]

    def _row_operands(self, sources: list[View]) -> dict[str, View]:
        return dict(zip("abcd", sources, strict=False))

    # ---- forward

    def _forward(self, i: int, node: Node) -> None:
        form, width, domain = node.op.form, self.width(i), node.domain
        if form is Form.ARGUMENT:
            position = node.attrs["position"]
            key: ListKey = Elements(position) if domain else Args(position)
            if position >= self.out.first_beside:
                key = Beside(position)
            self.view[i] = View(-1, key, 0, 0, width, domain)
        elif form is Form.PARAMETER:
            assert node.parameter is not None
            self.view[i] = View(-1, None, self.places[node.parameter].weights, 0, width, 0)
        elif form is Form.LOOKUP:
            self.view[i] = View(-1, TableRows(i), 0, 0, width, 0)
        elif form in VIEWS:
            self.view[i] = self.view_of(node.inputs[0]).part(offset_of(self.nodes, i), width)
        elif form is Form.CONCAT and self._is_segments(i) and len(self.segments(i)) <= MAX_SEGMENTS:
            pass
        elif form is not Form.INDEX:
            self.view[i] = dst = self.slab(i, width, domain)
            self._compute(i, node, dst)

    def _is_segments(self, i: int) -> bool:
        """Whether a concatenation is read by products with parameters (or such concatenations) only, as what they
        multiply."""
        if i in self.outputs:
            return False
        for j, node in enumerate(self.nodes):
            if self.live[j] and i in node.inputs:
                product = node.op.form in (Form.MATVEC, Form.PACKED_MATMUL) and i not in node.inputs[1:]
                if not product and not (node.op.form is Form.CONCAT and self._is_segments(j)):
                    return False
        return True

    def _compute(self, i: int, node: Node, dst: View) -> None:
        """Emit the instruction that computes node i into `dst`."""
        form = node.op.form
        sources = [self.view_of(j) for j in node.inputs if self.view[j] is not None]
        if form is Form.MAP:
            values = {"value": node.attrs.get("value", 0.0)}
            self.emit(node.op.name, i, dst, values, operands=self._row_operands(sources))
        elif form is Form.DROPOUT:
            self._dropout(i, node, sources[0], dst)
        elif form is Form.ROWWISE:
            values = self._row_values(sources[0].width, node)
            self.emit(node.op.name, i, dst, values, by_rows=True, operands=self._row_operands(sources))
        elif form is Form.MATVEC:
            assert node.parameter is not None
            place = self.places[node.parameter]
            dealt = place.slots.rows if place.slots is not None else None
            number = dealt.number if dealt is not None else 0
            values = {"weights": place.weights, "columns": node.parameter.shape[1], "matrix": number}
            bias = self.view_of(node.inputs[1]) if len(node.inputs) > 1 else NO_BIAS
            operands = {"bias": bias, "x": self.segments(node.inputs[0])}
            self.emit("matvec", i, dst, values, operands=operands, dealt=dealt)
        elif form is Form.CONCAT:
            offset = 0
            for j in node.inputs:
                for v in self.segments(j):
                    self.emit("copy", i, dst.part(offset, v.width), {"value": 0.0}, operands={"a": v})
                    offset += v.width
        elif form is Form.PACKED_MATMUL:
            matrices.packed_product(self, i, node, dst)
        elif form is Form.MATMUL:
            matrices.product(self, i, node, sources, dst)
        elif form is Form.TRANSPOSE:
            matrices.transpose(self, i, node.inputs[0], sources[0], dst)
        elif form is Form.LIST_MAP or (form is Form.LIST_REDUCE and node.op.device):
            lists.forward(self, i, node, sources[0], dst)
        elif form is Form.LIST_REDUCE:
            source = self.view_of(node.inputs[0])
            self._reduce_list(i, source, dst, self.nodes[node.inputs[0]].domain, mean=node.op.name == "list_mean")
        elif form is Form.INPUT:
            self.emit("input", i, dst, {"data": Data()})
        elif form is Form.ZEROS:
            self.emit("zero", i, dst)
        else:
            raise AssertionError(f"no rule for {form}")

    def _dropout(self, i: int, node: Node, source: View, dst: View, accumulate: bool = False) -> None:
        """dst = source times the random factors of node i, which are the same for a value and for its gradient."""
        values = {
            "calls": Expand(node.domain, Calls()) if node.domain else Calls(),
            "positions": Positions(node.domain) if node.domain else None,
            "number": node.attrs["number"],
            "threshold": threshold(node.attrs["rate"]),
            "scale": 1 / (1 - node.attrs["rate"]),
            "key": RandomKey(),
        }
        self.emit("dropout", i, dst, values, accumulate=accumulate, operands={"a": source})

    def _row_values(self, width: int, node: Node) -> dict[str, Any]:
        """Fields of a row-wise instruction that are no operands."""
        return {"row_width": width, "labels": self._labels(node), "value": node.attrs.get("value", 0.0)}

    def _labels(self, node: Node) -> ListKey | None:
        if not node.op.indices:
            return None
        key = Ints(node.inputs[-1])  # one per vertex
        return Expand(node.domain, key) if node.domain else key

    def _reduce_list(
        self, i: int, source: View, dst: View, domain: int, mean: bool = False, accumulate: bool = False
    ) -> None:
        """dst[vertex] = sum of the source's rows over the elements of the vertex's lists of a domain."""
        gathers = (source,) if source.slab >= 0 else ()
        values = {"offsets": Offsets(domain, source.row_list(domain)), "shift": source.offset}
        self.emit("gather_sum", i, dst, values, mean=mean, accumulate=accumulate, gathers=gathers)

    # ---- backward

    def claim(self, j: int) -> tuple[View, bool]:
        """Where to write a contribution to node j's gradient, and whether to add to what is there."""
        root, offset = j, 0
        while self.nodes[root].op.form in VIEWS:
            offset += offset_of(self.nodes, root)
            root = self.nodes[root].inputs[0]
        if root not in self.storage:
            self.storage[root] = self.slab(root, self.width(root), self.nodes[root].domain)
            self.covered[root] = np.zeros(self.width(root), bool)
        view = self.storage[root].part(offset, self.width(j))
        written = self.covered[root][offset : offset + view.width]
        if written.any():
            self._clear(root, offset, view.width)
            return view, True
        written[:] = True
        return view, False

    def _clear(self, root: int, offset: int, width: int) -> None:
        """Zero the units of [offset, offset + width) that nothing has been written to."""
        covered = self.covered[root]
        u = offset
        while u < offset + width:
            if covered[u]:
                u += 1
                continue
            end = u
            while end < offset + width and not covered[end]:
                end += 1
            self.emit("zero", root, self.storage[root].part(u, end - u))
            covered[u:end] = True
            u = end

    def _gradient(self, i: int) -> View | None:
        """The finished gradient of node i, or None where nothing flows into it."""
        if i in self.alias:
            return self.alias[i]
        if i not in self.storage:
            return None
        self._clear(i, 0, self.width(i))
        return self.storage[i]

    def _take_back(self, k: int, o: int) -> None:
        """The gradient of an output, from the rows in which the only reader of it left it."""
        dy = View(-1, BesideGradient(k), 0, 0, self.width(o), 0)
        if self.uses[o] == 1:
            self.alias[o] = dy
        else:
            dst, accumulate = self.claim(o)
            self.emit("copy", o, dst, {"value": 0.0}, accumulate=accumulate, operands={"a": dy})

    def _backward(self, i: int, node: Node) -> None:
        form = node.op.form
        if form in VIEWS:
            return  # its gradient is part of its operand's
        dy = self._gradient(i)
        if dy is None:
            return
        if form is Form.ARGUMENT:
            self._hand_back(i, dy)
        elif form is Form.LOOKUP:
            assert isinstance(node.parameter, Lookup)
            self.out.table_gradients.append(TableGradient(node.parameter, Ints(node.inputs[0]), dy))
        elif form is Form.INPUT:
            self.out.input_gradient = dy
        elif form is Form.PARAMETER:  # slices of it were used
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
            lists.backward(self, i, node, self.view_of(i if node.domain else node.inputs[0]), dy)
        elif form is Form.LIST_REDUCE:
            self._backward_list(i, node, dy)
        elif form is Form.DROPOUT:
            self.contribute(i, node.inputs[0], self.width(i), partial(self._dropout, i, node, dy))
        elif form in (Form.MAP, Form.ROWWISE):
            self._backward_plain(i, node, dy)

    def _backward_plain(self, i: int, node: Node, dy: View) -> None:
        operands = [self.view_of(j) for j in node.inputs[: node.op.arity]]
        sources = self._row_operands([*operands, self.view_of(i), dy])
        for k, j in enumerate(node.inputs[: node.op.arity]):
            if not self.needs[j]:
                continue
            if k in node.op.passes:
                self.pass_on(i, j, dy)
                continue
            by_rows = node.op.form is Form.ROWWISE
            values = self._row_values(operands[0].width, node) if by_rows else {"value": node.attrs.get("value", 0.0)}
            write = partial(self._emit_gradient, f"{node.op.name}.grad{k}", i, values, by_rows, sources)
            self.contribute(i, j, self.width(j if by_rows else i), write)

    def _emit_gradient(
        self, name: str, i: int, values: dict[str, Any], by_rows: bool, sources: dict[str, View], dst: View, add: bool
    ) -> None:
        self.emit(name, i, dst, values, by_rows=by_rows, accumulate=add, operands=sources)

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
                {"gradient": place.gradient, "columns": matrix.shape[1], "matrix": 0},
            )
            if place.slots is not None and place.slots.rows is not None:
                dealt = place.slots.rows
                values = {**instr.values, "matrix": dealt.number}
                instr = replace(instr, values=values, owned=True, parts=dealt.word, turns=dealt.turn > 0)
            self.add_parameter_gradient(matrix, instr)

    def _transposed_product(self, i: int, x: int, matrix: Parameter, dy: View, dst: View, accumulate: bool) -> None:
        """dst = W^T dy, from a transpose of its own; or from W, whose owners each add what their rows give."""
        place = self.places[matrix]
        if place.slots is not None and place.slots.atomic:
            rows = place.slots.rows
            assert rows is not None
            if not accumulate:
                self.emit("zero", i, dst, parts_of=x)
            values = {"weights": place.weights, "columns": matrix.shape[1], "matrix": rows.number}
            n, operands = matrix.shape[0], {"dst": dst, "x": dy}
            added = Instr("matvec_transposed", i, dst.domain, n, operands=operands, values=values)
            self.emit_to.append(replace(added, parts=rows.word, turns=rows.turn > 0))
            return
        dealt = place.slots.transposed if place.slots is not None else None
        values = {"weights": place.transposed, "columns": matrix.shape[0], "matrix": dealt.number if dealt else 0}
        factors = {"bias": NO_BIAS, "x": [dy]}
        self.emit("matvec", i, dst, values, parts_of=x, accumulate=accumulate, operands=factors, dealt=dealt)

    def _backward_list(self, i: int, node: Node, dy: View) -> None:
        j = node.inputs[0]
        if node.op.name == "list_mean":
            domain = self.nodes[j].domain
            scaled = self.slab(i, dy.width, 0)
            offsets = Offsets(domain, self.view_of(j).row_list(domain))
            self.emit("divide_by_count", i, scaled, {"offsets": offsets}, operands={"src": dy})
            dy = scaled
        self.pass_on(i, j, dy)

    def contribute(self, i: int, j: int, width: int, write: Callable[[View, bool], None]) -> None:
        """Let `write(dst, accumulate)` compute node i's contribution to node j's gradient, rows of `width` floats.

        Where j has fewer rows or floats than that (a scalar that was broadcast, a value of the vertex used by list
        elements, a parameter), the contribution goes through memory of its own and is reduced.
        """
        node, target = self.nodes[i], self.nodes[j]
        if target.op.form is not Form.PARAMETER and width == self.width(j) and node.domain == target.domain:
            write(*self.claim(j))
            return
        own = self.slab(i, width, node.domain)
        write(own, False)
        self.reduce_into(i, j, own)

    def pass_on(self, i: int, j: int, dy: View) -> None:
        """Node j's gradient gets node i's, `dy`, unchanged: as a view if that is all it gets, else by a copy."""
        while self.nodes[j].op.form is Form.RESHAPE and self.uses[j] == 1:
            j = self.nodes[j].inputs[0]
        node, target = self.nodes[i], self.nodes[j]
        # A reduction of a list hands its gradient, one row per vertex, to each element of the list.
        same_rows = node.domain == target.domain or node.op.form is Form.LIST_REDUCE
        if target.op.form is Form.PARAMETER or dy.width != self.width(j) or not same_rows:
            self.reduce_into(i, j, dy)
        elif target.op.form is Form.ARGUMENT:
            self._hand_back(j, dy)
        elif self.uses[j] == 1 and target.op.form not in VIEWS:
            self.alias[j] = dy
        else:
            dst, accumulate = self.claim(j)
            self.emit("copy", i, dst, {"value": 0.0}, accumulate=accumulate, operands={"a": dy})

    def _hand_back(self, argument: int, dy: View) -> None:
        """Let the producer of an argument find a gradient row for it in `dy`."""
        key = self.view_of(argument).rows
        assert isinstance(key, Args | Elements | Beside)
        self.out.arguments.append((key, dy))

    def reduce_into(self, i: int, j: int, source: View) -> None:
        """Add `source`, a gradient of node i with more rows or floats than node j has, to j's gradient."""
        domain, target = self.nodes[i].domain, self.nodes[j]
        if source.width != self.width(j):  # a scalar that was broadcast: sum the units
            single = self.slab(i, 1, source.domain)
            values = {"row_width": source.width, "labels": None, "value": 0.0}
            self.emit("sum", i, single, values, by_rows=True, operands={"a": source})
            source = single
        if target.op.form is Form.PARAMETER:
            assert target.parameter is not None
            self._parameter_sum(i, target.parameter, source)
        elif domain != target.domain:  # a value of the vertex, used by each of its list elements
            dst, accumulate = self.claim(j)
            self._reduce_list(i, source, dst, domain, accumulate=accumulate)
        else:
            dst, accumulate = self.claim(j)
            self.emit("copy", i, dst, {"value": 0.0}, accumulate=accumulate, operands={"a": source})

    def _parameter_sum(self, i: int, parameter: Parameter, source: View) -> None:
        """The gradient of a parameter vector: the sum over all rows. Runs over the rows of node i's domain."""
        domain = source.domain or self.nodes[i].domain
        values = {"vector": self.places[parameter].gradient}
        instr = Instr("column_sum", i, domain, source.width, 1, {"src": source}, values)
        self.add_parameter_gradient(parameter, instr)

    def add_parameter_gradient(self, parameter: Parameter, instr: Instr) -> None:
        """Let an instruction make a contribution to a parameter's gradient, over the rows of all groups."""
        self.out.parameter_gradients.append(ParameterGradient(parameter, replace(instr, for_all=self.groups > 1)))
