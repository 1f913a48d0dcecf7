"""Early stopping in your own loop: keeps the best weights and restores them at the end."""

from __future__ import annotations

import vpps
from vpps.data import GraphSet, graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment

PATIENCE, MOST_EPOCHS = 2, 20


def dev_loss(handle: vpps.Handle, network: TreeLSTMSentiment, trees: GraphSet) -> float:
    """Return the mean loss per node, without an update."""
    graph = vpps.Graph()
    (loss,) = handle.forward(graph, [network.loss(graph, trees[:])])
    return float(loss) / trees.n_vertices


def train_until_best(handle: vpps.Handle, network: TreeLSTMSentiment, train: GraphSet, dev: GraphSet) -> list[float]:
    """Return the loss on `dev` after every epoch. The model ends with the weights of the best epoch."""
    model, losses = handle.model, list[float]()
    best, best_epoch = model.numpy(), -1  # copies of all weights by name
    for epoch in range(MOST_EPOCHS):
        for batch in train.batches(20, seed=1, epoch=epoch):
            graph = vpps.Graph()
            handle.fb(graph, network.loss(graph, batch) * (1 / batch.n_vertices))
        losses.append(dev_loss(handle, network, dev))
        if losses[-1] == min(losses):
            best, best_epoch = model.numpy(), epoch
        elif epoch - best_epoch >= PATIENCE:
            break
    for parameter in model:
        parameter.assign(best[parameter.name])
    return losses


def main() -> tuple[list[float], float]:
    """Return the losses of all epochs, and the loss of the kept weights."""
    treebank = synthetic_treebank(60, 60)
    train = graphs_of_trees(treebank.train)
    dev = graphs_of_trees(treebank.dev, like=train)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, len(train.vocabularies["word"]), embedding=32, hidden=32)
    with vpps.Handle(model, vpps.Adam(lr=0.03)) as handle:
        losses = train_until_best(handle, network, train, dev)
        kept = dev_loss(handle, network, dev)
    print("dev loss per epoch:", *(f"{loss:.3f}" for loss in losses))
    print(f"stopped after epoch {len(losses)}; kept are the weights with {kept:.3f}")
    return losses, kept


if __name__ == "__main__":
    main()
