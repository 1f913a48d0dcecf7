"""Measures the host's cost of recording: microseconds per call, for cell calls and for bare ops.

    python bench/recording.py [--trees train.txt] [--batch 64] [--rounds 30] >> recording.jsonl
    PYTHONPATH=other/checkout python bench/recording.py    # the same figures for another version of vpps

Graphs are recorded, never planned nor run. The cases:

    cells    a Tree-LSTM whose leaf and inner cells take word and label and return (h, c, loss); then vpps.sum(losses)
    lists    a child-sum Tree-LSTM: the same with lists of children
    ops      bare ops on vectors, with operators and functions, with and without parameters
    lookups  graph.lookup and graph.zeros
    words    the trees of `cells` without their losses, in one call (graph.map); leaves look their words up
    vectors  like `words`, but leaves receive their words' vectors, which are rows of the graph
    sum      only vpps.sum of the losses, per loss

Each case is recorded twice: in Python, and then by the compiled recorder, if a handle can enable it (`recorder` names
the recorder used). Lines also have `ms`, for the whole batch; `best`, for the quickest round; and `arrays_ms`, the time
to convert the recording into arrays, the planner's first step. Figures include the user's loop.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import harness
import numpy as np
from datasets import name_of, trees_file
from models import Node, VppsTreeLstm, tree_states
from trees import read_trees

import vpps
from vpps.data import GraphBatch, GraphSet
from vpps.record.topology import Topology

BENCH = "recording"
HIDDEN = 8  # any size works: nothing is computed
CLASSES = 5

Batch = Sequence[list[Node]]
Recorded = tuple[vpps.Graph, int]  # and the number of calls


def cells_of_trees(model: vpps.Model, n_words: int) -> Callable[[Batch], Recorded]:
    """Return a recorder of trees with two cells, as a user would write it."""
    words = model.lookup("words", (n_words, HIDDEN))
    W, U, Wo = (model.parameter(n, s) for n, s in (("W", (24, HIDDEN)), ("U", (40, 16)), ("Wo", (CLASSES, HIDDEN))))

    @vpps.cell
    def leaf(word, label):
        i, o, u = vpps.split(W @ vpps.lookup(words, word), 3)
        c = vpps.sigmoid(i) * vpps.tanh(u)
        h = vpps.sigmoid(o) * vpps.tanh(c)
        return h, c, vpps.cross_entropy(Wo @ h, label)

    @vpps.cell
    def inner(h1, c1, h2, c2, label):
        i, f1, f2, o, u = vpps.split(U @ vpps.concat([h1, h2]), 5)
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sigmoid(f1) * c1 + vpps.sigmoid(f2) * c2
        h = vpps.sigmoid(o) * vpps.tanh(c)
        return h, c, vpps.cross_entropy(Wo @ h, label)

    def record(batch: Batch) -> Recorded:
        graph = vpps.Graph()
        losses = []
        for tree in batch:
            states: list[Any] = []
            for word, left, right, label in tree:
                if left < 0:
                    h, c, loss = graph.call(leaf, word, label)
                else:
                    h, c, loss = inner(*states[left], *states[right], label)
                states.append((h, c))
                losses.append(loss)
        vpps.sum(losses)
        return graph, len(losses)

    return record


def cells_with_lists(model: vpps.Model, n_words: int) -> Callable[[Batch], Recorded]:
    """Return a recorder of trees with one cell that takes its children as lists."""
    words = model.lookup("child words", (n_words, HIDDEN))
    V, Uf = model.parameter("V", (24, HIDDEN)), model.parameter("Uf", (HIDDEN, HIDDEN))

    @vpps.cell
    def node(x, hs, cs):
        i, o, u = vpps.split(V @ (x + vpps.sum(hs)), 3)
        c = vpps.sigmoid(i) * vpps.tanh(u) + vpps.sum(vpps.each(lambda h, c: vpps.sigmoid(Uf @ h) * c, hs, cs))
        return vpps.sigmoid(o) * vpps.tanh(c), c

    def record(batch: Batch) -> Recorded:
        graph = vpps.Graph()
        n = 0
        for tree in batch:
            hs: list[Any] = []
            cs: list[Any] = []
            for word, left, right, _ in tree:
                below = () if left < 0 else (left, right)
                h, c = node(graph.lookup(words, word % n_words), [hs[k] for k in below], [cs[k] for k in below])
                hs.append(h)
                cs.append(c)
            n += len(tree)
        return graph, n

    return record


def bare_ops(model: vpps.Model, n_words: int) -> Callable[[Batch], Recorded]:
    """Return a recorder of a recurrence with twelve bare ops per step."""
    p, M = model.parameter("p", (HIDDEN,)), model.parameter("M", (HIDDEN, HIDDEN))

    def record(batch: Batch) -> Recorded:
        graph = vpps.Graph()
        x = h = graph.zeros(HIDDEN)
        for _ in range(sum(map(len, batch)) // 12):
            i = vpps.sigmoid(M @ h + p)
            u = vpps.tanh(M @ (h * i) - x)
            h = i * h + u * 0.5
            h = vpps.concat([h, u])[0:HIDDEN]
        return graph, len(graph)

    return record


def lookups(model: vpps.Model, n_words: int) -> Callable[[Batch], Recorded]:
    """Return a recorder of leaves only; half of the calls are for zeros, which are one vertex."""
    words = model.lookup("looked up", (n_words, HIDDEN))

    def record(batch: Batch) -> Recorded:
        graph = vpps.Graph()
        n = 0
        for tree in batch:
            for node in tree:
                graph.lookup(words, node.label)
                graph.zeros(HIDDEN)
            n += 2 * len(tree)
        return graph, n

    return record


def maps(model: vpps.Model, n_words: int, vectors: bool) -> Callable[[Batch], Recorded]:
    """Return a recorder of trees as data, joined before the timing."""
    table = model.lookup("words", (n_words, HIDDEN))
    shapes = {"W": (24, HIDDEN), "b": (24,), "U": (40, 16), "bU": (40,)}
    leaf, inner = tree_states(*(model.parameter(name, shape) for name, shape in shapes.items()))
    cells = [vpps.cell(leaf if vectors else lambda word: leaf(vpps.lookup(table, word))), vpps.cell(inner)]
    joined: list[GraphBatch] = []

    def record(batch: Batch) -> Recorded:
        if not joined:
            joined.append(_joined(batch))
        trees = joined[0]
        graph = vpps.Graph()
        inputs: dict[str, Any] = {"word": trees["word"]}
        if vectors:
            is_leaf = trees.kind == 0
            of_leaves = graph.rows(np.zeros((np.count_nonzero(is_leaf), HIDDEN), np.float32), grad=True)
            inputs = {"x": of_leaves[np.cumsum(is_leaf) - 1]}  # inner nodes can have any value
        graph.map(cells, **trees.structure, inputs=inputs)
        return graph, trees.n_vertices

    return record


def _joined(batch: Batch) -> GraphBatch:
    word, left, right, _ = np.array([node for tree in batch for node in tree]).T
    children = np.stack([left, right], axis=1)
    sizes = [len(tree) for tree in batch]
    return GraphSet(sizes, children, kind=left >= 0, kinds=("leaf", "inner"), columns={"word": word})[:]


CASES = {
    "cells": cells_of_trees, "lists": cells_with_lists, "ops": bare_ops, "lookups": lookups,
    "words": partial(maps, vectors=False), "vectors": partial(maps, vectors=True),
}  # fmt: skip


def recorder() -> str:
    """Return the kind of recorder now in use."""
    return (
        "python"
        if type(getattr(vpps.Graph(), "_tape", None)).__module__.startswith(("vpps.", "builtins"))
        else "compiled"
    )


def run(name: str, batch: Batch, n_words: int, options: argparse.Namespace, data: str) -> None:
    """Measure a single case."""
    model = vpps.Model(seed=1)
    record = CASES[name](model, n_words)
    record(batch)  # traces
    graph, n = record(batch)
    seconds = harness.interleave(
        {"recording": lambda: record(batch), "arrays": lambda: Topology(graph)}, options.rounds
    )
    milliseconds = {k: round(statistics.median(v) * 1e3, 3) for k, v in seconds.items()}
    harness.report(
        BENCH, f"{name} batch={len(batch)}", [s / n * 1e6 for s in seconds["recording"]], "us/call",
        higher_is_better=False, recorder=recorder(), calls=n,
        ms=milliseconds["recording"], arrays_ms=milliseconds["arrays"],
        best=round(min(seconds["recording"]) / n * 1e6, 3), data=data,
    )  # fmt: skip


def run_sum(batch: Batch, options: argparse.Namespace, data: str) -> None:
    """Measure `vpps.sum` of one loss per node."""
    graph = vpps.Graph()
    logits = graph.zeros(CLASSES)
    losses = [vpps.cross_entropy(logits, node.label) for tree in batch for node in tree]
    vpps.sum(losses)
    seconds = harness.timed(lambda: vpps.sum(losses), options.rounds)
    harness.report(
        BENCH, f"sum batch={len(batch)}", [s / len(losses) * 1e6 for s in seconds], "us/loss",
        higher_is_better=False, recorder=recorder(), calls=len(losses), ms=round(statistics.median(seconds) * 1e3, 3),
        best=round(min(seconds) / len(losses) * 1e6, 3), data=data,
    )  # fmt: skip


def main() -> None:
    """Measure every requested case."""
    parser = harness.parser(__doc__, trees=None, rounds=30)
    parser.add_argument("--batch", type=int, default=64, help="trees")
    options = parser.parse_args()
    harness.confine(1)
    path = trees_file(options.trees)
    trees, n_words = read_trees(path, options.batch)
    batch = [VppsTreeLstm.prepare(tree) for tree in trees]
    for _ in ("python", "compiled"):
        for name in CASES:
            run(name, batch, n_words, options, name_of(path))
        run_sum(batch, options, name_of(path))
        vpps.Handle(vpps.Model(), target="cpu", vps=1).close()


if __name__ == "__main__":
    main()
