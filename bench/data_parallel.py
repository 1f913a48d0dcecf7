"""Data-parallel training: ranks on this machine's cores compared with one process, and ranks on simulated hosts.

    python bench/data_parallel.py [--ranks 2 --vps 1] > bench/results/cpu/DATE-data_parallel.jsonl
    python bench/data_parallel.py --links 1,10,25 --delay 50 [--torch PYTHON] >> ...   (root; Linux)
    python bench/data_parallel.py --predict FILE.jsonl

The model is the binary Tree-LSTM of treelstm.py, recorded in bulk. The ranks, each with some virtual processors, share
a mini-batch. The peer is one process with as many virtual processors in total. Each round starts both once. `parts`
lists the parts of a rank's step (data_parallel_rank.py) in seconds, as means over ranks. `exchange` is the share of
parts that a single process does not have. `sent` is bytes per rank and step.

--links: the ranks run in their own network namespaces, joined by a pair of virtual Ethernet devices. A token bucket
limits their rate (Gbit/s). The peer is the same number of ranks on one host. Every exchange ends `--delay` microseconds
late. For the last rank to arrive, that is more than a link adds.

--predict: fits a cost model to lines of --links and predicts more hosts (data_parallel_cost.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import data_parallel_cost
import harness
from datasets import name_of, trees_file
from treelstm import TOLERANCE

BENCH = "data_parallel"
RANK = Path(__file__).with_name("data_parallel_rank.py")
PARTS_ALONE = ("host", "kernel")
"""Parts of a step that a single process has too."""


class Case(NamedTuple):
    """Sizes of a model and its mini-batch."""

    hidden: int
    embedding: int
    batch_size: int

    def __str__(self) -> str:
        return f"batch={self.batch_size} hidden={self.hidden} embedding={self.embedding}"


MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
"""MPICH's, from this Python's package."""

CASES = (Case(256, 256, 64), Case(256, 256, 16), Case(64, 64, 64), Case(64, 1024, 64))
"""A large batch, a small batch, a small model, and a model that is mostly its table."""


Command = Sequence[str]
Result = dict[str, Any]


def measured(commands: Sequence[Command], environments: Sequence[Mapping[str, str]] = ({},)) -> Result:
    """Return the result that rank 0 prints, for one process or for several that form a world."""
    started = [
        subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
        for command, environment in zip(commands, environments, strict=True)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"ended with status {[process.returncode for process in started]}: {' '.join(commands[0])}")
    (line,) = "".join(printed).splitlines()
    found: Result = json.loads(line)
    return found


def rank_command(case: Case, options: argparse.Namespace, vps: int, python: str = sys.executable) -> list[str]:
    """Return the command that runs one case in a process."""
    return [
        python, str(RANK), "--trees", str(options.trees), "--limit", str(options.limit),
        "--passes", str(options.passes), "--hidden", str(case.hidden), "--embedding", str(case.embedding),
        "--batch-size", str(case.batch_size), "--vps", str(vps),
    ]  # fmt: skip


def ranks(case: Case, options: argparse.Namespace, *more: str) -> Result:
    """Measure a world on this machine."""
    own = rank_command(case, options, options.vps)
    return measured([[MPIEXEC, *more, "-n", str(options.ranks), *own]])


# ---- between simulated hosts

DEVICE = "vpps0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
BURST = 20e-6, 16_000  # the token bucket's size, which is sent at once without limit: seconds, and minimum bytes


@contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Yield the names of two network namespaces that see only each other."""
    names = [f"vpps-bench-{os.getpid()}-{k}" for k in range(2)]
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", DEVICE, "netns", names[0], "type", "veth", "peer", "name", DEVICE, "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            _ip("-n", name, "link", "set", DEVICE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def limit_rate(hosts: Sequence[str], gbit: float) -> None:
    """Limit the rate at which each host sends from now on."""
    seconds, least = BURST
    burst = f"{max(least, int(seconds * gbit * 1e9 / 8))}b"
    bucket = ["tbf", "rate", f"{gbit}gbit", "burst", burst, "latency", "20ms"]
    for name in hosts:
        subprocess.run(["tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", *bucket], check=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def between(hosts: Sequence[str], transport: str, case: Case, options: argparse.Namespace) -> Result:
    """Measure a world with a rank on each host."""
    python = options.torch if transport == "gloo" else sys.executable
    own = [*rank_command(case, options, options.vps, python), "--delay", str(options.delay)]
    if transport == "gloo":
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": DEVICE}
        commands = [["ip", "netns", "exec", name, *own] for name in hosts]
        return measured(commands, [shared | {"RANK": str(k)} for k in range(2)])
    # Unless told otherwise, MPICH takes both hosts for this machine and uses its shared memory.
    over_tcp = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": DEVICE, "FI_PROVIDER": "tcp"}
    launcher = ["-launcher", "ssh", "-launcher-exec", str(Path(__file__).with_name("data_parallel_host"))]
    mpiexec = [MPIEXEC, "-hosts", ",".join(ADDRESSES), *launcher, "-n", "2", *own]
    return measured([["ip", "netns", "exec", hosts[0], *mpiexec]], [over_tcp | {"VPPS_BENCH_HOSTS": ",".join(hosts)}])


# ---- lines


def emit(case: str, found: Sequence[Result], peer: tuple[str, Sequence[Result]], options: argparse.Namespace) -> None:
    """Print a line for some rounds; exits if losses differ."""
    name, others = peer
    for one, other in zip(found, others, strict=True):
        if not abs(one["loss"] - other["loss"]) <= TOLERANCE * abs(other["loss"]):
            raise SystemExit(f"{case}: losses differ, the figures would mean nothing: {one['loss']}, {other['loss']}")
    parts = {part: harness.median([one["parts"][part] for one in found]) for part in found[0]["parts"]}
    harness.report(
        BENCH, case, [one["trees_per_s"] for one in found], "sentences/s",
        (name, [other["trees_per_s"] for other in others]),
        step=harness.median([one["seconds"] for one in found]),
        peer_step=harness.median([other["seconds"] for other in others]),
        exchange=harness.median(
            [1 - sum(one["parts"][p] for p in PARTS_ALONE) / sum(one["parts"].values()) for one in found]
        ),
        parts=parts, sent=found[0]["bytes"], exchanges=found[0]["exchanges"], loss=found[0]["loss"],
        data=name_of(options.trees),
    )  # fmt: skip


def scaling(case: Case, options: argparse.Namespace) -> None:
    """Measure ranks and one process."""
    together = options.ranks * options.vps
    found: dict[str, list[Result]] = {"ranks": [], "one": []}
    harness.interleave(
        {
            "ranks": lambda: found["ranks"].append(ranks(case, options)),
            "one": lambda: found["one"].append(measured([rank_command(case, options, together)])),
        },
        options.rounds,
    )
    shown = f"{case} ranks={options.ranks} vps={options.vps}"
    emit(shown, found["ranks"], (f"one process, {together} virtual processors", found["one"]), options)


def links(case: Case, options: argparse.Namespace) -> None:
    """Measure two hosts, and two ranks on one host."""
    transports = ["mpi", *(["gloo"] if options.torch else [])]
    with two_hosts() as hosts:
        for gbit in options.links:
            limit_rate(hosts, gbit)
            found: dict[str, list[Result]] = {name: [] for name in ("here", *transports)}

            def run(name: str, of: dict[str, list[Result]] = found) -> None:
                of[name].append(ranks(case, options) if name == "here" else between(hosts, name, case, options))

            harness.interleave({name: partial(run, name) for name in found}, options.rounds)
            for transport in transports:
                link = f"link={gbit:g}Gbit/s delay={options.delay:g}us transport={transport}"
                shown = f"{case} hosts=2 vps={options.vps} {link}"
                emit(shown, found[transport], (f"{options.ranks} ranks on one host", found["here"]), options)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = harness.parser(__doc__, trees=None, limit=1024, passes=2, rounds=5, vps=1)
    parser.add_argument("--ranks", type=int, default=2, help="(default: 2)")
    parser.add_argument("--cases", type=harness.numbers, default=range(len(CASES)), help="0,2 (default: all)")
    parser.add_argument("--links", type=lambda text: [float(part) for part in text.split(",")], metavar="GBIT,...")
    parser.add_argument("--delay", type=float, default=50.0, help="delay of a link, microseconds (default: 50)")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch: gloo beside MPICH")
    parser.add_argument("--predict", type=Path, metavar="FILE.jsonl", help="lines of this bench")
    options = parser.parse_args()
    options.trees = trees_file(options.trees)
    return options


def main() -> None:
    """Run measurements, or predict."""
    options = parse_options()
    if options.predict:
        data_parallel_cost.report(options.predict)
        return
    harness.confine(options.ranks * options.vps)
    for k in options.cases:
        (links if options.links else scaling)(CASES[k], options)


if __name__ == "__main__":
    main()
