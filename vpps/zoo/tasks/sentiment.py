"""Sentiment of sentences and their phrases, by the networks over trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vpps.data import GraphSet, draw_kinds
from vpps.errors import DataError
from vpps.zoo.mv_rnn import MVRNNSentiment
from vpps.zoo.rvnn import RvNNSentiment
from vpps.zoo.task import setting
from vpps.zoo.tasks.trees import PER_CHILD, TreeSettings, TreeTask
from vpps.zoo.tree_gru import TreeGRUSentiment
from vpps.zoo.tree_lstm import ChildSumTreeLSTMSentiment, TreeLSTMSentiment, TwoTypeTreeLSTMSentiment


@dataclass(frozen=True, kw_only=True)
class WordTreeSettings(TreeSettings):
    """What networks over trees of word vectors can be told."""

    embedding: int = setting(256, "Length of a word vector.", min=1, shapes_model=True)


@dataclass(frozen=True, kw_only=True)
class ChildrenSettings(WordTreeSettings):
    """And those that multiply children in order."""

    per_child: bool = setting(False, PER_CHILD, shapes_model=True)


class TreeLSTMTask(TreeTask):
    """Train a Tree-LSTM for sentiment (Tai, Socher & Manning 2015)."""

    name = "tree-lstm"
    network_type = TreeLSTMSentiment
    settings_type = ChildrenSettings


class ChildSumTreeLSTMTask(TreeTask):
    """Train a child-sum Tree-LSTM for sentiment (Tai, Socher & Manning 2015), over trees of any fan-in."""

    name = "tree-lstm-child-sum"
    network_type = ChildSumTreeLSTMSentiment
    settings_type = WordTreeSettings
    lists = True


class TwoTypeTreeLSTMTask(TreeTask):
    """Train a Tree-LSTM whose inner nodes are of two types, drawn 50/50 (ED-Batch's TreeLSTM-2Type)."""

    name = "tree-lstm-2type"
    network_type = TwoTypeTreeLSTMSentiment
    settings_type = ChildrenSettings

    def read(self, settings: Any, like: GraphSet | None, n_classes: int | None) -> tuple[GraphSet, GraphSet]:
        """The drawing is part of the data: the same for all seeds of training."""
        train, dev = super().read(settings, like, n_classes)
        types = ["inner 1", "inner 2"]
        return draw_kinds(train, "inner", types, seed=1), draw_kinds(dev, "inner", types, seed=2)


class TreeGRUTask(TreeTask):
    """Train a Tree-GRU for sentiment (after Kokkinos & Potamianos 2017)."""

    name = "tree-gru"
    network_type = TreeGRUSentiment
    settings_type = ChildrenSettings


@dataclass(frozen=True, kw_only=True)
class RvNNSettings(ChildrenSettings):
    """Sizes of the VPPS paper, whose network judges sentences."""

    hidden: int = setting(512, "Length of a node's state.", min=1, shapes_model=True)
    embedding: int = setting(512, "Length of a word vector.", min=1, shapes_model=True)
    mlp: int = setting(256, "Length of the hidden layer that judges a state.", min=1, shapes_model=True)
    root_only: bool = setting(True, "Train on sentence labels alone, or on every phrase's.")


class RvNNTask(TreeTask):
    """Train a recursive network for the sentiment of sentences (the VPPS paper's RvNN)."""

    name = "rvnn"
    network_type = RvNNSentiment
    settings_type = RvNNSettings
    training: ClassVar[Mapping[str, Any]] = {"lr": 3e-4}  # sentences alone are few labels: it overfits in a few epochs


@dataclass(frozen=True, kw_only=True)
class MVRNNSettings(TreeSettings):
    """A word costs hidden x hidden weights, so the defaults are small."""

    hidden: int = setting(32, "Length of vectors and of the rows of matrices.", min=1, shapes_model=True)


class MVRNNTask(TreeTask):
    """Train a matrix-vector recursive network for sentiment (Socher et al. 2012)."""

    name = "mv-rnn"
    network_type = MVRNNSentiment
    settings_type = MVRNNSettings
    training: ClassVar[Mapping[str, Any]] = {"lr": 1e-3}

    def load(self, settings: Any, state: Mapping[str, Any] | None) -> None:
        super().load(settings, state)
        if self.arity < 2:
            raise DataError(
                f"{settings.data}: an MV-RNN composes two parts, but no tree of the training data has two words"
            )
        for graphs in (self.train, self.dev):
            _, parents, _ = graphs.edges()
            children = np.bincount(parents, minlength=graphs.n_vertices)
            other = children[(children != 0) & (children != 2)]
            if len(other):
                raise DataError(
                    f"{settings.data}: an MV-RNN composes two parts, but a node has {other[0]}: make the trees binary"
                )
