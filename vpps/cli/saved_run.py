"""What `--resume` needs beside the weights: kept in the checkpoint's metadata, as JSON under one key."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
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
        kept = {**vars(self), "settings": {k: v for k, v in self.settings.items() if k not in _NOT_SETTINGS}}
        model.save(path, metadata={_KEY: json.dumps(kept, default=str)})

    @classmethod
    def load(cls, path: Path, task: str) -> SavedRun:
        """Reads the run of `task` that a checkpoint holds.

        Raises:
            CheckpointError: the file is missing or damaged, or was not written by this command.
        """
        text = vpps.Model.load(path).metadata.get(_KEY)
        if text is None:
            raise CheckpointError(f"{path}: has weights but was not written by vpps-train, so it cannot be resumed")
        run = cls(**json.loads(text))
        if run.task != task:
            raise CheckpointError(f"{path}: is a run of `vpps-train {run.task}`, not of {task}")
        return run


def resolve(ctx: typer.Context, fixed: Collection[str]) -> tuple[dict[str, Any], SavedRun | None]:
    """The options of this run by name, the task's settings among them, and where it continues from.

    On `--resume` an option that was not given is what the checkpoint says.

    Args:
        ctx: the command's context.
        fixed: options that the shape of the model depends on, which may therefore not change.

    Raises:
        typer.BadParameter: the options contradict each other or the checkpoint.
        CheckpointError: the checkpoint cannot be resumed.
    """
    options = dict(ctx.params)
    path: Path | None = options["checkpoint"]
    if path is None:
        if options["resume"]:
            raise typer.BadParameter("needs --checkpoint FILE to continue from", param_hint="--resume")
        return options, None
    if not options["resume"]:
        if path.exists():
            raise typer.BadParameter(f"{path} exists: add --resume to continue it", param_hint="--checkpoint")
        if not path.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--checkpoint")
        return options, None

    saved = SavedRun.load(path, ctx.info_name or "")
    for name in options.keys() & saved.settings.keys():
        source, stored = ctx.get_parameter_source(name), saved.settings[name]
        if source is None or source.name == "DEFAULT":
            options[name] = stored
        elif name in fixed and options[name] != stored:
            raise typer.BadParameter(f"{path} was trained with {stored}", param_hint=f"--{name.replace('_', '-')}")
    return options, saved
