"""The Tree-LSTM sentiment model: its loss, its gradients, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.data import Tree, Vocabulary, parse_tree, synthetic_treebank
from vpps.reference import Reference, weights_of
from vpps.zoo import TreeLSTMSentiment

VOCABULARY = Vocabulary(["<unk>", "not", "very", "good", "film"])


def tree(text: str) -> Tree:
    return VOCABULARY.encode(parse_tree(text))


def small(arity: int = 2) -> tuple[vpps.Model, TreeLSTMSentiment]:
    model = vpps.Model(seed=7)
    return model, TreeLSTMSentiment(model, len(VOCABULARY), embedding=4, hidden=6, arity=arity)


@pytest.mark.host
def test_loss_is_the_cross_entropy_of_the_logits_at_every_node() -> None:
    model, network = small()
    phrase = tree("(1 (2 not) (4 (2 very) (3 good)))")
    graph = vpps.Graph()
    logits = network.logits(graph, phrase)
    every, root = network.loss(graph, phrase), network.loss(graph, phrase, root_only=True)
    reference = Reference(graph, weights_of(model))

    scores = np.array([reference.value(x) for x in logits])
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(5), phrase.labels]
    assert reference.value(every) == pytest.approx(losses.sum(), rel=1e-12)
    assert reference.value(root) == pytest.approx(losses[-1], rel=1e-12)


@pytest.mark.host
def test_states_come_in_post_order_one_per_node() -> None:
    _, network = small()
    states = network.states(vpps.Graph(), tree("(1 (2 not) (4 (2 very) (3 good)))"))
    assert [state.shape for state in states] == [(6,)] * 5


@pytest.mark.host
def test_missing_children_are_zeros() -> None:
    model, network = small()
    graph = vpps.Graph()
    states = network.states(graph, tree("(1 (2 not))"))
    zeros = graph.zeros(6)
    h, c = graph.call(network.leaf, VOCABULARY["not"])
    expected, _ = network.tree_lstm.inner(h, zeros, c, zeros)
    reference = Reference(graph, weights_of(model))
    np.testing.assert_array_equal(reference.value(states[-1]), reference.value(expected))


@pytest.mark.host
def test_node_with_too_many_children_is_named() -> None:
    _, network = small(arity=2)
    with pytest.raises(vpps.VppsError, match=r"node 3 has 3 children, the model takes 2: \(1 \(2 not\)"):
        network.states(vpps.Graph(), tree("(1 (2 not) (2 very) (3 good))"))


@pytest.mark.host
def test_tree_without_word_indices_is_refused() -> None:
    _, network = small()
    with pytest.raises(vpps.VppsError, match=r"Vocabulary\.encode"):
        network.loss(vpps.Graph(), parse_tree("(1 (2 not) (3 good))"))


@pytest.mark.cpu
def test_gradients_agree_with_the_reference() -> None:
    model, network = small()
    graph = vpps.Graph()
    trees = [tree("(1 (2 not) (4 (2 very) (3 good)))"), tree("(2 (2 unseen) (2 film))"), tree("(3 good)")]
    loss = vpps.sum([network.loss(graph, t) for t in trees])
    expected = Reference(graph, weights_of(model)).backward(loss)
    with vpps.Handle(model) as handle:
        _, gradients = handle.gradients(graph, loss)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        error = np.linalg.norm(gradient - expected[name]) / np.linalg.norm(expected[name])
        assert error < 1e-4, name


@pytest.mark.cpu
@pytest.mark.parametrize("root_only", [False, True])
def test_loss_falls(root_only: bool) -> None:
    bank = synthetic_treebank(n_train=32, n_dev=0)
    vocabulary = Vocabulary.from_sentences(t.tokens for t in bank.train)
    trees = [vocabulary.encode(t) for t in bank.train]
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, len(vocabulary), embedding=16, hidden=16)
    losses = []
    with vpps.Handle(model, optimizer=vpps.Adam(lr=0.02)) as handle:
        for _ in range(30):
            graph = vpps.Graph()
            handle.fb(graph, vpps.sum([network.loss(graph, t, root_only) for t in trees]) * (1 / len(trees)))
            losses.append(handle.sync_get_latest_loss())
    assert losses[-1] < 0.5 * losses[0]
