"""Measures the seconds to get a model's kernel, compiled and from the cache, for the six programs of the VPPS paper.

    python bench/compile.py [--arch sm_90] [--programs TD-LSTM,Tree-LSTM] [--rounds 3] >> compile.jsonl

The programs are from vpps.zoo, in the paper's sizes (workload_tasks.py), over one synthetic example: a kernel depends
only on cells and sizes.

Every round of a program is a new process whose cache holds only the planner. `value` is the time of the process's first
`vpps.specialize`: planning, rendering, loading NVRTC, compiling, and compiling again after each spill (`stepped_down`
times). `cpu` is the processor time of that call, which tells a busy machine from a slow compiler. `cached` is the time
of a second call; `cached_cubin` is the part of it spent looking into the cache.

The peer is table II of the paper: program compilation (NVRTC of CUDA 9.1, to PTX) and module load (PTX to binary) on a
Xeon E5-1650 v2 for a Titan V. Both the processor and the GPU differ. Loading a cubin takes a GPU (results/README.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import harness
import numpy as np
from workload_tasks import make_task

import vpps

BENCH = "compile"
PAPER = {  # program: (compilation, module load), seconds
    "BiLSTM": (28.66, 14.65),
    "BiLSTMwChar": (28.27, 20.02),
    "TD-RNN": (73.85, 46.69),
    "TD-LSTM": (11.43, 7.40),
    "RvNN": (74.61, 47.78),
    "Tree-LSTM": (11.10, 7.29),
}
PROGRAMS = {  # in vpps.zoo
    "BiLSTM": "bilstm-tagger", "BiLSTMwChar": "bilstm-char-tagger", "TD-RNN": "td-rnn", "TD-LSTM": "td-lstm",
    "RvNN": "rvnn", "Tree-LSTM": "tree-lstm",
}  # fmt: skip


def example_of(program: str) -> tuple[vpps.Model, tuple[vpps.Graph, vpps.Expression]]:
    """Return the model of a program, and a small graph of it."""
    task = make_task(PROGRAMS[program], None, None, None, limit=300)  # some words are frequent, some rare
    graph = vpps.Graph()
    return task.model, (graph, task.loss(graph, task.train[:4]))


def once(program: str, arch: str) -> dict[str, float]:
    """Return seconds and sizes of one program, first measured in a new process with an empty cache."""
    from vpps.kernel.nvrtc import compile_cubin

    model, example = example_of(program)
    start, cpu = time.perf_counter(), time.process_time()
    kernel = vpps.specialize(model, example, arch=arch)
    cold, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert kernel.resources is not None

    def seconds(f: Callable[[], object]) -> float:
        return statistics.median(harness.timed(f, 5))

    return {
        "cold": cold,
        "cpu": cpu,
        "nvrtc": kernel.resources.compile_seconds,
        "cached": seconds(lambda: vpps.specialize(model, example, arch=arch)),
        "cached_cubin": seconds(lambda: compile_cubin(kernel.source, arch)),
        "stepped_down": kernel.stepped_down,
        "registers": kernel.resources.registers,
        "code_kib": kernel.resources.code_bytes // 1024,
    }


def in_new_process(program: str, arch: str) -> dict[str, float]:
    """Run `once` in a new process with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--once", program, "--arch", arch]
        environment = os.environ | {"VPPS_CACHE_DIR": cache}
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print lines."""
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument("--arch", default="sm_90", help="target GPU (default: sm_90, planned for an H200)")
    parser.add_argument("--programs", type=harness.words, default=list(PAPER), metavar="A,B")
    parser.add_argument("--once", choices=PAPER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"unknown programs: {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    if options.once:
        print(json.dumps(once(options.once, options.arch)))
        return
    rounds = [{name: in_new_process(name, options.arch) for name in options.programs} for _ in range(options.rounds)]
    for name in options.programs:
        runs = [found[name] for found in rounds]
        compiling, loading = PAPER[name]
        extra = {key: float(np.median([run[key] for run in runs])) for key in runs[0] if key != "cold"}
        harness.report(
            BENCH,
            f"program={name} arch={options.arch}",
            [run["cold"] for run in runs],
            "s",
            ("VPPS paper, table II", [compiling + loading] * len(runs)),
            higher_is_better=False,
            peer_compile=compiling,
            peer_load=loading,
            **{key: float(f"{value:.4g}") for key, value in extra.items()},
        )


if __name__ == "__main__":
    main()
