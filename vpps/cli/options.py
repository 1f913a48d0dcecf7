"""Options of all tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vpps.engine.options import check_option
from vpps.errors import HandleError
from vpps.graph.graph import Graph
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.precisions import OTHERS, Precisions
from vpps.ops.precision import EXACT, PRECISIONS
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.policies import learn_policy
from vpps.targets import AUTO, TARGETS

LEARNING_RATES = {
    "adam": 3e-3,
    "adamw": 3e-3,
    "sgd": 0.05,
    "momentum": 0.01,
    "nesterov": 0.01,
    "adagrad": 0.03,
    "rmsprop": 1e-3,
}
"""Default learning rates by optimizer name."""

OptimizerName = StrEnum("OptimizerName", {name.upper(): name for name in LEARNING_RATES})  # type: ignore[misc]
ADAM = OptimizerName("adam")

_LR_TEXT = ", ".join(f"{rate:g} for {name}" for name, rate in LEARNING_RATES.items())

_option = partial(typer.Option, rich_help_panel="Training")

TargetName = StrEnum("TargetName", {name.upper(): name for name in (AUTO, *sorted(TARGETS))})  # type: ignore[misc]
AUTO_TARGET = TargetName(AUTO)

PolicyName = StrEnum("PolicyName", {name.upper(): name for name in POLICIES})  # type: ignore[misc]


def policy_for(name: str | None, graph: Graph, known: LearnedPolicy | None = None) -> str | LearnedPolicy | None:
    """Return the policy that `--policy` names. The policy "fsm" is learned from `graph`, the first batch.

    Args:
        known: an already learned policy to use instead.
    """
    if name != LearnedPolicy.name:
        return name
    return learn_policy(graph) if known is None else known


PRECISION_METAVAR = "|".join(PRECISIONS) + "[,MATRIX=...]"
PRECISION_HELP = "Precision of products with parameters; single matrices may differ: bf16,output/W=float32."


def precisions_in(text: str) -> Precisions:
    """Parse `--precision`, such as "bf16" or "bf16,output/W=float32". Raises HandleError."""
    pairs = [part.strip().rpartition("=") for part in text.split(",")]
    given = {name if equals else OTHERS: precision for name, equals, precision in pairs}
    if len(given) < len(pairs):
        raise HandleError(f"--precision {text}: one for all, then MATRIX=PRECISION, each once")
    value = given[OTHERS] if given.keys() == {OTHERS} else given
    check_option("precision", value, f"--precision {text}")
    return Precisions.given(value)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of the training loop, common to all tasks."""

    epochs: Annotated[int, _option(min=1, help="Train until this many epochs are done, resumed ones included.")] = 10
    batch_size: Annotated[int, _option(min=1, help="Examples per update over all processes.")] = 16
    shards: Annotated[
        int | None,
        _option(
            min=1,
            help="Under mpiexec, srun or torchrun: divide every batch into N parts, a multiple of the number of "
            "processes; by default one per process. With the same N, any number of processes learns the same.",
            metavar="N",
        ),
    ] = None
    timeout: Annotated[
        float,
        _option(min=0.0, help="Seconds that one of several processes may be late before all end.", metavar="SECONDS"),
    ] = 300.0
    optimizer: Annotated[OptimizerName, _option(help="Update rule.")] = ADAM
    lr: float | None = None  # `learning_rate` declares the option
    clip_norm: Annotated[
        float | None,
        _option(min=0.0, help="Scale gradients down if their global norm exceeds this value."),
    ] = None
    patience: Annotated[
        int | None,
        _option(min=1, help="Stop when the first score has not improved for N epochs.", metavar="N"),
    ] = None
    target: Annotated[TargetName, _option(help="Target that runs the kernel.")] = AUTO_TARGET
    vps: Annotated[int | None, _option(min=1, help="Virtual processors; by default, the target's own number.")] = None
    policy: Annotated[
        PolicyName | None,
        _option(
            help="Policy for batching vertices; by default sinks-last. fsm is learned from the first batch and saved "
            "in --checkpoint.",
            show_default=False,
        ),
    ] = None
    precision: Annotated[str, _option(metavar=PRECISION_METAVAR, help=PRECISION_HELP)] = EXACT.name
    autotune: Annotated[
        bool,
        _option(
            "--autotune",
            help="Try other configurations during training and keep the fastest. The learned weights stay the same.",
        ),
    ] = False
    checkpoint: Annotated[
        Path | None,
        _option(
            dir_okay=False,
            help="Write model, optimizer state and settings to this file after every epoch, and the model with the "
            "best score to NAME.best.",
        ),
    ] = None
    tensorboard: Annotated[
        Path | None,
        _option(file_okay=False, help="Write curves of loss and scores to this folder; needs tensorboardX or PyTorch."),
    ] = None
    resume: Annotated[
        bool,
        _option("--resume", help="Continue from --checkpoint; options not given are restored from it, except files."),
    ] = False


def learning_rate(usual: float | None = None) -> Any:
    """Return the type of `--lr`.

    Args:
        usual: default rate of a task with its own optimizer; None for the default rate of the optimizer.
    """
    default = _LR_TEXT if usual is None else f"{usual:g}; with another --optimizer, its default rate"
    return Annotated[float | None, _option(min=0.0, show_default=default, help="Learning rate.")]
