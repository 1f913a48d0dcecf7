"""A training run in which rank 1 of several fails, in one of the ways below.

    mpiexec -n 3 python -m tests.distributed.failing WAY [block]

`block` runs it inside `with world:`.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from contextlib import nullcontext, suppress
from unittest import mock

import numpy as np

import vpps
import vpps.distributed
from vpps.data import graphs_of_trees, synthetic_treebank
from vpps.session import gradient_sum

WHO = 1
TIMEOUT = 4.0
"""Timeout of waiting ranks in seconds; on a busy machine one may begin later than another."""
TOO_LONG = 600.0
"""Seconds after which a test has failed."""
STEPS = 6
LARGE = 40_000
"""Number of rows that exceeds the pool's limit."""


class Training:
    """Trains a matrix for some steps."""

    def __init__(self, world: vpps.distributed.World, way: str) -> None:
        self.world, self.way = world, way
        self.is_wrong = world.rank == WHO or way == "all"
        model = vpps.Model(seed=1)
        rows = 9 if self.is_wrong and way == "model" else 8
        self.W = model.parameter("W", (rows, 8))
        precision = "bf16" if self.is_wrong and way == "precision" else "float32"
        trees = graphs_of_trees(synthetic_treebank(n_train=2 * STEPS + 4, n_dev=1).train)
        self.batches = trees.batches(2, world=world)
        self.handle = vpps.Handle(model, target="cpu", vps=1, world=world, pool_limit=1 << 20, precision=precision)

    def step(self, rows: int = 1) -> None:
        next(self.batches)
        graph = vpps.Graph()
        states = [vpps.tanh(self.W @ graph.input(np.full(8, k))) for k in range(rows)]
        self.handle.fb(graph, vpps.sum([vpps.sum(state) for state in states]))

    def run(self) -> None:
        for number in range(STEPS):
            if self.is_wrong and number == 3:
                self.go_wrong()
            if self.way == "compares" and number == 3:
                self.handle.compare_weights()
            self.step()
        if self.is_wrong and self.way == "longer":
            self.step()
        self.handle.close()

    def go_wrong(self) -> None:
        match self.way:
            case "raises" | "all":
                raise ValueError("it cannot\ngo on")
            case "fb":
                self.handle.fb(vpps.Graph(), vpps.Graph().input(np.float32(0)))
            case "fb, caught":
                with suppress(vpps.CapacityError):
                    self.step(LARGE)
                time.sleep(TOO_LONG)
            case "adds up":
                mock.patch.object(gradient_sum, "sum_in_order", side_effect=MemoryError("no room for it")).start()
            case "exits":
                sys.exit(3)
            case "returns":
                sys.exit()
            case "vanishes":
                os._exit(3)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "assigns" | "compares":
                self.W.assign(np.ones(self.W.shape))
            case "skips":
                next(self.batches)
            case "gathers":
                self.world.gather("this")
            case "sleeps":
                print("asleep", flush=True)
                time.sleep(TOO_LONG)


def main(way: str, block: bool) -> None:
    if way == "before" and os.environ["PMI_RANK"] == str(WHO):
        raise ImportError("it cannot begin")
    if way in ("early", "late"):
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == WHO:
            if way == "early":
                raise ImportError("it cannot begin")
            time.sleep(TOO_LONG)
    if way == "ends":  # the first registered function runs last
        atexit.register(lambda: (time.sleep((TIMEOUT + 1) * world.rank), print("ends in its own time", flush=True)))
    timeout = TIMEOUT if way in ("stopped", "before", "early", "late", "ends") else TOO_LONG
    world = vpps.distributed.init(timeout=timeout, check_every=2)
    with world if block else nullcontext():
        Training(world, way).run()


if __name__ == "__main__":
    main(sys.argv[1], "block" in sys.argv)
