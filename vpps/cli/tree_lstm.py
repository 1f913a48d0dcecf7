"""`vpps-train tree-lstm`: sentiment of phrases and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import vpps
from vpps.cli import loop
from vpps.cli.options import (
    BatchSize,
    Checkpoint,
    Epochs,
    LearningRate,
    Limit,
    Optimizer,
    OptimizerName,
    Resume,
    Seed,
    TrainOptions,
    Vps,
)
from vpps.cli.saved_run import resolve
from vpps.data import Tree, Treebank, Vocabulary, load_treebank, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment

MIN_COUNT = 2  # words seen once train the embedding of unknown words
EVALUATION_BATCH = 64

Data = Annotated[
    Path | None,
    typer.Option(
        file_okay=False, resolve_path=True, show_default="a synthetic treebank",
        help="Folder with train.txt and dev.txt, one bracketed tree a line, labels from 0.",
    ),
]  # fmt: skip
Hidden = Annotated[int, typer.Option(min=1, help="Length of a node's state.")]
Embedding = Annotated[int, typer.Option(min=1, help="Length of a word vector.")]
RootOnly = Annotated[bool, typer.Option("--root-only", help="Train on sentence labels alone, not on every phrase's.")]


def command(
    ctx: typer.Context,
    data: Data = None,
    epochs: Epochs = 10,
    batch_size: BatchSize = 16,
    hidden: Hidden = 256,
    embedding: Embedding = 256,
    optimizer: Optimizer = OptimizerName.ADAM,
    lr: LearningRate = None,
    limit: Limit = None,
    root_only: RootOnly = False,
    seed: Seed = 1,
    vps: Vps = None,
    checkpoint: Checkpoint = None,
    resume: Resume = False,
) -> None:
    """Train a Tree-LSTM for sentiment (Tai, Socher & Manning 2015)."""
    with loop.exit_codes():
        values, resumed = resolve(ctx, fixed={"hidden", "embedding"})
        options = TreeLSTMOptions(**values)
        task = TreeLSTMTask(options, resumed.state if resumed else None)
        loop.run(task, options, resumed, "tree-lstm")


@dataclass(frozen=True, kw_only=True)
class TreeLSTMOptions(TrainOptions):
    """The arguments of `command`, or what the checkpoint says where they were not given."""

    hidden: int
    embedding: int
    root_only: bool


class TreeLSTMTask(loop.Task[Tree]):
    """Trains `vpps.zoo.TreeLSTMSentiment` on a treebank.

    Args:
        state: what `state()` returned when the checkpoint was written; None in a fresh run.

    Raises:
        DataError: a file is missing or malformed, or has labels that the resumed model does not know.
    """

    def __init__(self, options: TreeLSTMOptions, state: Mapping[str, Any] | None) -> None:
        self.root_only = options.root_only
        self.unit = "tree" if options.root_only else "node"
        bank = _read(options, None if state is None else state["n_classes"])
        trees = bank.train + bank.dev
        if state is not None:
            self.vocabulary = Vocabulary(state["vocabulary"])
            self.n_classes, self.arity = int(state["n_classes"]), int(state["arity"])
        else:
            self.vocabulary = Vocabulary.from_sentences((tree.tokens for tree in bank.train), MIN_COUNT)
            self.n_classes = 1 + max(int(tree.labels.max()) for tree in trees)
            self.arity = max(1, *(tree.arity for tree in trees))
        self.train = [self.vocabulary.encode(tree) for tree in bank.train]
        self.dev = [self.vocabulary.encode(tree) for tree in bank.dev]
        self.model = vpps.Model(seed=options.seed)
        self.network = TreeLSTMSentiment(
            self.model, len(self.vocabulary), self.n_classes,
            embedding=options.embedding, hidden=options.hidden, arity=self.arity,
        )  # fmt: skip
        self.description = (
            f"{len(self.train)} train and {len(self.dev)} dev trees, {len(self.vocabulary)} words, "
            f"{self.model.n_weights} weights"
        )

    def state(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary.words, "n_classes": self.n_classes, "arity": self.arity}

    def loss(self, graph: vpps.Graph, example: Tree) -> vpps.Expression:
        return self.network.loss(graph, example, root_only=self.root_only)

    def units(self, example: Tree) -> int:
        return 1 if self.root_only else len(example)

    def evaluate(self, handle: vpps.Handle) -> dict[str, float]:
        """Accuracy on the dev trees: at the roots, and at all nodes."""
        right_roots = right_nodes = 0
        for begin in range(0, len(self.dev), EVALUATION_BATCH):
            trees = self.dev[begin : begin + EVALUATION_BATCH]
            graph = vpps.Graph()
            logits = handle.forward(graph, [x for tree in trees for x in self.network.logits(graph, tree)])
            right = np.argmax(logits, axis=1) == np.concatenate([tree.labels for tree in trees])
            roots = np.cumsum([len(tree) for tree in trees]) - 1
            right_nodes += int(right.sum())
            right_roots += int(right[roots].sum())
        n_nodes = sum(len(tree) for tree in self.dev)
        return {"dev root accuracy": right_roots / len(self.dev), "all nodes": right_nodes / n_nodes}


def _read(options: TreeLSTMOptions, n_classes: int | None) -> Treebank:
    bank = synthetic_treebank() if options.data is None else load_treebank(options.data, n_classes)
    return Treebank(bank.train[: options.limit], bank.dev)
