"""Sentiment of every phrase of a sentence by a constituency Tree-LSTM (Tai, Socher & Manning 2015)."""

from __future__ import annotations

import vpps
from vpps.data.treebank import Tree
from vpps.errors import DataError
from vpps.nn.tree_lstm import NaryTreeLSTM, State


class TreeLSTMSentiment:
    """Word embeddings at the leaves, a Tree-LSTM up the tree, a linear classifier at every node.

    Args:
        model: the parameters go here: "words", "tree_lstm/...", "Wo", "bo".
        n_words: rows of the embedding table, `len(vocabulary)`.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of a word vector.
        hidden: length of a node's state.
        arity: the most children that a node may have.
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
    ) -> None:
        self.words = model.lookup("words", (n_words, embedding))
        self.tree_lstm = NaryTreeLSTM(model, embedding, hidden, arity)
        self.Wo = model.parameter("Wo", (n_classes, hidden))
        self.bo = model.parameter("bo", (n_classes,), init="zeros")

    @vpps.cell
    def leaf(self, word: int) -> State:
        """(h, c) of a word."""
        return self.tree_lstm.leaf(vpps.lookup(self.words, word))

    def states(self, graph: vpps.Graph, tree: Tree) -> list[vpps.Expression]:
        """The hidden state h of every node, in post-order.

        Args:
            tree: with word indices, from `Vocabulary.encode`.

        Raises:
            DataError: the tree has no word indices, or a node more than `arity` children.
        """
        arity = self.tree_lstm.arity
        hs: list[vpps.Expression] = []
        cs: list[vpps.Expression] = []
        for word, children in tree.nodes():
            if not children:
                h, c = graph.call(self.leaf, word)
            else:
                if len(children) > arity:
                    raise DataError(f"node {len(hs)} has {len(children)} children, the model takes {arity}: {tree}")
                missing = [graph.zeros(self.tree_lstm.hidden_size)] * (arity - len(children))
                h, c = self.tree_lstm.inner(*(hs[k] for k in children), *missing, *(cs[k] for k in children), *missing)
            hs.append(h)
            cs.append(c)
        return hs

    def logits(self, graph: vpps.Graph, tree: Tree) -> list[vpps.Expression]:
        """The unnormalised log-probabilities of the classes at every node, in post-order: `[-1]` is the root's."""
        return [self.classify(h) for h in self.states(graph, tree)]

    def loss(self, graph: vpps.Graph, tree: Tree, root_only: bool = False) -> vpps.Expression:
        """The cross entropy at the root, or its sum over all nodes; a scalar. Raises as `states` does."""
        nodes = list(zip(self.states(graph, tree), tree.labels.tolist(), strict=True))
        return vpps.sum([self.node_loss(h, label) for h, label in nodes[-1 if root_only else 0 :]])

    @vpps.cell
    def classify(self, h: vpps.Expression) -> vpps.Expression:
        """Logits of shape (n_classes,) from a state of shape (hidden,)."""
        return self.Wo @ h + self.bo

    @vpps.cell
    def node_loss(self, h: vpps.Expression, label: int) -> vpps.Expression:
        """The cross entropy of one node; a scalar."""
        return vpps.cross_entropy(self.classify(h), label)
