"""A BiLSTM-CRF tagger (Lample et al. 2016): a BiLSTM scores tags, a CRF whole paths of them."""

from __future__ import annotations

import numpy as np

import vpps
from vpps.data import GraphBatch, GraphSet, graphs_of_tagged, synthetic_sentences
from vpps.nn import CRF, BiLSTM, Linear


class BiLSTMCRF:
    """Scores tags with a BiLSTM, and pairs of neighbouring tags with a table.

    Args:
        n_words, n_tags: how many there are.
        hidden: length of a word vector, and of the state in each direction.
    """

    def __init__(self, model: vpps.Model, n_words: int, n_tags: int, hidden: int = 32) -> None:
        self.words = model.lookup("words", (n_words, hidden))
        self.bilstm = BiLSTM(model, hidden, hidden, table=self.words)
        self.output = Linear(model, 2 * hidden, n_tags, name="output")
        self.crf = CRF(model, n_tags)

    def emissions(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the scores of the tags of every word, (n_tags,)."""
        return self.output(vpps.concat(self.bilstm(graph, batch, batch["word"])))

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        """Return minus the log-likelihood of the tags, summed over the sentences."""
        return self.crf.loss(graph, batch, self.emissions(graph, batch), batch["tag"])


def compare(handle: vpps.Handle, network: BiLSTMCRF, dev: GraphSet) -> tuple[float, float]:
    """Return the share of sentences without an error: on the best path, and with the best tag of each word."""
    graph, batch = vpps.Graph(), dev[:]
    (emissions,) = handle.forward(graph, [network.emissions(graph, batch)])
    choices = network.crf.decode(batch, emissions), emissions.argmax(axis=1)
    best, greedy = (np.logical_and.reduceat(tags == batch["tag"], batch.offsets[:-1]).mean() for tags in choices)
    return float(best), float(greedy)


def main() -> tuple[list[float], float, float]:
    """Return the loss per epoch and the result of `compare`."""
    train_sentences, dev_sentences = synthetic_sentences(300, 200)
    train = graphs_of_tagged(train_sentences)
    dev = graphs_of_tagged(dev_sentences, like=train)
    model = vpps.Model(seed=1)
    network = BiLSTMCRF(model, len(train.vocabularies["word"]), len(train.classes["tag"]))
    losses = []
    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        for epoch in range(3):
            total = 0.0
            for batch in train.batches(30, seed=1, epoch=epoch):
                graph = vpps.Graph()
                handle.fb(graph, network.loss(graph, batch) * (1 / len(batch)))
                total += handle.sync_get_latest_loss() * len(batch)
            losses.append(total / len(train))
        best, greedy = compare(handle, network, dev)
    print("loss per sentence:", *(f"{loss:.2f}" for loss in losses))
    print(f"dev sentences without an error: {best:.2f} on the best path, {greedy:.2f} word by word")
    return losses, best, greedy


if __name__ == "__main__":
    main()
