"""Sentiment of a sentence by a recursive network along its parse tree: the RvNN of the VPPS paper (section IV-E).

Words are carried into the space of phrases by weights of their own. The paper unties leaves from inner nodes after
Irsoy & Cardie 2014 ("Deep recursive neural networks for compositionality in language"), who give a parent other weights
for children that are words; a product at the leaf does that with one set of weights per parent. As in the paper's
TD-RNN a perceptron judges the sentence.
"""

from __future__ import annotations

import vpps
from vpps.nn import MLP, Linear
from vpps.nn.gates import child_matrices, multiply_children
from vpps.zoo.classifier import TreeClassifier


class RvNNSentiment(TreeClassifier):
    """tanh(W x + b) at the leaves, tanh(Σ_l U_l h_l + b) at inner nodes, a perceptron at the nodes that are judged.

    Args:
        model: the parameters go here: "words", "leaf/...", "inner/...", "mlp/...".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of a node's state.
        mlp: length of the perceptron's hidden layer.
        arity: the most children that a node may have.
        per_child: a matrix per child, which is faster on a CPU: see `vpps.nn.NaryTreeLSTM`.
    """

    def __init__(
        self,
        model: vpps.Model,
        n_words: int,
        n_classes: int = 5,
        *,
        embedding: int = 512,
        hidden: int = 512,
        mlp: int = 256,
        arity: int = 2,
        per_child: bool = False,
    ) -> None:
        self.arity = arity
        self.words = model.lookup("words", (n_words, embedding))
        self.of_word = Linear(model, embedding, hidden, name="leaf")
        with model.scope("inner"):
            init = vpps.init.glorot_uniform
            self.W = child_matrices(model, hidden, hidden, arity, init=init, per_child=per_child, name="W")
            self.b = model.parameter("b", (hidden,), init="zeros")
        self.output = MLP(model, hidden, mlp, n_classes)

    @vpps.cell
    def leaf(self, word: int) -> vpps.Expression:
        """The state of a word."""
        return vpps.tanh(self.of_word(vpps.lookup(self.words, word)))

    @vpps.cell
    def inner(self) -> vpps.Expression:
        """The state of a phrase, from those of its parts; a missing part reads zeros."""
        parts: list[vpps.Expression] = vpps.gather()
        return vpps.tanh(multiply_children(self.W, parts) + self.b)
