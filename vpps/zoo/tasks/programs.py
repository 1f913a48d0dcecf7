"""What programs do: networks over their graphs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet, read_programs, synthetic_programs
from vpps.data.readers.programs import programs_below
from vpps.errors import DataError
from vpps.zoo.program_gru import ProgramGRU
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.files import kept, names_of, set_with_names
from vpps.zoo.tasks.graph_labels import GraphLabelTask

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
    settings_type = ProgramSettings
    training: ClassVar[Mapping[str, Any]] = {"lr": 0.002, "batch_size": 32}
    data_help: ClassVar[str] = (
        "A folder of Python programs, *.py anywhere below: the network tells from a function's body the first word of "
        "its name (get, set, is). One file of ten is for judging; or there are folders train and dev. Without: small "
        "programs made by chance, whose results are to be told."
    )
    unit = "program"

    network: ProgramGRU
    train: GraphSet
    dev: GraphSet

    def __init__(self, settings: ProgramSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        like = None if state is None else set_with_names(kept(state, "names"))
        self.train, self.dev = self.read(settings.data, settings.limit, like)
        vocabularies = self.train.vocabularies
        self.model = vpps.Model(seed=settings.seed)
        self.network = ProgramGRU(
            self.model, len(vocabularies["type"]), len(vocabularies["name"]), len(self.train.classes["label"]),
            embedding=settings.embedding, hidden=settings.hidden,
        )  # fmt: skip

    def read(self, data: Path | None, limit: int | None, like: GraphSet | None) -> tuple[GraphSet, GraphSet]:
        """Train and dev set; functions of real programs, or synthetic ones where `data` is None."""
        if data is None:
            train, dev = synthetic_programs()
        else:
            train_files, dev_files = _files(data)
            train = read_programs(*train_files, min_count=MIN_COUNT, skip_unreadable=True, like=like)
            dev = read_programs(*dev_files, skip_unreadable=True, like=train)
        return train.subset(slice(limit)) if limit is not None else train, dev

    @property
    def description(self) -> str:
        sizes = f"{len(self.train.vocabularies['name'])} names, {len(self.train.classes['label'])} classes"
        return f"{len(self.train)} train and {len(self.dev)} dev programs, {sizes}, {self.model.n_weights} weights"

    def state(self) -> dict[str, Any]:
        return {"names": names_of(self.train)}

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
