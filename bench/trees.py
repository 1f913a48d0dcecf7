"""Binary labelled trees for the benches, read from a Penn-bracketed file such as the Stanford Sentiment Treebank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in post-order, root last. A leaf has left = right = -1, an inner node has word = -1."""

    labels: list[int]
    words: list[int]
    left: list[int]
    right: list[int]


def read_trees(path: Path, limit: int) -> tuple[list[Tree], int]:
    """Read the first `limit` trees, one a line; return them and the number of distinct words.

    Deliberately independent of vpps.data, so that a peer runs without vpps. Raises ValueError for a tree that is not
    binary, naming the line.
    """
    vocabulary: dict[str, int] = {}
    trees: list[Tree] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if len(trees) == limit:
                break
            if line.strip():
                try:
                    trees.append(_parse(line, vocabulary))
                except (ValueError, IndexError) as error:
                    raise ValueError(f"{path}:{number}: not a labelled binary tree ({error})") from None
    if not trees:
        raise ValueError(f"{path}: no trees")
    return trees, len(vocabulary)


def _parse(line: str, vocabulary: dict[str, int]) -> Tree:
    tree = Tree([], [], [], [])
    open_nodes: list[tuple[int, list[int | str]]] = []  # (label, its children so far: nodes or one word)
    tokens = iter(_TOKEN.findall(line))
    for token in tokens:
        if token == "(":
            open_nodes.append((int(next(tokens, "")), []))
        elif token != ")":
            open_nodes[-1][1].append(token)
        else:
            label, below = open_nodes.pop()
            match below:
                case [str(word)]:
                    node = vocabulary.setdefault(word, len(vocabulary)), -1, -1
                case [int(left), int(right)]:
                    node = -1, left, right
                case _:
                    raise ValueError(f"a node needs one word or two subtrees, found {len(below)} items")
            for column, entry in zip((tree.words, tree.left, tree.right), node, strict=True):
                column.append(entry)
            tree.labels.append(label)
            if open_nodes:
                open_nodes[-1][1].append(len(tree.labels) - 1)
    if open_nodes or not tree.labels:
        raise ValueError("unbalanced brackets")
    return tree
