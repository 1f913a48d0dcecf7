"""Tags of the characters of Chinese sentences: networks over lattices of characters and words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vpps.data import GraphBatch, GraphSet, read_lattices, synthetic_lattices
from vpps.errors import DataError
from vpps.zoo.lattice_gru import LatticeGRU
from vpps.zoo.lattice_lstm import LatticeLSTM, characters_of
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.files import kept_count, set_kept
from vpps.zoo.tasks.network import NetworkTask

MIN_COUNT = 2  # what is seen once trains the embeddings of unknown characters and words


@dataclass(frozen=True, kw_only=True)
class LatticeSettings(Settings):
    """Sizes of a network over lattices."""

    hidden: int = setting(256, "Length of a state.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of the vectors of characters and words.", min=1, shapes_model=True)


class LatticeTask(NetworkTask[GraphBatch]):
    """Tags of characters. The tags of the data are numbers without names, so entities cannot be told apart.

    Attributes:
        train, dev: kinds character and word, columns of those names, and tag.
        outside: the most frequent tag of the training data, which stands for no entity.
    """

    settings_type = LatticeSettings
    training: ClassVar[Mapping[str, Any]] = {"lr": 0.002, "batch_size": 16}
    summary: ClassVar[str] = "sentences, {task.n_characters} characters, {task.n_words} words, {task.n_tags} tags"
    data_help: ClassVar[str] = (
        "A folder with train.txt and dev.txt, sentences as character-word lattices: as ED-Batch's Weibo files."
    )
    unit = "character"

    train: GraphSet
    dev: GraphSet

    def load(self, settings: LatticeSettings, state: Mapping[str, Any] | None) -> None:
        like = set_kept(state)
        known = None if state is None else (kept_count(state, "n_tags"), kept_count(state, "outside", 0))
        if settings.data is None:
            train, self.dev = synthetic_lattices()
        else:
            if not os.path.isdir(settings.data):
                raise DataError(f"{settings.data}: expected a folder with train.txt and dev.txt")
            train = read_lattices(settings.data / "train.txt", min_count=MIN_COUNT if like is None else None, like=like)
            self.dev = read_lattices(settings.data / "dev.txt", like=train)
        self.train = train.subset(slice(settings.limit))
        tags = self.train[:]["tag"]
        highest = max(int(tags.max()), int(self.dev[:]["tag"].max()))
        self.n_tags, self.outside = known or (1 + highest, int(np.bincount(tags[tags >= 0]).argmax()))
        if highest >= self.n_tags:
            raise DataError(f"{settings.data}: tag {highest}: the network knows 0 to {self.n_tags - 1}")
        self.n_characters, self.n_words = (len(train.vocabularies[name]) for name in ("character", "word"))

    def state(self) -> dict[str, Any]:
        return super().state() | {"n_tags": self.n_tags, "outside": self.outside}

    def units(self, batch: GraphBatch) -> int:
        return len(characters_of(batch))

    def scores(self, results: Iterable[tuple[GraphBatch, NDArray[np.float32]]]) -> dict[str, float]:
        """F1 and accuracy of characters.

        F1 counts each character whose tag is not the most frequent one: most characters belong to no entity, so that
        even a network that never finds any has a high accuracy.
        """
        n = right = expected = found = both = 0
        for batch, logits in results:
            tags, guessed = batch["tag"][characters_of(batch)], logits.argmax(axis=1)
            equal = guessed == tags
            n += len(tags)
            right += int(equal.sum())
            expected += int((tags != self.outside).sum())
            found += int((guessed != self.outside).sum())
            both += int((equal & (tags != self.outside)).sum())
        return {"dev F1": 2 * both / max(expected + found, 1), "accuracy": right / n}


class LatticeLSTMTask(LatticeTask):
    """Train a lattice LSTM for named entities in Chinese (Zhang & Yang 2018)."""

    name = "lattice-lstm"
    network_type = LatticeLSTM


class LatticeGRUTask(LatticeTask):
    """Train a lattice GRU for named entities in Chinese (Su et al. 2017)."""

    name = "lattice-gru"
    network_type = LatticeGRU
