"""Forward, backward and updates as separate calls of a handle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike

from vpps.engine.engine import Engine
from vpps.engine.gradients import (
    GradientPiece,
    Gradients,
    added,
    are_finite,
    dense_gradients,
    found_gradients,
    given_gradients,
)
from vpps.engine.options import Options, check_loss
from vpps.engine.parameter_store import ParameterStore
from vpps.engine.readback import places_of, read_value
from vpps.errors import CapacityError, GraphError, HandleError, NoGradientError, ShapeError
from vpps.graph.graph import Graph
from vpps.hints import hinted, read_only
from vpps.model.model import Model
from vpps.model.optim import Optimizer
from vpps.model.state import AccumulatedGradients
from vpps.ops.operand import Expression
from vpps.ops.philox import StepKey
from vpps.placement.distribution import NOTHING_HELD, Pool
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.record.rows import Rows
from vpps.session.session import Session
from vpps.turns import serialised
from vpps.values import Float32, as_count, as_flag, as_float32, as_items


class RetainedForward:
    """Values that a forward keeps for its backward.

    Attributes:
        graph, wanted: the graph, and the wanted expressions, whose gradients backward is given.
        masks: arguments for `Halves._key`. A callback to the handle would create a reference cycle.
        key: key for dropout's random numbers, set when first planned; None if dropout is off.
        updates: True if the backward applies an update.
        plan: plan of both forward and backward.
        launch: number of the launch that computed the values; 0 if they are gone.
    """

    def __init__(
        self, graph: Graph, wanted: Sequence[Expression | Rows], masks: tuple[bool, int], updates: bool
    ) -> None:
        self.graph, self.wanted, self.masks, self.updates = graph, wanted, masks, updates
        self.key: StepKey | None = None
        self.plan: Plan | None = None
        self.launch = 0

    def __repr__(self) -> str:
        return f"<values kept of {self.graph.describe()}>"

    def note(self, engine: Engine, plan: Plan) -> None:
        """Record that the latest launch has computed the values."""
        self.plan, self.launch = plan, engine.machine.launches
        self._engine, self._held = ref(engine), engine.store.held
        self._changes, self._step = engine.store.changes, engine.model.step

    def is_current(self, engine: Engine) -> bool:
        """Return True if weights and step have not changed since the forward."""
        if self._engine() is not engine:
            return False
        store = engine.store
        store.note_changes()
        if self._changes != store.changes:
            return False
        return not self.updates or (self._step == engine.model.step and self._held is store.held)


class Halves(Session):
    """A handle with forward, backward and update as separate calls.

    `fb(graph, loss)` is bit-identical to `forward(graph, [loss], train=True, keep=True)` and `apply(backward([1]))`.
    """

    __slots__ = ("_is_shared", "_kept", "_updated_by")
    kept: RetainedForward | None = read_only(
        "_kept", "Values of the latest `forward(keep=True)` for `backward`; None before the first."
    )
    _store: ParameterStore = read_only("_engine.store", "Parameter store of the current engine.")

    def __init__(self, model: Model, options: Options) -> None:
        self._kept: RetainedForward | None = None
        self._updated_by: Planner | None = None  # planner whose updates the kernel already supports
        self._is_shared = False  # True if other processes train the same model
        super().__init__(model, options)

    @serialised
    @hinted
    def forward(
        self,
        graph: Graph,
        wanted: Sequence[Expression | Rows],
        train: bool = False,
        keep: bool = False,
        update: bool = False,
        draw: int = 0,
    ) -> list[Float32]:
        """Return the values of expressions with the current weights; for rows, arrays (n, ...).

        Only vertices that the wanted expressions depend on are computed. Memory of intermediate values is reused after
        their last reader, unless values are kept.

        The graph may grow and be evaluated again, as in decoding. From the third consecutive call of this kind on, all
        its values stay in the pool, and a call computes only new vertices. After any other launch or a change of
        weights, or if the pool is too small, a call computes everything and gives the same bits.

        Args:
            train: True for dropout, with the same masks as the next `fb` on this graph.
            keep: True to keep values for `backward`.
            update: True to keep values and apply the update within the launch of `backward`, as `fb` does, with the
                optimizer's current hyper-parameters.
            draw: 1, 2, ... for masks different from those of the next `fb`.

        Raises:
            GraphError: an expression belongs to another graph.
            NoGradientError: with `keep`, `wanted` is empty, or the wanted expressions depend on no trainable parameter
                and no input with `grad=True`.
            CapacityError, HandleError: see `fb`.
        """
        plan, checked = self._begin_forward(graph, wanted, train, keep, update, draw)
        return [np.zeros((0, *e.shape), np.float32) for e in checked] if plan is None else self._values(plan, checked)

    def _begin_forward(
        self,
        graph: Graph,
        wanted: Sequence[Expression | Rows],
        train: bool,
        keep: bool,
        update: bool,
        draw: int,
        waits: bool = True,
    ) -> tuple[Plan | None, list[Expression | Rows]]:
        """Launch `forward`. Return its plan, or None if nothing is wanted, and the checked list of what is wanted.

        Args:
            waits: False to return while the launch runs, unless it belongs to an update, or follows a step.
        """
        train, update = as_flag(train, "train", HandleError), as_flag(update, "update", HandleError)
        keep = as_flag(keep, "keep", HandleError) or update
        if update and self._is_shared:
            raise HandleError(
                "forward(update=True): this rank's weights would differ from the other ranks'; use keep=True, and "
                "apply(backward(seeds)), which adds up the gradients of all ranks"
            )
        self._check(graph, "forward", training=keep)
        if type(wanted) is not list and isinstance(wanted, Expression | Rows):
            raise GraphError("forward(graph, expression): expected a list of expressions: forward(graph, [expression])")
        checked = [graph.check_owns(e, "forward") for e in as_items(wanted, "forward")]
        if not any(isinstance(e, Expression) or len(e) for e in checked):
            if keep:
                raise NoGradientError(
                    "forward(keep=True): nothing is wanted, so backward has nothing to compute; list an expression"
                )
            return None, checked
        if keep:
            return self._forward_kept(graph, checked, train, update, draw, waits), checked
        self._configurator.prepare_aside(graph)
        key: StepKey | None = None

        def made(planner: Planner) -> Plan:
            nonlocal key
            engine, key = self._engine, self._key(train, draw)
            return planner.plan_forward(graph, checked, engine.store.held_in_pool, key, engine.present(graph, key))

        plan, before = self._configurator.kernel_for(graph, made), self._engine.evaluated
        try:
            self._run(plan, waits)
            stale = plan.present is not None and before is not None and before.changes != self._store.changes
        except CapacityError:
            stale = plan.present is not None
            if not stale:
                raise
        if stale:  # the values in the pool belong to older weights, or the pool is too small for all
            plan, before = self._configurator.kernel_for(graph, made), None
            self._run(plan, waits)
        self._engine.note_evaluated(plan, key, before)
        return plan, checked

    def _forward_kept(
        self, graph: Graph, wanted: list[Expression | Rows], train: bool, update: bool, draw: int, waits: bool
    ) -> Plan:
        if update:
            self._refuse_averaged("forward(update=True)")
            self._check_rule()
        self._configurator.interrupt()
        self._configurator.prepare(graph, trains=True)
        kept = RetainedForward(graph, wanted, (train, draw), update)
        plan = self._run_first(kept, waits)
        self._kept = kept
        return plan

    def _run_first(self, kept: RetainedForward, waits: bool) -> Plan:
        """Compute the values to keep, for the first time or again."""
        waits = waits or kept.updates or self._engine.has_step_in_flight

        def made(planner: Planner) -> Plan:
            store, update = self._store, None
            if kept.plan is None:
                kept.key = self._key(*kept.masks)
            if kept.updates:
                update = store.next_update(self.optimizer, self.clip_norm)
            held = store.held if kept.updates else NOTHING_HELD
            return planner.plan_halves(kept.graph, kept.wanted, update, self._engine.parity, kept.key, held)

        skipped = -1
        while skipped != self._losses.skipped:  # plan again if the previous step was skipped: counts depend on it
            skipped = self._losses.skipped
            plan = self._configurator.kernel_for(kept.graph, made, trains=True)
            if waits:
                self._engine.wait()
        if not kept.updates:
            self._store.park_gradients()
        self._run(plan, waits)
        kept.note(self._engine, plan)
        return plan

    @serialised
    def backward(self, seeds: Sequence[ArrayLike | None], kept: RetainedForward | None = None) -> Gradients:
        """Return the parameters' gradients, given gradients of the values of `forward(keep=True)`, without computing
        these values again. After this call, `input_gradient` returns gradients of inputs.

        Args:
            seeds: the gradient of a scalar with respect to each wanted expression, in its shape; None for zeros.
            kept: `handle.kept` after an earlier forward; default: the latest one. If another launch or its own backward
                has run since, that forward is computed again, with the same result.

        Returns:
            A dict of gradients by name, for the parameters that the wanted expressions depend on. They are dense
            arrays, or `RowGradients` for tables. Empty after `forward(update=True)`, whose update runs in the
            background, as in `fb`.

        Raises:
            HandleError: nothing was kept, or the weights have changed since.
            ShapeError, DtypeError: the seeds do not match the wanted expressions.
            KernelError, NonFiniteError: see `fb`.
        """
        kept = self._checked_kept(kept)
        flat = _flat_seeds(kept.wanted, seeds)

        def give(pool: Pool, at: int) -> None:
            pool[at : at + len(flat)] = flat

        plan = self._begin_backward(kept, give)
        return {} if kept.updates else self._found(plan)

    def _checked_kept(self, kept: RetainedForward | None) -> RetainedForward:
        """Check the argument of `backward`."""
        self._check_usable()
        kept = self._kept if kept is None else kept
        if kept is None:
            raise HandleError(
                "backward: nothing was kept; call forward(graph, wanted, keep=True) before, or handle.fb(graph, loss), "
                "which runs forward, backward and the update"
            )
        if not isinstance(kept, RetainedForward):
            raise HandleError(f"backward: kept={kept!r}: expected what handle.kept was after a forward")
        return kept

    def _begin_backward(self, kept: RetainedForward, give: Callable[[Pool, int], None], waits: bool = True) -> Plan:
        """Launch `backward`.

        Args:
            give: callback that writes the seeds to the pool, at an address.
            waits: False to return while the launch runs, unless it belongs to an update, or follows a step.
        """
        engine = self._engine
        waits = waits or kept.updates or engine.has_step_in_flight
        if waits:
            engine.wait()
        if not kept.is_current(engine):
            remedy = "call forward again, or backward before what changes them"
            if kept.updates:
                remedy = "each backward makes an update here, so record all that one update is made of in one graph"
            raise HandleError(
                f"backward: the weights have changed since {kept.graph.describe()} was computed, or another handle "
                f"computed it; {remedy}"
            )
        if kept.updates:
            self._refuse_averaged("backward")
        plan = kept.plan
        if plan is None or kept.launch != engine.machine.launches or engine.plan is not plan:
            self._configurator.prepare(kept.graph, trains=True)
            plan = self._run_first(kept, waits)
        kept.launch = 0  # backward overwrites values with gradients
        if not kept.updates:
            self._store.park_gradients()
        at = plan.seeds

        def given(pool: Pool) -> None:
            give(pool, at)

        if not kept.updates:
            self._run(plan, waits, given=given, part=1)
        elif len(plan.divisions) == 1:
            engine.launch(plan, self.model.step + 1, updates=True, given=given, part=1)
        else:
            self._run(plan, given=given, part=1)
            engine.launch(plan, self.model.step + 1, updates=True, part=2)
        return plan

    @serialised
    def apply(self, gradients: Mapping[str, Any], accumulate: bool = False) -> None:
        """Apply an update from given gradients, with clipping, averages and moments as in `fb`.

        The update also uses accumulated gradients of earlier calls and, in a world, the gradients of all ranks.
        Parameters and table rows without a gradient keep their weights and moments, without decay.

        Args:
            gradients: by name, arrays in the parameters' shapes, or `RowGradients` (any pair of rows and values) for
                tables; in a table's dense array, zero rows are ignored.
            accumulate: True to keep the gradients for a later update, as `fb(accumulate=True)` does.

        Raises:
            ModelError, ShapeError, DtypeError, IndexRangeError: the gradients do not match the model.
            HandleError, KernelError, NonFiniteError: see `fb`.
        """
        given = self._given(gradients, accumulate)
        self._apply(given, accumulate, are_finite(given.gradients.values()))

    def _given(self, gradients: Mapping[str, Any], accumulate: bool) -> AccumulatedGradients:
        """Check the user's gradients and return them as accumulated gradients of one call."""
        self._check_usable()
        as_flag(accumulate, "accumulate", HandleError)
        if not self._train:
            raise HandleError("apply: this handle is forward-only (train=False)")
        self._refuse_averaged("apply")
        given = given_gradients(self.model, gradients, "apply", copy=accumulate)
        self._check_rule()
        return given

    def _apply(
        self,
        given: AccumulatedGradients,
        accumulate: bool,
        is_finite: bool,
        loss: float | None = None,
        piece: GradientPiece | None = None,
        rule: tuple[Optimizer, float | None] | None = None,
        touched: frozenset[str] = frozenset(),
    ) -> None:
        """Apply an update, or accumulate the gradients.

        Args:
            is_finite: True if the gradients may be used for a step.
            loss: the loss that the gradients belong to, if known.
            piece: the dense gradients, if they are not in `given`.
            touched: names of the parameters with a gradient in `piece`.
            rule: optimizer and clip_norm; default: the current ones.
        """
        self._engine.wait()
        self._configurator.interrupt()
        knows = self._updated_by is self._engine.planner and self._store.is_ready(accumulate=False)
        if piece is not None and not knows:  # preparing may move parameters to other places
            piece = piece.on_host().copied()
        self._configurator.prepare(_NOTHING)
        names = touched | given.gradients.keys()
        if is_finite and self._engine.part({p for p in self.model if p.name in names}):
            piece = None if piece is None else piece.on_host().copied()
            self._configurator.prepare(_NOTHING)
        step = self.model.step + 1
        if not is_finite:
            if not accumulate:
                self.model._step = step
            self._losses.note(step, loss, True, False, str)
            return
        if loss is not None:
            self._losses.latest = loss
        self._store.park_gradients()
        total = added(self.model, self.model.accumulated, given)
        if accumulate:
            self._store.take_accumulated(total)
            return

        def made(planner: Planner) -> Plan:
            nonlocal piece
            store = self._store
            if piece is not None and piece.distribution is not store.distribution:  # the engine was replaced
                total.gradients.update({name: g for name, g in piece.arrays().items() if name in touched})
                piece = None
            held, rows = store.as_held(total)
            update = store.next_update(*(rule or (self.optimizer, self.clip_norm)))
            if piece is not None:
                held = store.held_of(touched)
            return planner.plan_update(update, self._engine.parity, held, rows)

        def write(pool: Pool) -> None:
            self._store.write_gradients(pool, plan, total)
            if piece is not None and not piece.is_in_pool:
                begin, end = piece.distribution.gradients
                pool[begin:end] = piece.floats

        plan = self._configurator.kernel_for(_NOTHING, made)
        self._run(plan, step=step, updates=True, given=write)
        self._updated_by = self._engine.planner
        if self._store.accumulated:  # the step was skipped, and only the model has the accumulated gradients
            self._store.park_gradients()

    @overload
    def gradients(
        self, /, graph: Graph, loss: Expression, train: bool = False, sparse: Literal[False] = False, draw: int = 0
    ) -> tuple[float, dict[str, Float32]]: ...
    @overload
    def gradients(
        self, /, graph: Graph, loss: Expression, train: bool = False, sparse: bool = False, draw: int = 0
    ) -> tuple[float, Gradients]: ...
    @serialised
    @hinted
    def gradients(
        self, graph: Graph, loss: Expression, train: bool = False, sparse: bool = False, draw: int = 0
    ) -> tuple[float, Any]:
        """Return the loss and its gradients, without an update and without accumulated gradients.

        Args:
            train, draw: see `forward`.
            sparse: True for the format of `backward`.

        Returns:
            The loss, and dense arrays by name, for the trainable parameters that the loss depends on; `apply` with
            these arrays equals `fb`.

        Raises:
            NoGradientError: the loss depends on no trainable parameter and on no input with `grad=True`.
            GraphError, CapacityError, HandleError, KernelError, NonFiniteError: see `fb`.
        """
        self._check(graph, "gradients", training=True)
        check_loss(graph, loss)
        train, sparse = as_flag(train, "train", HandleError), as_flag(sparse, "sparse", HandleError)
        plan = self._begin_gradients(graph, loss, train, draw)
        found = self._found(plan)
        return self._engine.machine.loss(plan.loss_slot), found if sparse else dict(dense_gradients(self.model, found))

    def _begin_gradients(self, graph: Graph, loss: Expression, train: bool, draw: int, waits: bool = True) -> Plan:
        """Launch `gradients`, whose arguments have been checked. With `waits=False`, return while the launch runs,
        unless it follows a step."""
        self._configurator.prepare_aside(graph)
        plan = self._configurator.kernel_for(
            graph, lambda p: p.plan_training(graph, loss, None, self._engine.parity, self._key(train, draw))
        )
        waits = waits or self._engine.has_step_in_flight
        if waits:
            self._engine.wait()
        self._store.park_gradients()
        self._run(plan, waits)
        return plan

    # ---- helpers

    def _refuse_averaged(self, what: str) -> None:
        if self.model.is_averaged:
            raise HandleError(
                f"{what} inside `with model.averaged()`: leave the block first, to train the weights themselves"
            )

    def _key(self, train: bool, draw: int) -> StepKey | None:
        """Return the key of a call's random numbers; None if dropout is off."""
        if not train:
            return None
        key = self._store.next_key()
        return StepKey(key.seed, key.step, key.accumulated + as_count(draw, "draw", HandleError, least=0))

    def _run(self, plan: Plan, waits: bool = True, **how: Any) -> None:
        """Wait for the launch in flight, then launch and wait. With `waits=False`, wait only until the machine can
        begin another launch."""
        engine = self._engine
        engine.wait(running=0 if waits else 1)
        engine.launch(plan, at_once=waits, **how)
        if waits:
            engine.wait()

    def _found(self, plan: Plan) -> Gradients:
        return found_gradients(plan, self._engine.machine.pool, self._store.distribution)

    def _values(self, plan: Plan, wanted: Sequence[Expression | Rows]) -> list[Float32]:
        """Return values that the latest launch has computed."""
        pool = self._engine.machine.pool
        return [read_value(pool, places_of(plan, e), e) for e in wanted]


_NOTHING = Graph()


def _flat_seeds(wanted: Sequence[Expression | Rows], seeds: Sequence[ArrayLike | None]) -> Float32:
    """Check the seeds and concatenate them."""
    given = as_items(seeds, "backward")
    if len(given) != len(wanted):
        raise ShapeError(f"backward: {len(given)} seeds are given for {len(wanted)} expressions that were wanted")
    found = []
    for e, seed in zip(wanted, given, strict=True):
        shape = (len(e), *e.shape) if isinstance(e, Rows) else e.shape
        if seed is None:
            found.append(np.zeros(math.prod(shape), np.float32))
            continue
        array = as_float32(seed, f"backward: the seed of {e!r}")
        if array.shape != shape:
            raise ShapeError(f"backward: the seed of {e!r} has shape {array.shape}; expected {shape}")
        found.append(array.reshape(-1))
    return found[0] if len(found) == 1 else np.concatenate(found)
