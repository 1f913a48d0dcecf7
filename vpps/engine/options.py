"""Options of a handle: one place says of each what it takes, what the error message says, and what it means."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from vpps.compiler.passes import Passes
from vpps.compiler.schedule import SCHEDULES
from vpps.config import PASSES, TARGET, VERIFY
from vpps.distributed.world import World
from vpps.engine.losses import ON_NONFINITE, OnNonfinite
from vpps.errors import GraphError, HandleError
from vpps.graph.graph import Graph
from vpps.hints import habit
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.model import Lookup, Model
from vpps.model.optim import SGD, Optimizer
from vpps.model.precisions import Precisions
from vpps.ops.operand import Expression
from vpps.ops.precision import EXACT, PRECISIONS
from vpps.placement.onchip import ChipOptions, Device
from vpps.placement.onchip.device import TENSOR_CORES
from vpps.planner.policies import NAMED
from vpps.record.rows import Rows
from vpps.targets import AUTO, GPUS, TARGETS, listed
from vpps.values import as_index, as_number, said_of

Example = tuple[Graph, Expression]

Requirement = tuple[Callable[[Any], bool], str]
"""Whether a value will do, and what is expected where it does not."""

TEXT: Requirement = lambda value: isinstance(value, str | None), "a string"
FLAG: Requirement = lambda value: isinstance(value, bool | np.bool_), "True or False"


def _one_of(names: Collection[str], expected: str = "") -> Requirement:
    return lambda value: value in names, expected or f"one of {', '.join(names)}"


def _a(kind: type, expected: str) -> Requirement:
    return lambda value: isinstance(value, kind), expected


def _number(within: Callable[[float], bool], expected: str) -> Requirement:
    return lambda value: (number := as_number(value)) is not None and within(number), expected


def option(default: Any, doc: str, *rules: Requirement) -> Any:
    """A field: its rules hold one after the other, of everything but a None that is the default."""
    return field(default=default, metadata={"doc": " ".join(doc.split()), "rules": rules})


@dataclass(slots=True)
class Options:
    """What `vpps.Handle` takes besides a model; what the user left to the environment is filled in.

    Raises:
        HandleError: an argument is wrong, or two contradict each other.
        GraphError: the example's loss is no scalar of its graph.
    """

    optimizer: Optimizer | None = option(
        None,
        "default `SGD(lr=0.1)`; its hyper-parameters may change between calls.",
        _a(Optimizer, "an optimizer such as vpps.Adam()"),
    )
    target: str = option(
        AUTO,
        """"cuda", "cpu", "simt" (the cuda configuration emulated, with a search for races: slow), or "auto": "cuda"
        where there is a GPU that can be used, else "cpu".""",
        TEXT,
        _one_of((AUTO, *TARGETS), listed((AUTO, *TARGETS))),
    )
    vps: int | None = option(  # how many there may be the machine says
        None,
        """virtual processors. Default: on cuda a thread block per multiprocessor, on simt 4, on cpu one per core that
        this process may use, quotas of containers counted, but for one core of three or more that training leaves
        to Python.""",
    )
    policy: str | LearnedPolicy | None = option(
        None,
        """batching policy: in which order vertices run, and which of them together. "sinks-last" (the default) and
        "depth" go level by level; inside recurrences of several cells, such as lattices and trees of several kinds
        of nodes, "sufficient", "critical" and what `vpps.learn_policy(graph)` returns make larger batches and more of
        them follow each other. "agenda" is DyNet's. Losses are the same, but gradients of weights are summed in the
        order in which vertices run: their last bits depend on it.""",
        (
            lambda value: isinstance(value, LearnedPolicy) or (isinstance(value, str) and value in NAMED),
            f"one of {', '.join(NAMED)}, or vpps.learn_policy(graph)",
        ),
    )
    schedule: str | None = option(
        None,
        """"vector" (the default), or "paper" for the published VPPS scheme, an instruction per vertex and op in
        exclusive scripts. Results are the same; it is there to compare with.""",
        TEXT,
        _one_of(SCHEDULES),
    )
    train: bool = option(True, "False for a forward-only handle, of which a model may have any number.", FLAG)
    clip_norm: float | None = option(
        None,
        "bound of the global norm of all gradients, or None.",
        _number(lambda bound: 0 < bound < math.inf, "a positive number or None"),
    )
    ema: float | None = option(
        None,
        """decay, such as 0.999, of exponential moving averages of the weights, made by every update; None makes none
        and ends those that the model has. They begin with the weights before the first update and belong to the
        model: evaluate with them by `model.averaged`.""",
        _number(lambda decay: 0 <= decay < 1, "a number in [0, 1), such as 0.999, or None"),
    )
    on_nonfinite: OnNonfinite = option(
        "warn",
        """what to say of a step whose loss or gradients are NaN or infinite, or so large that their squares may be. It
        is always left out: weights, moments, averages and what was accumulated stay as they were (but what was
        accumulated is discarded, and that is said, where the norm of all gradients alone is infinite). "warn" (once),
        "skip" (`skipped` counts them), or "raise" by the next call, with the cell and the call where it began; then a
        step is not launched before the one before has ended, so that a GPU idles for a moment between steps. A step
        that is left out has used its number (`model.step`), so schedules see the same numbers in every mode; bias
        correction does not count it.""",
        TEXT,
        _one_of(ON_NONFINITE, "'warn', 'skip' or 'raise'"),
    )
    pool_limit: int | None = option(
        None,
        "bytes that the pool may grow to; default half of the machine's memory.",
        (lambda value: (as_index(value) or 0) >= 1, "a positive int, bytes"),
    )
    verify: bool | None = option(
        None, "check every script before it runs (slow); default: environment variable VPPS_VERIFY.", FLAG
    )
    timeline: bool = option(
        False,
        """record what every virtual processor does when, for `timeline()`. That takes some 30 ns per instruction (cpu),
        on a GPU a kernel of its own; the results are the same. On simt, time is the emulator's.""",
        FLAG,
    )
    onchip: ChipOptions | None = option(
        None,
        """what to force of the distribution of weights over the chip (cuda, simt), a `vpps.ChipOptions`; default:
        nothing. The virtual processors of a GPU form two groups; each holds a copy of the weights and runs its own
        part of a batch. `groups=1` is faster for batches of one graph, `groups=4` for large ones.""",
        _a(ChipOptions, "vpps.ChipOptions(...)"),
    )
    passes: Passes | None = option(
        None,
        "what the cell compiler does, a `vpps.Passes`; default: everything, or as VPPS_PASSES says.",
        _a(Passes, "vpps.Passes(...)"),
    )
    autotune: bool = option(
        False,
        """try other configurations in the first steps, some batches each, and keep the fastest: virtual processors
        (cpu); groups of blocks, rows per warp of the published scheme (cuda, simt), whose kernels are compiled
        when their turn comes. What is learned stays the same, on cpu to the bit; `tuning` says how far it has come. The
        fastest is kept in a file (VPPS_TUNING) for all handles of such a model, which then try nothing.""",
        FLAG,
    )
    example: Example | None = option(
        None,
        """a graph as the handle will get them, and its loss. The kernel for it is compiled now, for evaluation too, and
        not with the first call; other graphs may still need an instruction more, and compile it then.""",
    )
    world: World | None = option(
        None,
        """the processes that train the model together, `vpps.distributed.init()`. Each gives `fb` its shards of every
        mini-batch; losses and gradients are summed over all.""",
        _a(World, "vpps.distributed.init()"),
    )
    precision: str | Mapping[str, str] = option(
        EXACT.name,
        """what products with parameters multiply by: "float32"; "bf16", rounded, which takes half the memory and is
        faster (a GPU from sm_80 on, or a processor with AVX512_BF16; elsewhere as exact but slower); or, on cuda and
        simt, "tf32", or "3xtf32", which is about as exact as float32. Or by names of matrices, "*" for all others:
        `{"*": "bf16", "output/W": "float32"}`. Sums of products, weights that are trained, moments, gradients of
        weights, states, gates, softmax and losses stay float32.""",
        (lambda value: _precisions(value) is not None, "one of " + ", ".join(PRECISIONS) + ", or such by names"),
    )
    by_environment: bool = field(default=False, init=False)  # whether the target is the environment's

    def __post_init__(self) -> None:
        if isinstance(self.target, str) and self.target == AUTO != TARGET.get():
            self.target, self.by_environment = TARGET.get(), True
        for one in OPTIONS:
            given = f"{TARGET.name}={self.target}" if one.name == "target" and self.by_environment else ""
            check_option(one.name, getattr(self, one.name), given)
        if self.ema is not None and not self.train:
            raise HandleError(f"ema={self.ema!r}: expected None, as the handle is forward-only")
        self.ema, self.clip_norm = as_number(self.ema), as_number(self.clip_norm)
        if self.onchip is not None and self.target != AUTO and not TARGETS[self.target].is_gpu:
            raise HandleError(
                f"onchip=...: target {self.target!r} keeps weights and their gradients in memory; leave it out, or use "
                f"target={listed(GPUS)}"
            )
        if self.target != AUTO:
            check_precision(self.precisions, self.target)
        if self.autotune and not self.train:
            raise HandleError("autotune=True: it is training that is tuned; leave it out, or train=False")
        if self.autotune and self.world is not None and self.world.shards > 1:
            raise HandleError(
                "autotune=True, world=...: one process alone can be tuned; do it with vpps-profile, whose findings all "
                "use"
            )
        if self.autotune and self.timeline:
            raise HandleError(
                "autotune=True, timeline=True: recording takes time of its own, so another configuration may be the "
                "fastest with it; leave one of them out, and record some steps with handle.trace()"
            )
        if self.example is not None:
            check_example(self.example)
        if self.passes is None and PASSES.is_set:
            self.passes = Passes.from_environment()
        if self.verify is None:
            self.verify = VERIFY.get().lower() not in ("", "0", "false", "no", "off")

    @property
    def rule(self) -> Optimizer:
        """The optimizer, or the default one."""
        return self.optimizer if self.optimizer is not None else SGD(lr=0.1)

    @property
    def chosen(self) -> dict[str, Any]:
        """Fields of the configuration that the user decided."""
        names = ("vps", "policy", "schedule", "onchip", "passes")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return found | {"precision": self.precisions}

    @property
    def precisions(self) -> Precisions:
        """Of all matrices."""
        return Precisions.given(self.precision)

    def check_model(self, model: Model) -> None:
        """Raise HandleError unless a handle with these options can be made for the model now."""
        if not isinstance(model, Model):
            raise HandleError(f"Handle({model!r}): expected a vpps.Model")
        if self.train:
            # A step that goes on holds a handle which nobody else does; a forked child's weights are with the parent.
            model.pull_weights()
        if self.train and model.trainer is not None and model.trainer.pid == os.getpid():
            raise HandleError(
                "the model already has an open training handle; close it first, or make this one forward-only "
                "with Handle(model, train=False)"
            )
        check_precision_of(model, self.precisions)
        if self.ema is not None and model.is_averaged:
            raise HandleError("Handle(ema=...) inside `with model.averaged()`: leave the block first")


