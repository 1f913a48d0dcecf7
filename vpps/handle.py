"""Handle: trains and evaluates a model. One kernel launch per mini-batch."""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpps.ahead import Example, check_example, check_loss, checked_bound
from vpps.config import PASSES, TARGET, VERIFY
from vpps.errors import CapacityError, CompileError, GraphError, HandleError, NonFiniteError, VppsError
from vpps.graph.graph import Graph
from vpps.graph.native import library as recorder
from vpps.graph.operand import Expression
from vpps.graph.rows import Rows
from vpps.graph.trace import TracedCell
from vpps.inspection.explanation import KernelFacts, explain
from vpps.inspection.timeline import Timeline
from vpps.inspection.trace import Trace, checked
from vpps.kernel.spec import KernelSpec
from vpps.memory import MemoryUse
from vpps.model import Model
from vpps.optim import SGD, Optimizer
from vpps.plan.distribution import Distribution
from vpps.plan.native import library as compiled_planner
from vpps.plan.onchip import ChipOptions
from vpps.plan.passes import Passes
from vpps.plan.plan import Plan
from vpps.plan.planner import Planner
from vpps.plan.policies import POLICIES, Knowledge
from vpps.plan.policies.comparison import compared
from vpps.plan.row_order import LAYOUTS
from vpps.plan.schedule import SCHEDULES
from vpps.plan.topology import Topology
from vpps.runtime.device_pool import DevicePool
from vpps.session.engine import Engine
from vpps.session.losses import ON_NONFINITE, Losses, OnNonfinite
from vpps.session.readback import addresses_of, input_gradient, parameter_gradient, read_rows
from vpps.tuning.configuration import Configuration
from vpps.tuning.database import Tuned, keep, tuned_for
from vpps.tuning.machines import MachineFiles
from vpps.tuning.online import OnlineTuner, Progress
from vpps.values import as_flag, as_index, as_items, as_number

if TYPE_CHECKING:
    from vpps.inspection.inspection import Inspection

_log = logging.getLogger(__name__)

COMPARED = 20_000
"""Of larger graphs `explain` does not say what other policies would make: that would take seconds."""

P = ParamSpec("P")
R = TypeVar("R")


