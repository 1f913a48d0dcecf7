"""The end of a launch: weight gradients, clipping, the optimizer's step (kernel.md 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.model import Lookup, Parameter
from vpps.ops import size
from vpps.plan.distribution import AGAIN, NOTHING_HELD, Distribution, Held
from vpps.plan.instr import ParameterGradient
from vpps.plan.memory import SlabMemory
from vpps.plan.products import GradientProducts
from vpps.plan.rows import BlockPlan
from vpps.plan.stacks import members
from vpps.plan.update import Update, UsedRows, matrix_division, step_fields
from vpps.plan.writer import ScriptWriter
from vpps.script.encode import direct, indexed
from vpps.script.instructions import HEAD_WORDS, NO_FLAGS, Flag
from vpps.script.products import Sequel
from vpps.script.slices import TILE_COLUMNS


class EndOfLaunch:
    """Writes the end of one launch.

    Args:
        blocks: rows of all cells.
        update: the optimizer's step, or None.
        held: gradients of earlier batches, to which those of this one are added.
        keep: leave the sums in the pool for a later launch.

    Attributes:
        touched: dense parameters with a gradient from this batch.
        tables: used rows of each lookup table (plan/used_rows.py).
    """

    def __init__(
        self,
        writer: ScriptWriter,
        distribution: Distribution,
        blocks: Iterable[BlockPlan],
        update: Update | None = None,
        held: Held = NOTHING_HELD,
        keep: bool = False,
    ) -> None:
        self.writer = writer
        self.distribution = distribution
        self.blocks = [b for b in blocks if b.n_needed]
        self._update = update
        self._held = held
        self._keep = keep
        self._products = GradientProducts(writer, distribution, self.blocks, held)
        gradients = (g for b in self.blocks for g in b.cell.lowered.parameter_gradients)
        self.touched: set[Parameter] = {g.parameter for g in gradients}
        self.tables: dict[Parameter, UsedRows] = {}
        self._hyper: dict[Parameter, int] = {}  # script position of each parameter's hyper-parameters
        self._stepped: set[Parameter] = set()  # whose step went with its gradient
        self._clips = update is not None and update.clip_norm is not None
        self._loss = self._left_out = 0  # addresses: of the loss, and of what tells whether the step was left out

    @property
    def depends_on_parameters(self) -> bool:
        """Whether this batch has any gradient."""
        tables = any(b.cell.lowered.table_gradients for b in self.blocks)
        return bool(self.touched) or tables

    def take_memory(self, memory: SlabMemory) -> None:
        """Take what the end needs of the memory that slabs leave."""
        self._products.take_memory(memory)

    @property
    def sequel(self) -> Sequel | None:
        """What follows the launch."""
        products = self._products.products()
        return Sequel(products, self.writer.entries) if products else None

    @property
    def _waits_for_products(self) -> bool:
        """Whether no step can be made before all products are: the norm of all gradients must be known."""
        return self._update is not None and self._update.clip_norm is not None and bool(self._products.parameters)

    @property
    def held(self) -> Held:
        """What the pool holds after the launch for a later one."""
        if not self._keep:
            return NOTHING_HELD
        rows = dict(self._held.rows)
        for table, used in self.tables.items():
            rows[table] = np.union1d(rows[table], used.rows) if table in rows else used.rows
        return Held(self._held.dense | self.touched, rows)

    def place_lists(self) -> None:
        """Put what the end needs of lists into the script: used table rows, hyper-parameters."""
        update = self._update
        if update is not None:
            placed: dict[str | None, int] = {}  # one set of hyper-parameters per group
            for p in self.distribution.physical:
                name = members(p)[0].name
                group = update.optimizer.group_of(name)
                if group not in placed:
                    placed[group] = self.writer.place_list(update.hyper(name, group).view(np.uint32))
                self._hyper[p] = placed[group]
        ids: dict[Lookup, list[NDArray[np.int64]]] = {}
        addresses: dict[Lookup, list[NDArray[np.int64]]] = {}
        without: dict[Lookup, list[NDArray[np.int64]]] = {}
        for b in self.blocks:
            for g in b.cell.lowered.table_gradients:
                ids.setdefault(g.table, []).append(b.list_values(g.ids)[: b.n_needed])
                addresses.setdefault(g.table, []).append(b.row_addresses(g.view)[: b.n_needed])
            for used in b.cell.without_gradient:
                without.setdefault(used.table, []).append(b.row_numbers(used.row)[: b.n_needed])
        for p in self.distribution.physical:  # their order counts for clipping
            if isinstance(p, Lookup) and (p in ids or p in without or (update is not None and p in self._held.rows)):
                self.tables[p] = self._used_rows(p, ids.get(p, []), addresses.get(p, []), without.get(p, []))

    def _used_rows(
        self,
        table: Lookup,
        ids: list[NDArray[np.int64]],
        addresses: list[NDArray[np.int64]],
        without: list[NDArray[np.int64]],
    ) -> UsedRows:
        """Place the lists of a table's rows and of the gradient rows to sum for each: the held one first. Rows that
        are used without a gradient get the sum of none."""
        place, width = self.distribution.physical[table], size(table.shape[1:])
        held = self._held.rows.get(table, np.zeros(0, np.int64))
        if self._keep:
            held = held[np.isin(held, np.concatenate([*ids, *without]))]  # the others stay as they are
        rows, inverse = np.unique(np.concatenate([held, *ids, *without]), return_inverse=True)
        if without:
            inverse = inverse[: len(held) + sum(map(len, ids))]
        order = np.argsort(inverse, kind="stable")
        entries = self.writer.place_list(np.concatenate([place.gradient + held * width, *addresses])[order])
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.bincount(inverse, minlength=len(rows)), out=offsets[1:])
        gradient = 0 if self._keep else self.writer.take(len(rows) * width)
        numbers = self.writer.place_list(place.gradient + rows * width if self._keep else rows)
        averaging = self._update.averaging if self._update is not None else None
        idle = self.writer.place_list(averaging.idle(table, rows).view(np.uint32)) if averaging is not None else 0
        return UsedRows(rows, gradient, self.writer.place_list(entries + offsets), numbers, idle)

    def expect(self, loss: int, slot: int) -> None:
        """Tell the address of the loss, and of the float that is to tell whether the step was left out."""
        self._loss, self._left_out = loss, slot

    @property
    def is_guarded(self) -> bool:
        """Whether this launch changes what must stay as it is where loss or gradients are not finite."""
        return self._update is not None or self._keep

    @property
    def is_guarded_first(self) -> bool:
        """Whether that begins with the gradients: they make steps, or add to what is held."""
        if not self.is_guarded:
            return False
        last = self._last()
        steps = any(self._is_stepped(g, last) for b in self.blocks for g, _ in b.cell.gradients)
        adds = self._keep or bool(self._held.dense)
        return adds or steps or (bool(self._products.parameters) and not self._clips)

    def watch(self) -> None:
        """Look whether gradients may not be finite, at what they are made of; if they are clipped their norm says it.

        A full barrier must precede it: others wrote what it reads.
        """
        if not self.is_guarded or (self._clips and not self._held.dense):
            return
        for b in self.blocks:
            first, count = b.needed
            for group in b.cell.watches:
                self.writer.names.add("watch")
                words = group.template.fill(b.bases[:1], first, count)[0]
                self.writer.section(words, b, group, 0, "gradients")

    def guard(self) -> None:
        """Leave the launch if loss or gradients are not finite. A full barrier must lie behind the watches."""
        if self.is_guarded:
            self.writer.instruction("guard", 1, 1, loss=self._loss, left_out=self._left_out)

    def guard_again(self) -> None:
        """The same in a second launch, by what the first one has found: it follows also where that was left."""
        self.writer.instruction("guard", 1, 1, loss=self._left_out, left_out=self._left_out + AGAIN)

    def _last(self) -> dict[Parameter, ParameterGradient]:
        """The last contribution to each parameter's gradient, where it may make the step as well."""
        update = None if self._waits_for_products else self._update
        if update is None or update.clip_norm is not None:
            return {}
        return {g.parameter: g for b in self.blocks for g, _ in b.cell.gradients}

    def _is_stepped(self, gradient: ParameterGradient, last: Mapping[Parameter, ParameterGradient]) -> bool:
        p = gradient.parameter
        fusible = gradient.instr.name == "outer" and p not in self._kept()
        return last.get(p) is gradient and fusible

    def gradients(self) -> None:
        """All weight gradients, each once over all rows of a cell (Cavs's lazy batching).

        The last contribution to a matrix's gradient makes its step as well, unless the norm of all gradients must be
        known first: nothing reads a matrix any more. Where all steps wait for a second launch, gradients that the chip
        keeps go to memory meanwhile.
        """
        update = None if self._waits_for_products else self._update
        self._products.gather()
        written = set(self._held.dense)
        last = self._last()
        kept = self._kept()
        for p in kept:
            if p in written and (update is not None or p in self.touched):
                self._on_matrix("load_gradient", p, gradient=self.distribution.physical[p].gradient)
        for b in self.blocks:
            first, count = b.needed
            for gradient, group in b.cell.gradients:
                p = gradient.parameter
                stepped = self._is_stepped(gradient, last)
                if update is not None and stepped:
                    fields = step_fields(self.distribution.physical[p], update.averaging)
                    group = b.cell.fused(gradient, update.optimizer.name, fields)
                    self._stepped.add(p)
                self.writer.names.update(instr.instruction.name for _, instr in group.starts)
                words = group.template.fill(b.bases[:1], first, count)[0]
                if stepped:
                    words[HEAD_WORDS] = self._hyper[p]
                if p in written:
                    words[0] |= int(Flag.ACCUMULATE) << 16
                written.add(p)
                self.writer.section(words, b, group, 0, f"gradient of {gradient.parameter.name!r}")
        for p in kept:
            if update is None and p in self.touched:
                self._on_matrix("store_gradient", p, gradient=self.distribution.physical[p].gradient)
        for table, used in self.tables.items():
            width = size(table.shape[1:])
            dst = indexed(used.numbers, 0) if self._keep else direct(used.gradient, width)
            flags = self.writer.row_flag(width)
            self.writer.instruction(
                "gather_sum", len(used.rows), width, flags, dst=dst, offsets=used.offsets, shift=0, of=table.name
            )

    def update(self) -> None:
        """The optimizer's step, if there is one, for every trainable dense parameter (unused ones still decay) and used
        rows of tables.

        A full barrier must precede it: others may still be reading weights, or writing gradients.
        """
        update = self._update
        if update is None:
            return
        places, later = self.distribution.physical, self._products.parameters
        if self._waits_for_products:
            self.writer.next_launch()
            for p in self._kept():
                if p in self.touched or p in self._held.dense:
                    self._on_matrix("load_gradient", p, gradient=places[p].gradient)
        if not self.is_guarded_first:
            self.guard()
        elif self._waits_for_products:
            self.guard_again()
        if update.clip_norm is not None:
            self._clip(update.clip_norm)
        if self._waits_for_products or not later:
            self._steps(update, places)
            return
        self._steps(update, [p for p in places if p not in later])
        self.writer.next_launch()
        self.guard_again()
        self._steps(update, [p for p in places if p in later])

    def _steps(self, update: Update, parameters: Iterable[Parameter]) -> None:
        """The optimizer's step of some parameters."""
        rule = update.optimizer.name
        for p in parameters:
            place = self.distribution.physical[p]
            if not p.trainable or p in self._stepped:
                continue
            fields: dict[str, Any] = {**step_fields(place, update.averaging), "hyper": self._hyper[p]}
            transposed = fields.pop("transposed")
            if isinstance(p, Lookup):
                if p in self.tables:
                    used = self.tables[p]
                    fields |= {"gradient": used.gradient, "table_rows": used.numbers, "idle": used.idle}
                    width = size(p.shape[1:])
                    self.writer.instruction(
                        f"update_rows.{rule}", len(used.rows), width, Flag.ROWS, of=p.name, **fields
                    )
                continue
            flags = NO_FLAGS if p in self.touched or p in self._held.dense else Flag.NO_GRADIENT
            fields["gradient"] = place.gradient
            if self.distribution.is_packed(p):
                fields["transposed"] = transposed
                self._on_matrix(f"update_matrix.{rule}", p, flags, **fields)
            else:
                self.writer.instruction(f"update_vector.{rule}", 1, size(p.shape), flags, of=p.name, **fields)

    def _on_matrix(self, name: str, p: Parameter, flags: Flag = NO_FLAGS, **fields: Any) -> None:
        """Write an instruction that is divided as the matrix is: by tiles, or by the rows that the chip holds; by those
        that it would hold if all groups were one."""
        divided, parts, number = matrix_division(self.distribution.physical[p])
        self.writer.instruction(
            name, 0, p.shape[0], flags | divided, parts=parts, columns=p.shape[1], matrix=number, of=p.name, **fields
        )

    def _kept(self) -> list[Parameter]:
        """Matrices whose gradients the chip keeps."""
        places = self.distribution.physical
        return [p for p, place in places.items() if place.slots is not None and place.slots.keeps_gradient]

    def _clip(self, clip_norm: float) -> None:
        """Scale all gradients so that their global norm is at most `clip_norm`.

        Partial sums of squares, a barrier, then every virtual processor adds them up in the same order.
        """
        places = self.distribution.physical
        dense = [p for p in places if p in self.touched or p in self._held.dense]
        counts = [p.shape[0] * -(-p.shape[1] // TILE_COLUMNS) if self.distribution.is_packed(p) else 1 for p in dense]
        counts += [len(used.rows) for used in self.tables.values()]
        partials = self.writer.take(sum(counts))
        cursor = partials
        for p, n in zip(dense, counts, strict=False):
            gradient = places[p].gradient
            if self.distribution.is_packed(p):
                self._on_matrix("squares_matrix", p, gradient=gradient, partials=cursor)
            else:
                self.writer.instruction(
                    "squares_rows", 1, size(p.shape), Flag.ROWS, gradient=gradient, partials=cursor, of=p.name
                )
            cursor += n
        for table, used in self.tables.items():
            n, width = len(used.rows), size(table.shape[1:])
            self.writer.instruction(
                "squares_rows", n, width, Flag.ROWS, gradient=used.gradient, partials=cursor, of=table.name
            )
            cursor += n
        self.writer.barrier("before clipping")
        fields: dict[str, Any] = {"max_norm": clip_norm, "left_out": self._left_out}
        self.writer.instruction("clip", sum(counts), 1, partials=partials, **fields)
