"""Complete binary trees with a label that only a model of the tree can learn: who wins a knockout tournament.

Every word plays rock, paper or scissors (its number modulo 3: 0, 1, 2). Two neighbours meet, the winner - paper beats
rock, scissors beat paper, rock beats scissors; equals stay what they are - meets the winner next to it, up to the root,
whose winner is the label. The same words in another order may have another winner.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpps.data.grapharrays import GraphArrays, frozen
from vpps.data.graphset import GraphSet
from vpps.errors import DataError

KINDS = ("leaf", "inner")
N_CLASSES = 3


def tournaments(n_trees: int, leaves: int, *, n_words: int = 30, seed: int = 1) -> GraphSet:
    """Random complete trees; equal arguments give equal trees.

    Args:
        n_trees: how many.
        leaves: of each, a power of two, at least 2.
        n_words: words are 0 to n_words - 1.

    Returns:
        A set of kinds leaf and inner, with the column `word` of vertices (-1 inside) and the column `label` of graphs.
        Vertices of a tree: its leaves from left to right, then level by level, the root last.

    Raises:
        DataError: there is no such tree, a number is below 1, or there would be 2**31 vertices or more.
    """
    if leaves < 2 or leaves & (leaves - 1):
        raise DataError(f"a complete binary tree has 2, 4, 8, ... leaves, not {leaves}")
    if n_trees < 1 or n_words < 1:
        raise DataError(f"{n_trees} trees of {n_words} words: both need at least 1")
    if n_trees * (2 * leaves - 1) >= 2**31:
        raise DataError(f"{n_trees} trees of {leaves} leaves: expected fewer than 2**31 vertices in all")
    words = np.random.default_rng(seed).integers(0, n_words, (n_trees, leaves))
    size = 2 * leaves - 1
    own = np.arange(size)
    is_leaf = own < leaves
    # Vertex i of a level has the children 2 i and 2 i + 1 of the level below, and all levels together begin at 0: so
    # vertex `leaves` + j has the children 2 j and 2 j + 1.
    left = np.where(is_leaf, -1, 2 * (own - leaves))
    children = np.stack([left, np.where(is_leaf, -1, left + 1)], axis=1).astype(np.int32)
    levels = np.log2(leaves).astype(np.int32) - np.floor(np.log2(size - own)).astype(np.int32)
    column = np.full((n_trees, size), -1, np.int32)
    column[:, :leaves] = words
    # As many vertices as are wanted, of levels that are known: the set need not find them.
    arrays = GraphArrays(
        vertex_offsets=frozen(np.arange(n_trees + 1) * size),
        children=frozen(np.tile(children, (n_trees, 1))),
        kind=frozen(np.tile(~is_leaf, n_trees).astype(np.int8)),
        levels=frozen(np.tile(levels, n_trees)),
        columns={"word": frozen(column.reshape(-1))},
        graph_columns={"label": frozen(winners(words % N_CLASSES))},
    )
    return GraphSet.from_arrays(arrays, KINDS, {}, {"label": ("rock", "paper", "scissors")})


def winners(symbols: NDArray[np.integer]) -> NDArray[np.int32]:
    """Who wins each tournament, from (tournaments, players) symbols."""
    while symbols.shape[1] > 1:
        left, right = symbols[:, ::2], symbols[:, 1::2]
        symbols = np.where((right - left) % N_CLASSES == 1, right, left)
    return symbols[:, 0].astype(np.int32)