def _serialised(method: Callable[Concatenate[Handle, P], R]) -> Callable[Concatenate[Handle, P], R]:
    """Let one thread in at a time: a forward-only handle or `model.save` on another one pulls weights from here."""

    @functools.wraps(method)
    def locked(self: Handle, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if os.getpid() != self.pid:  # a forked child: a thread that no longer exists may hold the lock
            return method(self, *args, **kwargs)
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


class _TraceBlock:
    """A block `with handle.trace()`.

    Attributes:
        open: whether it has not been left.
        recorded_before: whether the handle records without it.
    """

    open = True
    recorded_before = False


class Handle:
    """Trains a model: `fb` runs forward, backward and update of a mini-batch in one kernel launch.

    Args:
        model: what to train. Parameters may be declared later, too.
        optimizer: default `SGD(lr=0.1)`; its hyper-parameters may change between calls.
        target: "cuda", "cpu", "simt" (the cuda configuration emulated, with a search for races: slow), or "auto":
            "cuda" where there is a GPU that can be used, else "cpu".
        vps: virtual processors. Default: on cuda a thread block per multiprocessor, on simt 4, on cpu one per core that
            this process may use, quotas of containers counted, but for one core of three or more that training leaves
            to Python.
        policy: batching policy: in which order vertices run, and which of them together. "sinks-last" (the default) and
            "depth" go level by level; inside recurrences of several cells, such as lattices and trees of several kinds
            of nodes, "sufficient", "critical" and "fsm" make larger batches and more of them follow each other. "fsm"
            learns that from the first graph of a kind, for seconds, and keeps it in the tuning database. "auto" takes
            what a model of costs says is fastest. "agenda" is DyNet's. Losses are the same, but gradients of weights
            are summed in the order in which vertices run: their last bits depend on it, and so, with "fsm" and "auto",
            on what came first and on the number of virtual processors.
        schedule: "vector" (the default), or "paper" for the published VPPS scheme, an instruction per vertex and op in
            exclusive scripts. Results are the same; it is there to compare with.
        layout: in which order the vertices of a step get their rows: "recorded" (the default), the user's, or
            "readers", in which sequences of one batch lie by length, so that fewer arguments are found through index
            lists; "pq", by a PQ tree, takes seconds to plan a batch and is there to compare with. Gradients of weights
            are summed in the order of the rows: their last bits depend on it.
        train: False for a forward-only handle, of which a model may have any number.
        clip_norm: bound of the global norm of all gradients, or None.
        ema: decay, such as 0.999, of exponential moving averages of the weights, made by every update; None makes none
            and ends those that the model has. They begin with the weights before the first update and belong to the
            model: evaluate with them by `model.averaged`.
        on_nonfinite: what to say of a step whose loss or gradients are NaN or infinite, or so large that their squares
            may be. It is always left out: weights, moments, averages and what was accumulated stay as they were (but
            what was accumulated is discarded, and that is said, with products by cuBLAS or where the norm of all
            gradients alone is infinite).
            "warn" (once), "skip" (`skipped` counts them), or "raise" by the next call, with the cell and the call
            where it began; then a step is not launched before the one before has ended, so that a GPU idles for a
            moment between steps. `model.step` counts steps that are left out, unless they raise.
        pool_limit: bytes that the pool may grow to; default half of the machine's memory.
        verify: check every script before it runs (slow); default: environment variable VPPS_VERIFY.
        timeline: record what every virtual processor does when, for `timeline()`. That takes a kernel of its own, which
            spends some 30 ns per instruction on it (cpu); the results are the same. On simt, time is the emulator's.
        onchip: what to force of the distribution of weights over the chip (cuda, simt), a `vpps.ChipOptions`; default:
            nothing. With `groups=2` two halves of the virtual processors hold a copy of the weights each, and run their
            own part of a batch.
        passes: what the cell compiler does, a `vpps.Passes`; default: everything, or as VPPS_PASSES says.
        autotune: try other configurations while training, and keep the fastest: rows per warp from one on, then other
            slots (cuda, simt); virtual processors and tiles (cpu). Kernels are compiled in the background. What is
            learned stays the same, on cpu to the bit; `tuning` says how far it has come. What the tuning database has
            for the model is used instead, and what is found is kept there: when it is over, or if the handle is closed
            before, where it is a gain.
        example: a graph as the handle will get them, and its loss. The kernel for it is compiled now, for evaluation
            too, and not with the first call; other graphs may still need an instruction more, and compile it then.

    Raises:
        HandleError: the model already has an open training handle, or an argument is wrong.
        GraphError: the example's loss is no scalar of its graph.
        CompileError: there is no compiler.

    Calls from several threads run one after the other. Close it (or use it as a context manager) to end its threads.
    """

    _closed = True  # until construction has succeeded

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer | None = None,
        *,
        target: str = "auto",
        vps: int | None = None,
        policy: str | None = None,
        schedule: str | None = None,
        layout: str | None = None,
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
    ) -> None:
        if not isinstance(model, Model):
            raise HandleError(f"Handle({model!r}): expected a vpps.Model")
        named = {
            "target": target,
            "policy": policy,
            "schedule": schedule,
            "layout": layout,
            "on_nonfinite": on_nonfinite,
        }
        for name, value in named.items():
            if not isinstance(value, str | None):
                raise HandleError(f"{name}={value!r}: expected a string")
        by_environment = target == "auto" and TARGET.get() != "auto"
        if by_environment:
            target = TARGET.get()
        for name, flag in {"train": train, "timeline": timeline, "autotune": autotune, "verify": verify}.items():
            if flag is not None or name != "verify":
                as_flag(flag, name, HandleError)
        if target not in ("auto", "cpu", "simt", "cuda"):
            given = f"{TARGET.name}={target}" if by_environment else f"target={target!r}"
            raise HandleError(f"{given}: expected 'auto', 'cpu', 'cuda' or 'simt'")
        if onchip is not None and not isinstance(onchip, ChipOptions):
            raise HandleError(f"onchip={onchip!r}: expected vpps.ChipOptions(...)")
        if passes is not None and not isinstance(passes, Passes):
            raise HandleError(f"passes={passes!r}: expected vpps.Passes(...)")
        if onchip is not None and target == "cpu":
            raise HandleError(
                "onchip=...: target 'cpu' keeps weights and their gradients in memory; leave it out, or use "
                "target='cuda' or 'simt'"
            )
        if policy is not None and policy not in POLICIES:
            raise HandleError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}")
        if schedule is not None and schedule not in SCHEDULES:
            raise HandleError(f"schedule={schedule!r}: expected one of {', '.join(SCHEDULES)}")
        if layout is not None and layout not in LAYOUTS:
            raise HandleError(f"layout={layout!r}: expected one of {', '.join(LAYOUTS)}")
        if on_nonfinite not in ON_NONFINITE:
            raise HandleError(f"on_nonfinite={on_nonfinite!r}: expected 'warn', 'skip' or 'raise'")
        if pool_limit is not None and (as_index(pool_limit) or 0) < 1:
            raise HandleError(f"pool_limit={pool_limit!r}: expected a positive int, bytes")
        if train and model.trainer is not None and model.trainer.pid == os.getpid():
            raise HandleError(
                "the model already has an open training handle; close it first, or make this one forward-only "
                "with Handle(model, train=False)"
            )
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise HandleError(f"optimizer={optimizer!r}: expected an optimizer such as vpps.Adam()")
        decay = as_number(ema)
        if ema is not None and (decay is None or not 0 <= decay < 1 or not train):
            expected = "a number in [0, 1), such as 0.999, or None" if train else "None, as the handle is forward-only"
            raise HandleError(f"ema={ema!r}: expected {expected}")
        if autotune and not train:
            raise HandleError("autotune=True: it is training that is tuned; leave it out, or train=False")
        if autotune and timeline:
            raise HandleError(
                "autotune=True, timeline=True: recording takes time of its own, so another configuration may be the "
                "fastest with it; leave one of them out, and record some steps with handle.trace()"
            )
        if example is not None:
            check_example(example)
        if decay is not None and model.is_averaged:
            raise HandleError("Handle(ema=...) inside `with model.averaged()`: leave the block first")
        self.model = model
        self._optimizer = optimizer if optimizer is not None else SGD(lr=0.1)
        self._optimizer.check()
        self.clip_norm = clip_norm
        self.pid = os.getpid()
        self._lock = threading.RLock()
        self._train = train
        self._verify = VERIFY.get().lower() not in ("", "0", "false", "no", "off") if verify is None else verify
        if train:
            model.pull_weights()  # in a forked child they may still be with the parent's handle
        self._target = target
        self._ema = decay
        self._pool_limit = pool_limit
        self._losses = Losses(on_nonfinite)
        self._listeners: list[Callable[[Timeline], None]] = []  # of the trace that is being recorded
        self._traced: _TraceBlock | None = None
        self._knowledge = Knowledge(kept=MachineFiles())
        compiled_planner.prepare()  # in the background, beside recorder and kernel
        recorder.prepare()
        if passes is None and PASSES.is_set:
            passes = Passes.from_environment()
        chosen = {
            "vps": vps,
            "policy": policy,
            "schedule": schedule,
            "layout": layout,
            "onchip": onchip,
            "passes": passes,
        }
        self._chosen: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
        configuration = Configuration(**self._chosen)
        try:
            self._engine = self._make_engine(configuration, timeline)
        except HandleError as error:
            if not by_environment:
                raise
            raise HandleError(f"{error} (the target is that of {TARGET.name}={target})") from error
        self._target = self.target
        self._wanted = configuration, timeline
        self._tuned: Tuned | None = None
        self._looked_up = False  # whether the tuning database was asked, with the first graph
        self._tuner: OnlineTuner | None = None
        self._kept = False  # whether what tuning found is in the database
        self._autotunes = autotune
        self._trained: dict[TracedCell, None] = {}  # cells of the graphs that were trained while tuning
        self._closed = False
        if train:
            model.trainer = self
        if example is not None:
            self._compile_ahead(*example)

    # ---- life

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NonFiniteError:
            if kind is None:  # else it would hide the exception that ends the block
                raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._engine.machine.target}, {self.vps} virtual processors"
        return f"<vpps.Handle: {state}>"

    def __del__(self) -> None:
        # What was learned outlives a handle that nobody closed. When Python exits, the machine may be gone already.
        if not self._closed and self._engine.machine.is_open:
            try:
                self.close()
            except NonFiniteError as error:
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    @_serialised
    def close(self) -> None:
        """Wait for the launch in flight, copy the weights back to the model, end the threads. May be called twice."""
        if self._closed or os.getpid() != self.pid:
            return
        with ExitStack() as whatever_happens:
            whatever_happens.callback(self._release)
            whatever_happens.callback(self.pull_weights)
            self._engine.wait()
            if self._tuner is not None and self._tuner.progress.is_gain:
                self._keep_found(self._tuner)

    def _release(self) -> None:
        self._closed = True
        if self._tuner is not None:
            self._tuner.close()
        if self.model.trainer is self:
            self.model.trainer = None
        self._engine.close()

    @property
    def target(self) -> str:
        """What runs its kernels: "cuda", "cpu" or "simt"."""
        return self._engine.machine.target

    @property
    def policy(self) -> str:
        """Name of the batching policy."""
        return self._engine.configuration.policy

    @property
    def schedule(self) -> str:
        """Name of the schedule."""
        return self._engine.configuration.schedule

    @property
    def layout(self) -> str:
        """Name of the order of rows."""
        return self._engine.configuration.layout

    @property
    def vps(self) -> int:
        """Number of virtual processors."""
        return self._engine.machine.vps

    @property
    def tuning(self) -> Progress | None:
        """How far `autotune` has come; None without it, before the first batch, and where the tuning database had
        something."""
        return None if self._tuner is None else self._tuner.progress

    @property
    def memory(self) -> MemoryUse:
        """Bytes by what they are for, of the latest call; all zero before the first one."""
        return self._engine.memory

    @property
    def optimizer(self) -> Optimizer:
        """The rule of the updates. Its fields may change between calls, and so may the object, for one of its kind."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        if type(optimizer) is not type(self._optimizer):
            raise HandleError(
                f"optimizer={optimizer!r}: this handle keeps the state of {type(self._optimizer).__name__}; close it "
                "and make another one to change the kind of optimizer"
            )
        optimizer.check()
        self._optimizer = optimizer

    @property
    def clip_norm(self) -> float | None:
        """Bound of the global norm of all gradients, or None; may change between calls."""
        return self._clip_norm

    @clip_norm.setter
    def clip_norm(self, bound: float | None) -> None:
        self._clip_norm = checked_bound(bound)

    @property
    def ema(self) -> float | None:
        """Decay of the weights' moving averages, or None."""
        return self._engine.residency.ema

    def _check_usable(self) -> None:
        if self._closed:
            raise HandleError("the handle is closed; make a new one")
        if os.getpid() != self.pid:
            raise HandleError(
                "the handle belongs to the parent process: a forked child has none of its threads; "
                "make a handle of its own there"
            )
        if self._traced is not None and not self._traced.open:  # Ctrl-C came while it ended
            self._end_trace(self._traced)

    # ---- training

    @_serialised
    def fb(self, graph: Graph, loss: Expression, accumulate: bool = False) -> float:
        """Forward, backward and update for one mini-batch; returns while the kernel runs.

        With `accumulate=True` there is no update: the gradients are added to those of the calls before, and the next
        call without it adds its own, then clips and updates with the sum. So a batch may be larger than what fits into
        the pool. What was accumulated belongs to the model, like the moments: it outlives this handle, is saved in
        checkpoints, and stays as it is whatever comes in between - `forward`, `gradients`, assigned weights, new
        parameters. `model.step` counts updates. Dropout has another mask in every call.

        Args:
            graph: what to compute.
            loss: a scalar of that graph. Nothing is divided by the batch size, nor by the number of accumulated calls,
                unless you do.
            accumulate: keep the gradients for a later update.

        Returns:
            The loss of the *previous* call (nan at the first); `sync_get_latest_loss` waits for this one's.

        Where launches can queue (cuda), this one is put behind the previous one before that is waited for. After Ctrl-C
        `model.step` tells whether it was.

        Raises:
            GraphError: the loss is no scalar, belongs to another graph, or depends on no trainable parameter.
            CapacityError: the graph needs a larger pool than allowed.
            KernelError: the previous launch was stopped; this one has not happened.
            HandleError: the handle is closed, forward-only, used in a forked child, or the model shows its averages.
            NonFiniteError: loss or gradients of the previous call were not finite and `on_nonfinite="raise"`; neither
                that step nor this one has happened, and training can go on.
        """
        self._check(graph, "fb", training=True)
        accumulate = as_flag(accumulate, "accumulate", HandleError)
        if self.model.is_averaged:
            raise HandleError(
                "fb inside `with model.averaged()`: leave the block first, to train the weights themselves"
            )
        check_loss(graph, loss)
        self._check_rule()
        self._look_up(graph)
        self._tune(graph, loss)
        self._prepare(graph, trains=True, accumulate=accumulate)
        skipped = -1
        while skipped != self._losses.skipped:  # a plan may depend on whether the step before was left out
            skipped = self._losses.skipped
            # While the last launch runs.
            plan = self._kernel_for(graph, lambda p: self._plan_step(p, graph, loss, accumulate), True, accumulate)
            self._engine.wait(running=1)  # there are two after Ctrl-C
            self._engine.machine.stage(plan.script)
            if self._losses.on_nonfinite == "raise" or not self._engine.may_queue(plan):
                self._engine.wait()
        self._engine.launch(plan, step=self.model.step + 1, updates=not accumulate, loss=loss)
        self._engine.wait(running=1)
        self._note_batch(graph)
        return self._losses.latest

    def _plan_step(self, planner: Planner, graph: Graph, loss: Expression, accumulate: bool) -> Plan:
        update = None if accumulate else self._engine.residency.next_update(self.optimizer, self.clip_norm)
        key, held = self._engine.residency.next_key(), self._engine.residency.held
        return planner.plan_training(graph, loss, update, self._engine.parity, key, held, keep=accumulate)

    @property
    @_serialised
    def accumulated(self) -> int:
        """Calls `fb(accumulate=True)` that the next update is going to use."""
        self._check_usable()
        self._engine.check_begun()
        return self._engine.residency.accumulated

    @property
    @_serialised
    def skipped(self) -> int:
        """Steps left out so far, as their loss or gradients were not finite; waits for the launch in flight."""
        self._check_usable()
        self._engine.wait()
        return self._losses.skipped

    @_serialised
    def discard_accumulated(self) -> None:
        """Forget the gradients of the calls `fb(accumulate=True)` since the last update."""
        self._check_usable()
        self._engine.check_begun()
        self._engine.residency.drop_gradients()

    @_serialised
    def sync_get_latest_loss(self) -> float:
        """Wait for the launch in flight and return the loss of the latest `fb` (nan if there was none)."""
        self._check_usable()
        self._engine.wait()
        return self._losses.latest

    @_serialised
    def gradients(
        self, graph: Graph, loss: Expression, train: bool = False
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """The loss and its gradients, without an update, and without what earlier calls of `fb` accumulated.

        Args:
            train: whether dropout is on, with the mask that the next `fb` of this graph would have.

        Returns:
            The loss, and dense arrays by parameter name; zeros for parameters that the loss does not depend on, and for
            those that are not trainable.

        Raises:
            As `fb`.
        """
        self._check(graph, "gradients", training=True)
        check_loss(graph, loss)
        train = as_flag(train, "train", HandleError)
        self._prepare_aside(graph)
        key = self._engine.residency.next_key() if train else None
        plan = self._kernel_for(graph, lambda p: p.plan_training(graph, loss, None, self._engine.parity, key))
        self._engine.wait()
        self._engine.residency.park_gradients()
        self._engine.launch(plan)
        self._engine.wait()
        value = self._engine.machine.loss(plan.loss_slot)
        pool, distribution = self._engine.machine.pool, self._engine.residency.distribution
        found = {p.name: parameter_gradient(plan, pool, distribution, p) for p in self.model}
        return value, found

    # ---- evaluation

    @_serialised
    def forward(self, graph: Graph, wanted: Sequence[Expression | Rows]) -> list[NDArray[np.float32]]:
        """Values of expressions with the current weights: inference, no gradients are stored; of rows, (n, ...).

        The graph may grow and be evaluated again; what the wanted expressions do not depend on is not computed, and
        other values are gone when nothing more is to be computed from them.

        Raises:
            GraphError: an expression of another graph.
            CapacityError, HandleError: as `fb`.
        """
        self._check(graph, "forward", training=False)
        if isinstance(wanted, Expression | Rows):
            raise GraphError("forward(graph, expression): expected a list of expressions: forward(graph, [expression])")
        wanted = [graph.check_owns(e, "forward") for e in as_items(wanted, "forward")]
        if not any(isinstance(e, Expression) or len(e) for e in wanted):
            return [np.zeros((0, *e.shape), np.float32) for e in wanted]
        self._prepare_aside(graph)
        plan = self._kernel_for(graph, lambda p: p.plan_forward(graph, wanted, self._engine.residency.held_in_pool))
        self._engine.wait()
        self._engine.launch(plan)
        self._engine.wait()
        return [self.value(e) for e in wanted]

    @_serialised
    def value(self, expression: Expression | Rows) -> NDArray[np.float32]:
        """Value of an expression of the graph given to the latest `fb`, `forward` or `gradients`; a copy. (n, ...) of
        rows.

        After `forward` there are only the values that it was asked for.

        Raises:
            GraphError: an expression of another graph, or one that was not computed or not kept.
        """
        if isinstance(expression, Rows):
            return read_rows(self._engine.machine.pool, self._addresses(expression, "value"), expression.shape)
        address, n = int(self._addresses(expression, "value")[0]), math.prod(expression.shape)
        return self._engine.machine.pool[address : address + n].reshape(expression.shape).copy()

    @_serialised
    def device_value(self, expression: Expression) -> Any:
        """As `value`, without a copy: a CuPy array over the memory of the GPU (target cuda).

        `torch.from_dlpack`, `jax.dlpack.from_dlpack` and whatever reads `__cuda_array_interface__` (Numba) share it,
        without a copy either. The launch has ended, so every stream may read it.

        It is valid until the next call of this handle, whose launch may put anything else there and knows nothing of
        other streams: what reads it must have ended by then (`cupy.cuda.get_current_stream().synchronize()`), or work
        on a copy. It is there to be read: where it shares memory with other values, writing changes those.

        Raises:
            GraphError: as `value`.
            HandleError: another target, whose memory is the host's.
        """
        if isinstance(expression, Rows):
            raise GraphError(f"device_value: {expression!r} may lie anywhere; use value, or device_value of one row")
        address = int(self._addresses(expression, "device_value")[0])
        pool = self._engine.machine.pool
        if not isinstance(pool, DevicePool):
            raise HandleError(f"device_value: target {self.target!r} has its memory on the host; use value")
        return pool.view(address, expression.shape)

    def _addresses(self, expression: Expression | Rows, what: str) -> NDArray[np.int64]:
        return addresses_of(self._latest_plan(expression, what), expression, what)

    @_serialised
    def input_gradient(self, expression: Expression | Rows) -> NDArray[np.float32]:
        """After `fb` or `gradients`: the loss's gradient with respect to a `graph.input(array, grad=True)`, or (n, ...)
        with respect to rows of `graph.rows(array, grad=True)`.

        Raises:
            GraphError: any other expression, or the latest call was `forward`.
        """
        plan = self._latest_plan(expression, "input_gradient")
        return input_gradient(plan, self._engine.machine.pool, expression)

    def _latest_plan(self, expression: Expression | Rows, what: str) -> Plan:
        self._check_usable()
        self._engine.wait()
        plan = self._engine.plan
        if plan is None:
            since = "yet, or since a trace was begun or another kernel taken"
            raise GraphError(f"{what}: nothing has been computed {since}; call fb or forward first")
        plan.graph.check_owns(expression, what, given="the one of the latest fb, forward or gradients")
        return plan

    # ---- inspection

    def source(self) -> str:
        """The source of the kernel: C++ that a person can read."""
        return self._engine.machine.source

    @_serialised
    def explain(self) -> str:
        """Where the weights live during a launch and why, what the kernel takes, the most memory that a call has used,
        how many batches each policy makes of the latest call, what the one in use has learned, and what the cell
        compiler did to each cell: plain text of 110 columns.

        On cuda and simt that is decided with the first `fb`, `forward` or `gradients`, or by `example`.
        """
        self._check_usable()
        machine, moments = self._engine.machine, len(self._optimizer.moments) if self._train else 0
        parameters = Distribution(
            self.model, machine.vps, machine.panel, moments, self._train, averages=self.ema is not None
        )
        facts = KernelFacts(
            machine.target,
            machine.arch,
            machine.vps,
            machine.spec,
            machine.resources,
            self._engine.stepped_down,
            machine.driver,
        )
        cells = self._engine.planner.cells.explain() if self._engine.planner is not None else ()
        memory = self.memory if self._engine.plan is not None else None
        found = self.tuning if self._tuned is None else self._tuned
        tuned = found.describe() if found is not None else ""
        batching = self._engine.batching.describe()
        planner, plan, order = self._engine.planner, self._engine.plan, ""
        if planner is not None and plan is not None and len(plan.graph) <= COMPARED:
            topology = Topology(plan.graph)
            said = compared(topology, self._engine.batching, partial(planner.cells.load_of, topology))
            batching = [f"batches of the latest call {said}", *batching]
            order = _gathered(plan, self.layout)
        return explain(parameters, self._engine.arrangement.onchip, facts, cells, memory, tuned, batching, order)

    @_serialised
    def disassemble(self, graph: Graph, loss: Expression) -> str:
        """The script that `fb(graph, loss)` would run, one instruction a line, in the user's words."""
        from vpps.script.disassemble import disassemble

        self._check(graph, "disassemble", training=True)
        check_loss(graph, loss)
        planner = self._prepare(graph)
        plan = self._plan_step(planner, graph, loss, accumulate=False)
        return disassemble(plan.script, plan.origin, plan.sequel)

    @_serialised
    def inspect(self, graph: Graph, loss: Expression) -> Inspection:
        """What `fb(graph, loss)` would launch, or `forward(graph, [loss])` of a forward-only handle, to be looked at:
        `.graph`, `.plan`, `.script`, `.cell`, `.source()`, `.resources` and more, as the commands of `vpps-inspect`.
        Nothing is launched, and parameters stay stacked as the steps so far have them.

        Raises:
            As `fb`.
        """
        from vpps.inspection.inspection import Inspection

        self._check(graph, "inspect", training=self._train)
        check_loss(graph, loss)
        planner = self._prepare(graph)
        plan = self._plan_step(planner, graph, loss, False) if self._train else planner.plan_forward(graph, [loss])
        machine, arrangement = self._engine.machine, self._engine.arrangement
        spec = KernelSpec(plan.instructions, arrangement.chip, plan.tails)
        tile = self._engine.configuration.tile
        return Inspection(machine.target, machine.arch, planner, graph, plan, spec, arrangement, tile_name=tile)

    @_serialised
    def timeline(self, wait: bool = True) -> Timeline:
        """What host and virtual processors did for the latest `fb`, `forward` or `gradients`, and when.

        Args:
            wait: for the launch in flight. Without, it is the launch before that one, and both sides keep running.

        Raises:
            HandleError: the handle was made without `timeline=True`, has launched nothing yet, or is closed.
        """
        self._check_usable()
        if not self._engine.records:
            raise HandleError("timeline: this handle records none; make it with Handle(model, timeline=True)")
        if wait:
            self._engine.wait()
        self._engine.check_begun()
        found = self._engine.latest_timeline()
        if found is None:
            raise HandleError("timeline: no launch has ended yet; call fb, forward or gradients first")
        return found

    @contextmanager
    def trace(self, path: str | os.PathLike[str] | None = None) -> Iterator[Trace]:
        """Record every launch made within the block:

            with handle.trace("step.json") as trace:
                for graph, loss in batches:
                    handle.fb(graph, loss)
            print(trace.summary())

        Within the block runs a kernel that records, as with `timeline=True`; results are the same. Without such blocks
        the kernel is the one that it would be if they did not exist.

        Args:
            path: what to write at the end: a file for ui.perfetto.dev, or a page (.html). None: nothing, or what the
                methods of the trace are asked for. After an error it holds the launches that have ended.

        Warns where the block made no launch (RuntimeWarning).

        Raises:
            HandleError: the path is not writable, the handle is closed, or inside another such block.
        """
        where = None if path is None else checked(path)
        trace, block = Trace(self.target), _TraceBlock()
        try:
            try:
                self._begin_trace(trace, block)
                yield trace
            finally:
                block.open = False
                if os.getpid() != self.pid:  # a forked child that leaves the block, too: the file is its parent's
                    where = None
                self._end_trace(block)
        except BaseException as error:
            if where is not None and trace.timelines:
                try:
                    trace.write(where)
                except VppsError as unwritten:
                    error.add_note(str(unwritten))
            raise
        if not trace.timelines and os.getpid() == self.pid:
            message = "trace: no launch was recorded; call fb, forward or gradients within the block"
            warnings.warn(message, RuntimeWarning, stacklevel=3)  # at the end of the with statement
        if where is not None:
            trace.write(where)

    @_serialised
    def _begin_trace(self, trace: Trace, block: _TraceBlock) -> None:
        self._check_usable()
        if self._traced is not None:
            raise HandleError("trace: the handle records one already; leave that block first")
        self._engine.wait()  # for launches that are not in the block
        block.recorded_before, self._traced = self._wanted[1], block
        self._configure(records=True)
        self._exchange()
        self._listeners.append(trace.timelines.append)

    @_serialised
    def _end_trace(self, block: _TraceBlock) -> None:
        """End what a block began, if it did; may be called again where that was interrupted."""
        if self._traced is not block:
            return
        try:
            if not self._closed and os.getpid() == self.pid:
                self._engine.wait()
        finally:
            self._listeners.clear()
            self._configure(records=block.recorded_before)
            self._traced = None

    # ---- launches

    def _check(self, graph: Graph, what: str, training: bool) -> None:
        """Raise unless this handle can do something with the graph."""
        self._check_usable()
        if training and not self._train:
            raise HandleError(f"{what}: this handle is forward-only (train=False)")
        if not isinstance(graph, Graph):
            raise GraphError(f"{what}: expected a vpps.Graph, got {graph!r}")
        if not len(graph):
            raise GraphError(
                f"{what}: the graph is empty: nothing was recorded on it; is it another one than the expressions'?"
            )
        self._engine.check_begun()

    def _check_rule(self) -> None:
        """Raise ModelError where the optimizer says what cannot be, of the parameters that the model has now."""
        self._optimizer.check()
        if self._optimizer.groups:
            self._optimizer.check_groups([p.name for p in self.model])

    def _prepare(self, graph: Graph, trains: bool = False, accumulate: bool = False) -> Planner:
        """A planner for a graph that `_check` has seen."""
        self._look_up(graph)
        try:
            return self._exchanged(graph, trains, accumulate)
        except (CapacityError, CompileError, HandleError) as error:
            self._give_up(error)
            return self._exchanged(graph, trains, accumulate)

    def _prepare_aside(self, graph: Graph) -> None:
        """For something that is no step of training."""
        if self._tuner is not None:
            self._tuner.interrupted()
        self._prepare(graph)

    def _exchanged(self, graph: Graph, trains: bool, accumulate: bool) -> Planner:
        self._exchange()
        return self._engine.prepare(graph, self._optimizer, trains, accumulate)

    def _kernel_for(
        self, graph: Graph, make: Callable[[Planner], Plan], trains: bool = False, accumulate: bool = False
    ) -> Plan:
        """A plan, and a kernel that can run it. `_prepare` has seen the graph."""
        try:
            return self._engine.kernel_for(make, accumulate)
        except (CapacityError, CompileError) as error:
            self._give_up(error)
            self._exchanged(graph, trains, accumulate)
            return self._engine.kernel_for(make, accumulate)

    def _compile_ahead(self, graph: Graph, loss: Expression) -> None:
        """Have a kernel for graphs like this one, or close."""
        try:
            self._check(graph, "example", training=self._train)
            self._check_rule()
            self._look_up(graph)
            self._tune(graph, loss)  # its first configuration may be another one
            self._prepare(graph)
            residency = self._engine.residency
            update = residency.next_update(self._optimizer, self._clip_norm) if self._train else None
            self._engine.compile_ahead(graph, loss, update)
        except BaseException:
            self._release()
            raise

    # ---- configuration

    def _look_up(self, graph: Graph) -> None:
        """With the first graph take over what the tuning database has for such; what the user chose stays."""
        if self._looked_up:
            return
        self._looked_up = True
        self._tuned = tuned_for(self.model, graph, self._engine.machine, self._train)
        if self._tuned is not None:
            self._configure(replace(self._tuned.configuration, **self._chosen))

    def _tune(self, graph: Graph, loss: Expression) -> None:
        """Decide in which configuration this batch is trained. What is recorded stays in the one that there is."""
        if not self._autotunes or self._tuned is not None or self._wanted[1]:
            return
        if self._tuner is None:
            from vpps.tuning.autotune import tuner_for

            self._tuner = tuner_for(self.model, self._engine, (graph, loss), self._optimizer, self._chosen)
        self._configure(self._tuner.configuration())

    def _note_batch(self, graph: Graph) -> None:
        """Tell the tuner of a batch that was begun, and the database of what was found."""
        if self._tuner is None or self._kept:
            return
        if self._engine.records:
            self._tuner.interrupted()
        else:
            self._tuner.batch(len(graph))
        self._trained.update(dict.fromkeys(graph.blocks))
        if self._tuner.done:
            self._keep_found(self._tuner)

    def _keep_found(self, tuner: OnlineTuner) -> None:
        """Tell the database, once, what tuning has found by now."""
        if not self._kept:
            self._kept = True
            keep(self.model, self._trained, self._engine.machine, tuner.progress)

    def _give_up(self, error: VppsError) -> None:
        """Go back to a configuration that did before: one chosen by tuning does not do for this graph. Raises the error
        where that is not the reason."""
        back = self._tuner.failed(error) if self._tuner is not None else None
        if back is None and self._tuned is not None:
            _log.info("the tuned configuration (%s) is given up: %s", self._tuned.describe(), error)
            self._tuned, back = None, Configuration(**self._chosen)
        if back is None:
            raise error
        self._configure(back)

    def _make_engine(self, configuration: Configuration, records: bool) -> Engine:
        optimizer = self._optimizer if self._train else None
        return Engine(
            self.model, optimizer, configuration, self._target, self._ema, self._pool_limit, self._verify, records,
            self._losses, self._listeners, self._knowledge,
        )  # fmt: skip

    def _configure(self, configuration: Configuration | None = None, records: bool | None = None) -> None:
        """From the next call on work in this configuration, or record timelines or not; None leaves it as it is."""
        wanted = self._wanted
        self._wanted = (
            wanted[0] if configuration is None else configuration,
            wanted[1] if records is None else records,
        )

    def _exchange(self) -> None:
        """Make the engine that is wanted the one that works. If it cannot be made all is as it was; after
        Ctrl-C the next call tries again."""
        wanted, before = self._wanted, self._engine
        if wanted == (before.configuration, before.records):
            return
        before.wait()
        before.pull()
        try:
            after = self._make_engine(*wanted)
        except Exception:
            self._wanted = before.configuration, before.records
            raise
        after.peak = before.peak
        self._engine, self._wanted = after, wanted
        before.close()

    @_serialised
    def pull_weights(self) -> None:
        """Copy weights and optimizer state back to the model, if they are newer here. Called by the model as needed."""
        if not self._engine.residency.is_newer or self._closed:
            return
        if self._engine.in_flight and os.getpid() != self.pid:
            raise HandleError(
                "this process was forked while the model was being trained, so its newest weights are with the parent "
                "alone; call handle.sync_get_latest_loss() before forking"
            )
        self._engine.wait()
        self._engine.residency.pull()


def _gathered(plan: Plan, layout: str) -> str:
    """Barriers of a plan and what it finds through index lists, in words."""
    from vpps.inspection.gathering import gathering

    found = gathering(plan)
    return (
        f"layout {layout}: {plan.n_barriers:,} barriers; lists of {found.list_words:,} words, gathered through them "
        f"{found.describe(training=plan.loss_slot >= 0)}"
    )
