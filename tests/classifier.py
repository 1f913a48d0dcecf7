"""The model in tests of models, checkpoints and handles: a recurrent net over words, and a classifier."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vpps

WORDS, EMBEDDING, HIDDEN, CLASSES = 12, 6, 20, 3


class Classifier:
    """Reads a sentence word by word and classifies the last state.

    Args:
        model: receives the parameters, unless it already has them (from a checkpoint).
    """

    def __init__(self, model: vpps.Model) -> None:
        if "words" not in model:
            model.lookup("words", (WORDS, EMBEDDING))
            model.parameter("W", (HIDDEN, EMBEDDING))
            model.parameter("U", (HIDDEN, HIDDEN), init="orthogonal")
            model.parameter("b", (HIDDEN,), init="normal")
            model.parameter("Wo", (CLASSES, HIDDEN))
            model.parameter("bo", (CLASSES,))
        self.model = model

    @vpps.cell
    def read(self, h: vpps.Expression, word: int) -> vpps.Expression:
        """Return the next state, of shape (HIDDEN,)."""
        x = vpps.lookup(self.model["words"], word)
        return vpps.tanh(self.model["W"] @ x + self.model["U"] @ h + self.model["b"])

    def logits(self, graph: vpps.Graph, words: list[int]) -> vpps.Expression:
        """Return logits of shape (CLASSES,)."""
        h = graph.zeros(HIDDEN)
        for word in words:
            h = self.read(h, word)
        return self.model["Wo"] @ h + self.model["bo"]

    def batch(self, seed: int, sentences: int = 4, longest: int = 5) -> tuple[vpps.Graph, vpps.Expression]:
        """Return a graph over random sentences with random labels, and its loss; the seed determines both."""
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses = []
        for _ in range(sentences):
            words = rng.integers(0, WORDS, rng.integers(1, longest + 1)).tolist()
            losses.append(vpps.cross_entropy(self.logits(graph, words), int(rng.integers(CLASSES))))
        return graph, vpps.sum(losses)

    def train(self, handle: vpps.Handle, batches: range) -> list[float]:
        """Train on one batch per seed; returns each batch's loss."""
        losses = []
        for seed in batches:
            handle.fb(*self.batch(seed))
            losses.append(handle.sync_get_latest_loss())
        return losses


def new(seed: int = 1) -> Classifier:
    """Return a classifier with weights from the seed."""
    return Classifier(vpps.Model(seed=seed))


def same_bits(a: dict[str, NDArray[np.float32]], b: dict[str, NDArray[np.float32]]) -> bool:
    """Return True if two sets of weights are bit-identical."""
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)
