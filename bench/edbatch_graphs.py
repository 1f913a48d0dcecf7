"""ED-Batch's eight networks as graphs of typed vertices, at the granularity at which its program batches them.

vpps puts a cell and the ops after it into one vertex. ED-Batch's program (the benchmark folder of its repository; see
section 5.1 and figures 1, 2 and 8 of the paper) splits the same network into more vertices, of more types:

    tagger            a word's embedding; an LSTM cell per direction; hidden layer, output and loss of a word in one
    NMT               an encoder and a decoder cell; the product with the output matrix; a word's loss
    trees             a leaf's cell with its embedding (MV-RNN: two embeddings); an inner cell, or two types of them;
                      a node's product with the output matrix; its loss
    lattices          a character's cell and a word's, which lead from position to position; if k words end there, a sum
                      of k states, with a type for every k, and in the LSTM a sum of k memories, of the same type; a
                      position's product and its loss

All graphs also have a vertex that sums all losses. A product and a loss have separate types, as in Cavs-DyNet: they are
the "separate output vertices" of trees. Two kinds of vertices are left out. Vertices that only stand for a parameter or
for one of a cell's results launch nothing, although ED-Batch's program counts them or they deepen the graph. The other
kind is the initial states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpps.data import GraphBatch

Ints = NDArray[np.int64]


SUMS = tuple(f"sum of {k}" for k in range(2, 9))
"""One per number of cells that may end at a position of a lattice, including the character's."""

CELLS = {
    "tagger": ("embedding", "forward", "backward"),
    "translation": ("encoder", "decoder"),
    "trees": ("leaf", "inner", "inner 2"),
    "matrix trees": ("vector", "inner", "matrix"),
    "lattices": ("character", "word", *SUMS),
}
"""Types of vertices beside those that all networks have. Every graph numbers them alike, even if they do not occur."""

COMMON = ("product", "loss", "total")


@dataclass(frozen=True)
class Vertices:
    """A graph of typed vertices.

    Attributes:
        types: names of the types, by number.
        type_of: (vertices,) each vertex's type number.
        producers, readers: (edges,) both ends of every edge.
    """

    types: tuple[str, ...]
    type_of: Ints
    producers: Ints
    readers: Ints


class _Recorder:
    """Builds a typed graph."""

    def __init__(self, network: str) -> None:
        self._types = (*CELLS[network], *COMMON)
        self._type_of: list[Ints] = []
        self._edges: list[tuple[Ints, Ints]] = []
        self._n = 0

    def cells(self, kind: Ints) -> Ints:
        """Add vertices of these types; returns the vertices' numbers."""
        self._type_of.append(kind)
        self._n += len(kind)
        return np.arange(self._n - len(kind), self._n)

    def add(self, name: str, n: int) -> Ints:
        """Add n vertices of a type; returns their numbers."""
        return self.cells(np.full(n, self._types.index(name)))

    def read(self, readers: Ints, producers: Ints) -> None:
        """Add edges: readers[k] reads producers[k]."""
        self._edges.append((producers, readers))

    def losses(self, states: Ints) -> None:
        """Add every state's product and loss, and the sum of all losses."""
        products = self.add("product", len(states))
        self.read(products, states)
        losses = self.add("loss", len(states))
        self.read(losses, products)
        self.total(losses)

    def total(self, losses: Ints) -> None:
        """Add the sum of all losses."""
        self.read(self.add("total", 1).repeat(len(losses)), losses)

    def done(self) -> Vertices:
        """Return the finished graph."""
        producers, readers = (np.concatenate(side).astype(np.int64) for side in zip(*self._edges, strict=True))
        return Vertices(self._types, np.concatenate(self._type_of).astype(np.int64), producers, readers)


def _edges(batch: GraphBatch) -> tuple[Ints, Ints]:
    """Return (parent, child) for every edge in a batch, by ascending parent."""
    children = batch.children
    if isinstance(children, tuple):
        offsets, found = children
        parents = np.arange(batch.n_vertices).repeat(np.diff(offsets))
    else:
        found = children.reshape(-1)
        parents = np.arange(batch.n_vertices).repeat(children.shape[1])
    there = found >= 0
    return parents[there], found[there].astype(np.int64)


def tagger(batch: GraphBatch) -> Vertices:
    """Return chains of words."""
    made = _Recorder("tagger")
    n = batch.n_vertices
    words = made.add("embedding", n)
    losses = None
    for direction, chains in (("forward", batch), ("backward", batch.reversed)):
        states = made.add(direction, n)
        made.read(states, words)
        parents, children = _edges(chains)
        made.read(states[parents], states[children])
        losses = made.add("loss", n) if losses is None else losses
        made.read(losses, states)
    assert losses is not None
    made.total(losses)
    return made.done()


def translation(batch: GraphBatch) -> Vertices:
    """Return chains of source words, then target words."""
    assert batch.kind is not None
    made = _Recorder("translation")
    states = made.cells(batch.kind)
    parents, children = _edges(batch)
    made.read(states[parents], states[children])
    made.losses(states[batch.kind == 1])
    return made.done()


def trees(batch: GraphBatch) -> Vertices:
    """Return trees of leaves and inner nodes, of one type or two."""
    assert batch.kind is not None
    made = _Recorder("trees")
    states = made.cells(batch.kind)
    parents, children = _edges(batch)
    made.read(states[parents], states[children])
    made.losses(states)
    return made.done()


def matrix_trees(batch: GraphBatch) -> Vertices:
    """Return trees whose leaves are a vector and a matrix, both embeddings of the word."""
    assert batch.kind is not None
    made = _Recorder("matrix trees")
    states = made.cells(batch.kind)
    matrices = states.copy()
    leaves = np.flatnonzero(batch.kind == 0)
    matrices[leaves] = made.add("matrix", len(leaves))
    parents, children = _edges(batch)
    for operand in (states, matrices):
        made.read(states[parents], operand[children])
    made.losses(states)
    return made.done()


def _lattices(batch: GraphBatch, sums: int) -> Vertices:
    """Return lattices of characters and words, where `sums` sums join the results that end at one position."""
    assert batch.kind is not None
    assert isinstance(batch.children, tuple)
    made = _Recorder("lattices")
    cells = made.cells(batch.kind)
    parents, children = _edges(batch)
    # A character's vertex also stands for the position. Its inputs are the words that end with the character. Its
    # readers read the state of the position.
    ends = batch.kind[children] == 1
    several = np.unique(parents[ends])
    ending = np.bincount(parents[ends], minlength=batch.n_vertices)[several]  # words
    states = [cells.copy() for _ in range(sums)]
    for state in states:
        state[several] = made.cells(CELLS["lattices"].index(SUMS[0]) + ending - 1)
        made.read(state[several], cells[several])
        made.read(state[parents[ends]], cells[children[ends]])
        made.read(cells[parents[~ends]], state[children[~ends]])
    made.losses(states[0][batch.kind == 0])
    return made.done()


def lattice_lstm(batch: GraphBatch) -> Vertices:
    """Return lattices with states and memories."""
    return _lattices(batch, sums=2)


def lattice_gru(batch: GraphBatch) -> Vertices:
    """Return lattices with states."""
    return _lattices(batch, sums=1)


NETWORKS: dict[str, Callable[[GraphBatch], Vertices]] = {
    "bilstm-tagger": tagger,
    "nmt": translation,
    "tree-lstm": trees,
    "tree-gru": trees,
    "mv-rnn": matrix_trees,
    "tree-lstm-2type": trees,
    "lattice-lstm": lattice_lstm,
    "lattice-gru": lattice_gru,
}
"""Networks by task of the zoo."""
