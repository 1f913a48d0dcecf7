"""Two sets of chains as one: a chain of the second goes on where that of the first ended, as a decoder does."""

from __future__ import annotations

import numpy as np

from vpps.data.graphset import GraphSet
from vpps.errors import DataError

KINDS = ("source", "target")


def chain_pairs(source: GraphSet, target: GraphSet | None = None) -> GraphSet:
    """Graph k is graph k of `source` and then graph k of `target`, whose first vertex reads the root of the former.

    Kinds are `source` and `target`; the columns are `source`, words of the first (0 elsewhere), `target` and `next`,
    those of the second. `read_parallel` makes such sets; give `source.reversed()` for an encoder that reads
    the last word first, as Sutskever et al. (2014, section 3.3) recommend.

    Args:
        target: None for sentences that are still to be translated: there are only vertices of kind `source` then.

    Raises:
        DataError: the sets have different numbers of graphs, or these are no chains.
    """
    sets = [source] if target is None else [source, target]
    if any(len(graphs) != len(source) for graphs in sets):
        raise DataError(f"{len(source)} sources and {len(sets[1])} targets: there are as many of both")
    batches = [graphs[:] for graphs in sets]
    for batch in batches:
        if not isinstance(batch.children, np.ndarray) or batch.children.shape[1] != 1 or len(batch.roots) != len(batch):
            raise DataError("pairs are made of chains: every vertex has one child at most, the word before it")
    sizes = np.stack([graphs.sizes for graphs in sets], axis=1)  # (pairs, sides)
    starts = np.cumsum(sizes).reshape(sizes.shape) - sizes  # of every chain among all vertices
    n = int(sizes.sum())
    children, kind = np.full(n, -1), np.zeros(n, np.int8)
    columns = {name: np.zeros(n, np.int32) for name in ("source", "target", "next")[: 1 if target is None else 3]}
    vocabularies = {"source": source.vocabularies["word"]}
    root = batches[0].roots - batches[0].offsets[:-1]  # of every source, counted from its beginning
    for side, (graphs, batch) in enumerate(zip(sets, batches, strict=True)):
        own, shift = graphs.sizes, starts[:, side] - starts[:, 0]
        rows = np.arange(batch.n_vertices) + (starts[:, side] - batch.offsets[:-1]).repeat(own)
        before = np.asarray(batch.children)[:, 0].astype(np.int64)
        within = before + (shift - batch.offsets[:-1]).repeat(own)
        children[rows] = np.where(before >= 0, within, root.repeat(own) if side else -1)
        kind[rows] = side
        columns[KINDS[side]][rows] = batch["word"]
        if side:
            columns["next"][rows] = batch["next"]
            vocabularies |= {"target": graphs.vocabularies["word"], "next": graphs.vocabularies["word"]}
    return GraphSet(
        sizes.sum(axis=1), children[:, None], kind=kind, kinds=KINDS, columns=columns, vocabularies=vocabularies
    )
