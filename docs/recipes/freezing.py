"""Freezing and thawing: updates skip some parameters for a while."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np

import vpps
from vpps.data import GraphSet, graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment


def set_trainable(model: vpps.Model, pattern: str, trainable: bool) -> None:
    """Freeze or thaw the parameters whose names match a pattern such as "tree_lstm/*"."""
    fitting = [p for p in model if fnmatchcase(p.name, pattern)]
    if not fitting:
        raise ValueError(f"no parameter fits {pattern!r}; there are {', '.join(p.name for p in model)}")
    for p in fitting:
        p.trainable = trainable


def train_epoch(handle: vpps.Handle, network: TreeLSTMSentiment, trees: GraphSet, epoch: int) -> float:
    """Train one epoch and return the mean loss per node."""
    total = 0.0
    for batch in trees.batches(50, seed=1, epoch=epoch):
        graph = vpps.Graph()
        handle.fb(graph, network.loss(graph, batch) * (1 / batch.n_vertices))
        total += handle.sync_get_latest_loss() * batch.n_vertices
    return total / trees.n_vertices


def main() -> dict[str, list[str]]:
    """Return the parameters that each phase of the training changed."""
    trees = graphs_of_trees(synthetic_treebank(200, 1).train)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=32, hidden=32)
    changed: dict[str, list[str]] = {}
    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        for phase, pattern, trainable in (
            ("without the words", "words", False),
            ("the output layer alone", "tree_lstm/*", False),
            ("everything", "*", True),
        ):
            set_trainable(model, pattern, trainable)
            before = model.numpy()
            loss = train_epoch(handle, network, trees, epoch=len(changed))
            changed[phase] = [p.name for p in model if not np.array_equal(p.numpy(), before[p.name])]
            print(f"{phase}: loss {loss:.3f}, changed are {', '.join(changed[phase])}")
    return changed


if __name__ == "__main__":
    main()
