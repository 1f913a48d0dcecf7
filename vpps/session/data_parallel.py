"""Data-parallel training steps: each of several processes computes its shards of a mini-batch."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

from vpps.compiler.passes.cell_history import CellHistory
from vpps.distributed.world import World
from vpps.engine.gradients import GradientPiece, RowGradients, are_finite, found_gradients
from vpps.engine.options import Options, check_loss
from vpps.errors import DistributedError, HandleError, NoGradientError, NonFiniteError, VppsError
from vpps.graph.graph import Graph
from vpps.model.model import Model
from vpps.model.optim import Optimizer
from vpps.model.state import AccumulatedGradients
from vpps.ops.operand import Expression
from vpps.ops.philox import StepKey
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.session.gradient_sum import GradientSum, Sums
from vpps.session.halves import Halves
from vpps.session.session import FORKED
from vpps.turns import serialised


class Shard(NamedTuple):
    """Arguments and results of a call to `fb`.

    Attributes:
        key: key for the call's random numbers.
        sums: the call's loss and gradients; None while its launch runs.
    """

    graph: Graph
    loss: Expression
    accumulate: bool
    key: StepKey | None
    sums: Sums | None = None


class PlanKey(NamedTuple):
    """Cache key of a speculative plan: the plan may be launched if none of these values has changed."""

    planner: Planner
    graph: Graph
    n_calls: int
    loss: Expression
    parity: int
    key: StepKey | None


class PendingStep(NamedTuple):
    """A step in the background.

    Attributes:
        shards: shards of this rank; empty if gradients were given.
        number: number of its update.
        rule: copies of optimizer and clip_norm, made when the step began.
        total: future for the sums over all shards.
    """

    shards: Sequence[Shard]
    accumulate: bool
    number: int
    rule: tuple[Optimizer, float | None]
    total: Future[Sums]


class DataParallel(Halves):
    """A handle whose gradients are sums over all ranks in a world.

    Every rank gets the sums and applies the same update, so the weights are bit-identical on all ranks. All ranks must
    know the same cells: cells decide the parameter stacks, and stacks decide the order of summation. If a rank meets
    new cells, all ranks add these in shard order and compute the gradients of that step again.

    After the launch of a step's last shard, the world's thread adds up the gradients. Meanwhile the program records the
    next graph and `fb` plans it. All other calls to the handle wait for that thread.
    """

    __slots__ = ("_ahead", "_begun", "_common", "_compared", "_history", "_shards", "_step", "_sum", "_world")

    def __init__(self, model: Model, options: Options) -> None:
        self._world: World | None = None
        self._shards: list[Shard] = []  # shards of the current step so far
        self._begun: tuple[object, ...] = ()  # training state when its latest shard was given
        self._compared = -1  # step after which weights were compared last
        self._step: PendingStep | None = None
        self._ahead: tuple[PlanKey, Plan] | None = None
        super().__init__(model, options)
        self._sum: GradientSum | None = None
        if options.world is not None and options.world.shards > 1:
            self._world, self._is_shared = options.world, True
            self._sum = GradientSum(options.world, model, options.precisions)
            self._know_history()

    def _check(self, graph: Graph, what: str, training: bool) -> None:
        super()._check(graph, what, training)
        if self._world is not None and self.model.cell_history is not self._history:  # all ranks restored a checkpoint
            self._know_history()

    def _know_history(self) -> None:
        """Record the cells that all ranks know now."""
        if self.model.cell_history is None:
            self.model.cell_history = CellHistory()
        self._history: CellHistory = self.model.cell_history
        self._common = len(self._history.cells), self._history.orders

    @serialised
    def close(self) -> None:
        """Wait for the launch in flight, copy the weights back to the model, end the threads. May be called again."""
        given, self._shards = len(self._shards), []
        try:
            if not self._closed and os.getpid() == self.pid:
                self._finish()
        finally:
            super().close()
        if given:
            what = f"only {given} of the {len(self._mine)} shards of a step were given to fb, so the step was not made"
            warnings.warn(what, RuntimeWarning, stacklevel=3)

    @property
    def is_newer(self) -> bool:
        """True if the handle has newer weights or training state than the model."""
        return self._step is not None or super().is_newer

    def _as_after_last_step(self, read: Callable[[], Any]) -> Any:
        if self._world is None:
            return super()._as_after_last_step(read)
        self._world.wait_aside()
        step, number = self._step, self.model._step
        back = starmap(setattr, [(self, "_step", step), (self.model, "_step", number)])
        try:
            self._step = None
            if step is not None and not step.accumulate:  # its update has not been applied
                self.model._step = step.number - 1
            return super()._as_after_last_step(read)
        finally:
            deque(back, 0)  # one call, so that Ctrl-C cannot interrupt it

    @serialised
    def pull_weights(self) -> None:
        """Copy newer weights and optimizer state back to the model. The model calls this as needed."""
        if self._step is not None and not self._closed:
            if os.getpid() != self.pid:
                raise HandleError(FORKED)
            self._finish()
        super().pull_weights()

    @serialised
    def apply(self, gradients: Mapping[str, Any], accumulate: bool = False) -> None:
        if self._shards:
            self._refuse("apply", "give fb the others first")
        given = self._given(gradients, accumulate)
        if self._sum is None:
            self._apply(given, accumulate, are_finite(given.gradients.values()))
            return
        found = {
            name: RowGradients(given.rows[name], gradient) if name in given.rows else gradient
            for name, gradient in given.gradients.items()
        }
        with self._telling():
            self._begin_step([], lambda: [Sums(0.0, found)], accumulate)
        self._finish()

    apply.__doc__ = Halves.apply.__doc__

    @property
    def _mine(self) -> range:
        """Numbers of the shards that this process computes."""
        return range(1) if self._world is None else self._world.mine

    def _key(self, train: bool, draw: int = 0) -> StepKey | None:
        """Return the key for random numbers. Masks outside of examples depend on the shard, not on its rank."""
        key = super()._key(train, draw)
        if key is None or self._world is None:
            return key
        return replace(key, shard=self._mine[len(self._shards)])

    def _refuse(self, what: str, remedy: str) -> None:
        raise HandleError(
            f"{what}: {len(self._shards)} of the {len(self._mine)} shards of this rank were given for a step; {remedy}"
        )

    # ---- shards of a step

    def _plan_ahead(self, graph: Graph, loss: Expression) -> None:
        """Plan a shard speculatively during the previous step, whose result may invalidate the plan."""
        self._ahead, step, engine = None, self._step, self._engine
        if step is None or step.accumulate or step.total.done() or not isinstance(graph, Graph) or not len(graph):
            return
        planner = engine.planner
        if planner is None or not engine.knows(graph):
            return
        parity = 1 - engine.parity  # the update of the previous step is launched first
        ahead = PlanKey(planner, graph, graph.n_calls, loss, parity, self._key(train=True))
        with suppress(VppsError):  # fb raises it again
            check_loss(graph, loss)
            self._ahead = ahead, planner.plan_training(graph, loss, None, parity, ahead.key)

    def _fb_shard(self, graph: Graph, loss: Expression, accumulate: bool) -> None:
        """Compute the gradients of one shard; the last shard begins the step."""
        assert self._world is not None
        if self._shards and self._begun != self._state():
            self._shards = []
            raise HandleError(
                "fb: weights or accumulated gradients have changed since the first shards of this step were given, or "
                "the loop over batches() was left; these shards are discarded, begin the step again"
            )
        if self._shards and self._shards[0].accumulate != accumulate:
            self._refuse("fb", f"accumulate={accumulate} differs from these; use the same for all shards of a step")
        before = self._shards
        with self._telling():
            self._configurator.prepare(graph, trains=True)  # first: it takes over the state of a restored checkpoint
            shard = Shard(graph, loss, accumulate, self._key(train=True))
            launched = self._launch(shard)
            self._shards = []  # an error from here on aborts the step
            if len(before) + 1 == len(self._mine):
                kept = [s.sums for s in before if s.sums is not None]
                self._begin_step([*before, shard], lambda: [*kept, self._sums_of(launched)], accumulate)
                # Finish now if an error is possible (no gradients, or on_nonfinite="raise"), so all ranks raise it.
                if isinstance(launched, Sums) or self._losses.on_nonfinite == "raise":
                    self._finish()
            else:
                with self._engine.machine.in_order:
                    self._shards = [*before, shard._replace(sums=self._sums_of(launched).kept())]
                self._begun = self._state()

    def _state(self) -> tuple[object, ...]:
        """Return the training state that all shards of a step must share."""
        store = self._store
        store.note_changes()
        assert self._world is not None
        return self._world.abandoned, self.model.step, store.accumulated, store.changes, self.model.state_version

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Abort the step if an error leaves the block, and tell the other ranks. They are not told if they raise the
        same error themselves, or after Ctrl-C, which reaches them, too."""
        try:
            yield
        except BaseException as error:
            self._shards = []
            of_all = DistributedError | NoGradientError | NonFiniteError
            if self._world is not None and isinstance(error, Exception) and not isinstance(error, of_all):
                self._world.fail(error)
            raise

    def _launch(self, shard: Shard) -> Plan | Sums:
        """Begin to compute loss and gradients, and return the plan. If the loss depends on no parameter, return its
        sums at once."""
        graph, loss, key, configurator = shard.graph, shard.loss, shard.key, self._configurator
        ahead, self._ahead = self._ahead, None

        def made(planner: Planner) -> Plan:
            parity = self._engine.parity
            if ahead is not None and ahead[0] == PlanKey(planner, graph, graph.n_calls, loss, parity, key):
                return ahead[1]
            return planner.plan_training(graph, loss, None, parity, key)

        try:
            plan = configurator.kernel_for(graph, made)
            learns = bool(plan.reached or plan.tables)  # else only inputs have gradients
        except NoGradientError:
            learns = False
        if not learns:
            held = self._store.held_in_pool
            plan = configurator.kernel_for(graph, lambda p: p.plan_forward(graph, [loss], held, key))
            self._run(plan)
            return Sums(float(self._values(plan, [loss])[0]), {})
        self._engine.wait()
        self._store.park_gradients()
        self._engine.launch(plan, at_once=True)
        return plan

    def _sums_of(self, launched: Plan | Sums) -> Sums:
        """Wait for a launch and return its sums."""
        if isinstance(launched, Sums):
            return launched
        plan = launched
        self._engine.wait()
        machine, distribution = self._engine.machine, self._store.distribution
        tables = found_gradients(plan, machine.pool, distribution, dense=False)
        return Sums(
            machine.loss(plan.loss_slot),
            tables,
            GradientPiece.of(plan, machine.pool, distribution),
            touched=frozenset(p.name for p in plan.reached),
        )

    def _again(self, shards: Sequence[Shard]) -> list[Sums]:
        """Compute the shards again, with the stacks that all ranks now have."""
        found: list[Sums] = []
        for shard in shards:
            self._configurator.prepare(shard.graph, trains=True)
            sums = self._sums_of(self._launch(shard))
            with self._engine.machine.in_order:
                found.append(sums.kept() if len(found) + 1 < len(shards) else sums)
        return found

    # ---- the step

    def _begin_step(self, shards: Sequence[Shard], found: Callable[[], list[Sums]], accumulate: bool) -> None:
        """Begin to add up the gradients of all ranks in the background.

        Args:
            shards: shards of this rank; empty if gradients were given.
            found: callback that waits for the sums of these shards.
        """
        assert self._world is not None
        kept = bool(accumulate or self._store.accumulated)
        kind = int(accumulate) + 2 * bool(shards) + 4 * kept
        number = self.model.step + 1
        alike = number, kind, self._digest(), self._world.drawn
        add_up = partial(self._add_up, shards, found, alike, pieces=not kept)
        rule = copy.copy(self.optimizer)
        rule.groups = {pattern: dict(values) for pattern, values in rule.groups.items()}
        self._step = PendingStep(shards, accumulate, number, (rule, self.clip_norm), self._world.aside(add_up))
        self.model._step += not accumulate

    def _add_up(
        self, shards: Sequence[Shard], found: Callable[[], list[Sums]], alike: tuple[int, int, int, int], pieces: bool
    ) -> Sums:
        """Return the sums over all shards of all ranks. `alike`: step, kind, digest, drawn for `GradientSum.agree`."""
        assert self._sum is not None
        assert self._world is not None
        with self._telling():
            sums, machine = found(), self._engine.machine
            history = self.model.cell_history
            n_new = 0 if history is None else len(history.cells) - self._common[0]  # cells that not all ranks know
            if self._sum.agree(sums, *alike, machine.gpu, n_new):
                self._take_over()
                if shards:
                    sums, machine = self._again(shards), self._engine.machine
                self._sum.agree(sums, *alike, machine.gpu, 0)
            if shards and not self._sum.any_gradient:
                raise NoGradientError(
                    "the loss depends on no trainable parameter, in no shard of any rank, so there is nothing to "
                    "learn; use handle.forward to evaluate it"
                )
            with machine.in_order, self._world.exchanging():
                return self._sum(sums, pieces)

    def _finish(self) -> None:
        """Apply the update of the step in the background, if there is one."""
        if self._step is not None:  # fast path: every call comes here, usually without a step
            self._make_update()

    @serialised
    def _make_update(self) -> None:
        step = self._step
        if step is None:
            return
        assert self._world is not None
        step.total.exception()  # waits; Ctrl-C during the wait changes nothing
        self._world.wait_aside()  # else that thread may keep the last reference to this handle
        now = number = self.model.step
        assigned = None
        if not step.accumulate:
            if number != step.number:  # the program has assigned `model.step`, for later steps
                assigned = number
            number = step.number - 1
        self.model._step, self._step = number, None  # in one statement: a signal handler may read both
        held = self._store.accumulated
        try:
            with self._telling():
                self._end(step, step.total.result())
        except KeyboardInterrupt:
            if (self.model._step, self._store.accumulated) == (number, held):  # no launch has begun: try again
                self.model._step, self._step = now, step
            raise
        finally:
            if assigned is not None:
                self.model._step = assigned
        self._know_history()

    def _end(self, step: PendingStep, total: Sums) -> None:
        """Apply a step's update, or accumulate its gradients."""
        given = AccumulatedGradients(1)
        for name, gradient in total.gradients.items():
            if isinstance(gradient, RowGradients):
                given.rows[name], given.gradients[name] = gradient
            else:
                given.gradients[name] = gradient
        loss = total.loss if step.shards else None
        self._apply(given, step.accumulate, total.is_finite, loss, total.piece, step.rule, total.touched)

    def _take_over(self) -> None:
        """Exchange new cells, so that all ranks know the same cells in the same order, the order of shards."""
        assert self._world is not None
        assert self.model.cell_history is not None
        cells, (n, orders) = self.model.cell_history.cells, self._common
        new = CellHistory(cells[n:]).as_json()["cells"]
        told: dict[str, Any] = {}
        for cell in (cell for of_rank in self._world.gather(json.dumps(new)) for cell in json.loads(of_rank)):
            told.setdefault(json.dumps(cell), cell)
        named = {p.name: p for p in self.model}
        union = CellHistory.from_json({"cells": list(told.values()), "orders": []}, named)
        self.model.cell_history = CellHistory([*cells[:n], *union.cells], orders, self.model.cell_history.apart)

    def _digest(self) -> int:
        """Return a digest of weights, moments and averages if it is time to compare them; else 0."""
        assert self._world is not None
        step = self.model.step
        if self._compared >= 0 and (step % self._world.check_every or step == self._compared):
            return 0
        self._compared = step
        self.pull_weights()
        state, averages = self.model.optimizer_state, self.model.averages
        counts = [] if state is None else sorted(state.counts.items())
        digest = hashlib.blake2b(repr((self.model.seed, step, counts)).encode(), digest_size=7)
        kept = [] if state is None else list(state.moments.values())
        kept += [] if averages is None else [averages.values]
        for p in self.model:
            digest.update(p.host.data)
            for arrays in kept:
                if p.name in arrays:
                    digest.update(arrays[p.name].data)
        return int.from_bytes(digest.digest(), "little")
