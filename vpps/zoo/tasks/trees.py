"""Labels of the nodes of trees: what the tasks of all networks over treebanks share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet, graphs_of_trees, read_treebank, synthetic_treebank
from vpps.errors import CheckpointError
from vpps.zoo.classifier import TreeClassifier
from vpps.zoo.task import Settings, setting
from vpps.zoo.tasks.files import kept_count, read_both, set_kept, train_and_dev
from vpps.zoo.tasks.network import NetworkTask

PER_CHILD = (
    "A matrix per child: products of words are computed once, at best half of all. One matrix suits GPUs and few trees."
)


@dataclass(frozen=True, kw_only=True)
class TreeSettings(Settings):
    """What every network over trees can be told."""

    hidden: int = setting(256, "Length of a node's state.", min=1, shapes_model=True)
    min_count: int = setting(2, "Rarer words of the training trees are unknown words.", min=1, shapes_model=True)
    root_only: bool = setting(False, "Train on sentence labels alone, not on every phrase's.")


class TreeTask(NetworkTask[GraphBatch]):
    """Labels of the nodes of trees.

    Attributes:
        train, dev: kinds leaf and inner, columns word and label.
        n_classes: labels are 0 to n_classes - 1.
        n_words: in the vocabulary, the unknown one included.
    """

    settings_type = TreeSettings
    summary: ClassVar[str] = "trees, {task.n_words} words"
    data_help: ClassVar[str] = (
        "A folder with train.txt and dev.txt, or one file, of which the last tenth is held out; one bracketed tree a "
        "line, labels from 0: such as the Stanford Sentiment Treebank."
    )
    lists: ClassVar[bool] = False
    """Whether the network takes children as lists, not as a table."""

    network: TreeClassifier
    train: GraphSet
    dev: GraphSet

    def load(self, settings: Any, state: Mapping[str, Any] | None) -> None:
        self.root_only = settings.root_only
        self.unit = "tree" if settings.root_only else "node"
        like = set_kept(state)
        if like is not None and (like.arity is None) != self.lists:
            raise CheckpointError("damaged: its trees have room for another number of children")
        n_classes = None if state is None else kept_count(state, "n_classes")
        train, self.dev = self.read(settings, like, n_classes)
        # Of all that was read: a resumed run reads it again, whatever its limit is, and knows no other classes.
        self.n_classes = n_classes or 1 + max(int(graphs[:]["label"].max()) for graphs in (train, self.dev))
        self.train = train.subset(slice(settings.limit))
        self.n_words = len(self.train.vocabularies["word"])

    def read(self, settings: Any, like: GraphSet | None, n_classes: int | None) -> tuple[GraphSet, GraphSet]:
        """Train and dev set, real ones without their limit; synthetic where there is no data.

        Args:
            like: has the vocabulary of the run that is resumed.
            n_classes: of that run: other labels are refused.
        """
        options = {"lists": self.lists, "min_count": settings.min_count}
        if settings.data is None:
            bank = synthetic_treebank()
            return read_both(graphs_of_trees, (bank.train[: settings.limit], bank.dev), like, **options)
        return read_both(read_treebank, train_and_dev(settings.data), like, n_classes=n_classes, **options)

    @property
    def arity(self) -> int:
        """The most children that a node may have, where they are a table."""
        assert self.train.arity is not None
        return self.train.arity

    def state(self) -> dict[str, Any]:
        return super().state() | {"n_classes": self.n_classes}

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        return self.network.loss(graph, batch, self.root_only)

    def units(self, batch: GraphBatch) -> int:
        return len(batch) if self.root_only else batch.n_vertices

    def outputs(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Logits of all nodes, also where only roots are trained."""
        return self.network.logits(graph, batch)

    def scores(self, results: Iterable[tuple[GraphBatch, NDArray[np.float32]]]) -> dict[str, float]:
        """Accuracy at the roots and at all nodes."""
        right_roots = right_nodes = n_roots = n_nodes = 0
        for batch, logits in results:
            right = logits.argmax(axis=1) == batch["label"]
            right_nodes += int(right.sum())
            right_roots += int(right[batch.roots].sum())
            n_roots += len(batch)
            n_nodes += batch.n_vertices
        return {"dev root accuracy": right_roots / n_roots, "all nodes": right_nodes / n_nodes}
