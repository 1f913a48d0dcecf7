"""DGL's Tree-LSTM example in vpps: trees as edges in arrays, a mini-batch of them side by side, no loop over nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import Vocabulary, synthetic_treebank
from vpps.nn import ChildSumTreeLSTM, Linear, State

Ints = NDArray[np.int64]


@dataclass
class Trees:
    """Arrays of a DGLGraph of trees: edges from child to parent, and columns of the vertices.

    Attributes:
        src, dst: (edges,) each.
        word: (n,) rows of the embedding table, -1 inside.
        label: (n,).
    """

    src: Ints
    dst: Ints
    word: Ints
    label: Ints


def batch(trees: Sequence[Trees]) -> Trees:
    """Put graphs side by side with consecutive vertex numbers, like dgl.batch."""
    first = np.cumsum([0, *(len(tree.word) for tree in trees[:-1])])
    return Trees(
        np.concatenate([tree.src + at for tree, at in zip(trees, first, strict=True)]),
        np.concatenate([tree.dst + at for tree, at in zip(trees, first, strict=True)]),
        np.concatenate([tree.word for tree in trees]),
        np.concatenate([tree.label for tree in trees]),
    )


def children_of(trees: Trees) -> tuple[Ints, Ints]:
    """Return the sources of each vertex's incoming edges: those of v are `indices[offsets[v]:offsets[v + 1]]`."""
    degree = np.bincount(trees.dst, minlength=len(trees.word))
    return np.concatenate([[0], degree.cumsum()]), trees.src[np.argsort(trees.dst, kind="stable")]


class TreeLSTM:
    """Message and reduce functions in one cell, which gets the children's states as lists."""

    def __init__(self, model: vpps.Model, n_words: int, hidden: int = 32) -> None:
        self.words = model.lookup("words", (n_words, hidden))
        self.tree_lstm = ChildSumTreeLSTM(model, hidden, hidden, inner_inputs=False)
        self.output = Linear(model, hidden, 5, name="output")

    @vpps.cell
    def leaf(self, word: int) -> State:
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self, hs: list[vpps.Expression], cs: list[vpps.Expression]) -> State:
        return self.tree_lstm.inner(hs, cs)

    def logits(self, graph: vpps.Graph, trees: Trees) -> vpps.Rows:
        """Return the logits of every vertex's label."""
        is_inner = (trees.word < 0).astype(np.int8)
        h: vpps.Rows
        h, _ = graph.map(
            [self.leaf, self.inner], kind=is_inner, children=children_of(trees), inputs={"word": trees.word}
        )
        return self.output(h)


def main() -> tuple[list[float], float]:
    """Return the loss per vertex in every epoch, and the share of dev vertices with the right label."""
    treebank = synthetic_treebank(200, 100)
    vocabulary = Vocabulary.from_sentences(tree.tokens for tree in treebank.train)
    train, dev = (
        [
            Trees(
                src=tree.children.astype(np.int64),
                dst=np.arange(len(tree)).repeat(np.diff(tree.offsets)),
                word=np.array(vocabulary.encode(tree).words, np.int64),
                label=tree.labels.astype(np.int64),
            )
            for tree in trees
        ]
        for trees in (treebank.train, treebank.dev)
    )
    model = vpps.Model(seed=1)
    network = TreeLSTM(model, len(vocabulary))
    losses = []
    with vpps.Handle(model, vpps.Adam(lr=0.02)) as handle:
        for _ in range(6):
            epoch = []
            for start in range(0, len(train), 20):
                trees, graph = batch(train[start : start + 20]), vpps.Graph()
                found = vpps.cross_entropy(network.logits(graph, trees), trees.label)
                handle.fb(graph, vpps.sum(found) * (1 / len(trees.label)))
                epoch.append(handle.sync_get_latest_loss())
            losses.append(sum(epoch) / len(epoch))
        trees, graph = batch(dev), vpps.Graph()
        (logits,) = handle.forward(graph, [network.logits(graph, trees)])
    accuracy = float((logits.argmax(axis=1) == trees.label).mean())
    print("loss per vertex:", *(f"{x:.2f}" for x in losses))
    print(f"{accuracy:.2f} of the dev vertices are labelled right")
    return losses, accuracy


if __name__ == "__main__":
    main()
