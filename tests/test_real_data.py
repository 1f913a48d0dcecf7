"""A full run on the Stanford Sentiment Treebank: the losses match the reference, and the model learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.training import ReferenceTraining
from vpps.data import GraphBatch, read_treebank
from vpps.data.lines import LinePart
from vpps.zoo.trees import TreeLSTMSentiment

pytestmark = pytest.mark.cpu

BATCH_SIZE = 16
MAJORITY_CLASS = 0.262  # share of the most frequent label among the roots of dev


def batch_loss(task: TreeLSTMSentiment, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
    return task.loss(graph, batch) * (1 / len(batch))


def test_first_200_losses_follow_the_reference(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")  # other tests verify scripts; these are long
    steps, batch_size = 200, 6  # small, like the network: the float64 reference takes nearly all of the time
    trees = read_treebank(LinePart(real_data("sst/train.txt"), 0, steps * batch_size), min_count=1)
    model = vpps.Model(seed=1)
    task = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=128, hidden=128)
    reference = ReferenceTraining(model, vpps.Adam(lr=1e-3))
    with vpps.Handle(model, vpps.Adam(lr=1e-3)) as handle:
        for step in range(1, steps + 1):
            graph = vpps.Graph()
            loss = batch_loss(task, graph, trees[(step - 1) * batch_size : step * batch_size])
            handle.fb(graph, loss)
            assert handle.sync_get_latest_loss() == pytest.approx(reference.fb(graph, loss), rel=1e-4), step


def test_three_epochs_beat_the_majority_class(
    real_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")
    train = read_treebank(LinePart(real_data("sst/train.txt"), 0, 2000))
    dev = read_treebank(real_data("sst/dev.txt"), like=train)
    labels = dev[:]["label"][dev[:].roots]
    assert np.bincount(labels).max() / len(dev) == pytest.approx(MAJORITY_CLASS, abs=1e-3)
    model = vpps.Model(seed=1)
    task = TreeLSTMSentiment(model, len(train.vocabularies["word"]), embedding=256, hidden=256)
    with vpps.Handle(model, vpps.Adam(lr=3e-3)) as handle:
        for epoch in range(3):
            for batch in train.batches(BATCH_SIZE, epoch=epoch):
                graph = vpps.Graph()
                handle.fb(graph, batch_loss(task, graph, batch))
        right = 0
        for batch in dev.batches(64, shuffle=False):
            graph = vpps.Graph()
            (logits,) = handle.forward(graph, [task.logits(graph, batch, root_only=True)])
            right += int((logits.argmax(axis=1) == batch["label"][batch.roots]).sum())
    assert right / len(dev) >= 0.30
