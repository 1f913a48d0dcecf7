"""What the compiled planner finds of a graph."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpps.model.model import Parameter
from vpps.ops import size
from vpps.placement.distribution import HeldGradients
from vpps.placement.stacks import members
from vpps.placement.update import UsedRows
from vpps.planner.grouping import Grouping
from vpps.planner.native.account import Account
from vpps.planner.native.interface import NOWHERE, Call, FoundGrouping
from vpps.planner.native.memory import OF_GROUPING, Memory
from vpps.planner.native.memory_map import PlannedMemory
from vpps.planner.sections import Words
from vpps.script.products import Continuation, PoolRows, Product
from vpps.script.tails import Tail

if TYPE_CHECKING:
    from vpps.planner.native.planner_library import PlannerLibrary


class Found:
    """What the compiled planner finds of a graph; the attributes are those of a Plan.

    Attributes:
        account, map: of who made which word, and what lies where, if that was asked for.
    """

    account: Account | None = None
    map: PlannedMemory | None = None

    def __init__(self, engine: PlannerLibrary, ids: tuple[int, ...], memory: Memory, call: Call) -> None:
        self.script: Words = memory.script[: call.words]
        self.pool_floats: int = call.pool_floats
        self.loss_slot: int = call.loss_slot
        self.n_barriers: int = call.n_barriers
        self.encoded = call.encoding, time.perf_counter_ns()
        self._of_products, self._n_products, self._entries = memory.products, call.n_products, call.entries
        self._of_tables, self._n_tables, self._keeps = memory.tables, call.n_tables, bool(call.keeps)
        self._engine = engine
        self._addresses = memory.addresses[: call.n_values]
        self._touched = memory.touched[: len(engine.parameters) if call.training else 0]
        self._grouping = memory.grouping
        self._key = call.names, ids, bool(call.training)

    @property
    def addresses(self) -> NDArray[np.int64]:
        """Of each value; -1 where it is not computed."""
        found = self._addresses.astype(np.int64)
        found[found == NOWHERE] = -1
        return found

    @property
    def touched(self) -> set[Parameter]:
        """Dense parameters that have a gradient."""
        return {member for p in self._with_gradient for member in members(p)}

    @property
    def _with_gradient(self) -> set[Parameter]:
        """The same, as kernels know them."""
        return {p for p, has in zip(self._engine.parameters, self._touched.tolist(), strict=False) if has}

    @property
    def instructions(self) -> frozenset[str]:
        """Names of those that it uses."""
        return self._engine.used(*self._key)[0]

    @property
    def tails(self) -> frozenset[Tail]:
        """Programs of those that it uses."""
        return self._engine.used(*self._key)[1]

    @cached_property
    def tables(self) -> dict[Parameter, UsedRows]:
        """The used rows of every table that has a gradient."""
        found: dict[Parameter, UsedRows] = {}
        for used in self._of_tables[: self._n_tables]:
            p = self._engine.parameters[used.parameter]
            rows = self.script[used.numbers : used.numbers + used.rows].astype(np.int64)
            if self._keeps:  # the list holds addresses
                rows = (rows - self._engine.gradients[used.parameter]) // size(p.shape[1:])
            found[p] = UsedRows(rows, used.gradient, used.offsets, used.numbers, used.idle)
        return found

    @cached_property
    def grouping(self) -> Grouping | None:
        """Which group of virtual processors runs what; None where there is one."""
        if not len(self._grouping):
            return None
        found = FoundGrouping(*self._grouping[:OF_GROUPING].tolist())
        n_groups = self._engine.groups
        work, sizes, rest = np.split(self._grouping[OF_GROUPING:], [n_groups, n_groups + found.n_blocks])
        n = int(sizes.sum())
        ends = np.cumsum(sizes)[:-1]
        stages, groups = (np.split(rest[begin : begin + n].copy(), ends) for begin in (0, n))
        dealt = found.first_own, found.first_joining, found.n_components
        return Grouping(groups, stages, *dealt, work.astype(np.float64))

    def held(self, before: HeldGradients) -> HeldGradients:
        """What the pool holds after the launch, where that keeps gradients and before it some were held."""
        rows = dict(before.rows)
        for table, used in self.tables.items():
            rows[table] = np.union1d(rows[table], used.rows) if table in rows else used.rows
        return HeldGradients(before.dense | self._with_gradient, rows)

    def sequel(self, before: HeldGradients) -> Continuation | None:
        """What follows the launch, before which some gradients were held."""
        made = []
        for found in self._of_products[: self._n_products]:
            p, gradient = self._engine.parameters[found.parameter], self._engine.gradients[found.parameter]
            (rows, columns), sides = p.shape, (PoolRows(found.dy, found.dy_stride), PoolRows(found.x, found.x_stride))
            made.append(Product(p.name, rows, columns, found.n, *sides, gradient, p in before.dense))
        return Continuation(tuple(made), self._entries) if made else None
