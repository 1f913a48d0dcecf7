"""Weight tying (Press & Wolf 2017; Inan et al. 2017): the embedding table is also the output layer."""

from __future__ import annotations

import numpy as np

import vpps
from vpps.data import GraphBatch, graphs_of_text, synthetic_text
from vpps.nn import LSTM, State

WIDTH = 32


class LanguageModel:
    """Predicts the next word with an LSTM over the words before it."""

    def __init__(self, model: vpps.Model, n_words: int, tied: bool) -> None:
        self.words = model.lookup("words", (n_words, WIDTH), dense=tied)
        self.output = self.words if tied else model.parameter("output", (n_words, WIDTH))
        self.bias = model.parameter("bias", (n_words,))
        self.lstm = LSTM(model, WIDTH, WIDTH)

    @vpps.cell
    def begin(self, word: int) -> State:
        return self.lstm.begin(vpps.lookup(self.words, word))

    @vpps.cell
    def step(self, word: int, h: vpps.Expression, c: vpps.Expression) -> State:
        return self.lstm.step(vpps.lookup(self.words, word), h, c)

    @vpps.cell
    def word_loss(self, h: vpps.Expression, following: int) -> vpps.Expression:
        """Return minus the log-probability of the next word."""
        return vpps.cross_entropy(self.output @ h + self.bias, following)

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        """Return the mean loss over all words."""
        kind = (np.asarray(batch.children)[:, 0] >= 0).astype(np.int8)
        h, _ = graph.map([self.begin, self.step], **batch.structure | {"kind": kind}, inputs={"word": batch["word"]})
        losses = self.word_loss(h, batch["next"])
        return vpps.sum(losses) * (1 / batch.n_vertices)


def train(tied: bool) -> tuple[int, list[float]]:
    """Return the number of weights and the loss of every update."""
    sentences, _ = synthetic_text(300, 1)
    text = graphs_of_text(sentences)
    model = vpps.Model(seed=1)
    network = LanguageModel(model, len(text.vocabularies["word"]), tied)
    losses = []
    with vpps.Handle(model, vpps.Adam(lr=0.02)) as handle:
        for epoch in range(4):
            for batch in text.batches(25, seed=1, epoch=epoch):
                graph = vpps.Graph()
                handle.fb(graph, network.loss(graph, batch))
                losses.append(handle.sync_get_latest_loss())
    return model.n_weights, losses


def main() -> dict[str, tuple[int, list[float]]]:
    """Return the results of `train` with tied weights, and with a separate output layer."""
    found = {"tied": train(tied=True), "apart": train(tied=False)}
    for name, (n_weights, losses) in found.items():
        print(f"{name:5}: {n_weights} weights, loss per word from {losses[0]:.2f} to {losses[-1]:.2f}")
    return found


if __name__ == "__main__":
    main()