OPTIONS = tuple(one for one in fields(Options) if one.init)
"""In the order of `Handle`'s arguments."""


def _precisions(value: Any) -> Precisions | None:
    """What is meant, if it is a precision, or some by names of parameters."""
    if not isinstance(value, str | Mapping):
        return None
    if isinstance(value, Mapping) and not all(isinstance(each, str) for pair in value.items() for each in pair):
        return None
    found = Precisions.given(value)
    return found if found.used <= PRECISIONS.keys() else None


def check_option(name: str, value: object, given: str = "") -> None:
    """Raise HandleError unless an option may have this value.

    Args:
        given: where from, for the message; default: an argument.
    """
    one = next(one for one in OPTIONS if one.name == name)
    if value is None and one.default is None:
        return
    for accepts, expected in one.metadata["rules"]:
        if not accepts(value):
            raise HandleError(f"{given or f'{name}={value!r}'}: expected {expected}{habit(name, value)}")


def check_precision(precisions: Precisions, target: str, device: Device | None = None) -> None:
    """Raise HandleError unless a target, and its GPU, can multiply so."""
    if TARGETS[target].is_gpu:
        if device is not None and device.sm < TENSOR_CORES and precisions.used != {EXACT.name}:
            raise HandleError(
                f"precision={precisions.written!r}: {device.name} is sm_{device.sm}, and takes tensor cores that came "
                f"with sm_{TENSOR_CORES}; use {EXACT.name!r}"
            )
        return
    for name in sorted(precisions.used):
        if not PRECISIONS[name].on_host:
            raise HandleError(
                f"precision={precisions.written!r}: target {target!r} has no tensor cores and multiplies in float32 or "
                f"bf16; use one of them, or target={listed(GPUS)}"
            )


