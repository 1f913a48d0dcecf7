"""What is particular to the networks over trees. Gradients: `test_against_reference.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vpps
from vpps.data import GraphBatch, draw_kinds, graphs_of_trees, parse_tree
from vpps.reference import Reference, weights_of
from vpps.zoo import ChildSumTreeLSTMSentiment, MVRNNSentiment, RvNNSentiment, TwoTypeTreeLSTMSentiment
from vpps.zoo.tasks import TASKS

pytestmark = pytest.mark.host


def phrase(text: str, lists: bool = False) -> GraphBatch:
    return graphs_of_trees([parse_tree(text)], min_count=1, lists=lists)[:]


def states(model: vpps.Model, graph: vpps.Graph, rows: vpps.Rows) -> list[np.ndarray]:
    reference = Reference(graph, weights_of(model))
    return [np.asarray(reference.value(row)) for row in rows]


def test_a_table_of_children_is_refused_where_lists_are_taken() -> None:
    network = ChildSumTreeLSTMSentiment(vpps.Model(), 5, embedding=4, hidden=6)
    with pytest.raises(vpps.VppsError, match="lists of children: read trees with lists=True"):
        network.loss(vpps.Graph(), phrase("(1 (2 not) (3 good))"))


def test_a_child_sum_does_not_see_the_order_of_parts() -> None:
    model = vpps.Model(seed=1)
    network = ChildSumTreeLSTMSentiment(model, 5, embedding=4, hidden=6)
    graph = vpps.Graph()
    one, other = (
        states(model, graph, network.states(graph, phrase(text, lists=True)))[-1]
        for text in ("(1 (2 a) (2 b) (3 c))", "(1 (3 c) (2 a) (2 b))")
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_each_of_two_types_has_weights_of_its_own() -> None:
    model = vpps.Model(seed=1)
    network = TwoTypeTreeLSTMSentiment(model, 5, embedding=4, hidden=6)
    trees = graphs_of_trees([parse_tree("(1 (2 a) (2 b))")] * 64, min_count=1)
    batch = draw_kinds(trees, "inner", ["inner 1", "inner 2"])[:]
    graph = vpps.Graph()
    roots = np.array(states(model, graph, network.states(graph, batch)))[batch.roots]
    assert batch.kind is not None
    kinds = batch.kind[batch.roots]
    assert set(kinds.tolist()) == {1, 2}
    for kind in (1, 2):
        assert len(np.unique(roots[kinds == kind], axis=0)) == 1
    assert len(np.unique(roots, axis=0)) == 2


def test_matrices_of_an_mv_rnn_act_on_the_other_part() -> None:
    model = vpps.Model(seed=1)
    network = MVRNNSentiment(model, 5, hidden=4)
    batch = phrase("(1 (2 not) (4 (2 very) (3 good)))")
    graph = vpps.Graph()
    got = states(model, graph, network.states(graph, batch))

    w = weights_of(model)
    (a, A), (b, B), (c, C) = [(w["words"][i], w["matrices"][i]) for i in batch["word"][batch["word"] >= 0]]
    inner = np.tanh(w["W"] @ np.concatenate([C @ b, B @ c]))
    matrix = w["W_M"] @ np.concatenate([B, C])
    root = np.tanh(w["W"] @ np.concatenate([matrix @ a, A @ inner]))
    for state, wanted in zip(got, [a, b, c, inner, root], strict=True):
        np.testing.assert_allclose(state, wanted, rtol=1e-12)


def test_word_and_phrase_matrices_begin_near_the_identity() -> None:
    model = vpps.Model(seed=1)
    MVRNNSentiment(model, 50, hidden=8)
    w = weights_of(model)
    near = w["matrices"] - np.eye(8)
    assert near.std() == pytest.approx(0.01, rel=0.1)
    np.testing.assert_allclose(w["W_M"] @ np.concatenate([np.eye(8)] * 2), np.eye(8), atol=0.1)


def test_an_mv_rnn_refuses_trees_that_are_not_binary(tmp_path: Path) -> None:
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("(1 (2 a) (3 b))\n(1 (2 (1 a)) (3 b))\n")
    task = TASKS["mv-rnn"]
    with pytest.raises(vpps.VppsError, match="an MV-RNN composes two parts, but a node has 1: make the trees binary"):
        task(task.settings_type(data=tmp_path))


def test_an_mv_rnn_refuses_trees_of_one_word(tmp_path: Path) -> None:
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("(1 a)\n(2 b)\n")
    task = TASKS["mv-rnn"]
    with pytest.raises(vpps.VppsError, match="composes two parts, but no tree of the training data has two words"):
        task(task.settings_type(data=tmp_path))


def test_an_rvnn_has_other_weights_for_words_than_for_phrases() -> None:
    model = vpps.Model(seed=1)
    network = RvNNSentiment(model, 5, embedding=3, hidden=4, mlp=5)
    batch = phrase("(1 (2 not) (3 good))")
    graph = vpps.Graph()
    got = states(model, graph, network.states(graph, batch))

    w = weights_of(model)
    leaves = [np.tanh(w["leaf/W"] @ w["words"][i] + w["leaf/b"]) for i in batch["word"][:2]]
    root = np.tanh(w["inner/W"] @ np.concatenate(leaves) + w["inner/b"])
    for state, wanted in zip(got, [*leaves, root], strict=True):
        np.testing.assert_allclose(state, wanted, rtol=1e-12)
