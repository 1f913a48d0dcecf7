"""Small models, each with an example: trees, lists, and chains in parts before, in and after the recurrence."""

from __future__ import annotations

import vpps
from tests.kernel.programs import bilstm_tagger, tree_lstm
from vpps.engine.options import Example
from vpps.nn import ChildSumTreeLSTM

Net = tuple[vpps.Model, Example]


def tree() -> Net:
    """Return a Tree-LSTM with a loss at every node."""
    return tree_lstm(8, embedding=8)


def chain() -> Net:
    """Return a BiLSTM tagger, whose recurrent cells have an eager part."""
    return bilstm_tagger(16, n_tags=4)


def lists() -> Net:
    """Return a child-sum Tree-LSTM: vertices with lists of children, one of them empty."""
    model = vpps.Model(seed=1)
    words = model.lookup("words", (9, 8))
    tree_lstm = ChildSumTreeLSTM(model, 8, 8)
    graph = vpps.Graph()
    leaves = [tree_lstm.node(graph.lookup(words, k), [], []) for k in range(4)]
    root, _ = tree_lstm.node(graph.lookup(words, 4), [h for h, _ in leaves], [c for _, c in leaves])
    return model, (graph, vpps.sum(vpps.square(root)))


NETS = {"tree": tree, "chain": chain, "lists": lists}
