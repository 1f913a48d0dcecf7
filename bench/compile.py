"""Seconds until a model's kernel is there: compiled, and from the cache, for the six programs of the VPPS paper.

    python bench/compile.py [--arch sm_90] [--programs TD-LSTM,Tree-LSTM] [--rounds 3] >> compile.jsonl

The sizes are the paper's (sections IV-A and IV-E): embeddings, hidden layers and the tagger's MLP of 256, but 512 in
TD-RNN and RvNN; characters of 64. Graphs are small ones made here: a kernel depends on cells and sizes alone.

Every round of a program is a new process with an empty cache. `value` is what the first `vpps.specialize` of the
process takes: planning, rendering, NVRTC's loading and compiling, and again wherever the compiler spilled
(`stepped_down` times). `cpu` is the processor time of that, which tells a busy machine from a slow compiler. `cached`
is the same call once more, `cached_cubin` what of that is the look into the cache.

The peer is table II of the paper: program compilation (NVRTC of CUDA 9.1, to PTX) and module load (PTX to binary) on a
Xeon E5-1650 v2 for a Titan V: another processor, another GPU. To load a cubin takes a GPU: gpu_micro/launch.py.
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
from itertools import pairwise

import harness
import numpy as np

import vpps
from vpps.nn import LSTM, NaryTreeLSTM

BENCH = "compile"
PAPER = {  # program: (compilation, module load), seconds
    "BiLSTM": (28.66, 14.65),
    "BiLSTMwChar": (28.27, 20.02),
    "TD-RNN": (73.85, 46.69),
    "TD-LSTM": (11.43, 7.40),
    "RvNN": (74.61, 47.78),
    "Tree-LSTM": (11.10, 7.29),
}
CLASSES, TAGS = 5, 9

Example = tuple[vpps.Model, tuple[vpps.Graph, vpps.Expression]]


def bilstm(with_characters: bool = False, size: int = 256) -> Example:
    """A tagger: an LSTM in each direction, an MLP and a label for every word; rare words by their characters."""
    model = vpps.Model(seed=1)
    words = model.lookup("words", (30, size))
    there, back = (LSTM(model, size, size, name=name) for name in ("there", "back"))
    W1, W2 = model.parameter("W1", (size, 2 * size)), model.parameter("W2", (TAGS, size))
    if with_characters:
        letters = model.lookup("letters", (30, 64))
        first, last = (LSTM(model, 64, size // 2, name=name) for name in ("letters_there", "letters_back"))

    @vpps.cell
    def tag_loss(left, right, tag):
        return vpps.cross_entropy(W2 @ vpps.tanh(W1 @ vpps.concat([left, right])), tag)

    graph = vpps.Graph()

    def word(k: int) -> vpps.Expression:
        if not with_characters or k % 3:
            return graph.lookup(words, k)
        xs = [graph.lookup(letters, letter) for letter in range(k, k + 4)]
        return vpps.concat([first.sequence(graph, xs)[-1], last.sequence(graph, xs[::-1])[-1]])

    xs = [word(k) for k in range(7)]
    states = zip(there.sequence(graph, xs), back.sequence(graph, xs[::-1])[::-1], strict=True)
    return model, (graph, vpps.sum([tag_loss(left, right, k % TAGS) for k, (left, right) in enumerate(states)]))


def rnn(over_a_tree: bool, size: int = 512) -> Example:
    """TD-RNN: neighbours are combined again and again until one is left. RvNN: along a tree, leaves are transformed."""
    model = vpps.Model(seed=1)
    words = model.lookup("words", (30, size))
    left, right, W1 = (model.parameter(name, (size, size)) for name in ("left", "right", "W1"))
    b, Wo = model.parameter("b", (size,)), model.parameter("Wo", (CLASSES, size))

    @vpps.cell
    def combine(x, y):
        return vpps.tanh(left @ x + right @ y + b)

    graph = vpps.Graph()
    xs = [graph.lookup(words, k) for k in range(6)]
    if over_a_tree:
        leaf_weights, leaf_bias = model.parameter("leaf", (size, size)), model.parameter("leaf_bias", (size,))

        @vpps.cell
        def leaf(x):
            return vpps.tanh(leaf_weights @ x + leaf_bias)

        xs = [leaf(x) for x in xs]
        while len(xs) > 1:
            xs = [combine(xs[0], xs[1]), *xs[2:]]
    while len(xs) > 1:
        xs = [combine(x, y) for x, y in pairwise(xs)]

    @vpps.cell
    def loss(h, label):
        return vpps.cross_entropy(Wo @ vpps.tanh(W1 @ h), label)

    return model, (graph, loss(xs[0], 3))


def lstm(over_a_tree: bool, size: int = 256) -> Example:
    """As `rnn` with a Tree-LSTM's cells: TD-LSTM with an MLP at the top, the Tree-LSTM with a loss at every node."""
    model = vpps.Model(seed=1)
    words = model.lookup("words", (30, size))
    net = NaryTreeLSTM(model, size, size, 2)
    Wo, bo = model.parameter("Wo", (CLASSES, size)), model.parameter("bo", (CLASSES,))
    graph = vpps.Graph()
    states = [net.leaf(graph.lookup(words, k)) for k in range(6)]
    if over_a_tree:

        @vpps.cell
        def node_loss(h, label):
            return vpps.cross_entropy(Wo @ h + bo, label)

        nodes = list(states)
        while len(states) > 1:
            (h, c), (other_h, other_c) = states[:2]
            states = [net.inner(h, other_h, c, other_c), *states[2:]]
            nodes.append(states[0])
        return model, (graph, vpps.sum([node_loss(h, 3) for h, _ in nodes]))
    W1 = model.parameter("W1", (size, size))

    @vpps.cell
    def top_loss(h, label):
        return vpps.cross_entropy(Wo @ vpps.tanh(W1 @ h) + bo, label)

    while len(states) > 1:
        states = [net.inner(h, k, c, d) for (h, c), (k, d) in pairwise(states)]
    return model, (graph, top_loss(states[0][0], 3))


PROGRAMS: dict[str, Callable[[], Example]] = {
    "BiLSTM": bilstm,
    "BiLSTMwChar": lambda: bilstm(with_characters=True),
    "TD-RNN": lambda: rnn(over_a_tree=False),
    "TD-LSTM": lambda: lstm(over_a_tree=False),
    "RvNN": lambda: rnn(over_a_tree=True),
    "Tree-LSTM": lambda: lstm(over_a_tree=True),
}


def once(program: str, arch: str) -> dict[str, float]:
    """Seconds and sizes of one program, with the cache as it is; first in a new process with an empty one."""
    from vpps.kernel.nvrtc import compile_cubin

    model, example = PROGRAMS[program]()
    start, cpu = time.perf_counter(), time.process_time()
    kernel = vpps.specialize(model, example, arch=arch)
    cold, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert kernel.resources is not None

    def seconds(f: Callable[[], object]) -> float:
        samples = []
        for _ in range(5):
            begin = time.perf_counter()
            f()
            samples.append(time.perf_counter() - begin)
        return statistics.median(samples)

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
    """As `once`, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--once", program, "--arch", arch]
        environment = os.environ | {"VPPS_CACHE_DIR": cache}
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90", help="to compile for (default: sm_90, planned for an H200)")
    parser.add_argument("--programs", type=lambda s: s.split(","), default=list(PROGRAMS), metavar="A,B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", choices=PROGRAMS, help=argparse.SUPPRESS)
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
