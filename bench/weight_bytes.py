"""Megabytes of weight matrices read while training on a set of sentences: vpps as its kernel counts, DyNet by rule.

    python bench/weight_bytes.py --trees train.txt [--limit 128] [--batch-sizes 1,2,4,...,128] >> weight_bytes.jsonl
    python bench/plot.py weight_bytes.jsonl

The Tree-LSTM of treelstm.py. vpps: every product counts the packed panels that it streams, once per instruction, for
however many vectors. DyNet: every launch of a batched product reads its matrices once (as in table I and figure 2 of
the VPPS paper); which operations its two strategies launch together is worked out in autobatch.py. For neither count
embeddings, the reading of weights to update them, and the copy of every matrix that DyNet puts into each graph.

`once_per_launch` is what remains where weights stay on the chip for the whole launch, as VPPS keeps them in a GPU's
registers: each matrix once per mini-batch. A CPU's weights lie in memory and its caches.
"""

from __future__ import annotations

from collections.abc import Sequence

import harness
from autobatch import STRATEGIES, matrix_reads, tree_lstm
from models import VppsTreeLstm
from treelstm import CLASSES, LEARNING_RATE, in_batches, initial_weights
from trees import Tree, read_trees

BENCH = "weight_bytes"


def dynet_bytes(batch: Sequence[Tree], strategy: str, hidden: int, embedding: int) -> int:
    """Bytes of weight matrices that one training step of DyNet reads."""
    graph = tree_lstm(batch)
    reads = matrix_reads(graph, STRATEGIES[strategy](graph))
    floats = {"output": CLASSES * hidden, **{f"W{gate}": hidden * embedding for gate in "iou"}}  # the others: hidden^2
    return 4 * sum(n * floats.get(matrix, hidden * hidden) for matrix, n in reads.items())


def vpps_bytes(net: VppsTreeLstm, batch: Sequence[Tree]) -> int:
    """Bytes of weight matrices that one training step of vpps reads, all virtual processors together."""
    net.step([net.prepare(tree) for tree in batch])
    return int(net.handle.timeline().weight_bytes.sum())


def main() -> None:
    """Count and print."""
    parser = harness.parser(
        __doc__, trees=..., batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128], hidden=256, embedding=256, threads=1, limit=128
    )
    options = parser.parse_args()
    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.embedding, options.hidden)
    net = VppsTreeLstm(weights, "sgd", LEARNING_RATE["sgd"], options.threads, timeline=True)
    matrices = sum(weights[name].nbytes for name in ("W", "U", "Wo"))
    for size in options.batch_sizes:
        batches = in_batches(trees, size)
        mine = sum(vpps_bytes(net, batch) for batch in batches) / 1e6
        for strategy in STRATEGIES:
            theirs = sum(dynet_bytes(batch, strategy, options.hidden, options.embedding) for batch in batches) / 1e6
            harness.report(
                BENCH,
                f"batch={size} hidden={options.hidden} embedding={options.embedding} sentences={len(trees)} "
                f"threads={options.threads}",
                [mine], "MB", (f"DyNet {strategy}, counted", [theirs]), higher_is_better=False,
                once_per_launch=round(len(batches) * matrices / 1e6, 2),
            )  # fmt: skip
    net.close()


if __name__ == "__main__":
    main()
