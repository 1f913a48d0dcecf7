"""The rows of a cell in execution order: which vertex is in which, where its slabs lie, what its index lists hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpps.graph.arrays import BlockArrays
from vpps.graph.arrays import Ints as IntArray
from vpps.graph.levels import ragged
from vpps.ops import size
from vpps.plan.distribution import Distribution
from vpps.plan.instr import (
    Args,
    Beside,
    BesideGradient,
    Calls,
    Elements,
    Ends,
    Expand,
    Ints,
    ListKey,
    Positions,
    RowNumber,
    RowOperand,
    Rows,
    TableRows,
    View,
)
from vpps.plan.templates import CellTemplates


class BlockPlan:
    """Rows of one cell: vertices that run backward first, then by group and stage, then in the user's order.

    Args:
        stage: of each vertex.
        needed: whether the loss (or a wanted value) depends on the vertex.
        skip_rest: leave out the others altogether.
        addresses: of all values of the graph; shared by all blocks, each fills in its own.
        group: of virtual processors that runs each vertex; None where there is one group. Steps are of one group.
        order: of the rows, where it is that of another part of the cell.

    Attributes:
        order: the vertex (row of the block's arrays) in each row.
        n_needed, n_needed_steps: the first rows, and steps, are those that run backward.
        step_stage: stage of each step; steps cover the rows one after the other.
        step_group: group of each step.
        first, count: `(steps, 1 + domains)`, rows of each step in each domain.
        pause: of a block whose steps may run while virtual processors wait for each other: by how much the number of a
            stage grows until all are sure to have done so; else 0.
        late: it is part of the chain of the loss, and runs beside backward (plan/loss_chain.py).
        beside: what other parts of the cell have for each row: their rows, and the view of them.
        bases: `(steps, ...)`, of the slabs, then of lists and operands (CellTemplates), then 0. A slab has row r at
            base + r * width; one whose steps lie apart has a base for each, which may be negative.
    """

    def __init__(
        self,
        arrays: BlockArrays,
        cell: CellTemplates,
        stage: IntArray,
        group: IntArray | None,
        distribution: Distribution,
        needed: NDArray[np.bool_],
        skip_rest: bool,
        addresses: IntArray,
        order: IntArray | None = None,
    ) -> None:
        self.arrays = arrays
        self.cell = cell
        self._places = distribution.places
        self._addresses = addresses
        self.n_needed = int(np.count_nonzero(needed))
        self.pause = 0
        self.late = False
        self.beside: dict[Beside | BesideGradient, tuple[BlockPlan, View]] = {}
        starts, stops = self._arrange(stage, group, needed, skip_rest, order)
        self.n_needed_steps = int(starts.searchsorted(self.n_needed))
        self.step_stage = stage[self.order[starts]]
        self.step_group = np.zeros(len(starts), np.int64) if group is None else group[self.order[starts]]
        self._ends: list[IntArray] = []  # per domain, element row where each vertex's list begins
        self._owner: list[IntArray] = []  # per domain, vertex row of each element
        self.first, self.count = starts[:, None], (stops - starts)[:, None]
        for domain in range(1, cell.cell.n_domains + 1):
            xs = arrays.lists[cell.cell.lists.index(domain)]
            ends = np.zeros(len(self.order) + 1, np.int64)
            np.cumsum(xs.ends[self.order + 1] - xs.ends[self.order], out=ends[1:])
            self._ends.append(ends)
            self._owner.append(np.repeat(np.arange(len(self.order)), np.diff(ends)))
            self.first = np.column_stack([self.first, ends[starts]])
            self.count = np.column_stack([self.count, ends[stops] - ends[starts]])
        self.bases = np.zeros((len(starts), cell.n_bases + 1), np.int64)

    def _arrange(
        self,
        stage: IntArray,
        group: IntArray | None,
        needed: NDArray[np.bool_],
        skip_rest: bool,
        order: IntArray | None,
    ) -> tuple[IntArray, IntArray]:
        """Set the order; returns where each step's rows begin and end."""
        n = len(stage)
        if (
            order is None and group is None and self.n_needed == n and (n == 1 or stage.min() == stage.max())
        ):  # most cells: one step
            self.order = np.arange(n)
            return np.zeros(1, np.int64), np.array([n])
        key = step_keys(stage, group, needed)
        if order is not None:
            self.order = order
        else:
            self.order = np.argsort(key, kind="stable")
            if skip_rest:
                self.order = self.order[: self.n_needed]
        ordered = key[self.order]
        starts = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])[: len(ordered)]
        return starts, np.append(starts[1:], len(ordered))[: len(starts)]

    def n_rows(self, domain: int) -> int:
        """Rows in a domain."""
        return len(self.order) if domain == 0 else len(self._owner[domain - 1])

    def needed_rows(self, domain: int) -> int:
        """Rows in a domain that run backward."""
        return self.n_needed if domain == 0 else int(self._ends[domain - 1][self.n_needed])

    @property
    def needed(self) -> tuple[IntArray, IntArray]:
        """First row and number of rows in each domain, `(1, 1 + domains)`, of what runs backward, as of one step."""
        count = np.array([[self.needed_rows(d) for d in range(self.cell.cell.n_domains + 1)]])
        return np.zeros_like(count), count

    def vertex_of(self, rows: IntArray, domain: int) -> IntArray:
        """The vertex row that rows of a domain belong to."""
        return rows if domain == 0 else self._owner[domain - 1][rows]

    def set_addresses(self) -> None:
        """Give every value its address, once the bases are known."""
        for k, view in enumerate(self.cell.lowered.outputs):
            self._addresses[self.arrays.values[k][self.order]] = self.row_addresses(view)

    def row_addresses(self, view: View, domain: int | None = None) -> IntArray:
        """Address of each row of a view; for every element of a domain, if one is given."""
        domain = view.domain if domain is None else domain
        if view.shared:
            return np.full(self.n_rows(domain), view.address + view.offset, np.int64)
        return self.list_values(view.row_list(domain)) + view.offset

    def list_values(self, key: ListKey) -> IntArray:
        """Contents of an index list."""
        b, cell = self.arrays, self.cell
        found: IntArray
        match key:
            case Rows(slab):
                width, domain = cell.lowered.slabs[slab]
                base = self.bases[:, slab]
                found = np.repeat(base, self.count[:, domain]) if len(base) > 1 else base
                found = found + np.arange(self.n_rows(domain)) * width
            case Beside() | BesideGradient():
                block, view = self.beside[key]
                found = block.row_addresses(view)
            case Args(position):
                found = self._addresses[b.args[self.order, cell.vector_index[position]]]
            case Elements(position):
                found = self._addresses[self.values_read(key)]
            case Expand(domain, of):
                found = self.list_values(of)[self._owner[domain - 1]]
            case Ends(domain):
                found = self.offsets(domain)
            case Ints(node):
                attrs = cell.cell.nodes[node].attrs
                if "constant" in attrs:
                    found = np.full(len(self.order), attrs["constant"], np.int64)
                else:
                    found = b.ints[self.order, cell.int_index[attrs["position"]]]
            case Calls():
                found = b.calls[self.order]
            case Positions(domain):
                found = np.arange(self.n_rows(domain)) - self._ends[domain - 1][self._owner[domain - 1]]
            case TableRows(node):
                lookup = cell.cell.nodes[node]
                table = lookup.parameter
                assert table is not None
                rows = self.list_values(Ints(lookup.inputs[0]))
                found = self._places[table].weights + rows * size(table.shape[1:])
            case _:
                raise AssertionError(f"{key} is no list of the block alone")
        return found

    def row_numbers(self, of: RowNumber) -> IntArray:
        """Of a lookup, in each row."""
        if of.column < 0:
            return np.full(len(self.order), of.constant, np.int64)
        found: IntArray = self.arrays.ints[self.order, of.column]
        return found

    def bases_beside(self, key: Beside | BesideGradient) -> IntArray:
        """For each step, the base of the rows that another part of the cell has: row r is at base + r * stride."""
        block, view = self.beside[key]
        steps = block.first[:, 0].searchsorted(self.first[:, 0], "right") - 1
        found: IntArray = block.bases[steps, view.slab] + view.offset
        return found

    def operand_words(self, operand: RowOperand) -> tuple[IntArray, IntArray]:
        """The bases that are the two words of an operand in each step, to be set."""
        column = len(self.cell.lowered.slabs) + self.cell.operands[operand]
        return self.bases[:, column], self.bases[:, column + 1]

    def list_position(self, key: ListKey) -> int:
        """Where in the script a list is."""
        return int(self.bases[0, len(self.cell.lowered.slabs) + self.cell.keys[key]])

    def values_read(self, key: Args | Beside | Elements) -> IntArray:
        """Value ids of an argument: one per row, or one per list element."""
        values: IntArray
        if isinstance(key, Args | Beside):
            values = self.arrays.args[self.order, self.cell.vector_index[key.position]]
        else:
            xs = self.arrays.lists[self.cell.list_index[key.position]]
            values = xs.elements[ragged(xs.ends, self.order)]
        return values

    def offsets(self, domain: int) -> IntArray:
        """Where each vertex's elements begin among a domain's rows, and the end."""
        return self._ends[domain - 1]

    def data(self) -> NDArray[np.float32]:
        """Floats of graph inputs, row after row."""
        return self.arrays.data[self.order].reshape(-1)


def step_keys(stage: IntArray, group: IntArray | None, needed: NDArray[np.bool_]) -> IntArray:
    """A number for the step of each vertex: steps are in the order of these."""
    if group is not None:
        stage = group * (int(stage.max(initial=0)) + 1) + stage
    keys: IntArray = stage + (~needed) * (int(stage.max(initial=0)) + 1)
    return keys
