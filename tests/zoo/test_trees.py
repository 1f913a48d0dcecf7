"""Networks over trees, and over sentences without trees: their equations in NumPy, and refusals.

Gradients: `test_against_reference.py`.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from tests.zoo.cases import CASES, cross_entropy, values
from vpps.data import GraphBatch, draw_kinds, graphs_of_trees, parse_tree
from vpps.reference import weights_of
from vpps.zoo import ChildSumTreeLSTMSentiment, MVRNNSentiment, TreeLSTMSentiment, TwoTypeTreeLSTMSentiment
from vpps.zoo.tasks import TASKS

pytestmark = pytest.mark.host

SIZES = {"embedding": 4, "hidden": 6}
NOT_VERY_GOOD = "(1 (2 not) (4 (2 very) (3 good)))"


def phrase(text: str, lists: bool = False) -> GraphBatch:
    return graphs_of_trees([parse_tree(text)], min_count=1, lists=lists)[:]


def states(model: vpps.Model, network: Any, batch: GraphBatch) -> NDArray[np.float64]:
    graph = vpps.Graph()
    (found,) = values(model, graph, network.states(graph, batch))
    return found


class TestTreeLSTM:
    def test_loss_is_the_cross_entropy_of_the_logits_of_every_node_or_of_the_root(self) -> None:
        model, batch, graph = vpps.Model(seed=7), phrase(NOT_VERY_GOOD), vpps.Graph()
        network = TreeLSTMSentiment(model, 5, **SIZES)
        logits, of_root, every, root = values(
            model, graph, network.logits(graph, batch), network.logits(graph, batch, root_only=True),
            network.loss(graph, batch), network.loss(graph, batch, root_only=True),
        )  # fmt: skip
        np.testing.assert_array_equal(of_root, logits[[4]])
        losses = cross_entropy(logits, batch["label"])
        np.testing.assert_allclose([every, root], [losses.sum(), losses[-1]], rtol=1e-12)

    def test_missing_children_are_zeros(self) -> None:
        model, graph = vpps.Model(seed=7), vpps.Graph()
        network = TreeLSTMSentiment(model, 5, **SIZES)
        batch = graphs_of_trees([parse_tree("(1 (2 not))"), parse_tree("(1 (2 not) (2 good))")], min_count=1)[[0]]
        zeros = graph.zeros(6)
        h, c = graph.call(network.leaf, int(batch["word"][0]))
        expected, _ = network.tree_lstm.inner(h, c, zeros, zeros)
        found, expected = values(model, graph, network.states(graph, batch), expected)
        np.testing.assert_array_equal(found[1], expected)

    def test_child_sum_does_not_see_the_order_of_parts(self) -> None:
        model = vpps.Model(seed=1)
        network = ChildSumTreeLSTMSentiment(model, 5, **SIZES)
        one, other = (
            states(model, network, phrase(text, lists=True))[-1]
            for text in ("(1 (2 a) (2 b) (3 c))", "(1 (3 c) (2 a) (2 b))")
        )
        np.testing.assert_allclose(one, other, rtol=1e-12)

    def test_each_of_two_types_has_weights_of_its_own(self) -> None:
        model = vpps.Model(seed=1)
        trees = graphs_of_trees([parse_tree("(1 (2 a) (2 b))")] * 64, min_count=1)
        batch = draw_kinds(trees, "inner", ["inner 1", "inner 2"])[:]
        roots = states(model, TwoTypeTreeLSTMSentiment(model, 5, **SIZES), batch)[batch.roots]
        assert batch.kind is not None
        kinds = batch.kind[batch.roots]
        assert set(kinds.tolist()) == {1, 2}
        for kind in (1, 2):
            assert len(np.unique(roots[kinds == kind], axis=0)) == 1
        assert len(np.unique(roots, axis=0)) == 2

    @pytest.mark.parametrize(
        "network, text, complaint",
        [
            (ChildSumTreeLSTMSentiment, "(1 (2 not) (3 good))", "lists of children: read trees with lists=True"),
            (TreeLSTMSentiment, "(1 (2 not) (2 very) (3 good))", "the network takes a table of 2 children per node"),
        ],
    )
    def test_children_in_another_form_are_refused(self, network: Any, text: str, complaint: str) -> None:
        with pytest.raises(vpps.VppsError, match=complaint):
            network(vpps.Model(), 5, **SIZES).loss(vpps.Graph(), phrase(text))


class TestMVRNN:
    def test_matrices_act_on_the_other_part(self) -> None:
        model, batch = vpps.Model(seed=1), phrase(NOT_VERY_GOOD)
        got, w = states(model, MVRNNSentiment(model, 5, hidden=4), batch), weights_of(model)
        (a, A), (b, B), (c, C) = [(w["words"][i], w["matrices"][i]) for i in batch["word"][batch["word"] >= 0]]
        inner = np.tanh(w["W"] @ np.concatenate([C @ b, B @ c]))
        matrix = w["W_M"] @ np.concatenate([B, C])
        root = np.tanh(w["W"] @ np.concatenate([matrix @ a, A @ inner]))
        np.testing.assert_allclose(got, [a, b, c, inner, root], rtol=1e-12)

    def test_word_and_phrase_matrices_begin_near_the_identity(self) -> None:
        model = vpps.Model(seed=1)
        MVRNNSentiment(model, 50, hidden=8)
        w = weights_of(model)
        near = w["matrices"] - np.eye(8)
        assert near.std() == pytest.approx(0.01, rel=0.1)
        np.testing.assert_allclose(w["W_M"] @ np.concatenate([np.eye(8)] * 2), np.eye(8), atol=0.1)

    @pytest.mark.parametrize(
        "trees, complaint",
        [
            ("(1 (2 a) (3 b))\n(1 (2 (1 a)) (3 b))\n", "but a node has 1: make the trees binary"),
            ("(1 a)\n(2 b)\n", "but no tree of the training data has two words"),
        ],
    )
    def test_other_trees_are_refused(self, trees: str, complaint: str, tmp_path: Path) -> None:
        for name in ("train.txt", "dev.txt"):
            (tmp_path / name).write_text(trees)
        with pytest.raises(vpps.VppsError, match=f"an MV-RNN composes two parts, {complaint}"):
            CASES["mv-rnn"].make(tmp_path, min_count=1)


def test_an_rvnn_has_other_weights_for_words_than_for_phrases() -> None:
    model, batch = vpps.Model(seed=1), phrase("(1 (2 not) (3 good))")
    got = states(model, vpps.zoo.RvNNSentiment(model, 5, embedding=3, hidden=4, mlp=5), batch)
    w = weights_of(model)
    leaves = [np.tanh(w["leaf/W"] @ w["words"][i] + w["leaf/b"]) for i in batch["word"][:2]]
    root = np.tanh(w["inner/W"] @ np.concatenate(leaves) + w["inner/b"])
    np.testing.assert_allclose(got, [*leaves, root], rtol=1e-12)


class TestTreeFC:
    @pytest.mark.parametrize("per_child", [False, True])
    def test_logits_are_those_of_a_layer_at_every_vertex(self, per_child: bool) -> None:
        task, graph = CASES["tree-fc"].make(leaves=4, limit=2, per_child=per_child), vpps.Graph()
        (logits,), w = values(task.model, graph, task.outputs(graph, task.train[:])), weights_of(task.model)
        names = ("composition/W_1", "composition/W_2") if per_child else ("composition/W",)
        W = np.hstack([w[name] for name in names])
        for k in range(2):
            level = [w["words"][word] for word in task.train[k]["word"][:4]]
            while len(level) > 1:
                pairs = [np.concatenate(level[i : i + 2]) for i in range(0, len(level), 2)]
                level = [np.tanh(W @ pair + w["composition/b"]) for pair in pairs]
            np.testing.assert_allclose(logits[k], w["output/W"] @ level[0] + w["output/b"], rtol=1e-9)

    def test_data_and_other_numbers_of_leaves_are_refused(self) -> None:
        with pytest.raises(vpps.VppsError, match=r"tree-fc makes its own trees .*: leave out --data trees\.txt"):
            CASES["tree-fc"].make(Path("trees.txt"))
        with pytest.raises(vpps.VppsError, match=r"2, 4, 8, \.\.\. leaves, not 12"):
            CASES["tree-fc"].make(leaves=12)

    def test_dev_trees_are_others_than_training_trees(self) -> None:
        task = CASES["tree-fc"].make(limit=None)
        train, dev = (graphs[:400]["word"] for graphs in (task.train, task.dev))
        assert (train != dev).any()
        assert task.units(task.train[:7]) == 7


TREES = "(3 (2 a) (4 (2 b) (3 (2 c) (1 a))))\n(1 (2 b) (2 (2 c) (0 a)))\n(0 c)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(TREES)
    (tmp_path / "dev.txt").write_text("(4 (3 a) (2 (2 unknown) (2 c)))\n")
    return tmp_path


class TestPyramids:
    def test_a_td_rnn_composes_neighbours_until_one_is_left(self, folder: Path) -> None:
        task, graph = CASES["td-rnn"].make(folder), vpps.Graph()
        batch = task.train[:]
        logits, loss = values(task.model, graph, task.outputs(graph, batch), task.loss(graph, batch))
        w, expected = weights_of(task.model), []
        for k in range(3):
            words = task.train[k]["word"]
            level = [w["words"][word] for word in words[words >= 0]]
            while len(level) > 1:
                level = [
                    np.tanh(w["composition/W"] @ np.concatenate(pair) + w["composition/b"]) for pair in pairwise(level)
                ]
            hidden = np.tanh(w["mlp/hidden/W"] @ level[0] + w["mlp/hidden/b"])
            expected.append(w["mlp/output/W"] @ hidden + w["mlp/output/b"])
        np.testing.assert_allclose(logits, expected, rtol=1e-9)
        assert loss == pytest.approx(cross_entropy(np.array(expected), batch["label"]).sum(), rel=1e-9)

    def test_a_td_lstm_composes_states_as_a_tree_lstm_does(self, folder: Path) -> None:
        task, graph = CASES["td-lstm"].make(folder), vpps.Graph()
        network, batch = task.network, task.train[1]
        level = [graph.call(network.leaf, word) for word in batch["word"][:3].tolist()]
        while len(level) > 1:
            level = [network.composition.inner(*left, *right) for left, right in pairwise(level)]
        top, expected = values(task.model, graph, network.states(graph, batch), level[0][0])
        np.testing.assert_array_equal(top[0], expected)

    def test_the_label_of_a_sentence_is_its_roots(self, folder: Path) -> None:
        task = CASES["td-rnn"].make(folder)
        assert task.train[:]["label"].tolist() == [3, 1, 0]
        assert task.n_classes == 5  # the dev set has a 4
        assert task.units(task.train[:2]) == 2
        right = np.eye(5, dtype=np.float32)[[3, 1, 2]]
        assert task.scores([(task.train[:], right)]) == {"dev accuracy": pytest.approx(2 / 3)}
        limited = CASES["td-rnn"].make(folder, limit=2)
        assert (len(limited.train), len(limited.dev)) == (2, 1)

    def test_a_resumed_task_has_the_words_and_classes_of_its_checkpoint(self, folder: Path) -> None:
        kind = TASKS["td-rnn"]
        settings = kind.settings_type(data=folder, hidden=6)
        state = json.loads(json.dumps(kind(settings).state()))
        (folder / "train.txt").write_text("(2 (2 a) (2 new))\n(2 new)\n")
        (folder / "dev.txt").write_text("(1 a)\n")
        resumed: Any = kind(settings, state)
        assert resumed.n_classes == 5
        assert resumed.state() == state
        assert resumed.train[0]["word"].tolist() == [resumed.train.vocabularies["word"]["a"], 0, -1]
        (folder / "train.txt").write_text("(2 (2 a) (2 b))\n(7 a)\n")
        with pytest.raises(vpps.VppsError, match=r"train\.txt:2:2: expected a label smaller than 5, found 7"):
            kind(settings, state)
