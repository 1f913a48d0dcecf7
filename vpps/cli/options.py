"""The options that all tasks have."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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

# For the signatures of commands: Typer reads them.
Epochs = Annotated[int, typer.Option(min=1, help="Train until so many epochs are done, resumed ones included.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Examples per update.")]
LearningRate = Annotated[float | None, typer.Option(min=0.0, show_default=_LR_TEXT, help="Learning rate.")]
Optimizer = Annotated[OptimizerName, typer.Option(help="Update rule.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N training examples.", metavar="N")]
Seed = Annotated[int, typer.Option(min=0, help="Initial weights and the order of the data follow from it.")]
Vps = Annotated[int | None, typer.Option(min=1, help="Virtual processors; by default as many as the target likes.")]
Checkpoint = Annotated[
    Path | None, typer.Option(dir_okay=False, help="Write model, optimizer state and settings here after every epoch.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue from --checkpoint; options not given are as they were then.")
]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The values of the options above. `data` is a directory; None stands for built-in synthetic data."""

    data: Path | str | None
    epochs: int
    batch_size: int
    lr: float | None
    optimizer: OptimizerName | str
    limit: int | None
    seed: int
    vps: int | None
    checkpoint: Path | None
    resume: bool
