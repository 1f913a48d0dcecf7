"""Sentiment of sentences and their phrases, by the networks over trees."""

from __future__ import annotations

from dataclasses import dataclass

from vpps.zoo.task import setting
from vpps.zoo.tasks.trees import TreeSettings, TreeTask
from vpps.zoo.tree_lstm import TreeLSTMSentiment
from vpps.zoo.tree_lstm_child_sum import ChildSumTreeLSTMSentiment


@dataclass(frozen=True, kw_only=True)
class WordTreeSettings(TreeSettings):
    """What networks over trees of word vectors can be told."""

    embedding: int = setting(256, "Length of a word vector.", min=1, shapes_model=True)


class TreeLSTMTask(TreeTask):
    """Train a Tree-LSTM for sentiment (Tai, Socher & Manning 2015)."""

    name = "tree-lstm"
    settings_type = WordTreeSettings

    def make_network(self, settings: WordTreeSettings) -> TreeLSTMSentiment:
        return TreeLSTMSentiment(
            self.model, self.n_words, self.n_classes,
            embedding=settings.embedding, hidden=settings.hidden, arity=self.arity,
        )  # fmt: skip


class ChildSumTreeLSTMTask(TreeTask):
    """Train a child-sum Tree-LSTM for sentiment (Tai, Socher & Manning 2015), over trees of any fan-in."""

    name = "tree-lstm-child-sum"
    settings_type = WordTreeSettings
    lists = True

    def make_network(self, settings: WordTreeSettings) -> ChildSumTreeLSTMSentiment:
        return ChildSumTreeLSTMSentiment(
            self.model, self.n_words, self.n_classes, embedding=settings.embedding, hidden=settings.hidden
        )
