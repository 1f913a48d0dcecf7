"""Builds graph sets from other sets: new vertex kinds, pairs of chains, pyramids over sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vpps.data.grapharrays import MAX_KINDS, frozen
from vpps.data.graphset import GraphSet
from vpps.data.readers.trees import KINDS
from vpps.errors import DataError
from vpps.record.ranges import ragged, running_sum


def draw_kinds(graphs: GraphSet, kind: str, names: Sequence[str], *, seed: int = 1) -> GraphSet:
    """Replaces one kind of vertex by several: each vertex of that kind draws a new kind, all equally likely.

        trees = draw_kinds(read_treebank("train.txt"), "inner", ["inner 1", "inner 2"])   # leaf, inner 1, inner 2

    Use it for networks that choose cells at random, such as ED-Batch's two-type Tree-LSTM. A graph's draws do not
    depend on the graphs after it, so a set cut to a limit equals the start of the full set.

    Args:
        kind: the kind to replace.
        names: names of the new kinds. The first replaces `kind`; the others are numbered after the existing kinds.
        seed: seed of the random draws.

    Raises:
        DataError: `kind` does not exist, `names` is empty, two kinds would share a name, or there are too many kinds.
    """
    if kind not in graphs.kinds:
        raise DataError(f"there is no kind {kind!r} of vertices to draw: the set has {', '.join(graphs.kinds)}")
    place = graphs.kinds.index(kind)
    kinds = (*graphs.kinds[:place], *names[:1], *graphs.kinds[place + 1 :], *names[1:])
    if not names or len(set(kinds)) < len(kinds) or len(kinds) > MAX_KINDS:
        raise DataError(
            f"kinds to draw for {kind!r} are {', '.join(names) or 'none'}: expected one or more new names, and at most "
            f"{MAX_KINDS} kinds in all"
        )
    arrays = graphs.arrays
    old = np.zeros(len(arrays.levels), np.int8) if arrays.kind is None else arrays.kind
    drawn = np.random.default_rng(seed).integers(len(names), size=len(old))
    new = np.where(drawn == 0, place, len(graphs.kinds) - 1 + drawn)
    kept = frozen(np.where(old == place, new, old).astype(np.int8))
    return GraphSet.from_arrays(replace(arrays, kind=kept), kinds, graphs.vocabularies, graphs.classes)


def chain_pairs(source: GraphSet, target: GraphSet | None = None) -> GraphSet:
    """Joins graph k of `source` to graph k of `target`: the first target vertex reads the root of the source.

    The kinds are `source` and `target`. Column `source` holds the source words, and 0 at target vertices.
    Columns `target` and `next` hold the target set's `word` and `next`. `read_parallel` returns suitable sets. Pass
    `source.reversed()` for an encoder that reads the last word first (Sutskever et al. 2014, section 3.3).

    Args:
        target: None for sentences that have no translation yet; the result then has only vertices of kind `source`.

    Raises:
        DataError: the sets have different numbers of graphs, or a graph is not a chain.
    """
    sets = [source] if target is None else [source, target]
    if any(len(graphs) != len(source) for graphs in sets):
        raise DataError(f"{len(source)} sources and {len(sets[1])} targets: expected equal numbers")
    batches = [graphs[:] for graphs in sets]
    if any(graphs.arity != 1 or len(batch.roots) != len(batch) for graphs, batch in zip(sets, batches, strict=True)):
        raise DataError("pairs are made of chains: every vertex has at most one child, the previous word")
    n = batches[0].n_vertices
    side = np.arange(sum(batch.n_vertices for batch in batches)) >= n
    words, following, children = batches[0]["word"], np.zeros(n, np.int32), np.asarray(batches[0].children)[:, 0]
    if target is not None:
        before = np.asarray(batches[1].children)[:, 0]
        before = np.where(before < 0, batches[0].roots.repeat(target.sizes), before + n)
        children = np.concatenate([children, before])
        words, following = np.concatenate([words, batches[1]["word"]]), np.concatenate([following, batches[1]["next"]])
    # So far all sources precede all targets. Sort by graph, so that each source is followed by its target.
    graph = np.concatenate([batch.graph_of_vertex for batch in batches])
    order = np.argsort(graph, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    sizes = np.sum([graphs.sizes for graphs in sets], axis=0)
    children = np.where(children < 0, -1, place[children] - running_sum(sizes)[graph])[order]
    columns = {"source": np.where(side, 0, words)[order]}
    vocabularies = {"source": source.vocabularies["word"]}
    if target is not None:
        columns |= {"target": np.where(side, words, 0)[order], "next": following[order]}
        vocabularies |= dict.fromkeys(("target", "next"), target.vocabularies["word"])
    return GraphSet(
        sizes, children[:, None], kind=side[order], kinds=("source", "target"), columns=columns,
        vocabularies=vocabularies,
    )  # fmt: skip


def pyramids_of_trees(trees: GraphSet) -> GraphSet:
    """Discards the trees of a treebank and builds a pyramid over each sentence.

    A sentence of n words has n (n + 1) / 2 vertices: first the words, then each level from left to right, up
    to the top. The children of vertex i of a level are vertices i and i + 1 of the level below.

    Args:
        trees: a set from `read_treebank`, with children as lists or as a table.

    Returns:
        A set with the kinds leaf and inner, a vertex column `word` (-1 above the words) and a graph column `label`,
        which holds the label of the tree's root.

    Raises:
        DataError: the set has no words or labels, or one of its graphs is not a tree.
    """
    forest = trees[:]
    words, labels = forest["word"], forest["label"]
    if len(forest.roots) != len(forest):
        raise DataError(f"{len(forest)} graphs with {len(forest.roots)} roots: a tree has exactly one")
    lengths = np.add.reduceat(words >= 0, forest.offsets[:-1], dtype=np.int64)
    sizes = lengths * (lengths + 1) // 2
    level = ragged(np.zeros_like(lengths), lengths, running_sum(lengths))  # 0, 1, ..., n - 1 in every pyramid
    widths = lengths.repeat(lengths) - level
    is_inner = level.repeat(widths) > 0
    left = ragged(np.zeros_like(sizes), sizes, running_sum(sizes)) - widths.repeat(widths) - 1
    column = np.full(len(left), -1, np.int32)
    column[~is_inner] = words[words >= 0]
    return GraphSet(
        sizes, np.where(is_inner[:, None], left[:, None] + [0, 1], -1), kind=is_inner, kinds=KINDS,
        columns={"word": column}, graph_columns={"label": labels[forest.roots]},
        vocabularies={"word": trees.vocabularies["word"]},
    )  # fmt: skip
