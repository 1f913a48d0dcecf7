"""Options of a handle: one table with the meaning, valid values and error message of each option."""

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
"""A predicate that accepts valid values, and the expected value in words, for the error message."""

TEXT: Requirement = lambda value: isinstance(value, str | None), "a string"
FLAG: Requirement = lambda value: isinstance(value, bool | np.bool_), "True or False"


def _one_of(names: Collection[str], expected: str = "") -> Requirement:
    return lambda value: value in names, expected or f"one of {', '.join(names)}"


def _a(kind: type, expected: str) -> Requirement:
    return lambda value: isinstance(value, kind), expected


def _number(within: Callable[[float], bool], expected: str) -> Requirement:
    return lambda value: (number := as_number(value)) is not None and within(number), expected


def option(default: Any, doc: str, *rules: Requirement) -> Any:
    """Return a field with rules, checked in order. A default of None is exempt from the rules."""
    return field(default=default, metadata={"doc": " ".join(doc.split()), "rules": rules})


@dataclass(slots=True)
class Options:
    """Arguments of `vpps.Handle` except the model; defaults from the environment are filled in.

    Raises:
        HandleError: an argument is wrong, or two contradict each other.
        GraphError: the example's loss is not a scalar of its graph.
    """

    optimizer: Optimizer | None = option(
        None,
        "default `SGD(lr=0.1)`; its hyper-parameters may change between calls.",
        _a(Optimizer, "an optimizer such as vpps.Adam()"),
    )
    target: str = option(
        AUTO,
        """"cuda", "cpu", "simt" (emulates the cuda configuration and searches for races: slow), or "auto": "cuda" if
        there is a usable GPU, else "cpu".""",
        TEXT,
        _one_of((AUTO, *TARGETS), listed((AUTO, *TARGETS))),
    )
    vps: int | None = option(  # the machine checks the upper bound
        None,
        """number of virtual processors. Default: one per multiprocessor on cuda, 4 on simt, and on cpu one per core
        that this process may use (container quotas included). With three or more cores, training leaves one to
        Python.""",
    )
    policy: str | LearnedPolicy | None = option(
        None,
        """batching policy: the order of vertices and their division into batches. "sinks-last" (the default) and
        "depth" go level by level. Recurrences of several cells, such as lattices and trees with several kinds of
        nodes, get larger batches with "sufficient", "critical" or the result of `vpps.learn_policy(graph)`; these
        batches also follow each other more often. "agenda" is DyNet's policy. Losses are the same, but gradients of
        weights are summed in the order of the vertices: their last bits depend on the policy.""",
        (
            lambda value: isinstance(value, LearnedPolicy) or (isinstance(value, str) and value in NAMED),
            f"one of {', '.join(NAMED)}, or vpps.learn_policy(graph)",
        ),
    )
    schedule: str | None = option(
        None,
        """"vector" (the default), or "paper" for the published VPPS scheme, with one instruction per vertex and op in
        exclusive scripts. Results are the same; "paper" serves for comparison.""",
        TEXT,
        _one_of(SCHEDULES),
    )
    train: bool = option(True, "False for a forward-only handle; a model can have any number of these.", FLAG)
    clip_norm: float | None = option(
        None,
        "upper bound of the global norm of all gradients, or None.",
        _number(lambda bound: 0 < bound < math.inf, "a positive number or None"),
    )
    ema: float | None = option(
        None,
        """decay, such as 0.999, of exponential moving averages of the weights. Every update extends them. None makes
        no averages and ends existing ones of the model. They start with the weights before the first update and
        belong to the model: use `model.averaged` to evaluate with them.""",
        _number(lambda decay: 0 <= decay < 1, "a number in [0, 1), such as 0.999, or None"),
    )
    on_nonfinite: OnNonfinite = option(
        "warn",
        """reaction to a step whose loss or gradients are NaN or infinite, or so large that their squares may be. The
        step is always skipped: weights, moments, averages and accumulated gradients do not change. (If only the norm
        of all gradients is infinite, accumulated gradients are discarded, and a message tells so.) "warn" warns once.
        "skip" is silent; `skipped` counts these steps. With "raise" the next call raises, with the cell and the call
        of origin; each step is then launched after the previous one has ended, so a GPU idles briefly between steps.
        A skipped step uses its number (`model.step`), so schedules see the same numbers in every mode; bias
        correction does not count it.""",
        TEXT,
        _one_of(ON_NONFINITE, "'warn', 'skip' or 'raise'"),
    )
    pool_limit: int | None = option(
        None,
        "bytes that the pool may grow to; default: half of the machine's memory.",
        (lambda value: (as_index(value) or 0) >= 1, "a positive int, bytes"),
    )
    verify: bool | None = option(
        None, "True to check every script before it runs (slow); default: environment variable VPPS_VERIFY.", FLAG
    )
    timeline: bool = option(
        False,
        """True to record the work of every virtual processor with times, for `timeline()`. Recording costs about 30 ns
        per instruction on cpu, and a separate kernel on a GPU; results are the same. On simt, time is emulated.""",
        FLAG,
    )
    onchip: ChipOptions | None = option(
        None,
        """forced parts of the distribution of weights over the chip (cuda, simt), a `vpps.ChipOptions`; default:
        none. The virtual processors of a GPU form two groups, each with a copy of the weights and its own part of a
        batch. `groups=1` is faster for batches of one graph, `groups=4` for large ones.""",
        _a(ChipOptions, "vpps.ChipOptions(...)"),
    )
    passes: Passes | None = option(
        None,
        "passes of the cell compiler, a `vpps.Passes`; default: environment variable VPPS_PASSES, or all passes.",
        _a(Passes, "vpps.Passes(...)"),
    )
    autotune: bool = option(
        False,
        """True to try other configurations in the first steps, for some batches each, and use the fastest. It tries
        numbers of virtual processors (cpu), or groups of blocks and rows per warp of the published scheme
        (cuda, simt), and compiles their kernels as needed. Training results stay the same, on cpu to the bit; `tuning`
        shows progress. A file (VPPS_TUNING) keeps the fastest one; later handles of such a model use it at once.""",
        FLAG,
    )
    example: Example | None = option(
        None,
        """a typical graph and its loss. The kernel for it, including evaluation, is compiled now instead of during the
        first call. Other graphs may need further instructions; these are compiled later.""",
    )
    world: World | None = option(
        None,
        """the processes that train the model together, from `vpps.distributed.init()`. Each process gives `fb` its
        shards of every mini-batch; losses and gradients are summed over all processes.""",
        _a(World, "vpps.distributed.init()"),
    )
    precision: str | Mapping[str, str] = option(
        EXACT.name,
        """precision of the factors in products with parameters. "float32"; "bf16", rounded, with half the memory and
        more speed (on GPUs from sm_80 on and processors with AVX512_BF16; elsewhere equally exact but slower); on
        cuda and simt also "tf32", and "3xtf32", about as exact as float32. Or a dict from names of matrices, with "*"
        for all others: `{"*": "bf16", "output/W": "float32"}`. Sums of products, trained weights, moments, gradients
        of weights, states, gates, softmax and losses stay float32.""",
        (lambda value: _precisions(value) is not None, "one of " + ", ".join(PRECISIONS) + ", or a dict of these"),
    )
    by_environment: bool = field(default=False, init=False)  # True if the target comes from the environment

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
            raise HandleError("autotune=True: only training handles can be tuned; leave it out, or train=False")
        if self.autotune and self.world is not None and self.world.shards > 1:
            raise HandleError(
                "autotune=True, world=...: only a single process can be tuned; run vpps-profile first, and all ranks "
                "use its result"
            )
        if self.autotune and self.timeline:
            raise HandleError(
                "autotune=True, timeline=True: recording takes time, so another configuration may be the fastest with "
                "it; leave one of them out, and record some steps with handle.trace()"
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
        """Fields of the configuration that the user has set."""
        names = ("vps", "policy", "schedule", "onchip", "passes")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return found | {"precision": self.precisions}

    @property
    def precisions(self) -> Precisions:
        """Precisions of all matrices."""
        return Precisions.given(self.precision)

    def check_model(self, model: Model) -> None:
        """Raise HandleError unless a handle with these options can be made for the model now."""
        if not isinstance(model, Model):
            raise HandleError(f"Handle({model!r}): expected a vpps.Model")
        if self.train:
            # Finish a running step: it may hold the last reference to a handle. In a forked child this raises.
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
"""The options, in the order of `Handle`'s arguments."""


def _precisions(value: Any) -> Precisions | None:
    """Return the precisions that a value stands for; None if it is neither a precision nor a dict of precisions."""
    if not isinstance(value, str | Mapping):
        return None
    if isinstance(value, Mapping) and not all(isinstance(each, str) for pair in value.items() for each in pair):
        return None
    found = Precisions.given(value)
    return found if found.used <= PRECISIONS.keys() else None


def check_option(name: str, value: object, given: str = "") -> None:
    """Raise HandleError unless the value is valid for the option.

    Args:
        given: the setting as the user wrote it, for the message; default: an argument.
    """
    one = next(one for one in OPTIONS if one.name == name)
    if value is None and one.default is None:
        return
    for accepts, expected in one.metadata["rules"]:
        if not accepts(value):
            raise HandleError(f"{given or f'{name}={value!r}'}: expected {expected}{habit(name, value)}")


def check_precision(precisions: Precisions, target: str, device: Device | None = None) -> None:
    """Raise HandleError unless a target, and its GPU, support the precisions."""
    if TARGETS[target].is_gpu:
        if device is not None and device.sm < TENSOR_CORES and precisions.used != {EXACT.name}:
            raise HandleError(
                f"precision={precisions.written!r}: {device.name} is sm_{device.sm}, and this takes tensor cores of "
                f"sm_{TENSOR_CORES} or newer; use {EXACT.name!r}"
            )
        return
    for name in sorted(precisions.used):
        if not PRECISIONS[name].on_host:
            raise HandleError(
                f"precision={precisions.written!r}: target {target!r} has no tensor cores and multiplies in float32 or "
                f"bf16; use one of them, or target={listed(GPUS)}"
            )


def check_precision_of(model: Model, precisions: Precisions) -> None:
    """Raise HandleError unless every parameter with its own precision is a matrix of the model."""
    matrices = [p.name for p in model if len(p.shape) == 2 and not isinstance(p, Lookup)]
    for name, _ in precisions.named:
        if name in matrices:
            continue
        wrong = f"there is no parameter {name!r}; {said_of(name, matrices)}"
        if any(p.name == name for p in model):
            wrong = f"{name!r} is not a matrix that multiplies vectors, and all else is float32; leave it out"
        raise HandleError(f"precision={precisions.written!r}: {wrong}")


def check_example(example: object) -> Example:
    """Return an example's graph and loss. Raises HandleError or GraphError for anything else."""
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
    """Return the text about the options for a docstring, under "Args:"."""
    wrapper = textwrap.TextWrapper(120, " " * indent, " " * (indent + 4), break_on_hyphens=False)
    return "\n".join(wrapper.fill(f"{one.name}: {one.metadata['doc']}") for one in OPTIONS)
