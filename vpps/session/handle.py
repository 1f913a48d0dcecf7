"""Handle: trains and evaluates a model. One kernel launch per mini-batch."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpps.compiler.passes import Passes
from vpps.distributed.world import World
from vpps.engine.explanation import explain
from vpps.engine.losses import OnNonfinite
from vpps.engine.options import Example, Options, check_loss, described
from vpps.engine.readback import addresses_of, input_gradient, read_value
from vpps.engine.timeline import Timeline
from vpps.errors import CapacityError, GraphError, HandleError
from vpps.graph.graph import Graph
from vpps.hints import hinted
from vpps.kernel.spec import KernelSpec
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.model import Model
from vpps.model.optim import Optimizer
from vpps.ops.operand import Expression
from vpps.ops.precision import EXACT
from vpps.placement.onchip import ChipOptions
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.record.rows import Rows
from vpps.report.trace import Trace
from vpps.runtime.device_pool import DevicePool
from vpps.session.data_parallel import DataParallel
from vpps.targets import AUTO
from vpps.text import Text, dir_without
from vpps.turns import reading, serialised
from vpps.values import as_flag

if TYPE_CHECKING:
    from vpps.report.inspection import Inspection


class Handle(DataParallel):
    """Trains a model: `fb` runs forward, backward and update of a mini-batch in one kernel launch.

    Args:
        model: the model to train. More parameters may be declared later.
        {options}

    Raises:
        HandleError: the model already has an open training handle, or an argument is wrong.
        GraphError: the example's loss is not a scalar of its graph.
        CompileError: there is no compiler.

    Calls from several threads run in turn. Close the handle (or use it as a context manager) to end its threads.
    """

    __slots__ = ()

    @hinted
    def __init__(
        self,
        model: Model,
        optimizer: Optimizer | None = None,
        *,
        target: str = AUTO,
        vps: int | None = None,
        policy: str | LearnedPolicy | None = None,
        schedule: str | None = None,
        train: bool = True,
        clip_norm: float | None = None,
        ema: float | None = None,
        on_nonfinite: OnNonfinite = "warn",
        pool_limit: int | None = None,
        verify: bool | None = None,
        timeline: bool = False,
        onchip: ChipOptions | None = None,
        passes: Passes | None = None,
        autotune: bool = False,
        example: Example | None = None,
        world: World | None = None,
        precision: str | Mapping[str, str] = EXACT.name,
    ) -> None:
        options = Options(
            optimizer, target, vps, policy, schedule, train, clip_norm, ema, on_nonfinite, pool_limit, verify,
            timeline, onchip, passes, autotune, example, world, precision,
        )  # fmt: skip
        super().__init__(model, options)

    __dir__ = dir_without("is_newer pid pull_weights")

    # ---- training

    @serialised
    @hinted
    def fb(self, graph: Graph, loss: Expression, accumulate: bool = False) -> float:
        """Run forward, backward and update for one mini-batch; return while the kernel runs.

        With `accumulate=True`, there is no update: the gradients are added to those of earlier calls. The next call
        without it adds its own gradients, then clips and updates with the sum. So a batch may be larger than the pool.
        Accumulated gradients belong to the model, like the moments: they outlive this handle and are saved in
        checkpoints. Calls of `forward` or `gradients`, assigned weights and new parameters leave them as they are.
        `model.step` counts updates, including skipped ones. Every call draws new dropout masks.

        Args:
            graph: the graph to compute.
            loss: a scalar of that graph. It is not divided by the batch size or by the number of accumulated calls.
            accumulate: True to keep the gradients for a later update.

        Returns:
            The loss of the *previous* call (nan at the first); `sync_get_latest_loss` waits for this call's loss.

        In a world, every call computes one shard of a mini-batch. The last call completes the step, with the sums of
        losses and gradients over all shards of all ranks. The sums are computed in the background; the next call
        applies the update. The result is the loss of the latest finished step. Values of expressions are not available
        after a step; use `forward` or `gradients` instead.

        On cuda, the launch is queued before the host waits for the previous one. After Ctrl-C, `model.step` tells if
        the launch was queued.

        Raises:
            GraphError: the loss is not a scalar, or belongs to another graph.
            NoGradientError: the loss depends on no trainable parameter.
            CapacityError: the graph needs a larger pool than allowed.
            KernelError: the previous launch was stopped; this call did nothing.
            DistributedError: another rank has failed, makes a different call, or does not answer.
            HandleError: the handle is closed, forward-only, used in a forked child, or the model shows its averages.
            NonFiniteError: loss or gradients of the previous call were not finite and `on_nonfinite="raise"`. That step
                was skipped, but has used its number. This call did nothing, and training can continue.
        """
        self._plan_ahead(graph, loss)
        self._check(graph, "fb", training=True)
        accumulate = as_flag(accumulate, "accumulate", HandleError)
        self._refuse_averaged("fb")
        check_loss(graph, loss)
        self._check_rule()
        if self._world is not None:
            latest = self._losses.latest
            self._fb_shard(graph, loss, accumulate)
            return latest
        configurator = self._configurator
        configurator.choose()
        try:
            self._launch_step(graph, loss, accumulate)
        except CapacityError as error:  # a tuning candidate may need a larger pool
            configurator.give_up(error)
            self._launch_step(graph, loss, accumulate)
        self._engine.wait(running=1)
        configurator.note(graph)
        return self._losses.latest

    def _launch_step(self, graph: Graph, loss: Expression, accumulate: bool) -> None:
        self._configurator.prepare(graph, trains=True, accumulate=accumulate)
        plan = self._plan(graph, loss, accumulate)
        self._engine.launch(plan, step=self.model.step + 1, updates=not accumulate, loss=loss)

    def _plan(self, graph: Graph, loss: Expression, accumulate: bool) -> Plan:
        """Return the plan of a step that may be launched now. Planning overlaps with the previous launch."""
        skipped = -1
        while skipped != self._losses.skipped:  # plan again if the previous step was skipped: plans may depend on it
            skipped = self._losses.skipped
            plan = self._configurator.kernel_for(
                graph, lambda p: self._plan_step(p, graph, loss, accumulate), True, accumulate
            )
            engine = self._engine  # read again: it may have been replaced
            engine.wait(running=1)  # after Ctrl-C two launches can be in flight
            engine.machine.stage(plan.script)
            if self._losses.on_nonfinite == "raise" or not engine.may_queue(plan):
                engine.wait()
        return plan

    def _plan_step(self, planner: Planner, graph: Graph, loss: Expression, accumulate: bool) -> Plan:
        engine, store = self._engine, self._engine.store
        update = None if accumulate else store.next_update(self.optimizer, self.clip_norm)
        key, held = store.next_key(), store.held
        return planner.plan_training(graph, loss, update, engine.parity, key, held, keep=accumulate)

    @property
    @reading
    def accumulated(self) -> int:
        """Number of calls `fb(accumulate=True)` whose gradients the next update will use."""
        self._check_usable()
        self._engine.check_begun()
        return self._engine.store.accumulated

    @property
    @reading
    def skipped(self) -> int:
        """Number of steps skipped because loss or gradients were not finite; waits for the launch in flight."""
        self._check_usable()
        self._engine.wait()
        return self._losses.skipped

    @serialised
    def discard_accumulated(self) -> None:
        """Discard the gradients of the calls `fb(accumulate=True)` since the last update."""
        self._check_usable()
        self._engine.check_begun()
        self._shards = []
        self._engine.store.drop_gradients()

    @reading
    def sync_get_latest_loss(self) -> float:
        """Wait for the launch in flight and return the loss of the latest `fb` (nan if there was none)."""
        self._check_usable()
        self._engine.wait()
        return self._losses.latest

    @serialised
    def compare_weights(self) -> None:
        """Compare the weights, moments and averages of all ranks, for example before rank 0 saves them. All ranks must
        make this call.

        Raises:
            DistributedError: one rank's values differ from the others'.
        """
        self._check_usable()
        if self._world is None:
            return
        self._compared = -1  # so that the digest is computed now
        self._world.check_alike(self._world.gather(self._digest()), f"its weights, after step {self.model.step}")

    # ---- evaluation

    @serialised
    def value(self, expression: Expression | Rows) -> NDArray[np.float32]:
        """Return a copy of an expression's value, or the values (n, ...) of rows, in the graph of the latest `fb`,
        `forward` or `gradients`.

        After `forward`, only the wanted values are available; for a graph that has grown twice, all values are.

        Raises:
            GraphError: the expression belongs to another graph, or was not computed or not kept.
        """
        addresses = addresses_of(self._latest_plan(expression, "value"), expression, "value")
        return read_value(self._engine.machine.pool, addresses, expression)

    @serialised
    def device_value(self, expression: Expression) -> Any:
        """Return a value without a copy, as a CuPy array over the memory of the GPU (target cuda).

        `torch.from_dlpack`, `jax.dlpack.from_dlpack` and readers of `__cuda_array_interface__` (Numba) share it without
        a copy, too. The launch has ended, so every stream may read it.

        It is valid until the next call of this handle, whose launch reuses the memory and does not wait for other
        streams. Finish all reads first (`cupy.cuda.get_current_stream().synchronize()`), or work on a copy. Do not
        write to it: it may share memory with other values.

        Raises:
            GraphError: see `value`.
            HandleError: the handle has another target, with its memory on the host.
        """
        if isinstance(expression, Rows):
            raise GraphError(f"device_value: {expression!r} may lie anywhere; use value, or device_value of one row")
        address = int(addresses_of(self._latest_plan(expression, "device_value"), expression, "device_value")[0])
        pool = self._engine.machine.pool
        if not isinstance(pool, DevicePool):
            raise HandleError(f"device_value: target {self.target!r} has its memory on the host; use value")
        return pool.view(address, expression.shape)

    @serialised
    def input_gradient(self, expression: Expression | Rows) -> NDArray[np.float32]:
        """Return the gradient with respect to a `graph.input(array, grad=True)`, or (n, ...) for rows of
        `graph.rows(array, grad=True)`, after `fb`, `gradients` or `backward`.

        Raises:
            GraphError: the expression is not such an input, or the latest call was `forward`.
        """
        plan = self._latest_plan(expression, "input_gradient", waits=False)
        if not self._engine.has_gradients:
            raise GraphError("input_gradient: the latest call was forward, which computes no gradients")
        return input_gradient(plan, self._engine.machine.pool, expression)

    # ---- inspection

    def source(self) -> str:
        """Return the source of the kernel: readable C++."""
        return Text(self._engine.machine.source)

    @serialised
    def explain(self) -> str:
        """Describe where each weight is kept and why, the kernel's resources, the largest memory use of a call, and the
        cell compiler's work on each cell: plain text, 110 columns wide.

        On cuda and simt, `example` or the first `fb`, `forward` or `gradients` decides these.
        """
        self._check_usable()
        moments = len(self.optimizer.moments) if self._train else 0
        return explain(self._engine, moments, self._train, self.tuning)

    @serialised
    def disassemble(self, graph: Graph, loss: Expression) -> str:
        """Return the script that `fb(graph, loss)` would run, one instruction per line, in the user's words."""
        self._check(graph, "disassemble", training=True)
        return self.inspect(graph, loss).script

    @serialised
    def inspect(self, graph: Graph, loss: Expression) -> Inspection:
        """Return the launch of `fb(graph, loss)` (in a forward-only handle, `forward(graph, [loss])`) for inspection:
        `.graph`, `.plan`, `.script`, `.cell`, `.source()`, `.resources` and more, like the commands of `vpps-inspect`.
        Nothing is launched, and the stacks of parameters do not change.

        Raises:
            VppsError: `fb` would raise it.
        """
        from vpps.report.inspection import Inspection

        self._check(graph, "inspect", training=self._train)
        check_loss(graph, loss)
        planner = self._configurator.prepare(graph)
        plan = self._plan_step(planner, graph, loss, False) if self._train else planner.plan_forward(graph, [loss])
        machine, arrangement = self._engine.machine, self._engine.arrangement
        rounds = self._engine.configuration.precision.is_reduced
        spec = KernelSpec(plan.instructions, arrangement.chip, plan.tails, rounds)
        return Inspection(machine.target, machine.arch, planner, graph, plan, spec, arrangement)

    @serialised
    def timeline(self, wait: bool = True) -> Timeline:
        """Return the timeline of host and virtual processors for the latest `fb`, `forward` or `gradients`.

        Args:
            wait: True to wait for the launch in flight; False for the previous launch's timeline, without waiting.

        Raises:
            HandleError: the handle was made without `timeline=True`, has launched nothing yet, or is closed.
        """
        self._check_usable()
        return self._tracing.timeline(wait)

    def trace(self, path: str | os.PathLike[str] | None = None) -> AbstractContextManager[Trace]:
        """Record every launch made within the block:

            with handle.trace("step.json") as trace:
                for graph, loss in batches:
                    handle.fb(graph, loss)
            print(trace.summary())

        Launches within the block record timelines, as with `timeline=True`; results are the same. Outside of such
        blocks, the GPU's kernel has no overhead for recording.

        Args:
            path: file for ui.perfetto.dev, written at the end; after an error, it holds the launches that have ended.
                With None, no file is written.

        Warns with RuntimeWarning if nothing was launched within the block.

        Raises:
            HandleError: the path is not writable, the handle is closed, or the block is inside another such block.
        """
        return self._tracing.block(path, self._check_usable, self._finish)


if Handle.__doc__ is not None:  # python -OO
    Handle.__doc__ = inspect.cleandoc(Handle.__doc__).replace("    {options}", described(4))
