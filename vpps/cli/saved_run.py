"""Saves and restores the state that `--resume` needs besides the weights, as JSON in the checkpoint's metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

import vpps
from vpps.cli.options import ADAM, TrainOptions
from vpps.cli.settings import fields_from
from vpps.errors import CheckpointError
from vpps.zoo.task import Settings, Task

_KEY = "vpps-train"
_NOT_SETTINGS = {"checkpoint", "resume", "tensorboard"}  # they locate the run; they do not change it
_OF_THE_MACHINE = {"timeout", "vps", "autotune"}  # they do not change the learned weights
_KEPT = {"task": str, "epoch": int, "settings": dict, "state": dict, "best": dict}
_BEST = {"lower_is_better": (bool,), "score": (float, int), "epoch": (int,)}


@dataclass(frozen=True)
class SavedRun:
    """A training run, restored from its checkpoint.

    Attributes:
        task: name of the command.
        epoch: number of finished epochs.
        settings: the command's options by name.
        state: values that the task derived from its data (vocabulary, number of classes).
        best: the best score so far and its epoch.
        path: path of the checkpoint.
        taken: options that this run takes from the checkpoint, as text.
    """

    task: str
    epoch: int
    settings: dict[str, Any]
    state: dict[str, Any]
    best: dict[str, Any]
    path: Path
    taken: tuple[str, ...] = ()

    def save(self, model: vpps.Model, path: Path) -> None:
        """Write the model with this run in its metadata, atomically."""
        kept = {name: getattr(self, name) for name in _KEPT}
        kept["settings"] = {k: as_kept(v) for k, v in self.settings.items() if k not in _NOT_SETTINGS}
        model.save(path, metadata={_KEY: json.dumps(kept, default=str)})

    @classmethod
    def load(cls, path: Path, task: str | None) -> SavedRun:
        """Read the run from a checkpoint; if `task` is given, the run must be of this task.

        Raises:
            CheckpointError: the file is missing or damaged, or this command did not write it.
        """
        text = vpps.Model.load(path).metadata.get(_KEY)
        if text is None:
            raise CheckpointError(f"{path}: has weights but was not written by vpps-train, so it cannot be resumed")
        try:
            kept = json.loads(text)
        except (ValueError, RecursionError):
            kept = None
        if not isinstance(kept, dict) or not all(
            type(kept[name]) is _KEPT[name] for name in kept.keys() & _KEPT.keys()
        ):
            raise CheckpointError(f"{path}: damaged: the data of vpps-train beside the weights cannot be read")
        if kept.keys() != _KEPT.keys() or kept["best"].keys() != _BEST.keys():
            raise CheckpointError(
                f"{path}: was written by another version of vpps-train; restore its weights in Python, with "
                "Model.restore, or train anew"
            )
        run = cls(**kept, path=path)
        best = run.best
        if not all(type(best[name]) in kinds for name, kinds in _BEST.items()) or not 0 <= best["epoch"] <= run.epoch:
            raise CheckpointError(f"{path}: damaged: the best score of {run.epoch} epochs is {best!r}")
        if task is not None and run.task != task:
            raise CheckpointError(f"{path}: is a run of `vpps-train {run.task}`, not of {task}")
        return run

    def options(self, options: type) -> dict[str, Any]:
        """Return the stored values of a task's settings, or of the loop's options. Raises CheckpointError."""
        with self._named():
            return fields_from(options, {k: v for k, v in self.settings.items() if k not in _NOT_SETTINGS})

    def task_of(self, kind: type[Task[Any]], settings: Settings) -> Task[Any]:
        """Create the task from the stored state. Raises CheckpointError, and DataError if the task raises it."""
        with self._named():
            return kind(settings, self.state)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the checkpoint's path to its errors."""
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from None


def as_kept(value: Any) -> Any:
    """Convert an option for storage in a checkpoint: paths and Enum members become text."""
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def best_of(checkpoint: Path) -> Path:
    """Return the path of the model with the best score."""
    return checkpoint.with_name(checkpoint.name + ".best")


