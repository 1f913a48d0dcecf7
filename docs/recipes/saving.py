"""Saving a network for use elsewhere: a folder with its constructor's arguments, its weights, and its words."""

from __future__ import annotations

import numpy as np

import vpps
from vpps.data import GraphBatch, Tree, graphs_of_trees, synthetic_treebank
from vpps.nn import Linear
from vpps.zoo import TreeLSTMSentiment


class Ensemble(vpps.Pretrained):
    """A network of your own: the base class is all that saving takes."""

    def __init__(self, model: vpps.Model, n_words: int, *, hidden: int = 16, members: int = 2) -> None:
        self.members = []
        for k in range(members):
            with model.scope(f"member {k}"):
                self.members.append(TreeLSTMSentiment(model, n_words, embedding=hidden, hidden=hidden))
        self.weight = Linear(model, members * 5, 5, name="weight")

    def logits(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the unnormalised log-probabilities of the classes of every root."""
        parts = [member.logits(graph, batch, root_only=True) for member in self.members]
        found: vpps.Rows = self.weight(vpps.concat(parts))
        return found


def train(folder: str) -> None:
    """Train on sentences, then write the folder."""
    trees = graphs_of_trees(synthetic_treebank(800, 1).train)
    model = vpps.Model(seed=1)
    network = Ensemble(model, len(trees.vocabularies["word"]))
    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        for epoch in range(6):
            for batch in trees.batches(25, seed=1, epoch=epoch):
                graph = vpps.Graph()
                labels = batch["label"][batch.roots]
                handle.fb(graph, vpps.mean(vpps.cross_entropy(network.logits(graph, batch), labels)))
    network.save_pretrained(folder, like=trees)


def serve(folder: str, trees: list[Tree]) -> list[int]:
    """Return the classes of new sentences. Another process does this, without the training data."""
    network = Ensemble.from_pretrained(folder)
    graph, batch = vpps.Graph(), graphs_of_trees(trees, like=network.like)[:]
    with vpps.Handle(network.model, train=False) as handle:
        (logits,) = handle.forward(graph, [network.logits(graph, batch)])
    classes: list[int] = np.argmax(logits, axis=1).tolist()
    return classes


def main(folder: str = "ensemble") -> float:
    """Return the accuracy on new sentences."""
    train(folder)
    new = synthetic_treebank(800, 200).dev
    right = float(np.mean(np.equal(serve(folder, new), [tree.labels[-1] for tree in new])))
    print(f"accuracy on {len(new)} new sentences: {right:.2f}")
    return right


if __name__ == "__main__":
    main()
