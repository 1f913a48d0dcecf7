"""What `--resume` needs beside the weights: kept in the checkpoint's metadata, as JSON under one key."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer

import vpps
from vpps.errors import CheckpointError

_KEY = "vpps-train"
_NOT_SETTINGS = {"checkpoint", "resume"}  # they say where the run is kept, not what it does


@dataclass(frozen=True)
class SavedRun:
    """A run as its checkpoint describes it.

    Attributes:
        task: name of the command.
        epoch: number of finished epochs.
        settings: the command's options by name.
        state: what the task derived from its data (vocabulary, number of classes).
        best: the best score so far and its epoch.
    """

    task: str
    epoch: int
    settings: dict[str, Any]
    state: dict[str, Any]
    best: dict[str, Any]

    def save(self, model: vpps.Model, path: Path) -> None:
        """Writes the model with this in its metadata, atomically."""
        kept = {**vars(self), "settings": {k: as_kept(v) for k, v in self.settings.items() if k not in _NOT_SETTINGS}}
        model.save(path, metadata={_KEY: json.dumps(kept, default=str)})

    @classmethod
    def load(cls, path: Path, task: str | None) -> SavedRun:
        """Reads the run of `task`, or of any, that a checkpoint holds.

        Raises:
            CheckpointError: the file is missing or damaged, or was not written by this command.
        """
        text = vpps.Model.load(path).metadata.get(_KEY)
        if text is None:
            raise CheckpointError(f"{path}: has weights but was not written by vpps-train, so it cannot be resumed")
        try:
            run = cls(**json.loads(text))
        except TypeError:
            raise CheckpointError(
                f"{path}: was written by another version of vpps-train; restore its weights in Python, with "
                "Model.restore, or train anew"
            ) from None
        if task is not None and run.task != task:
            raise CheckpointError(f"{path}: is a run of `vpps-train {run.task}`, not of {task}")
        return run


def as_kept(value: Any) -> Any:
    """An option as a checkpoint keeps it: paths and members of an Enum as text."""
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def best_of(checkpoint: Path) -> Path:
    """Where the model with the best score is kept."""
    return checkpoint.with_name(checkpoint.name + ".best")


def resolve(
    ctx: typer.Context, task: str, fixed: Collection[str], optimizer: str
) -> tuple[dict[str, Any], SavedRun | None]:
    """The options of this run by name, the task's settings among them, and where it continues from.

    On `--resume` an option that was not given is what the checkpoint says. A learning rate belongs to an optimizer: to
    choose another one without a rate leaves that open (None).

    Args:
        ctx: the command's context.
        task: its name.
        fixed: options that the shape of the model depends on, which may therefore not change.
        optimizer: the one that the task's learning rate is for.

    Raises:
        typer.BadParameter: the options contradict each other or the checkpoint.
        CheckpointError: the checkpoint cannot be resumed.
    """
    options = dict(ctx.params)
    saved = _saved(ctx, task, options["checkpoint"])
    if saved is not None:
        optimizer = saved.settings.get("optimizer", optimizer)
        for name in options.keys() & saved.settings.keys():
            stored = saved.settings[name]
            if not _given(ctx, name):
                options[name] = stored
            elif name in fixed and as_kept(options[name]) != stored:
                wrong = f"{options['checkpoint']} was trained with {stored}"
                raise typer.BadParameter(wrong, param_hint=f"--{name.replace('_', '-')}")
    if options["optimizer"] != optimizer and not _given(ctx, "lr"):
        options["lr"] = None
    return options, saved


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _saved(ctx: typer.Context, task: str, path: Path | None) -> SavedRun | None:
    """The run to continue, None for a fresh one. That it can be kept is found out now, not after the first epoch."""
    if path is None:
        if ctx.params["resume"]:
            raise typer.BadParameter("needs --checkpoint FILE to continue from", param_hint="--resume")
        return None
    if best_of(path).exists() and not path.exists():  # written first
        ended = "of a run that was ended in its first epoch, exists without a checkpoint to continue"
        raise typer.BadParameter(f"{best_of(path)}, {ended}: move it away", param_hint="--checkpoint")
    if ctx.params["resume"]:
        return SavedRun.load(path, task)
    if path.exists():
        raise typer.BadParameter(f"{path} exists: add --resume to continue it", param_hint="--checkpoint")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--checkpoint")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} may not be written to", param_hint="--checkpoint")
    return None
