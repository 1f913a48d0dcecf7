"""Moving data beside computing with it: seconds in memory operations, in the form of table 3 of the Cavs paper.

    python bench/movement.py --trees train.txt >> movement.jsonl

The Tree-LSTM of treelstm.py, training and inference, seconds of a pass over the trees, one line per program and batch
size:

    memory        gathering, copying, filling: nothing is computed, but for sums of gradients that are gathered
    computation   all other operations, the update included
    host          the rest of the step: graphs, plans, losses read back; DyNet's search for batches, clearing of its
                  gradients, and adding those of parameters

`value` is `memory`; `peer_value` is that of DyNet, `computation_ratio` the same for computation.

For vpps the kernel records every instruction (`Handle(timeline=True)`) and MEMORY says which belong where, averaged
over the virtual processors; waiting at barriers counts as neither. Most of its gathering happens inside instructions
that compute: products read their operands through index lists. For DyNet `peers/dynet_profile.py` says what can be
told apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import harness
import numpy as np
from models import PROGRAMS
from peers.dynet_profile import COPIES, MOVING, DynetProfile
from peers.dynet_treelstm import DynetTreeLstm, Pools, import_dynet
from treelstm import LEARNING_RATE, check_losses, in_batches, initial_weights, most_nodes
from trees import read_trees

from vpps import Timeline
from vpps.script.instructions import TABLE

BENCH = "movement"
CONTENDERS = ("vpps-bulk", "vpps", "dynet")
MEMORY = ("gather_sum", "copy", "zero", "input", "transpose", "lookup")  # and their gradients
MODES = ("training", "inference")

_NAMES = np.array([*(i.name for i in TABLE), "generated"])  # instructions made for a cell follow the table
_IS_MEMORY = np.isin([name.partition(".")[0] for name in _NAMES], MEMORY)


class Parts(NamedTuple):
    """Seconds of a pass."""

    memory: float
    computation: float
    host: float


class MeasuredVpps:
    """A program of models.py with a kernel that records."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.prepare, self.step, self.loss, self.close = program.prepare, program.step, program.loss, program.close

    def take_apart(self, batch: Sequence[Any], training: bool) -> Parts:
        """One step or one evaluation."""
        handle = self.program.handle
        begin = time.perf_counter()
        graph, loss = self.program.graph(batch)
        if training:
            handle.fb(graph, loss)
            handle.sync_get_latest_loss()
        else:
            handle.forward(graph, [loss])
        total = time.perf_counter() - begin
        timeline = handle.timeline()
        memory, computation = kernel_parts(timeline)
        return Parts(memory, computation, total - timeline.duration)


def kernel_parts(timeline: Timeline) -> tuple[float, float]:
    """Seconds in memory operations and in computation, mean over the virtual processors; barriers are neither."""
    if any(timeline.lost):
        sys.exit(f"{BENCH}: the timeline lost records, the figures would mean nothing: {timeline.lost}")
    opcodes = np.minimum(timeline.plan.script[timeline.records["position"]] & 0xFFFF, len(TABLE))
    took = (timeline.records["end"] - timeline.records["start"]) * 1e-9
    is_memory = _IS_MEMORY[opcodes]
    is_barrier = np.isin(_NAMES[opcodes], ("signal", "wait", "barrier"))
    n = timeline.n_vps
    return float(took[is_memory].sum() / n), float(took[~is_memory & ~is_barrier].sum() / n)


class MeasuredDynet:
    """The program of peers/dynet_treelstm.py in a DyNet that profiles."""

    def __init__(self, program: DynetTreeLstm, profile: DynetProfile) -> None:
        self.program, self.profile = program, profile
        self.prepare, self.step, self.loss, self.close = program.prepare, program.step, program.loss, program.close

    def take_apart(self, batch: Sequence[Any], training: bool) -> Parts:
        """One step or one evaluation."""
        self.profile.take()
        begin = time.perf_counter()
        loss = self.program.graph(batch)
        loss.scalar_value()
        update = 0.0
        if training:
            loss.backward()
            start = time.perf_counter()
            self.program.trainer.update()
            update = time.perf_counter() - start
        total = time.perf_counter() - begin
        found = self.profile.take()
        copies = sum(found.pop(name) for name in COPIES)
        executed = sum(found.values())
        memory = copies + sum(seconds for name, seconds in found.items() if name.split()[1] in MOVING)
        return Parts(memory, executed - memory + update, total - executed - update)


