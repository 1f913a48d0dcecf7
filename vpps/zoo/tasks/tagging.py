"""Named entities: networks that give every word of a sentence a tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import (
    GraphBatch,
    GraphSet,
    SpelledBatch,
    SpelledSentences,
    graphs_of_tagged,
    read_tagged,
    synthetic_sentences,
)
from vpps.zoo.bilstm_char_tagger import BiLSTMCharTagger
from vpps.zoo.bilstm_tagger import BiLSTMTagger
from vpps.zoo.task import Settings, Task, setting
from vpps.zoo.tasks.files import kept, names_of, set_with_names, train_and_dev
from vpps.zoo.tasks.spans import tag_scores

MIN_COUNT = 2  # words seen once train the embedding of unknown words
RARE_BELOW = 5  # occurrences; VPPS paper, section IV-E


@dataclass(frozen=True, kw_only=True)
class TaggerSettings(Settings):
    """Sizes of a network that tags words."""

    hidden: int = setting(256, "Length of the LSTMs' states, in each direction.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of a word vector.", min=1, shapes_model=True)
    mlp: int = setting(256, "Units of the hidden layer before the tags.", min=1, shapes_model=True)


@dataclass(frozen=True, kw_only=True)
class CharTaggerSettings(TaggerSettings):
    """The same, and of what reads rare words."""

    characters: int = setting(64, "Length of a character vector.", min=1, shapes_model=True)


Batch = TypeVar("Batch", GraphBatch, SpelledBatch)


class TaggerTask(Task[Batch]):
    """Tags of words.

    Attributes:
        tags: their names, by number.
    """

    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "batch_size": 16, "lr": 0.001}
    data_help: ClassVar[str] = (
        "Sentences of word|TAG separated by blanks, one a line, such as WikiNER: a folder with train.txt and dev.txt; "
        "or one file, or a folder that holds one, of which the last tenth is dev data."
    )
    unit = "word"
    tags: tuple[str, ...]
    n_words: int

    @property
    def description(self) -> str:
        data = f"{len(self.train)} train and {len(self.dev)} dev sentences"
        return f"{data}, {self.n_words} words, {len(self.tags)} tags, {self.model.n_weights} weights"

    def loss(self, graph: vpps.Graph, batch: Batch) -> vpps.Expression:
        loss: vpps.Expression = self.network.loss(graph, batch)
        return loss

    def units(self, batch: Batch) -> int:
        return batch.n_vertices

    def outputs(self, graph: vpps.Graph, batch: Batch) -> vpps.Rows:
        logits: vpps.Rows = self.network.logits(graph, batch)
        return logits

    def scores(self, results: Iterable[tuple[Batch, NDArray[np.float32]]]) -> dict[str, float]:
        """F1 of entities, where tags mark some, and the accuracy of tags."""
        return tag_scores(
            ((batch.offsets, batch["tag"], logits.argmax(axis=1)) for batch, logits in results), self.tags
        )


class BiLSTMTaggerTask(TaggerTask[GraphBatch]):
    """Train a bidirectional LSTM to find named entities (Huang, Xu & Yu 2015)."""

    name = "bilstm-tagger"
    settings_type = TaggerSettings
    train: GraphSet
    dev: GraphSet

    def __init__(self, settings: TaggerSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        like = None if state is None else set_with_names(kept(state, "names"))
        self.train, self.dev = self.read(settings.data, settings.limit, like)
        self.tags = self.train.classes["tag"]
        self.n_words = len(self.train.vocabularies["word"])
        self.model = vpps.Model(seed=settings.seed)
        self.network = BiLSTMTagger(
            self.model, self.n_words, len(self.tags),
            embedding=settings.embedding, hidden=settings.hidden, mlp=settings.mlp,
        )  # fmt: skip

    def read(self, data: Path | None, limit: int | None, like: GraphSet | None) -> tuple[GraphSet, GraphSet]:
        """Train and dev set; real, or synthetic where `data` is None."""
        if data is None:
            train_sentences, dev_sentences = synthetic_sentences()
            train = graphs_of_tagged(train_sentences[:limit], min_count=MIN_COUNT, like=like)
            return train, graphs_of_tagged(dev_sentences, like=train)
        train_source, dev_source = train_and_dev(data)
        train = read_tagged(train_source, min_count=MIN_COUNT, like=like)
        dev = read_tagged(dev_source, like=train)
        return train.subset(slice(limit)) if limit is not None else train, dev

    def state(self) -> dict[str, Any]:
        return {"names": names_of(self.train)}


class BiLSTMCharTaggerTask(TaggerTask[SpelledBatch]):
    """Train a BiLSTM tagger that reads rare words character by character (DyNet's bilstm-tagger-withchar)."""

    name = "bilstm-char-tagger"
    settings_type = CharTaggerSettings
    train: SpelledSentences
    dev: SpelledSentences

    def __init__(self, settings: CharTaggerSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        like = None
        if state is not None:
            like = SpelledSentences(set_with_names(kept(state, "names")), set_with_names(kept(state, "characters")))
        self.train, self.dev = self.read(settings.data, settings.limit, like)
        self.tags = self.train.sentences.classes["tag"]
        self.n_words = len(self.train.sentences.vocabularies["word"])
        self.model = vpps.Model(seed=settings.seed)
        self.network = BiLSTMCharTagger(
            self.model, self.n_words, len(self.train.spellings.vocabularies["character"]), len(self.tags),
            embedding=settings.embedding, characters=settings.characters, hidden=settings.hidden, mlp=settings.mlp,
        )  # fmt: skip

    def read(
        self, data: Path | None, limit: int | None, like: SpelledSentences | None
    ) -> tuple[SpelledSentences, SpelledSentences]:
        """Train and dev set; real, or synthetic where `data` is None."""
        if data is None:
            train_sentences, dev_sentences = synthetic_sentences(coined=True)
            train = SpelledSentences.of(train_sentences[:limit], min_count=RARE_BELOW, like=like)
            return train, SpelledSentences.of(dev_sentences, like=train)
        train_source, dev_source = train_and_dev(data)
        train = SpelledSentences.read(train_source, min_count=RARE_BELOW, like=like)
        dev = SpelledSentences.read(dev_source, like=train)
        return train.subset(slice(limit)) if limit is not None else train, dev

    def state(self) -> dict[str, Any]:
        return {"names": names_of(self.train.sentences), "characters": names_of(self.train.spellings)}
