"""Measures one example on the cores of this machine, by number of virtual processors.

python latency.py [length of the states, by default 256]
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np

import vpps
from vpps.data import GraphSet, graphs_of_trees, synthetic_treebank
from vpps.zoo import TreeLSTMSentiment


def microseconds(handle: vpps.Handle, network: TreeLSTMSentiment, trees: GraphSet, at_once: int) -> list[float]:
    """Return the microseconds per tree of each prediction, for `at_once` trees, up to the root's scores in NumPy."""
    found = []
    for start in range(0, len(trees), at_once):
        began = time.perf_counter()
        graph = vpps.Graph()
        handle.forward(graph, [network.logits(graph, trees[start : start + at_once], root_only=True)])
        found.append((time.perf_counter() - began) * 1e6 / at_once)
    return found


def choices() -> list[int]:
    """Return 1, 2, 4 ... and the number of cores."""
    cores = os.cpu_count() or 1
    return sorted({*(2**k for k in range(cores.bit_length()) if 2**k <= cores), cores})


def main(hidden: int = 256, n_trees: int = 256, at_once: int = 32) -> dict[int, tuple[float, float, float]]:
    """Return, by number of virtual processors: median and 99th percentile of single examples, median in batches."""
    trees = graphs_of_trees(synthetic_treebank(n_trees, 1).train)
    model = vpps.Model(seed=1)
    network = TreeLSTMSentiment(model, len(trees.vocabularies["word"]), embedding=hidden, hidden=hidden)
    table = {}
    print(
        f"{len(trees)} trees of {trees.n_vertices / len(trees):.0f} vertices, states of {hidden}; microseconds per tree"
    )
    print(f"{'vps':>4} {'alone':>8} {'99 %':>8} {f'of {at_once}':>8}")
    for vps in choices():
        with vpps.Handle(model, target="cpu", train=False, vps=vps) as handle:
            microseconds(handle, network, trees, 1)  # the first calls of a handle prepare it
            alone = microseconds(handle, network, trees, 1)
            microseconds(handle, network, trees, at_once)
            together = microseconds(handle, network, trees, at_once)
        row = float(np.median(alone)), float(np.percentile(alone, 99)), float(np.median(together))
        table[vps] = row
        print(f"{vps:4} {row[0]:8.0f} {row[1]:8.0f} {row[2]:8.0f}")
    best = min(table, key=lambda vps: table[vps][0])
    print(f"one example at a time: Handle(model, train=False, vps={best})")
    return table


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
