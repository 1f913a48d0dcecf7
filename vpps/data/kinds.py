"""Kinds of vertices that are drawn: for networks whose cells differ by chance, as ED-Batch's two-type Tree-LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vpps.data.grapharrays import MAX_KINDS, frozen
from vpps.data.graphset import GraphSet
from vpps.errors import DataError


def draw_kinds(graphs: GraphSet, kind: str, names: Sequence[str], *, seed: int = 1) -> GraphSet:
    """The same graphs, where every vertex of one kind is of one of several kinds instead, each equally likely.

        trees = draw_kinds(read_treebank("train.txt"), "inner", ["inner 1", "inner 2"])   # leaf, inner 1, inner 2

    A slice of a set gets the draws that the whole set gets, so a limited set is the beginning of the full one.

    Args:
        kind: which vertices.
        names: of the new kinds; the first takes the number of `kind`, the others come after all that there are.
        seed: what is drawn follows from it.

    Raises:
        DataError: there is no such kind, there are no names, or two kinds would have one name.
    """
    if kind not in graphs.kinds:
        raise DataError(f"there is no kind {kind!r} of vertices to draw: there are {', '.join(graphs.kinds)}")
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
