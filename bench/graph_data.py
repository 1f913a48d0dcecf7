"""What input graphs as data cost: converting a treebank once, and putting a mini-batch together.

    python bench/graph_data.py --trees train.txt [--batch-sizes 1,16,64,256,1024] [--rounds 20]

One JSON object per line. `convert` is seconds to read the trees, compute levels and write the file; `load` microseconds
to map it with trust, `verify` to check it as well. `batch-N` is microseconds per mini-batch of N random trees, every
array of it gathered (children, kinds, levels, words, labels): what `graph.map` takes. `chain` and `forest` are seconds
to check a million vertices in one graph and to compute their levels, once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import harness
import numpy as np

from vpps.data import GraphSet, read_treebank

BENCH = "graph_data"
VERTICES = 1_000_000
CALLS = 50
"""Mini-batches per measurement: one takes as long as a few readings of the clock."""


def gather(graphs: GraphSet, indices: list[np.ndarray]) -> None:
    """Mini-batches as a training loop uses them."""
    for chosen in indices:
        batch = graphs[chosen]
        _ = batch.children, batch.kind, batch.levels, batch["word"], batch["label"]


def seconds(run: Callable[[], object]) -> float:
    """Those of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Convert, map, gather, and check large graphs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, help="Penn-bracketed trees, one a line")
    parser.add_argument("--batch-sizes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vertices", type=int, default=VERTICES, help="of the chain and of the forest")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.graphs"
        convert = [seconds(lambda: read_treebank(options.trees).save(path)) for _ in range(3)]
        harness.report(BENCH, "convert", convert, "s", higher_is_better=False, bytes=path.stat().st_size)
        for case, verify in {"load": False, "verify": True}.items():
            load = [1e6 * seconds(lambda v=verify: GraphSet.load(path, verify=v)) for _ in range(options.rounds)]
            harness.report(BENCH, case, load, "us", higher_is_better=False)
        graphs = GraphSet.load(path)
        random = np.random.default_rng(1)
        indices = {
            f"batch-{size}": [random.integers(len(graphs), size=size) for _ in range(CALLS)]
            for size in options.batch_sizes
        }
        contenders = {case: (lambda chosen=chosen: gather(graphs, chosen)) for case, chosen in indices.items()}
        for case, found in harness.interleave(contenders, options.rounds).items():
            vertices = np.mean([graphs[chosen].n_vertices for chosen in indices[case]])
            each = [1e6 * s / CALLS for s in found]
            harness.report(
                BENCH, case, each, "us", higher_is_better=False, vertices=round(float(vertices)), best=min(each)
            )

    n = options.vertices
    chain = (np.arange(n) - 1)[:, None]
    heap = np.arange(n)[:, None] * 2 + np.array([1, 2])  # a complete binary tree, its root first
    cases = {"chain": chain, "forest": np.where(heap < n, heap, -1)}
    for case, found in harness.interleave(
        {case: (lambda children=children: GraphSet([n], children)) for case, children in cases.items()}, 3
    ).items():
        harness.report(BENCH, case, found, "s", higher_is_better=False, vertices=n)


if __name__ == "__main__":
    main()