def run(batch_size: int, options: argparse.Namespace) -> None:
    """Measure one batch size."""
    trees, words = read_trees(options.trees, options.limit)
    weights = initial_weights(words, options.hidden, options.hidden)
    contenders: dict[str, Any] = {}
    for name in options.contenders:
        lr = LEARNING_RATE["sgd"]
        if name == "dynet":
            program = DynetTreeLstm(options.dynet, weights, "sgd", lr, whole=batch_size <= 2)
            contenders[name] = MeasuredDynet(program, options.profile)
        else:
            contenders[name] = MeasuredVpps(PROGRAMS[name](weights, "sgd", lr, options.threads, timeline=True))
    batches = {name: in_batches([c.prepare(tree) for tree in trees], batch_size) for name, c in contenders.items()}
    check_losses(contenders, batches)
    passes: dict[tuple[str, str], list[Parts]] = {(name, mode): [] for name in contenders for mode in MODES}

    def take_apart(name: str, mode: str) -> None:
        parts = [contenders[name].take_apart(batch, mode == "training") for batch in batches[name]]
        passes[name, mode].append(Parts(*map(sum, zip(*parts, strict=True))))

    harness.interleave({f"{n}, {m}": partial(take_apart, n, m) for n, m in passes}, options.passes + 1)
    for contender in contenders.values():
        contender.close()
    for (name, mode), measured in passes.items():
        if name == "dynet":
            continue
        case = f"{mode} batch={batch_size} hidden={options.hidden} sentences={len(trees)} threads={options.threads}"
        own, extra = columns(measured), {}
        peer = None
        if "dynet" in contenders:
            theirs = columns(passes["dynet", mode])
            peer = "DyNet " + ("agenda" if options.dynet_autobatch == 1 else "depth"), theirs["memory"]
            extra = {f"peer_{part}": harness.median(values) for part, values in theirs.items() if part != "memory"}
            extra["computation_ratio"] = harness.median_ratio(theirs["computation"], own["computation"])
        harness.report(
            BENCH, case, own["memory"], "s", peer, higher_is_better=False, program=name,
            **{part: harness.median(values) for part, values in own.items()}, **extra,
        )  # fmt: skip


def columns(passes: list[Parts]) -> dict[str, list[float]]:
    """Values per round by part; the first pass, in which memory is touched for the first time, does not count."""
    return {part: [getattr(p, part) for p in passes[1:]] for part in Parts._fields}


def main() -> None:
    """Measure every batch size."""
    parser = harness.parser(
        __doc__, trees=..., batch_sizes=[16, 32, 64, 128, 256], hidden=256, limit=512, passes=5, threads=1, cores=None,
        contenders=None, dynet_autobatch=1,
    )  # fmt: skip
    options = parser.parse_args()
    options.contenders = harness.choose_contenders(options.contenders, CONTENDERS)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    harness.confine(options.cores or options.threads)
    harness.keep_freed_memory()
    if "dynet" in options.contenders:
        trees, words = read_trees(options.trees, options.limit)
        weights = initial_weights(words, options.hidden, options.hidden)
        nodes = most_nodes(trees, max(options.batch_sizes))
        options.profile = DynetProfile()
        pools = Pools.for_batches(nodes, weights, "sgd", models=len(options.batch_sizes))
        options.dynet = import_dynet(pools, options.dynet_autobatch, profiling=1)
        options.profile.attach(options.dynet)
    for batch_size in options.batch_sizes:
        run(batch_size, options)


if __name__ == "__main__":
    main()
