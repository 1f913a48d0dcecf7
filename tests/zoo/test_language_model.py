"""The language models: what their scores are of."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vpps
from tests.zoo.cases import CASES
from vpps.reference import Reference, weights_of


@pytest.mark.host
def test_losses_are_the_cross_entropy_of_the_logits() -> None:
    task = CASES["var-lstm"].make()
    batch, graph = task.train[:2], vpps.Graph()
    logits, losses = task.network.logits(graph, batch), task.outputs(graph, batch)
    reference = Reference(graph, weights_of(task.model))
    scores = np.array([reference.value(x) for x in logits])
    expected = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), batch["next"]]
    np.testing.assert_allclose([reference.value(x) for x in losses], expected, rtol=1e-12)


@pytest.mark.host
def test_perplexity_is_over_all_words() -> None:
    task = CASES["fixed-lstm"].make()
    batches = [task.dev[:2], task.dev[2:3]]
    losses = [np.full(18, 1.0, np.float32), np.full(9, 4.0, np.float32)]
    scores = task.scores(zip(batches, losses, strict=True))
    assert scores == {"dev perplexity": pytest.approx(math.exp(2))}


@pytest.mark.host
@pytest.mark.parametrize("name", ["var-lstm", "nmt"])
def test_perplexity_of_a_model_that_has_diverged_is_infinite(name: str) -> None:
    task = CASES[name].make()
    losses = np.full(task.units(task.dev[:2]), 1e4, np.float32)
    assert task.scores([(task.dev[:2], losses)]) == {"dev perplexity": math.inf}


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["fixed-lstm", "var-lstm"])
def test_learns_agreement(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Perplexity falls below what the best model of word pairs reaches, which knows nothing of subjects."""
    monkeypatch.setenv("VPPS_VERIFY", "0")  # scripts of these cells are verified elsewhere
    task = CASES[name].make(limit=None, hidden=64, embedding=32)
    pairs = np.full((task.n_words, task.n_words), 1e-3)
    np.add.at(pairs, (task.train[:]["word"], task.train[:]["next"]), 1)
    chances = pairs / pairs.sum(axis=1, keepdims=True)
    of_pairs = math.exp(-np.log(chances[task.dev[:]["word"], task.dev[:]["next"]]).mean())
    with vpps.Handle(task.model, vpps.Adam(lr=1e-2), clip_norm=5.0) as handle:
        for epoch in range(4):
            for batch in task.train.batches(16, epoch=epoch):
                graph = vpps.Graph()
                handle.fb(graph, task.loss(graph, batch) * (1 / len(batch)))
        found = task.evaluate(handle)["dev perplexity"]
    assert found < 0.97 * of_pairs
