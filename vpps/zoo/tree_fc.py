"""Tree-FC: a fully connected layer at every vertex of complete binary trees (Looks et al. 2017, the Fold benchmark).

    leaf:   h = the embedding of its word
    inner:  h = tanh(W [h_left, h_right] + b)
    root:   a linear classifier of h

The simplest recursive network there is, for measuring: all trees of a size look alike, all vertices compute the same.
Fold leaves the layer's nonlinearity to the user; tanh keeps what is composed again and again within bounds.
"""

from __future__ import annotations

import vpps
from vpps.nn import Linear
from vpps.nn.gates import child_matrices, multiply_children
from vpps.zoo.classifier import RootClassifier


class TreeFC(RootClassifier):
    """Word embeddings at the leaves, one composition up the tree, a linear classifier at the root.

    Args:
        model: the parameters go here: "words", "composition/...", "output/...".
        n_words: rows of the embedding table.
        n_classes: labels are 0 to n_classes - 1.
        hidden: length of a word vector, and of the state of every other vertex.
        per_child: a matrix per child, which is faster on a CPU: see `vpps.nn.NaryTreeLSTM`.
    """

    def __init__(
        self, model: vpps.Model, n_words: int, n_classes: int, *, hidden: int = 512, per_child: bool = False
    ) -> None:
        self.words = model.lookup("words", (n_words, hidden))
        with model.scope("composition"):
            init = vpps.init.glorot_uniform
            self.W = child_matrices(model, hidden, hidden, 2, init=init, per_child=per_child, name="W")
            self.b = model.parameter("b", (hidden,), init="zeros")
        self.output = Linear(model, hidden, n_classes, name="output")

    @vpps.cell
    def leaf(self, word: int) -> vpps.Expression:
        """The embedding of a word."""
        return vpps.lookup(self.words, word)

    @vpps.cell
    def inner(self, left: vpps.Expression, right: vpps.Expression) -> vpps.Expression:
        """The state of a vertex from its children's."""
        return vpps.tanh(multiply_children(self.W, [left, right]) + self.b)
