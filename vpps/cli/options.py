"""The options that all tasks have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vpps.targets import AUTO, TARGETS


class OptimizerName(StrEnum):
    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"
    MOMENTUM = "momentum"
    NESTEROV = "nesterov"
    ADAGRAD = "adagrad"
    RMSPROP = "rmsprop"


LEARNING_RATES = {
    OptimizerName.ADAM: 3e-3,
    OptimizerName.ADAMW: 3e-3,
    OptimizerName.SGD: 0.05,
    OptimizerName.MOMENTUM: 0.01,
    OptimizerName.NESTEROV: 0.01,
    OptimizerName.ADAGRAD: 0.03,
    OptimizerName.RMSPROP: 1e-3,
}
_LR_TEXT = ", ".join(f"{rate:g} for {name}" for name, rate in LEARNING_RATES.items())

_option = partial(typer.Option, rich_help_panel="Training")

# For the signatures of commands: Typer reads them.
Epochs = Annotated[int, _option(min=1, help="Train until so many epochs are done, resumed ones included.")]
BatchSize = Annotated[int, _option(min=1, help="Examples per update.")]


def learning_rate(usual: float | None = None) -> Any:
    """The type of `--lr`.

    Args:
        usual: what suits a task, with its own optimizer; None: what suits the optimizer.
    """
    default = _LR_TEXT if usual is None else f"{usual:g}; with another --optimizer what suits that"
    return Annotated[float | None, _option(min=0.0, show_default=default, help="Learning rate.")]


ClipNorm = Annotated[float | None, _option(min=0.0, help="Scale gradients of a larger global norm down to it.")]
Rule = Annotated[OptimizerName, _option(help="Update rule.")]
Patience = Annotated[
    int | None,
    _option(min=1, help="Stop when the first score has not become better for so many epochs.", metavar="N"),
]
Vps = Annotated[int | None, _option(min=1, help="Virtual processors; by default as many as the target likes.")]
Checkpoint = Annotated[
    Path | None,
    _option(
        dir_okay=False,
        help="Write model, optimizer state and settings here after every epoch, and the model with the best score "
        "beside it, as NAME.best.",
    ),
]
Resume = Annotated[
    bool, _option("--resume", help="Continue from --checkpoint; options not given are as they were then.")
]


Autotune = Annotated[
    bool,
    _option(
        "--autotune",
        help="Try other configurations on the batches that are trained anyway, and keep the fastest. What is learned "
        "stays the same.",
    ),
]


TargetName = StrEnum("TargetName", {name.upper(): name for name in (AUTO, *sorted(TARGETS))})  # type: ignore[misc]
AUTO_TARGET = TargetName(AUTO)

Target = Annotated[TargetName, _option(help="What runs the kernel.")]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of the training loop, which all tasks have."""

    epochs: Epochs = 10
    batch_size: BatchSize = 16
    optimizer: Rule = OptimizerName.ADAM
    lr: float | None = None  # `learning_rate` makes an option of it
    clip_norm: ClipNorm = None
    patience: Patience = None
    target: Target = AUTO_TARGET
    vps: Vps = None
    autotune: Autotune = False
    checkpoint: Checkpoint = None
    resume: Resume = False
