"""How many virtual processors? Training speed of the Tree-LSTM of treelstm.py by their number, beyond cores too.

One JSON object per line: sentences per second for each batch size and number, beside one per core (`ratio` > 1: this
number is better). Run it with --confine too: what is best on fewer cores, and how bad too many are.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import harness
from models import VppsTreeLstm
from treelstm import in_batches, initial_weights, train
from trees import read_trees

BENCH = "vps"


def run(batch_size: int, options: argparse.Namespace) -> None:
    """Time all numbers of virtual processors on one batch size, interleaved."""
    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.hidden, options.hidden)
    batches = in_batches([VppsTreeLstm.prepare(tree) for tree in trees], batch_size)[: options.batches]
    sentences = sum(map(len, batches))
    contenders = {vps: VppsTreeLstm(weights, "sgd", 0.01, vps) for vps in options.vps}
    for contender in contenders.values():
        train(contender, batches[: -(-16 // batch_size)])
    seconds = harness.interleave({str(v): partial(train, c, batches) for v, c in contenders.items()}, options.passes)
    for contender in contenders.values():
        contender.close()
    rates = {vps: [sentences / s for s in seconds[str(vps)]] for vps in options.vps}
    cores = harness.usable_cores()
    for vps, values in rates.items():
        peer = (f"vps={cores}", rates[cores]) if cores in rates and vps != cores else None
        case = f"vps={vps} cores={cores} batch={batch_size} hidden={options.hidden}"
        harness.report(BENCH, case, values, "sentences/s", peer)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Run every batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, metavar="FILE", help="Penn-bracketed trees, one a line")
    parser.add_argument("--batch-sizes", type=_numbers, default=[1, 8, 64], metavar="N,N,...")
    parser.add_argument("--vps", type=_numbers, metavar="N,N,...", help="default: from 1 to the number of cores + 2")
    parser.add_argument("--confine", type=int, metavar="CORES", help="keep the process on that many cores")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--limit", type=int, default=128, help="sentences in a pass, at most")
    parser.add_argument("--batches", type=int, default=64, help="batches in a pass, at most")
    parser.add_argument("--passes", type=int, default=7, help="timed passes of every number, interleaved")
    options = parser.parse_args()
    if options.confine:
        harness.confine(options.confine)
    harness.keep_freed_memory()
    options.vps = options.vps or list(range(1, harness.usable_cores() + 3))
    for batch_size in options.batch_sizes:
        run(batch_size, options)


if __name__ == "__main__":
    main()
