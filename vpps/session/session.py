"""Session: construction, closing and properties of a handle."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NoReturn, Self

from vpps.engine.ahead import example_plan
from vpps.engine.engine import Engine
from vpps.engine.losses import Losses
from vpps.engine.memory import MemoryUse
from vpps.engine.options import Options, check_option
from vpps.errors import GraphError, HandleError, NonFiniteError
from vpps.graph import recorder
from vpps.graph.graph import Graph
from vpps.hints import Hinting, read_only
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.model import Model
from vpps.model.optim import Optimizer
from vpps.ops.operand import Expression
from vpps.planner.native import library as compiled_planner
from vpps.planner.plan import Plan
from vpps.record.rows import Rows
from vpps.session.configurator import Configurator
from vpps.session.tracing import Tracing
from vpps.text import counted
from vpps.turns import Turn, serialised
from vpps.values import as_number

FORKED = (
    "this process was forked while the model was being trained, so its newest weights are with the parent alone; call "
    "handle.sync_get_latest_loss() before forking"
)


class Session(Hinting):
    """Base class of `vpps.Handle` without the calls that run graphs. Raises the same errors."""

    __slots__ = (
        "__weakref__", "_closed", "_configurator", "_losses", "_model", "_tracing", "_train", "_turn", "pid",
    )  # fmt: skip
    model: Model = read_only("_model", "The model that is trained or evaluated.")
    _engine: Engine = read_only("_configurator.engine", "The current engine.")
    target: str = read_only("_engine.machine.target", 'Target of its kernels: "cuda", "cpu" or "simt".')
    policy: str | LearnedPolicy = read_only(
        "_engine.configuration.policy", "The batching policy: its name, or a learned policy."
    )
    schedule: str = read_only("_engine.configuration.schedule", "Name of the schedule.")
    precision: str | dict[str, str] = read_only(
        "_engine.configuration.precision.written", "Precision of products with parameters, as the user gave it."
    )
    vps: int = read_only("_engine.machine.vps", "Number of virtual processors.")
    ema: float | None = read_only("_engine.store.ema", "Decay of the weights' moving averages, or None.")
    memory: MemoryUse = read_only("_engine.memory", "Bytes by use, for the latest call; all zero before the first one.")

    def __init__(self, model: Model, options: Options) -> None:
        options.check_model(model)
        self._model = model
        self.pid = os.getpid()
        self._train = options.train
        self._turn = model.turn if options.train else Turn(above=model.turn)
        compiled_planner.library()
        recorder.prepare()
        self._losses = Losses(options.on_nonfinite, warns=options.world is None or options.world.is_first)
        self._configurator = Configurator(model, options, self._losses)
        self._tracing = Tracing(self._configurator, self._turn)
        self._closed = False
        if options.train:
            model.trainer = self
            if isinstance(options.policy, LearnedPolicy):
                model.learned_policy = options.policy
        if options.example is not None:
            self._compile_ahead(*options.example)

    def _compile_ahead(self, graph: Graph, loss: Expression) -> None:
        """Compile a kernel for graphs like this one. If that fails, close the handle."""
        try:
            self._check(graph, "example", training=self._train)
            self._check_rule()
            self._configurator.prepare(graph)
            store = self._engine.store
            update = store.next_update(self.optimizer, self.clip_norm) if self._train else None
            self._engine.kernel_for(lambda planner: example_plan(planner, graph, loss, update))
        except BaseException:
            self._release()
            raise

    # ---- lifetime

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NonFiniteError:
            if kind is None:  # else it would hide the exception that left the block
                raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.target}, {counted(self.vps, 'virtual processor')}"
        return f"<vpps.Handle: {state}>"

    def __deepcopy__(self, memo: object = None) -> NoReturn:
        raise HandleError(
            "a handle cannot be pickled or copied: it has threads and memory of this process; write weights and "
            "training state with model.save(path), and make a new handle after model.restore(path)"
        )

    __copy__ = __reduce__ = __deepcopy__

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Save the weights of a handle that was not closed. When Python exits, the machine may be gone already; still
        # later, modules are empty, so that only the argument is left. The constructor may have failed.
        if not is_finalizing() and not getattr(self, "_closed", True) and self._engine.machine.is_open:
            self._turn.finally_do(self._collected)

    def _collected(self) -> None:
        try:
            self.close()
        except NonFiniteError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def _as_after_last_step(self, read: Callable[[], Any]) -> Any:
        return self._engine.as_after_last_step(read)

    @serialised
    def close(self) -> None:
        """Wait for the launch in flight, copy the weights back to the model, end the threads. May be called again."""
        if self._closed or os.getpid() != self.pid:
            return
        with ExitStack() as whatever_happens:
            whatever_happens.callback(self._release)
            whatever_happens.callback(self.pull_weights)
            self._engine.wait()

    def _release(self) -> None:
        self._closed = True
        if self.model.trainer is self:
            self.model.trainer = None
        self._engine.close()

    @serialised
    def pull_weights(self) -> None:
        """Copy newer weights and optimizer state back to the model. The model calls this as needed."""
        if not self._engine.store.is_newer or self._closed:
            return
        if self._engine.in_flight and os.getpid() != self.pid:
            raise HandleError(FORKED)
        self._engine.wait()
        self._engine.store.pull()

    # ---- properties

    @property
    def is_newer(self) -> bool:
        """True if the handle has newer weights or training state than the model; `model.pull_weights` copies them."""
        return self._engine.store.is_newer

    @property
    def tuning(self) -> str:
        """The fastest configuration found earlier, or the progress or result of `autotune`; "" if there is none."""
        return self._configurator.describe()

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer. Between calls its fields may change; another optimizer of its class may also replace it."""
        return self._configurator.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Optimizer) -> None:
        if type(optimizer) is not type(self.optimizer):
            raise HandleError(
                f"optimizer={optimizer!r}: this handle keeps the state of {type(self.optimizer).__name__}; close it "
                "and make another one to change the kind of optimizer"
            )
        optimizer.check()
        self._configurator.optimizer = optimizer

    @property
    def clip_norm(self) -> float | None:
        """Upper bound of the global norm of all gradients, or None; may change between calls."""
        return self._configurator.clip_norm

    @clip_norm.setter
    def clip_norm(self, bound: float | None) -> None:
        check_option("clip_norm", bound)
        self._configurator.clip_norm = as_number(bound)

    # ---- checks

    def _finish(self) -> None:
        """Wait for background work; there is none here."""

    def _check_usable(self) -> None:
        if self._closed:
            raise HandleError("the handle is closed; make a new one")
        if os.getpid() != self.pid:
            raise HandleError(
                "the handle belongs to the parent process: a forked child has none of its threads; "
                "make a handle of its own there"
            )
        self._finish()
        self._tracing.recover()

    def _check(self, graph: Graph, what: str, training: bool) -> None:
        """Raise an error unless this handle can run the graph."""
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
        """Raise ModelError if the optimizer's settings are invalid for the model's current parameters."""
        optimizer = self.optimizer
        optimizer.check()
        if optimizer.groups:
            optimizer.check_groups([p.name for p in self.model])

    def _latest_plan(self, expression: Expression | Rows, what: str, waits: bool = True) -> Plan:
        """Return the plan of the latest launch. With `waits=False`, the launch of an update may keep running."""
        self._check_usable()
        plan = self._engine.plan
        if waits or plan is None or len(plan.divisions) < 2:
            self._engine.wait()
            plan = self._engine.plan
        if plan is None:
            since = "yet, or since a trace was begun or the kernel replaced"
            raise GraphError(f"{what}: nothing has been computed {since}; call fb or forward first")
        if plan.updates_alone:
            raise GraphError(
                f"{what}: the latest launch was an update, of apply or of fb in a world, after which values and "
                "gradients of inputs are gone; ask forward or gradients for them"
            )
        plan.graph.check_owns(expression, what, given="the one of the latest fb, forward or gradients")
        return plan
