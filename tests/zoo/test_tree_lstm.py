"""The Tree-LSTM sentiment model: what its loss is a sum of. Gradients: `test_against_reference.py`."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.data import GraphBatch, graphs_of_trees, parse_tree
from vpps.reference import Reference, weights_of
from vpps.zoo import TreeLSTMSentiment

pytestmark = pytest.mark.host


def phrase(text: str) -> GraphBatch:
    return graphs_of_trees([parse_tree(text)], min_count=1)[:]


def small(arity: int = 2) -> tuple[vpps.Model, TreeLSTMSentiment]:
    model = vpps.Model(seed=7)
    return model, TreeLSTMSentiment(model, 5, embedding=4, hidden=6, arity=arity)


def test_loss_is_the_cross_entropy_of_the_logits_at_every_node() -> None:
    model, network = small()
    batch = phrase("(1 (2 not) (4 (2 very) (3 good)))")
    graph = vpps.Graph()
    logits = network.logits(graph, batch)
    every, root = network.loss(graph, batch), network.loss(graph, batch, root_only=True)
    reference = Reference(graph, weights_of(model))

    scores = np.array([reference.value(x) for x in logits])
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(5), batch["label"]]
    assert reference.value(every) == pytest.approx(losses.sum(), rel=1e-12)
    assert reference.value(root) == pytest.approx(losses[-1], rel=1e-12)


def test_logits_of_the_roots_are_rows_of_those_of_all_nodes() -> None:
    model, network = small()
    batch = phrase("(1 (2 not) (4 (2 very) (3 good)))")
    graph = vpps.Graph()
    every, roots = network.logits(graph, batch), network.logits(graph, batch, root_only=True)
    reference = Reference(graph, weights_of(model))
    assert len(roots) == 1
    np.testing.assert_array_equal(reference.value(roots[0]), reference.value(every[4]))


def test_missing_children_are_zeros() -> None:
    model, network = small()
    batch = graphs_of_trees([parse_tree("(1 (2 not))"), parse_tree("(1 (2 not) (2 good))")], min_count=1)[[0]]
    graph = vpps.Graph()
    states = network.states(graph, batch)
    zeros = graph.zeros(6)
    h, c = graph.call(network.leaf, int(batch["word"][0]))
    expected, _ = network.tree_lstm.inner(h, c, zeros, zeros)
    reference = Reference(graph, weights_of(model))
    np.testing.assert_array_equal(reference.value(states[1]), reference.value(expected))


def test_trees_of_another_arity_are_refused() -> None:
    _, network = small(arity=2)
    with pytest.raises(vpps.VppsError, match=r"the network takes a table of 2 children per node"):
        network.states(vpps.Graph(), phrase("(1 (2 not) (2 very) (3 good))"))
