"""Sentences as pyramids: each level has a vertex for every two neighbours of the level below, up to a single one."""

from __future__ import annotations

import numpy as np

from vpps.data.grapharrays import GraphArrays, frozen
from vpps.data.graphset import GraphSet
from vpps.errors import DataError
from vpps.record.ranges import ragged, running_sum

KINDS = ("leaf", "inner")


def pyramids_of_trees(trees: GraphSet) -> GraphSet:
    """The sentences of a treebank without their trees, a pyramid each.

    A sentence of n words has n (n + 1) / 2 vertices: its words, then level by level, from left to right, the top last.
    Vertex i of a level has the children i and i + 1 of the level below.

    Args:
        trees: of `read_treebank`, children as lists or as a table.

    Returns:
        A set of kinds leaf and inner, with the column `word` of vertices (-1 above the words) and the column `label`
        of graphs: the label of the tree's root.

    Raises:
        DataError: the set has no words or labels, or a graph in it is no tree.
    """
    forest = trees[:]
    words, labels = forest["word"], forest["label"]
    if len(forest.roots) != len(forest):
        raise DataError(f"{len(forest)} graphs with {len(forest.roots)} roots: a tree has one")
    is_word = words >= 0
    lengths = np.add.reduceat(is_word, forest.offsets[:-1], dtype=np.int64)
    word_offsets = running_sum(lengths)
    sizes = lengths * (lengths + 1) // 2
    offsets = running_sum(sizes)

    level = ragged(np.zeros_like(lengths), lengths, word_offsets)  # of all levels of all pyramids: 0, 1, ..., n - 1
    widths = lengths.repeat(lengths) - level
    levels = level.repeat(widths)
    left = ragged(np.zeros_like(sizes), sizes, offsets) - widths.repeat(widths) - 1
    left[levels == 0] = -1
    children = np.empty((len(levels), 2), np.int32)
    children[:, 0] = left
    children[:, 1] = left + (levels > 0)
    column = np.full(len(levels), -1, np.int32)
    column[ragged(offsets[:-1], lengths, word_offsets)] = words[is_word]
    # Levels are known here, so the set need not find them: pyramids of a treebank have millions of vertices.
    arrays = GraphArrays(
        vertex_offsets=frozen(offsets),
        children=frozen(children),
        kind=frozen((levels > 0).astype(np.int8)),
        levels=frozen(levels.astype(np.int32)),
        columns={"word": frozen(column)},
        graph_columns={"label": frozen(labels[forest.roots])},
    )
    return GraphSet.from_arrays(arrays, KINDS, {"word": trees.vocabularies["word"]}, {})
