"""Sentiment of every phrase of a sentence by a constituency Tree-GRU (after Kokkinos & Potamianos 2017).

ED-Batch's program of that name lets a GRU step of each child alone and averages the results, so that no node can tell
"not good" from the sum of its parts. Here gates and candidate see all children, in as many products: 6 of (H, H).
"""

from __future__ import annotations

import vpps
from vpps.nn import Linear, NaryTreeGRU
from vpps.zoo.classifier import TreeClassifier


class TreeGRUSentiment(TreeClassifier):
    """Word embeddings at the leaves, a Tree-GRU up the tree, a linear classifier at every node.

    Args:
        model: the parameters go here: "words", "tree_gru/...", "output/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of a node's state.
        arity: the most children that a node may have.
        per_child: a matrix per child, which is faster on a CPU: see `vpps.nn.NaryTreeLSTM`.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_words: int,
        n_classes: int = 5,
        *,
        embedding: int = 256,
        hidden: int = 256,
        arity: int = 2,
        per_child: bool = False,
    ) -> None:
        self.arity = arity
        self.words = model.lookup("words", (n_words, embedding))
        self.tree_gru = NaryTreeGRU(model, embedding, hidden, arity, per_child=per_child)
        self.output = Linear(model, hidden, n_classes, name="output")

    @vpps.cell
    def leaf(self, word: int) -> vpps.Expression:
        """The state of a word."""
        return self.tree_gru.leaf(vpps.lookup(self.words, word))

    @vpps.cell
    def inner(self) -> vpps.Expression:
        """The state of a phrase, from those of its parts; a missing part reads zeros."""
        parts: list[vpps.Expression] = vpps.gather()
        return self.tree_gru.inner(*parts)
