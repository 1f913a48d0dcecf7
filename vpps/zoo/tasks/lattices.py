"""Tags of the characters of Chinese sentences: networks over lattices of characters and words."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet, read_lattices, synthetic_lattices
from vpps.errors import DataError
from vpps.zoo.lattice_gru import LatticeGRU
from vpps.zoo.lattice_lstm import LatticeLSTM, characters_of
from vpps.zoo.task import Settings, Task, setting
from vpps.zoo.tasks.files import kept, kept_count, names_of, set_with_names

MIN_COUNT = 2  # what is seen once trains the embeddings of unknown characters and words


@dataclass(frozen=True, kw_only=True)
class LatticeSettings(Settings):
    """Sizes of a network over lattices."""

    hidden: int = setting(256, "Length of a state.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of the vectors of characters and words.", min=1, shapes_model=True)


class LatticeTask(Task[GraphBatch]):
    """Tags of characters. The tags of the data are numbers without names, so entities cannot be told apart.

    Attributes:
        train, dev: kinds character and word, columns of those names, and tag.
        outside: the most frequent tag of the training data, which stands for no entity.
    """

    settings_type = LatticeSettings
    training: ClassVar[Mapping[str, Any]] = {"lr": 0.002, "batch_size": 16}
    data_help: ClassVar[str] = (
        "A folder with train.txt and dev.txt, sentences as character-word lattices: as ED-Batch's Weibo files."
    )
    unit = "character"

    network: Any
    train: GraphSet
    dev: GraphSet

    def __init__(self, settings: LatticeSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        like = known = None
        if state is not None:
            like = set_with_names(kept(state, "names"))
            known = kept_count(state, "n_tags"), kept_count(state, "outside", 0)
        self.train, self.dev = self.read(settings.data, settings.limit, like)
        tags = self.train[:]["tag"]
        if known is None:
            self.n_tags = 1 + max(int(graphs[:]["tag"].max()) for graphs in (self.train, self.dev))
            self.outside = int(np.bincount(tags[tags >= 0]).argmax())
        else:
            self.n_tags, self.outside = known
            for graphs in (self.train, self.dev):
                if (highest := int(graphs[:]["tag"].max())) >= self.n_tags:
                    raise DataError(f"{settings.data}: tag {highest}: the network knows 0 to {self.n_tags - 1}")
        self.n_characters, self.n_words = (len(self.train.vocabularies[name]) for name in ("character", "word"))
        self.model = vpps.Model(seed=settings.seed)
        self.network = self.make_network(settings)

    def read(self, data: Path | None, limit: int | None, like: GraphSet | None) -> tuple[GraphSet, GraphSet]:
        """Train and dev set; real, or synthetic where `data` is None."""
        if data is None:
            train, dev = synthetic_lattices()
        else:
            if not os.path.isdir(data):
                raise DataError(f"{data}: expected a folder with train.txt and dev.txt")
            train = read_lattices(data / "train.txt", min_count=MIN_COUNT, like=like)
            dev = read_lattices(data / "dev.txt", like=train)
        return train.subset(slice(limit)) if limit is not None else train, dev

    @abstractmethod
    def make_network(self, settings: Any) -> Any:
        """Declare the parameters in `self.model`."""

    @property
    def description(self) -> str:
        known = f"{self.n_characters} characters, {self.n_words} words, {self.n_tags} tags"
        return f"{len(self.train)} train and {len(self.dev)} dev sentences, {known}, {self.model.n_weights} weights"

    def state(self) -> dict[str, Any]:
        return {"names": names_of(self.train), "n_tags": self.n_tags, "outside": self.outside}

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        loss: vpps.Expression = self.network.loss(graph, batch)
        return loss

    def units(self, batch: GraphBatch) -> int:
        return len(characters_of(batch))

    def outputs(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        logits: vpps.Rows = self.network.logits(graph, batch)
        return logits

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

    def make_network(self, settings: LatticeSettings) -> LatticeLSTM:
        return LatticeLSTM(
            self.model, self.n_characters, self.n_words, self.n_tags,
            embedding=settings.embedding, hidden=settings.hidden,
        )  # fmt: skip


class LatticeGRUTask(LatticeTask):
    """Train a lattice GRU for named entities in Chinese (Su et al. 2017)."""

    name = "lattice-gru"

    def make_network(self, settings: LatticeSettings) -> LatticeGRU:
        return LatticeGRU(
            self.model, self.n_characters, self.n_words, self.n_tags,
            embedding=settings.embedding, hidden=settings.hidden,
        )  # fmt: skip