def resolve(ctx: typer.Context, task: type[Task[Any]]) -> tuple[Settings, TrainOptions, SavedRun | None]:
    """Return the task's settings in this run, its other options, and the run to continue.

    With `--resume`, options that were not given come from the checkpoint, and the command prints them. The checkpoint
    may be untrusted: only the command line names files to read, and options of the machine are not restored. A learning
    rate belongs to an optimizer: if a different optimizer is chosen without a rate, the rate is None. Settings
    that determine the model's shape must not change.

    Raises:
        typer.BadParameter: the options contradict each other or the checkpoint.
        CheckpointError: the checkpoint cannot be resumed.
    """
    settings, options = fields_from(task.settings_type, ctx.params), fields_from(TrainOptions, ctx.params)
    fixed = {field.name for field in fields(task.settings_type) if field.metadata.get("shapes_model")}
    optimizer = task.training.get("optimizer", ADAM)  # the optimizer of the task's learning rate
    saved = _saved(ctx, task.name, options["checkpoint"])
    if saved is not None:
        stored_options = saved.options(TrainOptions)
        optimizer = stored_options.get("optimizer", optimizer)
        taken, kinds = list[str](), get_type_hints(task.settings_type) | get_type_hints(TrainOptions)
        for values, kept in ((settings, saved.options(task.settings_type)), (options, stored_options)):
            for name, stored in kept.items():
                option = f"--{name.replace('_', '-')}"
                if not _given(ctx, name):
                    of_files = _is_of_files(kinds[name])
                    if of_files and stored is not None and _absolute(stored) != _absolute(values[name]):
                        raise typer.BadParameter(
                            f"{saved.path} was trained with {stored}: name the file to read", param_hint=option
                        )
                    if stored != values[name] and not of_files and name not in _OF_THE_MACHINE:
                        taken.append(f"{option} {as_kept(stored)}")
                        values[name] = stored
                elif name in fixed and values[name] != stored:
                    wrong = f"{saved.path} was trained with {as_kept(stored)}"
                    raise typer.BadParameter(wrong, param_hint=option)
        saved = replace(saved, taken=tuple(taken))
    if options["optimizer"] != optimizer and not _given(ctx, "lr"):
        options["lr"] = None
    return task.settings_type(**settings), TrainOptions(**options), saved


def _absolute(given: Any) -> Any:
    """Make paths absolute, so that a task's default compares equal to the same path in a checkpoint."""
    if isinstance(given, list | tuple):
        return [_absolute(one) for one in given]
    return None if given is None else Path(given).absolute()


def _is_of_files(kind: Any) -> bool:
    """Return True if an option of this type names files."""
    return (isinstance(kind, type) and issubclass(kind, Path)) or any(map(_is_of_files, get_args(kind)))


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _saved(ctx: typer.Context, task: str, path: Path | None) -> SavedRun | None:
    """Return the run to continue, or None for a new one. Check now that the checkpoint can be written."""
    if path is None:
        if ctx.params["resume"]:
            raise typer.BadParameter("needs --checkpoint FILE to continue from", param_hint="--resume")
        return None
    try:
        os.lstat(best_of(path))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise typer.BadParameter(f"{best_of(path)}: {error.strerror}", param_hint="--checkpoint") from None
    # The best model is written first, so a run that was killed during its first save has left only that file.
    kept = next((file for file in (path, best_of(path)) if os.path.exists(file)), None)
    if ctx.params["resume"]:
        return SavedRun.load(kept or path, task)
    if kept is not None:
        raise typer.BadParameter(
            f"{kept} exists: add --resume to continue it, or move it away", param_hint="--checkpoint"
        )
    if not os.path.isdir(path.parent):
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--checkpoint")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"{path.parent} may not be written to", param_hint="--checkpoint")
    return None
