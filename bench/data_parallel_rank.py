"""One process of data_parallel.py: trains as a rank of its launcher, or on its own. Rank 0 prints the times.

Wall time is measured in passes without a stopwatch. Then a stopwatch splits the steps of further passes. Time counts
for the innermost of PARTS; the rest counts for the host: dividing batches, recording, planning.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import harness
from models import VppsBulkTreeLstm
from treelstm import LEARNING_RATE, initial_weights
from trees import Tree, read_trees

import vpps
from vpps.distributed import World
from vpps.distributed.transports import Messages, Transport
from vpps.session import data_parallel, gradient_sum
from vpps.session.data_parallel import DataParallel
from vpps.session.gradient_sum import GradientSum

PARTS: Sequence[tuple[Any, str, str, bool]] = (
    (DataParallel, "_sums_of", "kernel", False),
    (data_parallel, "found_gradients", "fetching", False),
    (GradientSum, "__call__", "packing", False),
    (World, "meet", "waiting", True),
    (World, "exchange", "sending", False),
    (gradient_sum, "sum_in_order", "adding", False),
    (DataParallel, "_apply", "updating", True),
)
"""Owner and name of a function, the name of its part, and True if the part includes all that the function calls.

kernel: forward and gradients; fetching: rows of tables out of the pool; packing: into buffers and back; waiting: until
all ranks are there; updating: planning and running the update.
"""

HOST = "host"


class Stopwatch:
    """Adds up the time that each of `PARTS` takes.

    Attributes:
        seconds: seconds of every part since `start`.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running, self._since = [HOST], 0.0

    def start(self) -> None:
        """Start counting from zero."""
        self.seconds.clear()
        self._since = time.perf_counter()

    def watch(self) -> None:
        """Replace the functions by timed ones. From now on, all work is serial: work that would overlap with the
        program is done immediately."""
        World.aside = _at_once  # type: ignore[method-assign, assignment]
        for owner, name, part, is_whole in PARTS:
            setattr(owner, name, self._watched(getattr(owner, name), part, is_whole))

    def turn(self) -> None:
        """Add the time since the last turn to the running part."""
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def _watched(self, function: Callable[..., Any], part: str, is_whole: bool) -> Callable[..., Any]:
        wholes = {of for _, _, of, whole in PARTS if whole}

        @functools.wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            self.turn()
            self._running.append(self._running[-1] if self._running[-1] in wholes else part)
            try:
                return function(*arguments, **named)
            finally:
                self.turn()
                self._running.pop()

        return watched


def _at_once(world: World, work: Callable[[], Any]) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(work())
    return done


class Line:
    """Counts the bytes that a transport sends, and delays their arrival."""

    def __init__(self, transport: Transport, delay: float) -> None:
        self.bytes = self.rounds = 0
        self._exchange, self._delay = transport.exchange, delay
        transport.exchange = self.exchange  # type: ignore[method-assign]

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        """Exchange as the transport does. One delay per exchange for any number of ranks: messages overlap."""
        self._exchange(sends, receives, timeout)
        self.bytes += sum(array.nbytes for _, array in sends)
        self.rounds += 1
        until = time.perf_counter() + self._delay
        while time.perf_counter() < until:
            pass


def measure(trees: list[Tree], words: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """Train and return the measurements; None on all ranks but 0."""
    with vpps.distributed.init() as world:
        weights = initial_weights(words, options.embedding, options.hidden)
        net = VppsBulkTreeLstm(weights, options.optimizer, LEARNING_RATE[options.optimizer], options.vps, world=world)
        line = Line(world._transport, options.delay * 1e-6) if world._transport is not None else None
        for tree in trees:
            net.prepare(tree)

        def train(epoch: int) -> None:
            for batch in net.trees.set.batches(options.batch_size, seed=1, epoch=epoch, world=world):
                net.run(net.joined(batch))
            net.loss()

        train(0)
        world.barrier()
        seconds = harness.timed(lambda: train(1), options.passes)
        loss = net.loss()
        watch = Stopwatch()
        watch.watch()
        world.barrier()
        sent = (line.bytes, line.rounds) if line is not None else (0, 0)
        watch.start()
        for _ in range(options.passes):
            train(1)
        watch.turn()
        parts = world.gather(dict(watch.seconds))
        steps = -(-len(trees) // options.batch_size)
        of_all = steps * options.passes
        net.close()
        return {
            "size": world.size,
            "seconds": sum(seconds) / of_all,
            "trees_per_s": len(trees) * options.passes / sum(seconds),
            "parts": {part: sum(p.get(part, 0.0) for p in parts) / len(parts) / of_all for part in [HOST, *_names()]},
            "bytes": 0 if line is None else (line.bytes - sent[0]) / of_all,
            "exchanges": 0 if line is None else (line.rounds - sent[1]) / of_all,
            "loss": loss,
        } if world.is_first else None  # fmt: skip


def _names() -> list[str]:
    return [part for _, _, part, _ in PARTS]


def main() -> None:
    """Measure a single case."""
    parser = harness.parser(__doc__, trees=..., batch_size=64, hidden=256, embedding=256, vps=1, limit=1024, passes=2)
    parser.add_argument("--optimizer", choices=list(LEARNING_RATE), default="sgd")
    parser.add_argument("--delay", type=float, default=0.0, help="additional microseconds of every exchange")
    options = parser.parse_args()
    harness.keep_freed_memory()
    found = measure(*read_trees(options.trees, options.limit), options)
    if found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
