"""A BiLSTM-CRF tagger (Lample et al. 2016): the forward algorithm as a graph, Viterbi decoding in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet, graphs_of_tagged, synthetic_sentences
from vpps.nn import BiLSTM, Linear

Floats = NDArray[np.float32]


class BiLSTMCRF:
    """Scores tags with a BiLSTM, and pairs of neighbouring tags with a table.

    Args:
        n_words, n_tags: how many there are.
        hidden: length of a word vector, and of the state in each direction.
    """

    def __init__(self, model: vpps.Model, n_words: int, n_tags: int, hidden: int = 32) -> None:
        self.n_tags = n_tags
        self.words = model.lookup("words", (n_words, hidden))
        self.bilstm = BiLSTM(model, hidden, hidden, table=self.words)
        self.output = Linear(model, 2 * hidden, n_tags, name="output")
        self.into = model.lookup("into", (n_tags, n_tags), init="zeros")  # into[j][i]: tag j behind tag i
        self.first = model.parameter("first", (n_tags,))
        self.last = model.parameter("last", (n_tags,))

    @vpps.cell
    def begin(self, emission: vpps.Expression) -> vpps.Expression:
        """Return α of the first word."""
        return emission + self.first

    @vpps.cell
    def step(self, emission: vpps.Expression, alpha: vpps.Expression) -> vpps.Expression:
        """Return α of any other word: α_j = emission_j + log Σ_i exp(α'_i + into_ji)."""
        paths = [vpps.logsumexp(alpha + vpps.lookup(self.into, tag)) for tag in range(self.n_tags)]
        return emission + vpps.concat(paths)

    @vpps.cell
    def end(self, alpha: vpps.Expression, tag: int) -> vpps.Expression:
        """Return log Z over all paths, from α of the last word, minus the end score of the right path."""
        return vpps.logsumexp(alpha + self.last) - vpps.pick(self.last, tag)

    @vpps.cell
    def first_score(self, emission: vpps.Expression, tag: int) -> vpps.Expression:
        """Return the share of the first tag in the score of the right path."""
        return vpps.pick(emission + self.first, tag)

    @vpps.cell
    def next_score(self, emission: vpps.Expression, tag: int, before: int) -> vpps.Expression:
        """Return the share of any other tag."""
        return vpps.pick(emission, tag) + vpps.pick(vpps.lookup(self.into, tag), before)

    def emissions(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the scores of the tags of every word, (n_tags,)."""
        return self.output(vpps.concat(self.bilstm(graph, batch, batch["word"])))

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        """Return minus the log-likelihood of the tags, summed over the sentences."""
        emissions, tag = self.emissions(graph, batch), batch["tag"]
        before = np.asarray(batch.children)[:, 0]  # the word in front, -1 at the first
        first, others = batch.offsets[:-1], np.flatnonzero(before >= 0)
        structure = batch.structure | {"kind": (before >= 0).astype(np.int8)}
        alpha = graph.map([self.begin, self.step], **structure, inputs={"emission": emissions})
        log_z = vpps.sum(self.end(alpha[batch.roots], tag[batch.roots]))
        gold = vpps.sum(self.first_score(emissions[first], tag[first]))
        gold += vpps.sum(self.next_score(emissions[others], tag[others], tag[before[others]]))
        return log_z - gold

    def best_path(self, emissions: Floats) -> list[int]:
        """Return the tags of the best path through a sentence, from its emissions (words, n_tags)."""
        into, first, last = self.into.numpy(), self.first.numpy(), self.last.numpy()
        score, came_from = emissions[0] + first, []
        for emission in emissions[1:]:
            paths = score + into  # (to, from)
            came_from.append(paths.argmax(axis=1))
            score = emission + paths.max(axis=1)
        path = [int((score + last).argmax())]
        for tags in reversed(came_from):
            path.append(int(tags[path[-1]]))
        return path[::-1]


def compare(handle: vpps.Handle, network: BiLSTMCRF, dev: GraphSet) -> tuple[float, float]:
    """Return the share of sentences without an error: on the best path, and with the best tag of each word."""
    graph, batch = vpps.Graph(), dev[:]
    (emissions,) = handle.forward(graph, [network.emissions(graph, batch)])
    best, greedy = 0, 0
    for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        gold = batch["tag"][begin:end]
        best += np.array_equal(network.best_path(emissions[begin:end]), gold)
        greedy += np.array_equal(emissions[begin:end].argmax(axis=1), gold)
    return best / len(dev), greedy / len(dev)


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
