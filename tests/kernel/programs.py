"""Models, with example graphs, whose kernels the nvrtc tests compile."""

from __future__ import annotations

import vpps
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.engine.options import Example
from vpps.nn import LSTM
from vpps.zoo import TreeLSTMSentiment


def tree_lstm(hidden: int, embedding: int = 256, seed: int = 1) -> tuple[vpps.Model, Example]:
    """The zoo's Tree-LSTM with a loss at every node."""
    trees = graphs_of_trees(synthetic_treebank(n_train=3, n_dev=0).train, min_count=1)
    model = vpps.Model(seed=seed)
    net = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=embedding, hidden=hidden)
    graph = vpps.Graph()
    return model, (graph, net.loss(graph, trees[:]))


def bilstm_tagger(hidden: int = 256, n_tags: int = 9) -> tuple[vpps.Model, Example]:
    """A tagger: an LSTM in each direction, a hidden layer, and a label for every word."""
    model = vpps.Model(seed=1)
    words = model.lookup("words", (50, hidden))
    forward, backward = (LSTM(model, hidden, hidden, name=name) for name in ("forward", "backward"))
    W1 = model.parameter("W1", (hidden, 2 * hidden))
    W2 = model.parameter("W2", (n_tags, hidden))

    @vpps.cell
    def tag_loss(left: vpps.Expression, right: vpps.Expression, tag: int) -> vpps.Expression:
        return vpps.cross_entropy(W2 @ vpps.tanh(W1 @ vpps.concat([left, right])), tag)

    graph = vpps.Graph()
    losses = []
    for length in (5, 8):
        xs = [graph.lookup(words, k) for k in range(length)]
        states = zip(forward.sequence(graph, xs), backward.sequence(graph, xs[::-1])[::-1], strict=True)
        losses += [tag_loss(left, right, k % n_tags) for k, (left, right) in enumerate(states)]
    return model, (graph, vpps.sum(losses))


def rvnn(hidden: int = 512) -> tuple[vpps.Model, Example]:
    """A recursive network with one matrix: tanh(W [left, right])."""
    model = vpps.Model(seed=1)
    words = model.lookup("words", (50, hidden))
    W = model.parameter("W", (hidden, 2 * hidden))
    Wo = model.parameter("Wo", (5, hidden))

    @vpps.cell
    def node(left: vpps.Expression, right: vpps.Expression) -> vpps.Expression:
        return vpps.tanh(W @ vpps.concat([left, right]))

    graph = vpps.Graph()
    leaves = [graph.lookup(words, k) for k in range(6)]
    top = node(node(leaves[0], leaves[1]), node(leaves[2], node(leaves[3], node(leaves[4], leaves[5]))))
    return model, (graph, vpps.cross_entropy(Wo @ top, 2))
