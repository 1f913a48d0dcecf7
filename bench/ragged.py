"""torch.nn.LSTM compared with vpps.torch.LSTM: one layer, inputs as long as states.

    ragged   a training step; lengths are log-normal with mean 25 and at most 64, like those of sentences
             torch-padded        zeros behind short sequences; zero gradients mask their outputs
             torch-packed        on a PackedSequence, made outside the timing; vpps-packed is given the same
             vpps-packed-new     the same, as if no mini-batch had come before: the layer plans each one
             vpps-list           on a list of tensors
    equal    a training step; all lengths are 64
    resets   a training step; all lengths are 64, and the state is set to zero before 1 % of the frames
             torch-split         the pieces between resets as one PackedSequence, and one gather of the outputs
             torch-split-before  the same, but the pieces are found outside the timing
             torch-loop          torch.nn.LSTMCell at every step, and a mask that multiplies the state
             vpps                resets=
    rollout  one frame without gradients; the state is carried

A training step is forward, the sum of outputs times fixed numbers, and backward to weights and inputs. `vpps-handle` is
the same LSTM as a vpps cell, run by a handle: the difference to it is the layer's overhead. Prints a line of JSON per
pair of programs; see README.md. Exit status 1 if results differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import harness
import numpy as np

BENCH = "ragged"
PROGRAMS = {
    "ragged": ["torch-padded", "torch-packed", "vpps-packed", "vpps-packed-new", "vpps-list", "vpps-handle"],
    "equal": ["torch", "vpps", "vpps-handle"],
    "resets": ["torch-split", "torch-split-before", "torch-loop", "vpps", "vpps-handle"],
    "rollout": ["torch", "torch-cell", "vpps", "vpps-cell"],
}
LONGEST, MEAN, SPREAD = 64, 25, 0.5  # SPREAD: standard deviation of the logarithms of lengths
RESETS = 0.01


def mini_batches(case: str, batch_size: int, hidden: int, n: int) -> list[Any]:
    """Return different mini-batches, drawn from a fixed seed."""
    import torch
    from ragged_models import Data

    random, found = np.random.default_rng(1), []
    for _ in range(n):
        lengths = np.full(batch_size, LONGEST)
        if case == "ragged":
            drawn = random.lognormal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, batch_size)
            lengths = drawn.round().astype(np.int64).clip(1, LONGEST)
        resets = random.random(lengths.sum()) < (RESETS if case == "resets" else 0)
        resets[np.cumsum(lengths) - lengths] = True
        x, seeds = (random.standard_normal((len(resets), hidden)).astype(np.float32) for _ in range(2))
        found.append(Data(lengths.tolist(), *map(torch.from_numpy, (resets, x, seeds))))
    return found


def check(results: Mapping[str, list[Any]]) -> None:
    """Exit if a program differs from the first: outputs by 1e-5, or gradients by 1e-4 of their maximum."""
    (first, expected), *others = results.items()
    for name, found in others:
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            difference = float((a - b).abs().max() / (b.abs().max() if k else 1))
            if not difference <= (1e-4 if k else 1e-5):
                sys.exit(f"{'gradients' if k else 'outputs'} of {name} and {first} differ by {difference:.1e}")


def train(steps: list[Any], repeats: int) -> None:
    """Make all steps several times."""
    for _ in range(repeats):
        for step in steps:
            step.run()


def run(case: str, names: list[str], hidden: int, batch_size: int, options: argparse.Namespace) -> None:
    """Check, warm up, time and report the programs of one case."""
    import torch
    from ragged_models import way

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    weights = torch.nn.LSTM(hidden, hidden).state_dict()
    programs = {name: way(case, name, weights, options.threads) for name in names}
    works: dict[str, Callable[[int], Any]]
    if case == "rollout":
        n, frame = 1, torch.randn(batch_size, hidden)
        works = {name: program(frame) for name, program in programs.items()}
        check({name: [work(10)] for name, work in works.items()})
    else:
        n, data = options.mini_batches, mini_batches(case, batch_size, hidden, options.mini_batches)
        steps = {name: [program(batch) for batch in data] for name, program in programs.items()}
        for k in range(n):
            check({name: some[k].by_token(some[k].run()) for name, some in steps.items()})
        works = {name: partial(train, some) for name, some in steps.items()}
    slowest = max(harness.timed(partial(work, 1), 2)[-1] for work in works.values())  # the first call warms up
    repeats = max(1, round(options.seconds / slowest))
    seconds = harness.interleave({name: partial(work, repeats) for name, work in works.items()}, options.passes)
    report(f"{case} batch={batch_size} hidden={hidden} cores={options.cores} threads={options.threads}",
           {name: [1e3 * s / repeats / n for s in times] for name, times in seconds.items()}, options)  # fmt: skip


def report(case: str, ms: Mapping[str, list[float]], options: argparse.Namespace) -> None:
    """Print a line for every pair of a vpps program and a peer. The handle is a peer of the layers."""
    emit = partial(harness.report, BENCH, case, unit="ms/step", higher_is_better=False)
    path = ", MKL AVX-512" if options.mkl_avx512 else ""
    for name, peer in product(ms, ms):
        if name.startswith("vpps") and (peer.startswith("torch") or peer == "vpps-handle" != name):
            emit(values=ms[name], peer=(peer + (path if peer.startswith("torch") else ""), ms[peer]), program=name)


def main() -> None:
    """Run every case."""
    parser = harness.parser(
        __doc__, batch_sizes=None, threads=1, cores=None, passes=7, contenders=None, mkl_avx512=False
    )
    parser.add_argument("--cases", metavar="NAME,...", help=f"some of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--hidden", type=harness.numbers, default=[64, 128, 256], metavar="N,N,...")
    parser.add_argument("--mini-batches", type=int, default=4, help="different mini-batches, in turn (default: 4)")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a round of the slowest program (default: 0.1)")
    options = parser.parse_args()
    options.cores = options.cores or options.threads
    known = list(dict.fromkeys(name for names in PROGRAMS.values() for name in names))
    wanted = harness.choose(options.contenders, known, "contenders")
    cases = harness.choose(options.cases, list(PROGRAMS), "cases")
    if options.mkl_avx512:
        harness.mkl_avx512()
    harness.confine(options.cores)
    harness.keep_freed_memory()
    for case in cases:
        usual = [1, 8, 32] if case == "rollout" else [1, 8, 32, 256]
        names = [name for name in PROGRAMS[case] if name in wanted]
        for hidden, batch_size in product(options.hidden, options.batch_sizes or usual) if names else ():
            run(case, names, hidden, batch_size, options)


if __name__ == "__main__":
    main()
