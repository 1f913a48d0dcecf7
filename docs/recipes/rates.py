"""Learning rates: a schedule is a function of the number of the update; groups have their own rates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import vpps
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment


def warm_up_then_cosine(peak: float, warm_up: int, total: int) -> Callable[[int], float]:
    """Rise from 0 to the peak in `warm_up` updates, then follow half a cosine down to 0 at update `total`."""

    def rate(update: int) -> float:  # from 1
        if update <= warm_up:
            return peak * update / warm_up
        done = min(1.0, (update - warm_up) / (total - warm_up))
        return peak * (1 + math.cos(math.pi * done)) / 2

    return rate


def optimizer_for(updates: int) -> vpps.Optimizer:
    """Return an Adam with a lower rate for words, and no decay of words and biases."""
    return vpps.AdamW(
        lr=warm_up_then_cosine(0.01, warm_up=4, total=updates),
        weight_decay=0.01,
        groups={
            "words": {"lr": warm_up_then_cosine(0.002, warm_up=4, total=updates), "weight_decay": 0.0},
            "*/b": {"weight_decay": 0.0},
        },
    )


def main() -> list[tuple[float, float]]:
    """Return the rate of "words" in each update, and the largest change of one of its weights."""
    trees = graphs_of_trees(synthetic_treebank(400, 1).train)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=32, hidden=32)
    batches = list(trees.batches(25, seed=1, epoch=0))
    optimizer = optimizer_for(len(batches))
    steps = []
    with vpps.Handle(model, optimizer) as handle:
        for update, batch in enumerate(batches, start=1):
            before = network.words.numpy()
            graph = vpps.Graph()
            handle.fb(graph, network.loss(graph, batch) * (1 / batch.n_vertices))
            rates = {name: optimizer.at(update, name).rate for name in ("words", "output/W")}
            steps.append((rates["words"], float(np.abs(network.words.numpy() - before).max())))
            if update % 4 == 1:
                print(f"update {update:2}: rates", *(f"{name} {rate:.5f}" for name, rate in rates.items()))
                print(f"           the furthest that a weight of words went: {steps[-1][1]:.5f}")
    return steps


if __name__ == "__main__":
    main()
