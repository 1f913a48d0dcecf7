"""Reads Penn trees, with integer labels (parsed by `vpps.data.treebank`) or with names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from vpps.data.graphset import GraphSet
from vpps.data.lines import read_lines
from vpps.data.readers.names import GraphLists, Source, children_of, classes_of, some_graphs, words_of
from vpps.data.treebank import BRACKETS, Tree, located_trees
from vpps.errors import DataError

KINDS = ("leaf", "inner")


def read_treebank(
    *paths: Source,
    min_count: int | None = None,
    lists: bool = False,
    n_classes: int | None = None,
    like: GraphSet | None = None,
) -> GraphSet:
    """Reads bracketed trees, one per line: `(3 (2 The) (4 ...))`. See `graphs_of_trees`; blank lines are skipped.

    Args:
        n_classes: upper bound of the labels, exclusive.

    Raises:
        DataError: a file cannot be read, holds no tree, or has a malformed line; the message gives line and column.
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
    """Turns trees into a set: vertices in post-order, kinds `leaf` and `inner`, columns `word` (-1 if inner), `label`.

    Args:
        min_count: words that occur less often become unknown; the default is 2. Not allowed with `like`.
        lists: store children as lists, for a child-sum; by default a table as wide as the largest number of children.
        like: take vocabulary and arity from this set.
        sources: names of the trees in error messages.

    Raises:
        DataError: there is no tree, or a node has more children than `like` allows.
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


def read_constituents(
    *paths: Source, min_count: int | None = None, lists: bool = True, like: GraphSet | None = None
) -> GraphSet:
    """Reads Penn trees with node names, as in the Penn Treebank: they may span lines and have unnamed nodes.

        ( (S
            (NP-SBJ (DT The) (NN film))
            (VP (VBZ works)) ))

    The kinds are `leaf` and `inner`; the columns are `word` (-1 if inner) and `label`, with one class per name.

    A part of speech and its word, `(NN film)`, form a leaf. Names are kept as written, with any suffix after a hyphen.
    An unnamed node is replaced by its child. Words are kept as written, including `-LRB-` and traces below `-NONE-`.

    Args:
        min_count, lists, like: see `graphs_of_trees`; `like` also provides the names.

    Raises:
        DataError: a file cannot be read or holds no tree, a file is malformed (the message gives line and column), or
            `like` lacks a name.
    """
    trees = _Trees()
    for path in paths:
        trees.read(path)
    some_graphs(paths, len(trees.sizes), "bracketed trees with names, (S (NP (NN film)) ...)")
    words, sizes = trees.columns["word"], np.array(trees.sizes, np.int64)
    counts = np.diff(trees.offsets).astype(np.int64)
    leaves = [word for word in words if word is not None]
    vocabulary = words_of([leaves], "word", min_count, like)
    labels, classes = classes_of(trees.columns["label"], trees.where, "label", like)
    children = np.array(trees.children, np.int32)
    return GraphSet(
        sizes, children_of(counts, children, lists=lists, like=like, sources=trees.sources, sizes=sizes),
        kind=counts > 0, kinds=KINDS,
        columns={"word": [-1 if word is None else vocabulary[word] for word in words], "label": labels},
        vocabularies={"word": vocabulary}, classes={"label": classes}, sources=trees.sources,
    )  # fmt: skip


class _Node:
    """A node whose bracket is open."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.word: str | None = None
        self.children: list[int] = []


class _Trees(GraphLists):
    """Collects trees while they are read; `where` holds the file and line at which each vertex ends."""

    def __init__(self) -> None:
        super().__init__("word", "label")
        self.where: list[str] = []

    def read(self, path: Source) -> None:
        """Adds all trees of a file. Raises DataError."""
        nodes: list[_Node] = []
        source = place = f"{path}:1"

        def fail(expected: str, found: str) -> NoReturn:
            raise DataError(f"{place}: expected {expected}, found {found}")

        for number, text in read_lines(path):
            for match in BRACKETS.finditer(text):
                token, place = match.group(), f"{path}:{number}:{match.start() + 1}"
                top = nodes[-1] if nodes else None
                if token == "(":
                    if top is not None and top.word is not None:
                        fail("')' after the word", "'('")
                    source = source if nodes else f"{path}:{number}"
                    nodes.append(_Node())
                elif top is None:
                    fail("'(' at the start of a tree", repr(token))
                elif token == ")":
                    nodes.pop()
                    if top.name is not None and top.word is None and not top.children:
                        fail("a word or '(' after the name", "')'")
                    if top.name is None and len(top.children) != 1:
                        fail("one child of a node without a name", f"{len(top.children)}")
                    vertex = (
                        top.children[0]
                        if top.name is None
                        else self.vertex(top.children, word=top.word, label=top.name)
                    )
                    if top.name is not None:
                        self.where.append(f"{path}:{number}")
                    if nodes:
                        nodes[-1].children.append(vertex)
                    else:
                        self.end(source)
                elif top.name is None and not top.children:
                    top.name = token
                elif top.name is not None and top.word is None and not top.children:
                    top.word = token
                else:
                    fail("'(' or ')'", repr(token))
        if nodes:
            raise DataError(f"{source}: the tree that begins here does not end: {len(nodes)} brackets are open")
