"""Peak memory of training a Tree-LSTM: vpps beside PyTorch and DyNet, each alone in a process of its own.

    python bench/memory.py --trees train.txt [--batch-size 128] [--batches 4] [--contenders vpps-bulk,manual]

Model, weights and mini-batches are those of treelstm.py. The value is the peak resident set size of the process
(`ru_maxrss`), interpreter and libraries included, because that is what a machine must have. `imported` is the peak
before the first mini-batch, with libraries, data and model loaded. `vpps-bulk` has the trees as arrays,
`vpps-recompute` computes cheap values again in backward instead of keeping them, `vpps` records a call per node.
DyNet's pools, which count as imported, are no larger than its largest mini-batch needs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import harness  # and nothing larger: on Linux a child's peak begins with that of the process that starts it

BENCH = "memory"
CONTENDERS = ("vpps-bulk", "vpps-recompute", "vpps", "autograd", "manual", "dynet")
TOLERANCE = 1e-3  # of the last loss, relative


def peak_megabytes() -> float:
    """Peak resident set size of this process so far, in MB of 10^6 bytes."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def train_alone(name: str, options: argparse.Namespace) -> None:
    """What a child does: train on the first mini-batches, print peaks and the last loss as JSON."""
    import treelstm

    options.batch_sizes = [options.batch_size]
    trees, words = treelstm.read_trees(options.trees, options.batches * options.batch_size)
    options.nodes = treelstm.most_nodes(trees, options.batch_size)
    weights = treelstm.initial_weights(words, options.embedding, options.hidden)
    contender = treelstm.make_contender(name, weights, options)
    del weights
    prepared = [contender.prepare(tree) for tree in trees]
    imported = peak_megabytes()
    treelstm.train(contender, treelstm.in_batches(prepared, options.batch_size))
    result = {"peak": peak_megabytes(), "imported": imported, "loss": contender.loss(), "sentences": len(trees)}
    contender.close()
    print(json.dumps(result))


def measure(name: str) -> dict[str, float]:
    """Peaks of one contender, from a child process that runs this program's command line."""
    command = [sys.executable, *sys.argv, "--alone", name]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode:
        sys.exit(f"{BENCH}: {name} failed, see above")
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])  # DyNet prints a greeting first
    return found


def main() -> None:
    """Read the command line; measure, or be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, metavar="FILE", help="Penn-bracketed trees, one a line")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--embedding", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--rounds", type=int, default=3, help="processes per contender")
    parser.add_argument("--contenders", metavar="NAME,...", help=f"of {', '.join(CONTENDERS)}")
    parser.add_argument("--dynet-autobatch", type=int, choices=[1, 2], default=1, help="1: agenda, 2: depth")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # what a child measures
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if options.alone:
        train_alone(options.alone, options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Measure every contender, print one line per peer."""
    names = harness.choose_contenders(options.contenders, CONTENDERS)
    found = {name: [measure(name) for _ in range(options.rounds)] for name in names}
    losses = {name: runs[0]["loss"] for name, runs in found.items()}
    if not max(losses.values()) - min(losses.values()) <= TOLERANCE * abs(min(losses.values())):
        sys.exit(f"{BENCH}: the losses differ, the figures would mean nothing: {losses}")
    peaks = {name: [run["peak"] for run in runs] for name, runs in found.items()}
    case = (
        f"batch={options.batch_size} hidden={options.hidden} embedding={options.embedding} "
        f"optimizer={options.optimizer} threads={options.threads} batches={options.batches}"
    )
    extra = {name: {"imported": round(runs[0]["imported"], 1), "loss": runs[0]["loss"]} for name, runs in found.items()}
    programs = [name for name in found if name.startswith("vpps")]
    for name in found:
        harness.report(BENCH, case, peaks[name], "MB", program=name, **extra[name])
        for program in programs if name not in programs else []:
            peer = {f"peer_{key}": value for key, value in extra[name].items()}
            harness.report(
                BENCH, case, peaks[program], "MB", (name, peaks[name]), higher_is_better=False, program=program,
                **extra[program], **peer,
            )  # fmt: skip


if __name__ == "__main__":
    main()
