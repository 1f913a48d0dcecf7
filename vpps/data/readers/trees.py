"""Penn trees with labels, as `vpps.data.treebank` reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vpps.data.graphset import GraphSet
from vpps.data.readers.names import Source, children_of, some_graphs, words_of
from vpps.data.treebank import Tree, located_trees

KINDS = ("leaf", "inner")


def read_treebank(
    *paths: Source,
    min_count: int | None = None,
    lists: bool = False,
    n_classes: int | None = None,
    like: GraphSet | None = None,
) -> GraphSet:
    """Bracketed trees, one a line: `(3 (2 The) (4 ...))`. See `graphs_of_trees`; blank lines are skipped.

    Args:
        n_classes: when given, labels must be smaller than this.

    Raises:
        DataError: a file cannot be read, holds no tree, or a line is malformed; with file, line and column.
    """
    trees = [item for path in paths for item in located_trees(path, n_classes).items()]
    some_graphs(paths, len(trees), "one bracketed tree a line")
    sources, found = zip(*trees, strict=True)
    return graphs_of_trees(found, min_count=min_count, lists=lists, like=like, sources=sources)


def graphs_of_trees(
    trees: Sequence[Tree],
    *,
    min_count: int | None = None,
    lists: bool = False,
    like: GraphSet | None = None,
    sources: Sequence[str] | None = None,
) -> GraphSet:
    """Trees as a set: vertices in post-order of kind `leaf` or `inner`, columns `word` (-1 inside) and `label`.

    Args:
        min_count: words that occur less often become unknown, by default those of one occurrence; not beside `like`.
        lists: children as lists, for a child-sum; by default as a table with room for the most that a node has.
        like: take vocabulary and arity from this set.
        sources: names of the trees for messages.

    Raises:
        DataError: there is no tree, or a node has more children than `like` has room for.
    """
    some_graphs(["trees"], len(trees), "at least one tree")
    names = sources or [f"tree {k}" for k in range(len(trees))]
    sizes = np.array([len(tree) for tree in trees], np.int64)
    counts = np.concatenate([np.diff(tree.offsets) for tree in trees]).astype(np.int64)
    children = np.concatenate([tree.children for tree in trees])
    vocabulary = words_of((tree.tokens for tree in trees), "word", min_count, like)
    words = np.full(len(counts), -1, np.int32)
    words[counts == 0] = [vocabulary[token] for tree in trees for token in tree.tokens]
    return GraphSet(
        sizes, children_of(counts, children, lists=lists, like=like, sources=names, sizes=sizes),
        kind=counts > 0, kinds=KINDS,
        columns={"word": words, "label": np.concatenate([tree.labels for tree in trees])},
        vocabularies={"word": vocabulary}, sources=names,
    )  # fmt: skip
