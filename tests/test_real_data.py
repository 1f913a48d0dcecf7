"""The whole line on the Stanford Sentiment Treebank: the losses follow the reference, and the model learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vpps
from vpps.data import Tree, Vocabulary, read_trees
from vpps.reference import Reference, weights_of
from vpps.zoo.tree_lstm import TreeLSTMSentiment

pytestmark = pytest.mark.cpu

BATCH_SIZE = 16
MAJORITY_CLASS = 0.262  # share of the most frequent label among the roots of dev


def batch_loss(task: TreeLSTMSentiment, graph: vpps.Graph, batch: list[Tree]) -> vpps.Expression:
    return vpps.sum([task.loss(graph, t) for t in batch]) * (1 / len(batch))


def test_first_200_losses_follow_the_reference(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")  # other tests verify scripts; these are long
    steps = 200
    trees = read_trees(real_data("sst/train.txt"))[: steps * BATCH_SIZE]
    vocabulary = Vocabulary.from_sentences(t.tokens for t in trees)
    trees = [vocabulary.encode(t) for t in trees]
    model = vpps.Model(seed=1)
    task = TreeLSTMSentiment(model, len(vocabulary), embedding=256, hidden=256)
    optimizer = vpps.Adam(lr=1e-3)
    weights = weights_of(model)
    moments = {k: [np.zeros_like(w) for _ in optimizer.moments] for k, w in weights.items()}
    with vpps.Handle(model, optimizer) as handle:
        for step in range(1, steps + 1):
            graph = vpps.Graph()
            loss = batch_loss(task, graph, trees[(step - 1) * BATCH_SIZE : step * BATCH_SIZE])
            handle.fb(graph, loss)
            reference = Reference(graph, weights)
            gradients = reference.backward(loss)
            for p in model:
                rows = reference.touched_rows(p) if isinstance(p, vpps.Lookup) else slice(None)
                old = [m[rows] for m in moments[p.name]]
                new = optimizer.reference(weights[p.name][rows], gradients[p.name][rows], old, step)
                weights[p.name][rows] = new[0]
                for m, n in zip(moments[p.name], new[1], strict=True):
                    m[rows] = n
            assert handle.sync_get_latest_loss() == pytest.approx(float(reference.value(loss)), rel=1e-4), step


def test_three_epochs_beat_the_majority_class(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")
    train = read_trees(real_data("sst/train.txt"))[:2000]
    dev = read_trees(real_data("sst/dev.txt"))
    assert np.bincount([t.labels[-1] for t in dev]).max() / len(dev) == pytest.approx(MAJORITY_CLASS, abs=1e-3)
    vocabulary = Vocabulary.from_sentences((t.tokens for t in train), min_count=2)
    train, dev = [vocabulary.encode(t) for t in train], [vocabulary.encode(t) for t in dev]
    model = vpps.Model(seed=1)
    task = TreeLSTMSentiment(model, len(vocabulary), embedding=256, hidden=256)
    rng = np.random.default_rng(1)
    with vpps.Handle(model, vpps.Adam(lr=3e-3)) as handle:
        for _ in range(3):
            order = rng.permutation(len(train))
            for start in range(0, len(train), BATCH_SIZE):
                graph = vpps.Graph()
                handle.fb(graph, batch_loss(task, graph, [train[i] for i in order[start : start + BATCH_SIZE]]))
        right = 0
        for start in range(0, len(dev), 64):
            batch = dev[start : start + 64]
            graph = vpps.Graph()
            logits = handle.forward(graph, [task.logits(graph, t)[-1] for t in batch])
            right += sum(int(x.argmax() == t.labels[-1]) for x, t in zip(logits, batch, strict=True))
    assert right / len(dev) >= 0.30
