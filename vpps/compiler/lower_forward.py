"""Lowers a traced cell: the forward instructions, and helpers shared with backward."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from vpps.compiler import matrices
from vpps.compiler.instr import (
    NO_BIAS,
    Args,
    Calls,
    Data,
    Elements,
    Ends,
    Expand,
    Instr,
    Ints,
    ListKey,
    Offsets,
    Positions,
    RandomKey,
    SameRow,
    Slab,
    TableRows,
    View,
)
from vpps.compiler.prepare import VIEWS, execution_order, live_nodes, offset_of, parts_of_units, prepare
from vpps.ops import Form, size
from vpps.ops.dropout import threshold
from vpps.placement.distribution import Distribution, Partition
from vpps.record.trace import Constant, Node
from vpps.script.instructions import NO_FLAGS, Flag
from vpps.script.slices import sliced_by_rows

if TYPE_CHECKING:
    from vpps.compiler.lower import LoweredCell

# Most segments of a product's operand. The instruction names them all, and must fit into the part of the script that a
# GPU holds on the chip (SCRIPT_WORDS of vpps/kernel/chip.py). Longer concatenations are copied into memory.
MAX_SEGMENTS = 256


class Forward:
    """State that is needed only during lowering, and the forward instructions."""

    def __init__(self, result: LoweredCell, distribution: Distribution, exclusive: bool) -> None:
        self.out = result
        self.exclusive = exclusive
        self.places = distribution.physical
        self.n_vps = distribution.n_vps
        self.groups = distribution.groups
        self.granule = distribution.panel
        self.nodes, self.outputs = prepare(result.cell)
        self.order = execution_order(self.nodes)
        self.live = live_nodes(self.nodes, self.outputs)
        self.read = [o for k, o in enumerate(self.outputs) if k not in result.unread]
        self.leads_to_read = live_nodes(self.nodes, self.read)
        leading = (node for node, leads in zip(self.nodes, self.leads_to_read, strict=True) if leads)
        self.uses = Counter([*self.read, *(j for node in leading for j in node.inputs)])
        self.needs = self._needs()
        self.parts = parts_of_units(self.nodes, self.live, self.granule)
        self.view: list[View | None] = [None] * len(self.nodes)
        # Gradients: the view in which each node's gradient is summed, and the mask of its units written so far.
        self.storage: dict[int, View] = {}
        self.covered: dict[int, np.ndarray[Any, np.dtype[np.bool_]]] = {}
        self.alias: dict[int, View] = {}
        self.emit_to = result.forward

    # ---- analysis

    @property
    def _is_bare(self) -> bool:
        """True if the cell is a single op, such as an op called on a graph; such a cell never gets generated code."""
        nothing = Form.ARGUMENT, Form.INDEX, Form.PARAMETER, *VIEWS  # these compute nothing
        return sum(live and node.op.form not in nothing for live, node in zip(self.live, self.nodes, strict=True)) < 2

    def _needs(self) -> list[bool]:
        """Return a mask of the nodes whose gradients are needed."""
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
            elif node.op.differentiable:
                trained = node.parameter is not None and node.parameter.trainable
                needs[i] = trained or any(needs[j] for j in node.inputs)
        return needs

    def width(self, i: int) -> int:
        """Return the number of floats in a row of node i."""
        return size(self.nodes[i].shape)

    def is_vector(self, i: int) -> bool:
        """Return True if node i is a parameter vector or scalar: all vertices read it in place."""
        node = self.nodes[i]
        return node.op.form is Form.PARAMETER and not node.finds_matrix_in_memory

    # ---- emission

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
        dealt: Partition | None = None,
        rounds: Flag = NO_FLAGS,
    ) -> None:
        """Append an instruction that writes `dst`, divided like node `parts_of` (default: `node`) if the widths agree.

        An instruction on the lists of domain `lists_of` runs over vertices, no matter which rows it writes. `dealt`
        names the owners of an on-chip matrix's rows, who also own its products' units. `rounds`: rounding of a product.
        """
        model = node if parts_of is None else parts_of
        parts = self.parts[model] if dst.width == self.width(model) else 1
        if name == "matvec" and dst.width // parts % self.granule:
            parts = 1  # a product computes whole panels
        rows = not self.exclusive and (by_rows or sliced_by_rows(dst.width, parts, self.granule, self.n_vps))
        self.emit_to.append(
            Instr(
                name,
                node,
                0 if lists_of else dst.domain,
                dst.width,
                parts if dealt is None else dealt.word,
                {"dst": dst, **(operands or {})},
                values or {},
                rows and dealt is None,
                accumulate,
                mean,
                gathers,
                lists_of,
                alone=self.exclusive and name != "matvec",
                turns=dealt is not None and dealt.turn > 0,
                rounds=rounds,
            )
        )

    def slab(self, node: int, width: int, domain: int) -> View:
        """Add a slab for a node, and return the view of its whole rows."""
        self.out.slabs.append(Slab(width, domain))
        self.out.slab_nodes.append(node)
        return View(len(self.out.slabs) - 1, None, 0, 0, width, domain)

    def view_of(self, i: int) -> View:
        """Return the view of node i's value."""
        v = self.view[i]
        assert v is not None
        return v

    def segments(self, i: int) -> list[View]:
        """Return the segments of a product's operand; a concatenation that only products read takes no memory."""
        if self.view[i] is not None:
            return [self.view_of(i)]
        return [v for j in self.nodes[i].inputs for v in self.segments(j)]

    # ---- forward

    def _forward(self, i: int, node: Node) -> None:
        form, width, domain = node.op.form, self.width(i), node.domain
        if form is Form.ARGUMENT:
            position = node.attrs["position"]
            key: ListKey = Elements(position) if domain else Args(position)
            if position >= self.out.first_same_row:
                key = SameRow(position)
            self.view[i] = View(-1, key, 0, 0, width, domain)
        elif form in (Form.PARAMETER, Form.LOOKUP) and node.finds_matrix_in_memory:
            self.view[i] = dst = self.slab(i, width, domain)
            matrices.rows_of_packed(self, i, node, dst)
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
        """Return True if a concatenation is read only by products, as the factor that a parameter multiplies, or by
        concatenations that are read in the same way."""
        if i in self.outputs:
            return False
        for j, node in enumerate(self.nodes):
            if self.live[j] and i in node.inputs:
                product = node.op.form in (Form.MATVEC, Form.PACKED_MATMUL) and i not in node.inputs[1:]
                product = product and node.op.name != "affine_transposed"  # its gradient reads one view
                if not product and not (node.op.form is Form.CONCAT and self._is_segments(j)):
                    return False
        return True

    def _compute(self, i: int, node: Node, dst: View) -> None:
        """Emit the instruction that computes node i into `dst`."""
        form = node.op.form
        sources = [self.view_of(j) for j in node.inputs if self.view[j] is not None]
        if form is Form.MAP:
            values = {"value": node.attrs.get("value", 0.0)}
            self.emit(node.op.name, i, dst, values, operands=dict(zip("abcd", sources, strict=False)))
        elif form is Form.DROPOUT:
            self._dropout(i, node, sources[0], dst)
        elif form is Form.ROWWISE:
            values = self._row_values(sources[0].width, node)
            self.emit(node.op.name, i, dst, values, by_rows=True, operands=dict(zip("abcd", sources, strict=False)))
        elif form is Form.MATVEC:
            assert node.parameter is not None
            place = self.places[node.parameter]
            dealt = place.on_chip.rows if place.on_chip is not None else None
            number = dealt.number if dealt is not None else 0
            values = {"weights": place.factor, "columns": node.parameter.shape[1], "matrix": number}
            bias = self.view_of(node.inputs[1]) if len(node.inputs) > 1 else NO_BIAS
            operands = {"bias": bias, "x": self.segments(node.inputs[0])}
            self.emit("matvec", i, dst, values, operands=operands, dealt=dealt, rounds=place.rounds)
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
            self._over_lists(node.op.name, i, node, {"a": sources[0]}, dst)
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
        """Emit dst = source times the random factors of node i; a value and its gradient use the same factors."""
        rate, constant = node.attrs["rate"], isinstance(node.attrs["rate"], Constant)
        values = {
            "calls": Expand(node.domain, Calls()) if node.domain else Calls(),
            "positions": Positions(node.domain) if node.domain else None,
            "number": node.attrs["number"],
            "threshold": rate._replace(word=1) if constant else threshold(rate),
            "scale": rate._replace(word=2) if constant else 1 / (1 - rate),
            "key": RandomKey(),
        }
        self.emit("dropout", i, dst, values, accumulate=accumulate, operands={"a": source})

    def _row_values(self, width: int, node: Node) -> dict[str, Any]:
        """Return the fields of a row-wise instruction other than its operands."""
        labels: ListKey | None = Ints(node.inputs[-1]) if node.op.indices else None  # one per vertex
        if labels is not None and node.domain:
            labels = Expand(node.domain, labels)
        return {"row_width": width, "labels": labels, "value": node.attrs.get("value", 0.0)}

    def _over_lists(
        self, name: str, i: int, node: Node, views: dict[str, View], dst: View, accumulate: bool = False
    ) -> None:
        """Emit an op on all elements of a list: the instruction runs over vertices, no matter which rows it writes."""
        domain = self.nodes[node.inputs[0]].domain
        self.emit(name, i, dst, {"elements": Ends(domain)}, accumulate=accumulate, operands=views, lists_of=domain)

    def _reduce_list(
        self, i: int, source: View, dst: View, domain: int, mean: bool = False, accumulate: bool = False
    ) -> None:
        """Emit dst[vertex] = sum of the source's rows over the elements of the vertex's lists in a domain."""
        gathers = (source,) if source.slab >= 0 else ()
        values = {"offsets": Offsets(domain, source.row_list(domain)), "shift": source.offset}
        self.emit("gather_sum", i, dst, values, mean=mean, accumulate=accumulate, gathers=gathers)
