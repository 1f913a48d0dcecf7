"""Named entities: networks that give every word of a sentence a tag."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

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
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.files import names_of, read_both, set_kept, train_and_dev
from vpps.zoo.tasks.network import NetworkTask
from vpps.zoo.tasks.spans import tag_scores


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


class TaggerTask(NetworkTask[Batch]):
    """Tags of words.

    Attributes:
        read, of: what makes sets of files and of sentences.
        min_count: words of the training data that occur less often are unknown, or spelled.
        coined: whether synthetic sentences have names that occur nowhere else.
        tags: their names, by number.
    """

    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "batch_size": 16, "lr": 0.001}
    summary: ClassVar[str] = "sentences, {task.n_words} words, {task.n_tags} tags"
    data_help: ClassVar[str] = (
        "Sentences of word|TAG separated by blanks, one a line, such as WikiNER: a folder with train.txt and dev.txt; "
        "or one file, or a folder that holds one, of which the last tenth is dev data."
    )
    unit = "word"
    read: ClassVar[Callable[..., Any]]
    of: ClassVar[Callable[..., Any]]
    min_count: ClassVar[int]
    coined: ClassVar[bool] = False

    def load(self, settings: TaggerSettings, state: Mapping[str, Any] | None) -> None:
        if settings.data is None:
            sentences, dev_sentences = synthetic_sentences(coined=self.coined)
            data: tuple[Any, Any] = sentences[: settings.limit], dev_sentences
        else:
            data = train_and_dev(settings.data)
        read = self.of if settings.data is None else self.read
        train: Any
        train, self.dev = read_both(read, data, self.like(state), min_count=self.min_count)
        self.train = train.subset(slice(settings.limit))
        self.tags = self.sentences.classes["tag"]
        self.n_words, self.n_tags = len(self.sentences.vocabularies["word"]), len(self.tags)

    @abstractmethod
    def like(self, state: Mapping[str, Any] | None) -> Any:
        """What a checkpoint keeps, for the readers; None in a fresh run."""

    @property
    @abstractmethod
    def sentences(self) -> GraphSet:
        """The chains of words of the training data."""

    def units(self, batch: Batch) -> int:
        return batch.n_vertices

    def scores(self, results: Iterable[tuple[Batch, NDArray[np.float32]]]) -> dict[str, float]:
        """F1 of entities, where tags mark some, and the accuracy of tags."""
        return tag_scores(
            ((batch.offsets, batch["tag"], logits.argmax(axis=1)) for batch, logits in results), self.tags
        )


class BiLSTMTaggerTask(TaggerTask[GraphBatch]):
    """Train a bidirectional LSTM to find named entities (Huang, Xu & Yu 2015)."""

    name = "bilstm-tagger"
    settings_type = TaggerSettings
    network_type = BiLSTMTagger
    read, of = staticmethod(read_tagged), staticmethod(graphs_of_tagged)
    min_count = 2  # words seen once train the embedding of unknown words
    train: GraphSet
    dev: GraphSet

    def like(self, state: Mapping[str, Any] | None) -> GraphSet | None:
        return set_kept(state)

    @property
    def sentences(self) -> GraphSet:
        return self.train


class BiLSTMCharTaggerTask(TaggerTask[SpelledBatch]):
    """Train a BiLSTM tagger that reads rare words character by character (DyNet's bilstm-tagger-withchar)."""

    name = "bilstm-char-tagger"
    settings_type = CharTaggerSettings
    network_type = BiLSTMCharTagger
    read, of = SpelledSentences.read, SpelledSentences.of
    min_count = 5  # VPPS paper, section IV-E
    coined = True
    train: SpelledSentences
    dev: SpelledSentences

    def like(self, state: Mapping[str, Any] | None) -> SpelledSentences | None:
        sentences, spellings = set_kept(state), set_kept(state, "characters")
        return None if sentences is None or spellings is None else SpelledSentences(sentences, spellings)

    @property
    def sentences(self) -> GraphSet:
        return self.train.sentences

    @property
    def n_characters(self) -> int:
        """Rows of the embedding table of characters."""
        return len(self.train.spellings.vocabularies["character"])

    def state(self) -> dict[str, Any]:
        return {"names": names_of(self.train.sentences), "characters": names_of(self.train.spellings)}
