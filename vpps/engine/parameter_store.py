"""Synchronizes a model with its copy in a handle's pool: places parameters there, uploads and fetches newer values.

The model's arrays are newer after an assignment or a restore, and the pool is newer after an update. During a step, or
any launch on the host, only the methods that plan the next launch may be called: `adopt`, `next_key`, `next_update`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.arrangement import Arrangement
from vpps.model.model import Lookup, Model, Parameter
from vpps.model.optim import Optimizer, OptimizerState
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.model.state import AccumulatedGradients, Averages, factors
from vpps.ops.philox import StepKey
from vpps.placement.distribution import NOTHING_HELD, ONE, Distribution, HeldGradients, Pool
from vpps.placement.stacks import Stacks, members
from vpps.placement.update import NO_COUNTS, Averaging, Update
from vpps.planner.plan import Plan
from vpps.runtime.machine import Machine
from vpps.values import Float32


class ParameterStore:
    """A model's copy in the pool of a machine.

    Args:
        kind: class of the optimizer whose moments the pool holds; None for inference, without moments and gradients.
        ema: decay of the weights' moving averages, or None.
        precisions: precisions of products with the parameters.
    """

    def __init__(
        self,
        model: Model,
        machine: Machine,
        kind: type[Optimizer] | None,
        ema: float | None,
        precisions: Precisions = ALL_EXACT,
    ) -> None:
        self.model = model
        self.precisions = precisions
        self.machine = machine
        self.kind = kind
        self.ema = ema
        self._distribution: Distribution | None = None
        self._layout = -1  # version of the model's layout that the distribution was made for
        self._versions: dict[Parameter, int] = {}  # versions of the weights in the pool
        self._uploaded: list[int] = []  # `_versions` at the last `upload`, in parameter order
        self._known: dict[Parameter, int] = {}  # latest known versions, including parameters that lost their place
        self.changes = 0  # number of weight changes, here or by others
        self._state_version = -1  # version of the adopted optimizer state
        self._moments_are_current = False
        self._counts: dict[str, int] = {}  # steps taken by each parameter; replaced, never changed in place
        self._together = 0  # further steps taken by every parameter in `_stepping`
        self._stepping: frozenset[str] = frozenset()  # names of the parameters trained here
        self._weights_changed = False  # True if the pool's weights are newer than the model's
        self.held = NOTHING_HELD  # gradients that no update has used yet
        self._calls = 0  # number of calls summed up in these gradients
        self._held_in_pool = False  # False if only the model has these gradients
        self._held_changed = False  # True if these gradients are newer in the pool
        self._averaged = 0  # number of updates included in the averages
        self._row_averaged: dict[Parameter, NDArray[np.int64]] = {}  # like `_averaged`, for each row of a table
        if ema is not None:
            self._adopt_averages(ema)

    # ---- places

    @property
    def distribution(self) -> Distribution:
        """The parameters' places; available after `bind`."""
        assert self._distribution is not None
        return self._distribution

    def is_ready(self, accumulate: bool) -> bool:
        """Return True if every parameter has its place, and room to accumulate gradients if needed."""
        bound = self._distribution is not None and self._layout == self.model.layout_version
        return bound and (self.distribution.accumulates or not self._needs_accumulation(accumulate))

    def _needs_accumulation(self, accumulate: bool) -> bool:
        restored = self.model.accumulated
        return self.kind is not None and (accumulate or (restored is not None and bool(restored.rows)))

    def bind(self, stacks: Stacks, arrangement: Arrangement, pool_limit: int, accumulate: bool) -> Distribution:
        """Place all current parameters of the model; the contents of the pool are lost.

        Args:
            stacks: stacked parameters, each stack a single matrix for the kernel.
            arrangement: weights that the chip holds during a launch.
            pool_limit: bytes that the pool may grow to.
            accumulate: True to reserve room for table gradients that outlive a batch; the room then stays reserved.

        Raises:
            CapacityError: the pool would exceed its limit.
        """
        accumulates = self._needs_accumulation(
            accumulate or (self._distribution is not None and self._distribution.accumulates)
        )
        self._distribution = None
        layout = self.model.layout_version
        n_moments = len(self.kind.moments) if self.kind is not None else 0
        machine, trains, averages = self.machine, self.kind is not None, self.ema is not None
        groups = arrangement.chip.groups
        distribution = Distribution(
            self.model, machine.vps // groups, machine.panel, n_moments, trains, accumulates, averages,
            arrangement.held, groups, stacks, self.precisions,
        )  # fmt: skip
        machine.grow(distribution.end, 0, pool_limit)
        machine.pool[: distribution.end] = 0
        machine.pool[ONE] = 1
        self._versions.clear()
        self._moments_are_current = False
        self._settle()
        self._stepping = frozenset(p.name for p in distribution.places if p.trainable)
        self._distribution, self._layout = distribution, layout
        self._adopt_gradients()
        return distribution

    # ---- from the model to the pool

    @property
    def is_current(self) -> bool:
        """True if the store has adopted the model's current training state."""
        return self._state_version == self.model.state_version

    def adopt(self) -> None:
        """Take over the model's training state if it has been replaced (by `restore`, or another handle)."""
        if self.is_current:
            return
        state = self._saved_state()
        self._counts, self._together = {} if state is None else dict(state.counts), 0
        self._moments_are_current = False
        self._adopt_gradients()
        if self.ema is not None:
            self._adopt_averages(self.ema)
        self._state_version = self.model.state_version

    def _adopt_averages(self, decay: float) -> None:
        """Continue the model's averages, or start new averages from its weights."""
        averages = self.model.averages
        if averages is None:
            averages = self.model.averages = Averages(decay)
        if averages.decay != decay:
            for p in self.model:
                averages.catch_up(p)
            averages.decay = decay
        self._averaged = averages.updates
        self._versions.clear()  # so that the averages are uploaded together with the weights

    def _adopt_gradients(self) -> None:
        """Let the next update use the gradients that the model has accumulated."""
        kept = self.model.accumulated if self.kind is not None else None
        self._held_in_pool = self._held_changed = False
        if kept is None:
            self.held, self._calls = NOTHING_HELD, 0
            return
        trained = [p for p in self.distribution.places if p.trainable and p.name in kept.gradients]
        stack_of = self.distribution.stacks.of
        dense = frozenset(stack_of.get(p, p) for p in trained if not isinstance(p, Lookup) and p.name not in kept.rows)
        self.held = HeldGradients(
            dense, {p: kept.rows[p.name] for p in trained if isinstance(p, Lookup) and p.name in kept.rows}
        )
        self._calls = kept.calls

    def _saved_state(self) -> OptimizerState | None:
        """Return the model's optimizer state if it belongs to this kind of optimizer."""
        state = self.model.optimizer_state
        return state if state is not None and self.kind is not None and state.optimizer == self.kind.name else None

    @property
    def is_uploaded(self) -> bool:
        """True if the pool is up to date, so that `upload` and `upload_gradients` would do nothing."""
        self.model.notice_changes()
        return (
            all(self._versions.get(p) == p.version for p in self.distribution.places)
            and (self.kind is None or self._moments_are_current)
            and (self._held_in_pool or self.model.accumulated is None)
        )

    def upload(self) -> None:
        """Upload newer weights and moments of the model to the pool."""
        self.model.notice_changes()
        distribution, pool = self.distribution, self.machine.pool
        versions = [p.version for p in distribution.places]
        if versions != self._uploaded or not self._versions:
            self._uploaded = []  # until the upload is complete: Ctrl-C may interrupt it
            self._upload_weights()
            self._uploaded = versions
        if self.kind is not None and not self._moments_are_current:
            state = self._saved_state()
            for p, place in distribution.places.items():
                for name, address in zip(self.kind.moments, place.moments, strict=False):
                    saved = state.moments[name].get(p.name) if state is not None else None
                    zeros = np.zeros(p.shape, np.float32)
                    distribution.store(pool, p, address, zeros if saved is None else saved)
            self._moments_are_current = True

    def _upload_weights(self) -> None:
        """Upload changed weights, with their averages."""
        distribution, pool = self.distribution, self.machine.pool
        self.note_changes()
        # Read versions first: another thread may assign newer weights, which the next upload copies.
        changed = {p: p.version for p in distribution.places if self._versions.get(p) != p.version}
        lent = {p: p.lender for p in changed if p.lender is not None and p.lender.can_put(self.machine, distribution)}
        if lent:
            next(iter(lent.values())).put(self.machine, distribution, list(lent))
        for p, version in changed.items():
            if p not in lent:
                distribution.store_weights(pool, p, p.host)
            if average := distribution.places[p].average:
                distribution.store(pool, p, average, self._averages().values.get(p.name, p.host))
                if isinstance(p, Lookup):
                    self._row_averaged[p] = self._rows_averaged(p).copy()
            self._versions[p] = version

    def note_changes(self) -> None:
        """Count the changes that others made to the model's weights."""
        self.model.notice_changes()
        for p in self.distribution.places:
            if self._known.get(p) != p.version:
                self._known[p] = p.version
                self.changes += 1

    def upload_gradients(self, plan: Plan) -> None:
        """Upload the accumulated gradients to the pool, for a launch that adds to them."""
        for place in (self.distribution.physical[p] for p in plan.zeros):
            self.machine.pool[place.gradient : place.gradient + place.floats] = 0
        kept = self.model.accumulated
        if self._held_in_pool or kept is None:
            return
        distribution, pool = self.distribution, self.machine.pool
        self._write_dense(pool, self.held, kept)
        for p, rows in self.held.rows.items():
            gradient = self._rows_of_gradient(p)
            gradient[rows] = kept.gradients[p.name].reshape(len(rows), -1)
            distribution.store(pool, p, distribution.places[p].gradient, gradient)
        self._held_in_pool = True

    def _write_dense(self, pool: Pool, held: HeldGradients, kept: AccumulatedGradients) -> None:
        for p in (member for one in held.dense for member in members(one)):
            gradient = kept.gradients.get(p.name)  # None: not yet a member of the stack at that time
            value = np.zeros(p.shape, np.float32) if gradient is None else gradient
            self.distribution.store(pool, p, self.distribution.places[p].gradient, value)

    def _rows_of_gradient(self, table: Parameter) -> Float32:
        """Copy a table's accumulated gradient from the pool; only the rows in `held` are meaningful."""
        place = self.distribution.places[table]
        return self.machine.pool[place.gradient : place.gradient + place.floats].reshape(table.shape[0], -1).copy()

    # ---- steps of training

    @property
    def is_simple(self) -> bool:
        """True if a step changes only weights and moments: no averages, and no accumulated gradients."""
        return self.ema is None and not self._calls

    def next_key(self) -> StepKey:
        """Return the key of the next step's random numbers."""
        return StepKey(self.model.seed, self.model.step + 1, self._calls)

    @property
    def accumulated(self) -> int:
        """Number of calls whose gradients the next update will use."""
        if self._distribution is not None and self._state_version == self.model.state_version:
            return self._calls
        kept = self.model.accumulated
        return kept.calls if kept is not None else 0

    def next_update(self, optimizer: Optimizer, clip_norm: float | None) -> Update:
        """Return the update for the next step."""
        averaging = Averaging(self.ema, self._idle_factors) if self.ema is not None else None
        counts = self._counts if optimizer.corrects else NO_COUNTS
        return Update(optimizer, self.model.step + 1, self._together + 1, clip_norm, averaging, counts)

    def taken_by(self, p: Parameter) -> tuple[int, bool]:
        """Return a parameter's number of steps (0 if the optimizer ignores it), and True if its gradient is held."""
        current = self.is_current
        kept = self.model.accumulated
        if current and self._distribution is not None:
            holds = self.distribution.stacks.of.get(p, p) in self.held.dense
        else:
            holds = kept is not None and p.name in kept.gradients
        if self.kind is None or not self.kind.corrects:
            return 0, holds
        if not current:
            state = self._saved_state()
            return 0 if state is None else state.counts.get(p.name, 0), holds
        return self._counts.get(p.name, 0) + (self._together if p.name in self._stepping else 0), holds

    def count(self, plan: Plan, by: int = 1) -> None:
        """Count a step taken by the parameters; `by=-1` reverts the count of a skipped step."""
        idle = plan.idle
        if not idle:
            self._together += by
            return
        self._settle()
        self._counts = self._counts | {n: self._counts.get(n, 0) + by for n in self._stepping if n not in idle}

    def _settle(self) -> None:
        """Move `_together` into `_counts`."""
        if self._together:
            self._counts = self._counts | {n: self._counts.get(n, 0) + self._together for n in self._stepping}
            self._together = 0

    def _averages(self) -> Averages:
        averages = self.model.averages
        assert averages is not None
        return averages

    def _rows_averaged(self, table: Parameter) -> NDArray[np.int64]:
        """Return, for each row, the number of updates that its average includes."""
        if self._versions.get(table) == table.version:
            return self._row_averaged[table]
        begun = self._averages().current.get(table.name)
        return begun if begun is not None else np.full(table.shape[0], self._averaged)

    def _idle_factors(self, table: Parameter, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        assert self.ema is not None
        return factors(self.ema, self._averaged, self._rows_averaged(table)[rows])

    def begin(self, plan: Plan, updates: bool) -> None:
        """Record the start of a training step: it updates the weights, or adds to the held gradients."""
        self.held = plan.held
        self._held_in_pool = self._held_changed = True
        if updates:
            self.changes += 1
            self._calls, self.model.accumulated = 0, None
            self.model._step += 1
            self.count(plan)
            self._weights_changed = True
            self._begin_averages(plan)
        else:
            self._calls += 1

    def _begin_averages(self, plan: Plan) -> None:
        if self.ema is None:
            self.model.averages = None  # they would be out of date
            return
        self._averaged += 1
        for table, used in plan.tables.items():
            self._row_averaged[table][used.rows] = self._averaged

    def restorer(self, plan: Plan) -> Callable[[], None]:
        """Return a callback that restores the current state after `begin` has changed it."""
        step, held, calls, accumulated = self.model.step, self.held, self._calls, self.model.accumulated
        averages, averaged = self.model.averages, self._averaged
        counts = self._counts, self._together
        changed = self._weights_changed, self._held_changed, self.changes
        rows = {t: mine[plan.tables[t].rows] for t, mine in self._row_averaged.items() if t in plan.tables}

        def restore() -> None:
            self.model._step, self.held, self._calls, self.model.accumulated = step, held, calls, accumulated
            self.model.averages, self._averaged = averages, averaged
            self._counts, self._together = counts
            self._weights_changed, self._held_changed, self.changes = changed
            for table, before in rows.items():
                self._row_averaged[table][plan.tables[table].rows] = before

        return restore

    def take_accumulated(self, total: AccumulatedGradients) -> None:
        """Replace the accumulated gradients."""
        self.model.accumulated = total
        self._adopt_gradients()

    def as_held(self, total: AccumulatedGradients) -> tuple[HeldGradients, dict[Parameter, NDArray[np.int64]]]:
        """Return the dense gradients in the form of `held`, and the row numbers of the tables."""
        stack_of = self.distribution.stacks.of
        given = [p for p in self.distribution.places if p.trainable and p.name in total.gradients]  # none is frozen
        dense = frozenset(stack_of.get(p, p) for p in given if p.name not in total.rows)
        return HeldGradients(dense), {p: total.rows[p.name] for p in given if p.name in total.rows}

    def held_of(self, names: frozenset[str]) -> HeldGradients:
        """Return the gradients of the dense parameters with these names, in the form of `held`."""
        return HeldGradients(
            frozenset(
                p
                for p, place in self.distribution.physical.items()
                if place.gradient and not isinstance(p, Lookup) and any(one.name in names for one in members(p))
            )
        )

    def write_gradients(self, pool: Pool, plan: Plan, total: AccumulatedGradients) -> None:
        """Write gradients to the places from which an update plan reads them."""
        self._write_dense(pool, self.as_held(total)[0], total)
        for p, used in plan.tables.items():
            rows = total.gradients[p.name].reshape(-1)
            pool[used.gradient : used.gradient + len(rows)] = rows

    def drop_gradients(self) -> None:
        """Discard the accumulated gradients."""
        self.model.accumulated = None
        self._adopt_gradients()

    # ---- from the pool to the model

    @property
    def is_newer(self) -> bool:
        """True if the pool is newer than the model."""
        return self._weights_changed or self._held_changed

    def pull(self) -> None:
        """Update the model from the pool."""
        if self._weights_changed:
            self._pull_weights()
            self._weights_changed = False
        if self._held_changed:
            self._pull_gradients()

    @property
    def held_in_pool(self) -> HeldGradients:
        """Gradients in the pool that must survive a launch that does not use them."""
        return self.held if self._held_in_pool else NOTHING_HELD

    def park_gradients(self) -> None:
        """Move the accumulated gradients to the model: the next launch reuses their memory in the pool."""
        if self._held_changed:
            self._pull_gradients()
        self._held_in_pool = False

    def _pull_weights(self) -> None:
        assert self.kind is not None
        distribution, pool = self.distribution, self.machine.pool
        state = self._saved_state()
        kept = state.moments if state is not None else {}
        moments = {name: dict(kept.get(name, {})) for name in self.kind.moments}  # keeps moments of frozen parameters
        averages: dict[str, Float32] = {}
        for p, place in distribution.places.items():
            if not p.trainable:
                continue
            p.host[...] = distribution.fetch(pool, p, place.weights)
            p.version += 1
            self._versions[p] = self._known[p] = p.version
            for name, address in zip(self.kind.moments, place.moments, strict=True):
                moments[name][p.name] = distribution.fetch(pool, p, address)
            if place.average:
                averages[p.name] = distribution.fetch(pool, p, place.average)
        self._settle()
        self.model.optimizer_state = OptimizerState(self.kind.name, moments, dict(sorted(self._counts.items())))
        if self.ema is not None:
            current = {p.name: rows.copy() for p, rows in self._row_averaged.items() if p.trainable}
            self.model.averages = Averages(self.ema, self._averaged, averages, current)

    def _pull_gradients(self) -> None:
        distribution, pool = self.distribution, self.machine.pool
        if not self._calls:
            self.model.accumulated, self._held_changed = None, False
            return
        before = self.model.accumulated
        now = AccumulatedGradients(self._calls)
        if before is not None:  # keep the gradients of frozen parameters
            frozen = {name for name in before.gradients if name in self.model and not self.model[name].trainable}
            now.gradients |= {name: before.gradients[name] for name in frozen}
            now.rows |= {name: before.rows[name] for name in frozen & before.rows.keys()}
        for p in (member for one in self.held.dense for member in members(one)):
            now.gradients[p.name] = distribution.fetch(pool, p, distribution.places[p].gradient)
        for p, rows in self.held.rows.items():
            now.gradients[p.name] = self._rows_of_gradient(p)[rows].reshape(len(rows), *p.shape[1:])
            now.rows[p.name] = rows
        self.model.accumulated, self._held_changed = now, False
