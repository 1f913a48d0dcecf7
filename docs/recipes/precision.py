"""Reduced precision: the same training with products in float32, in bf16, and in bf16 but for the output layer."""

from __future__ import annotations

import vpps
from vpps.data import GraphSet, graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment

Precision = str | dict[str, str]
PRECISIONS: dict[str, Precision] = {
    "float32": "float32",
    "bf16": "bf16",
    "bf16 but for the output": {"*": "bf16", "output/W": "float32"},
}


def train(model: vpps.Model, network: TreeLSTMSentiment, trees: GraphSet, precision: Precision) -> list[float]:
    """Return the mean losses per node of three epochs."""
    losses = []
    with vpps.Handle(model, vpps.Adam(lr=0.01), precision=precision) as handle:
        for epoch in range(3):
            total = 0.0
            for batch in trees.batches(50, seed=1, epoch=epoch):
                graph = vpps.Graph()
                handle.fb(graph, network.loss(graph, batch) * (1 / batch.n_vertices))
                total += handle.sync_get_latest_loss() * batch.n_vertices
            losses.append(total / trees.n_vertices)
    return losses


def evaluate(model: vpps.Model, network: TreeLSTMSentiment, trees: GraphSet, precision: Precision) -> float:
    """Return the loss of all trees without an update."""
    graph = vpps.Graph()
    with vpps.Handle(model, train=False, precision=precision) as handle:
        return float(handle.forward(graph, [network.loss(graph, trees[:])])[0])


def main() -> dict[str, tuple[list[float], float]]:
    """Return, per precision, the losses, and the relative distance of the last weights' loss from float32."""
    trees = graphs_of_trees(synthetic_treebank(200, 1).train)
    found = {}
    for name, precision in PRECISIONS.items():
        model = vpps.Model(seed=1)
        network = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=32, hidden=32)
        losses = train(model, network, trees, precision)
        rounded, exact = (evaluate(model, network, trees, each) for each in (precision, "float32"))
        found[name] = losses, abs(rounded / exact - 1)
        epochs = " ".join(f"{loss:.3f}" for loss in losses)
        print(f"{name}: losses {epochs}, of which rounding is {found[name][1]:.0e}")
    return found


if __name__ == "__main__":
    main()