def check_precision_of(model: Model, precisions: Precisions) -> None:
    """Raise HandleError unless all that are named are matrices of the model."""
    matrices = [p.name for p in model if len(p.shape) == 2 and not isinstance(p, Lookup)]
    for name, _ in precisions.named:
        if name in matrices:
            continue
        wrong = f"there is no parameter {name!r}; {said_of(name, matrices)}"
        if any(p.name == name for p in model):
            wrong = f"{name!r} is no matrix that vectors are multiplied by, and all else is float32; leave it out"
        raise HandleError(f"precision={precisions.written!r}: {wrong}")


def check_example(example: object) -> Example:
    """An example graph and its loss, if that is what it is. Raises HandleError or GraphError."""
    if not (isinstance(example, tuple) and len(example) == 2 and isinstance(example[0], Graph)):
        raise HandleError(f"example={example!r}: expected (graph, loss), as for handle.fb")
    graph, loss = example
    check_loss(graph, loss)
    return graph, loss


def check_loss(graph: Graph, loss: Expression) -> None:
    """Raise GraphError unless the loss is a scalar of the graph."""
    graph.check_owns(loss, "loss")
    if loss.shape != () or isinstance(loss, Rows):
        raise GraphError(
            f"the loss must be a scalar, got {loss!r}; reduce it with vpps.sum(x) or vpps.mean(x), "
            "or pick an element x[i]"
        )


def described(indent: int) -> str:
    """What a docstring says of the options, under "Args:"."""
    wrapper = textwrap.TextWrapper(120, " " * indent, " " * (indent + 4), break_on_hyphens=False)
    return "\n".join(wrapper.fill(f"{one.name}: {one.metadata['doc']}") for one in OPTIONS)
