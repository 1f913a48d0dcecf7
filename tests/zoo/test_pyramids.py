"""TD-RNN and TD-LSTM: what they compute, and what their task keeps. Gradients: `test_against_reference.py`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import vpps
from vpps.reference import Reference, weights_of
from vpps.zoo.tasks.pyramids import TDLSTMSettings, TDLSTMTask, TDRNNSettings, TDRNNTask

pytestmark = pytest.mark.host

TREES = "(3 (2 a) (4 (2 b) (3 (2 c) (1 a))))\n(1 (2 b) (2 (2 c) (0 a)))\n(0 c)\n"


def folder(path: Path) -> Path:
    (path / "train.txt").write_text(TREES)
    (path / "dev.txt").write_text("(4 (3 a) (2 (2 unknown) (2 c)))\n")
    return path


def test_a_td_rnn_composes_neighbours_until_one_is_left(tmp_path: Path) -> None:
    task = TDRNNTask(TDRNNSettings(data=folder(tmp_path), hidden=6, mlp=4))
    graph = vpps.Graph()
    batch = task.train[:]
    logits, loss = task.outputs(graph, batch), task.loss(graph, batch)
    weights = weights_of(task.model)
    reference = Reference(graph, weights)

    losses = []
    for k in range(3):
        words = task.train[k]["word"]
        level = [weights["words"][word] for word in words[words >= 0]]
        while len(level) > 1:
            level = [
                np.tanh(weights["composition/W"] @ np.concatenate(pair) + weights["composition/b"])
                for pair in pairwise(level)
            ]
        hidden = np.tanh(weights["mlp/hidden/W"] @ level[0] + weights["mlp/hidden/b"])
        expected = weights["mlp/output/W"] @ hidden + weights["mlp/output/b"]
        np.testing.assert_allclose(reference.value(logits[k]), expected, rtol=1e-9)
        losses.append(np.log(np.exp(expected).sum()) - expected[batch["label"][k]])
    assert reference.value(loss) == pytest.approx(sum(losses), rel=1e-9)


def test_a_td_lstm_composes_states_as_a_tree_lstm_does(tmp_path: Path) -> None:
    task = TDLSTMTask(TDLSTMSettings(data=folder(tmp_path), hidden=6, embedding=5, mlp=4))
    network = task.network
    batch = task.train[1]
    graph = vpps.Graph()
    tops = network.states(graph, batch)
    level = [graph.call(network.leaf, word) for word in batch["word"][:3].tolist()]
    while len(level) > 1:
        level = [network.composition.inner(*left, *right) for left, right in pairwise(level)]
    reference = Reference(graph, weights_of(task.model))
    np.testing.assert_array_equal(reference.value(tops[0]), reference.value(level[0][0]))


def test_the_label_of_a_sentence_is_its_roots(tmp_path: Path) -> None:
    task = TDRNNTask(TDRNNSettings(data=folder(tmp_path), hidden=6))
    assert task.train[:]["label"].tolist() == [3, 1, 0]
    assert task.n_classes == 5  # the dev set has a 4
    assert task.units(task.train[:2]) == 2
    right = np.eye(5, dtype=np.float32)[[3, 1, 2]]
    assert task.scores([(task.train[:], right)]) == {"dev accuracy": pytest.approx(2 / 3)}


def test_a_resumed_task_has_the_words_and_classes_of_its_checkpoint(tmp_path: Path) -> None:
    settings = TDRNNSettings(data=folder(tmp_path), hidden=6)
    state = json.loads(json.dumps(TDRNNTask(settings).state()))
    (tmp_path / "train.txt").write_text("(2 (2 a) (2 new))\n(2 new)\n")
    (tmp_path / "dev.txt").write_text("(1 a)\n")
    resumed = TDRNNTask(settings, state)
    assert resumed.n_classes == 5
    assert resumed.state() == state
    assert resumed.train[0]["word"].tolist() == [resumed.train.vocabularies["word"]["a"], 0, -1]


def test_a_label_that_the_resumed_network_does_not_know_is_refused(tmp_path: Path) -> None:
    settings = TDRNNSettings(data=folder(tmp_path), hidden=6)
    state = TDRNNTask(settings).state()
    (tmp_path / "train.txt").write_text("(2 (2 a) (2 b))\n(7 a)\n")
    with pytest.raises(vpps.VppsError, match=r"train\.txt:2:2: expected a label smaller than 5, found 7"):
        TDRNNTask(settings, state)


def test_limit_is_of_training_sentences(tmp_path: Path) -> None:
    task = TDLSTMTask(TDLSTMSettings(data=folder(tmp_path), hidden=6, limit=2))
    assert (len(task.train), len(task.dev)) == (2, 1)
