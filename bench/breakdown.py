"""Where the time of a training step goes: host and kernel side by side, as in figure 10 of the VPPS paper.

    python bench/breakdown.py --trees train.txt [--threads 1] [--batch-sizes 1,2,4,...,128] >> breakdown.jsonl
    python bench/plot.py breakdown.jsonl

The Tree-LSTM of treelstm.py, in microseconds per sentence. Host and kernel run at the same time, so each of the two
columns adds up to the step:

    host    building   recording the graph (the user's loop)
            planning   order, memory, index lists
            encoding   the script's instructions
            launching  weights that the model changed, a larger pool
            waiting    for the launch before to end
            other      checks, waking the virtual processors, the loop around it
    kernel  load       weights to where the chip keeps them; not on cpu
            forward, backward, gradients (of the weights), update
            waiting    at barriers, and for other virtual processors to begin or to end
            between    no launch is running

Kernel times are averages over the virtual processors. The handle that is looked into runs another kernel, one that
records; `peer_value` is the step of a plain handle on the same batches, so that `ratio` tells what looking costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import harness
from models import Node, VppsTreeLstm
from treelstm import LEARNING_RATE, WARM_UP, in_batches, initial_weights, train
from trees import read_trees

from vpps import Timeline

BENCH = "breakdown"
HOST = ("building", "planning", "encoding", "launching", "waiting", "other")
KERNEL = ("forward", "backward", "gradients", "update", "waiting", "between")
CONTENDERS = ("recorded", "plain")

Parts = dict[str, dict[str, float]]  # column -> part -> seconds of a pass


def recorded_pass(net: VppsTreeLstm, batches: Sequence[list[list[Node]]]) -> Parts:
    """Train on all batches, and take the time apart."""
    timelines: list[Timeline] = []
    building = 0.0
    begin = time.perf_counter()
    for batch in batches:
        start = time.perf_counter()
        graph, loss = net.graph(batch)
        building += time.perf_counter() - start
        net.handle.fb(graph, loss)
        if batch is not batches[0]:
            timelines.append(net.handle.timeline(wait=False))  # of the step before: this one goes on running
    issued = time.perf_counter()
    net.loss()
    end = time.perf_counter()
    timelines.append(net.handle.timeline())

    host = dict.fromkeys(HOST, 0.0)
    kernel = dict.fromkeys(KERNEL, 0.0)
    for timeline in timelines:
        for span in timeline.host:
            host[span.name] += span.seconds
        for phase, by_vp in timeline.seconds().items():
            if phase in kernel or by_vp.any():  # "load" is for where the chip holds weights
                kernel[phase] = kernel.get(phase, 0.0) + float(by_vp.mean())
    host["building"] = building
    host["waiting"] += end - issued
    host["other"] = end - begin - sum(host.values())
    kernel["between"] = end - begin - sum(timeline.duration for timeline in timelines)
    return {"host": host, "kernel": kernel}


def run(batch_size: int, options: argparse.Namespace) -> None:
    """Measure one batch size."""
    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.embedding, options.hidden)
    lr = LEARNING_RATE[options.optimizer]
    nets = {
        k: VppsTreeLstm(weights, options.optimizer, lr, options.threads, timeline=k == "recorded") for k in CONTENDERS
    }
    batches = in_batches([VppsTreeLstm.prepare(tree) for tree in trees], batch_size)
    passes: list[Parts] = []
    for net in nets.values():
        train(net, batches[: -(-WARM_UP // batch_size)])
    seconds = harness.interleave(
        {
            "recorded": lambda: passes.append(recorded_pass(nets["recorded"], batches)),
            "plain": partial(train, nets["plain"], batches),
        },
        options.passes,
    )
    for net in nets.values():
        net.close()

    def per_sentence(value: float) -> float:
        return value / len(trees) * 1e6

    totals = [per_sentence(sum(parts["host"].values())) for parts in passes]
    typical = passes[totals.index(statistics.median_low(totals))]  # one pass, so that its parts add up
    columns: dict[str, Any] = {
        column: {part: round(per_sentence(value), 2) for part, value in parts.items()}
        for column, parts in typical.items()
    }
    harness.report(
        BENCH,
        f"batch={batch_size} hidden={options.hidden} embedding={options.embedding} optimizer={options.optimizer} "
        f"threads={options.threads}{' confined' if options.confine else ''}",
        totals, "us/sentence", ("without recording", [per_sentence(s) for s in seconds["plain"]]),
        higher_is_better=False, **columns,
    )  # fmt: skip


def main() -> None:
    """Measure every batch size."""
    parser = harness.parser(
        __doc__, trees=..., batch_sizes=[1, 2, 4, 8, 16, 32, 64, 128], hidden=256, embedding=256, threads=1, limit=512,
        passes=3,
    )  # fmt: skip
    parser.add_argument("--optimizer", choices=list(LEARNING_RATE), default="sgd")
    parser.add_argument(
        "--confine",
        action="store_true",
        help="keep the process on as many cores as --threads; host and virtual processors then take turns, and each "
        "one's times contain the other's",
    )
    options = parser.parse_args()
    if options.confine:
        harness.confine(options.threads)
    harness.keep_freed_memory()
    for batch_size in options.batch_sizes:
        run(batch_size, options)


if __name__ == "__main__":
    main()
