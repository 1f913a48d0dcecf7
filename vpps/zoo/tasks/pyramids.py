"""Sentiment of sentences by networks that compose neighbours again and again: no tree is given, only words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vpps.data import graphs_of_trees, pyramids_of_trees, read_treebank, synthetic_opinions
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.files import kept_count, names_of, read_both, set_kept, train_and_dev
from vpps.zoo.tasks.network import GraphLabelTask
from vpps.zoo.td_lstm import TDLSTMSentiment
from vpps.zoo.td_rnn import TDRNNSentiment

MIN_COUNT = 2  # words seen once train the embedding of unknown words


@dataclass(frozen=True, kw_only=True)
class TDRNNSettings(Settings):
    """Sizes of a TD-RNN."""

    hidden: int = setting(512, "Length of a word vector and of all states.", min=1, shapes_model=True)
    mlp: int = setting(256, "Length of the hidden layer on top.", min=1, shapes_model=True)


@dataclass(frozen=True, kw_only=True)
class TDLSTMSettings(Settings):
    """Sizes of a TD-LSTM."""

    hidden: int = setting(256, "Length of a state.", min=1, shapes_model=True)
    embedding: int = setting(256, "Length of a word vector.", min=1, shapes_model=True)
    mlp: int = setting(256, "Length of the hidden layer on top.", min=1, shapes_model=True)


class PyramidTask(GraphLabelTask):
    """Labels of sentences.

    Attributes:
        train, dev: made by `vpps.data.pyramids_of_trees`.
    """

    summary: ClassVar[str] = "sentences, {task.n_words} words"
    data_help: ClassVar[str] = (
        "A folder with train.txt and dev.txt, or one file, of which the last tenth is held out; one bracketed tree a "
        "line, labels from 0, of which the words and the root's label are used: such as the Stanford Sentiment "
        "Treebank."
    )
    unit = "sentence"

    def load(self, settings: Settings, state: Mapping[str, Any] | None) -> None:
        like = set_kept(state)
        known = None if state is None else kept_count(state, "n_classes")
        options = {"lists": True, "min_count": MIN_COUNT}
        if settings.data is None:
            bank = synthetic_opinions(n_train=8000)
            trees, dev_trees = read_both(graphs_of_trees, (bank.train, bank.dev), like, **options)
        else:
            sources = train_and_dev(settings.data)
            trees, dev_trees = read_both(read_treebank, sources, like, n_classes=known, **options)
        self.names = names_of(trees)
        self.train, self.dev = pyramids_of_trees(trees).subset(slice(settings.limit)), pyramids_of_trees(dev_trees)
        self.n_classes = known or 1 + max(int(graphs[:]["label"].max()) for graphs in (trees, dev_trees))
        self.n_words = len(self.train.vocabularies["word"])

    def state(self) -> dict[str, Any]:
        return {"names": self.names, "n_classes": self.n_classes}


class TDRNNTask(PyramidTask):
    """Train a TD-RNN for the sentiment of sentences (VPPS, section IV-E)."""

    name = "td-rnn"
    # A wide matrix that is multiplied as often as there are words bears no long steps.
    training: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "clip_norm": 1.0}
    settings_type = TDRNNSettings
    network_type = TDRNNSentiment


class TDLSTMTask(PyramidTask):
    """Train a TD-LSTM for the sentiment of sentences (VPPS, section IV-E)."""

    name = "td-lstm"
    training: ClassVar[Mapping[str, Any]] = {"lr": 1e-3}
    settings_type = TDLSTMSettings
    network_type = TDLSTMSentiment
