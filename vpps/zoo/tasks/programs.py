"""What programs do: networks over their graphs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpps.data import GraphBatch, read_programs, synthetic_programs
from vpps.data.readers.programs import programs_below
from vpps.errors import DataError
from vpps.zoo.program_gru import ProgramGRU
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.files import set_kept
from vpps.zoo.tasks.network import GraphLabelTask

MIN_COUNT = 3  # rarer names train the embedding of unknown ones
DEV_EVERY = 10  # of so many files one is for dev


@dataclass(frozen=True, kw_only=True)
class ProgramSettings(Settings):
    """Sizes of a network over programs."""

    hidden: int = setting(256, "Length of a vertex's state.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of the vectors of types and names.", min=1, shapes_model=True)


class ProgramTask(GraphLabelTask):
    """Train a message-passing GRU over programs, any acyclic graphs (after Zhang et al. 2019, Thost & Chen 2021).

    Attributes:
        train, dev: kinds leaf and inner, columns type and name per vertex, label per graph.
    """

    name = "program-gru"
    network_type = ProgramGRU
    settings_type = ProgramSettings
    training: ClassVar[Mapping[str, Any]] = {"lr": 0.002, "batch_size": 32}
    summary: ClassVar[str] = "programs, {task.n_names} names, {task.n_classes} classes"
    data_help: ClassVar[str] = (
        "A folder of Python programs, *.py anywhere below: the network tells from a function's body the first word of "
        "its name (get, set, is). One file of ten is for judging; or there are folders train and dev. Without: small "
        "programs made by chance, whose results are to be told."
    )
    unit = "program"

    def load(self, settings: ProgramSettings, state: Mapping[str, Any] | None) -> None:
        like = set_kept(state)
        if settings.data is None:
            train, self.dev = synthetic_programs()
        else:
            train_files, dev_files = _files(settings.data)
            train = read_programs(*train_files, min_count=MIN_COUNT, skip_unreadable=True, like=like)
            self.dev = read_programs(*dev_files, skip_unreadable=True, like=train)
        self.train = train.subset(slice(settings.limit))
        self.n_types, self.n_names = (len(train.vocabularies[name]) for name in ("type", "name"))
        self.n_classes = len(train.classes["label"])

    def scores(self, results: Iterable[tuple[GraphBatch, NDArray[np.float32]]]) -> dict[str, float]:
        """Accuracy, and what always naming the most frequent class of these programs would give."""
        guessed, labels = [], []
        for batch, logits in results:
            guessed.append(logits.argmax(axis=1))
            labels.append(batch["label"])
        expected = np.concatenate(labels)
        most = int(np.bincount(expected).max())
        right = int((np.concatenate(guessed) == expected).sum())
        return {"dev accuracy": right / len(expected), "of the largest class": most / len(expected)}


def _files(data: Path) -> tuple[list[Path], list[Path]]:
    """Files to train on and to judge by. Raises DataError."""
    if not os.path.exists(data):
        raise DataError(f"{data}: there is no such folder")
    if os.path.isdir(data / "train") and os.path.isdir(data / "dev"):
        return programs_below(data / "train"), programs_below(data / "dev")
    files = programs_below(data) if os.path.isdir(data) else [data]
    dev = files[DEV_EVERY - 1 :: DEV_EVERY]
    if not dev:
        raise DataError(
            f"{data}: expected a folder with at least {DEV_EVERY} Python files below, one of them to judge by, or with "
            f"folders train and dev; found {len(files)}"
        )
    return [file for k, file in enumerate(files, start=1) if k % DEV_EVERY], dev
