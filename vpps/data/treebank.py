"""Reads labelled trees in the Penn bracket form of the Stanford Sentiment Treebank (SST), one tree per line.

    (3 (2 The) (4 (3 gorgeously) (2 elaborate)))

A node is `(label word)` or `(label child child ...)`, with a non-negative integer label and any number of children.
Words are kept as written (`-LRB-`, `-RRB-` and `\\/` are not unescaped), so a tree prints as it was read. Only spaces
and tabs separate words; a no-break space is part of its word (as in SST's `8 1\\/2`).

The code does not recurse, so only memory limits the depth of a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from vpps.data.lines import read_lines
from vpps.errors import DataError
from vpps.values import as_path

BRACKETS = re.compile(r"[()]|[^() \t]+")

_LABEL_DIGITS = 100  # for thousands of digits, Python's int raises a different error

# States of the parser. Their values name the expected token in error messages.
_OPEN = "'(' at the start of a tree"
_LABEL = "an integer label after '('"
_BODY = "a word or '(' after the label"
_CLOSE = "')' after the word"
_MORE = "')' or '(' after a child"
_END = "the end of the line after the tree"


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """One tree of n nodes as flat arrays in post-order: children before their parent, the root last.

    The children of node k are `children[offsets[k]:offsets[k + 1]]`, left to right; a leaf has none.
    """

    labels: NDArray[np.int32]
    """(n,) the label of every node."""
    offsets: NDArray[np.int32]
    """(n + 1,) the start of every node's children in `children`."""
    children: NDArray[np.int32]
    """(n - 1,) node numbers."""
    tokens: tuple[str, ...]
    """The words at the leaves, left to right."""
    words: NDArray[np.int32] | None = None
    """(n,) the vocabulary index of every leaf, -1 at inner nodes; None until `Vocabulary.encode` sets it."""

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self.labels)

    @property
    def arity(self) -> int:
        """The largest number of children of any node."""
        return int(np.diff(self.offsets).max())

    def child_lists(self) -> Iterator[list[int]]:
        """Yields the children of every node, in post-order, as plain ints."""
        children = self.children.tolist()
        return (children[begin:end] for begin, end in pairwise(self.offsets.tolist()))

    def nodes(self) -> Iterator[tuple[int, list[int]]]:
        """Yields `(word, children)` of every node in post-order, as plain ints, for building a network.

            states = []
            for word, children in tree.nodes():
                states.append(inner(*(states[k] for k in children)) if children else leaf(word))

        Raises:
            DataError: the tree has no word indices yet.
        """
        if self.words is None:
            raise DataError("the tree has no word indices yet: pass it through Vocabulary.encode first")
        return zip(self.words.tolist(), self.child_lists(), strict=True)

    def __str__(self) -> str:
        """Returns the bracket form: `str(parse_tree(line)) == line` for a line with single spaces."""
        opening: list[list[str]] = []  # per leaf: the nodes that begin with it, innermost first
        closing: list[int] = []  # per leaf: the number of nodes that end with it
        spans: list[tuple[int, int]] = []  # per node: its first and last leaf
        for label, children in zip(self.labels.tolist(), self.child_lists(), strict=True):
            if children:
                first, last = spans[children[0]][0], spans[children[-1]][1]
            else:
                first = last = len(opening)
                opening.append([])
                closing.append(0)
            opening[first].append(f"({label} ")
            closing[last] += 1
            spans.append((first, last))
        leaves = zip(opening, self.tokens, closing, strict=True)
        return " ".join("".join(reversed(labels)) + token + ")" * n for labels, token, n in leaves)


class Treebank(NamedTuple):
    """Trees for training and for development."""

    train: list[Tree]
    dev: list[Tree]


def load_treebank(directory: str | Path, n_classes: int | None = None) -> Treebank:
    """Reads `train.txt` and `dev.txt` in a directory; see `read_trees`."""
    folder = as_path(directory, "load_treebank", DataError)
    return Treebank(*(read_trees(folder / name, n_classes) for name in ("train.txt", "dev.txt")))


def read_trees(path: str | Path, n_classes: int | None = None) -> list[Tree]:
    """Reads a file of bracketed trees, one per line; skips blank lines.

    Args:
        path: a UTF-8 text file; compressed by gzip if its name ends in `.gz`.
        n_classes: upper bound of the labels, exclusive.

    Raises:
        DataError: the file cannot be read, holds no tree, or has a malformed line. `train.txt:17:42: expected ...`
            gives file, line and column (both from 1; the column counts characters).
    """
    trees = located_trees(path, n_classes)
    if not trees:
        raise DataError(f"{path}: expected one bracketed tree a line, found none")
    return list(trees.values())


def located_trees(path: str | PathLike[str], n_classes: int | None) -> dict[str, Tree]:
    """Returns the trees in a file, keyed by file and line. Accepts a file without trees; see `read_trees`."""
    lines = ((f"{path}:{number}", text) for number, text in read_lines(path) if text.strip())
    return {source: parse_tree(text, n_classes, source=source) for source, text in lines}


def parse_tree(text: str, n_classes: int | None = None, *, source: str = "<string>:1") -> Tree:
    """Reads one bracketed tree.

    Args:
        text: one line, for example `(3 (2 a) (4 masterpiece))`.
        n_classes: upper bound of the labels, exclusive.
        source: file and line for error messages.

    Raises:
        DataError: the text is malformed. The message gives the source, the column and the expected token.
    """
    n_labels = np.iinfo(np.int32).max if n_classes is None else n_classes
    labels: list[int] = []
    child_lists: list[list[int]] = []
    tokens: list[str] = []
    open_nodes: list[tuple[int, list[int]]] = []  # label and finished children, root first
    state = _OPEN

    def fail(expected: str, column: int, found: str) -> NoReturn:
        raise DataError(f"{source}:{column + 1}: expected {expected}, found {found}")

    for match in BRACKETS.finditer(text):
        token = match.group()
        if token == "(" and state in (_OPEN, _BODY, _MORE):
            state = _LABEL
        elif token == ")" and state in (_CLOSE, _MORE):
            label, children = open_nodes.pop()
            labels.append(label)
            child_lists.append(children)
            if open_nodes:
                open_nodes[-1][1].append(len(labels) - 1)
            state = _MORE if open_nodes else _END
        elif token not in "()" and state == _LABEL:
            if not (token.isascii() and token.isdigit()):
                fail(_LABEL, match.start(), repr(token))
            if len(token) > _LABEL_DIGITS or int(token) >= n_labels:
                fail(f"a label smaller than {n_labels}", match.start(), token)
            open_nodes.append((int(token), []))
            state = _BODY
        elif token not in "()" and state == _BODY:
            tokens.append(token)
            state = _CLOSE
        else:
            fail(state, match.start(), repr(token))
    if state != _END:
        fail(state, len(text), f"the end of the line with {len(open_nodes)} open nodes")

    return Tree(
        labels=np.array(labels, np.int32),
        offsets=np.cumsum([0, *map(len, child_lists)], dtype=np.int32),
        children=np.array([child for children in child_lists for child in children], np.int32),
        tokens=tuple(tokens),
    )
