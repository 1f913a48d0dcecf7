"""The eight networks of ED-Batch as graphs of typed vertices, at the granularity at which its program batches them.

vpps has a cell and what follows it in one vertex; ED-Batch's program (the benchmark folder of its repository, beside
section 5.1 and figures 1, 2 and 8 of the paper) makes more vertices of the same network, of more types:

    tagger            a word's embedding; an LSTM cell per direction; hidden layer, output and loss of a word in one
    NMT               an encoder and a decoder cell; the product with the output matrix; a word's loss
    trees             a leaf's cell with its embedding (MV-RNN: two embeddings); an inner cell, or two types of them;
                      a node's product with the output matrix; its loss
    lattices          a character's cell and a word's, which lead from position to position; where k of them end, a sum
                      of k states, a type for every k, and in the LSTM another of k memories, of the same type; a
                      position's product and its loss

and in all of them the sum of all losses. A product and a loss are types of their own, as in Cavs-DyNet: these are the
"separate output vertices" of trees. Left out: vertices that only stand for a parameter or for one of several results
of a cell (they launch nothing, but in its program they are counted, or deepen the graph), and the initial states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpps.data import GraphBatch

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Vertices:
    """A graph.

    Attributes:
        types: names, by number.
        type_of: (vertices,) which of them each vertex is.
        producers, readers: (edges,) both ends of every edge.
    """

    types: tuple[str, ...]
    type_of: Ints
    producers: Ints
    readers: Ints


class _Recorder:
    """A graph in the making."""

    def __init__(self) -> None:
        self._types: dict[str, int] = {}
        self._type_of: list[Ints] = []
        self._edges: list[tuple[Ints, Ints]] = []
        self._n = 0

    def add(self, types: str | list[str], kind: Ints | int) -> Ints:
        """Vertices: so many of one type, or vertex k of type `types[kind[k]]`; returns their numbers."""
        names = [types] if isinstance(types, str) else types
        numbers = np.array([self._types.setdefault(name, len(self._types)) for name in names])
        made = numbers[np.zeros(kind, np.int64) if isinstance(kind, int) else kind]
        self._type_of.append(made)
        self._n += len(made)
        return np.arange(self._n - len(made), self._n)

    def read(self, readers: Ints, producers: Ints) -> None:
        """readers[k] reads producers[k]."""
        self._edges.append((producers, readers))

    def losses(self, states: Ints) -> None:
        """The product, the loss of every state, and the sum of all."""
        products = self.add("product", len(states))
        self.read(products, states)
        losses = self.add("loss", len(states))
        self.read(losses, products)
        self.total(losses)

    def total(self, losses: Ints) -> None:
        """The sum of all losses."""
        self.read(self.add("total", 1).repeat(len(losses)), losses)

    def done(self) -> Vertices:
        """The graph, without types that have no vertices."""
        used, type_of = np.unique(np.concatenate(self._type_of), return_inverse=True)
        names = list(self._types)
        producers, readers = (np.concatenate(side).astype(np.int64) for side in zip(*self._edges, strict=True))
        return Vertices(tuple(names[k] for k in used.tolist()), type_of.astype(np.int64), producers, readers)


def _edges(batch: GraphBatch) -> tuple[Ints, Ints]:
    """(parent, child) of every edge of a batch, by rising parent."""
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
    """Chains of words."""
    made = _Recorder()
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
    """Chains of source words, then target words."""
    assert batch.kind is not None
    made = _Recorder()
    states = made.add(["encoder", "decoder"], batch.kind.astype(np.int64))
    parents, children = _edges(batch)
    made.read(states[parents], states[children])
    made.losses(states[batch.kind == 1])
    return made.done()


def trees(batch: GraphBatch) -> Vertices:
    """Trees of leaves and inner nodes, of one type or two."""
    assert batch.kind is not None
    made = _Recorder()
    states = made.add(["leaf", "inner", "inner 2"], batch.kind.astype(np.int64))
    parents, children = _edges(batch)
    made.read(states[parents], states[children])
    made.losses(states)
    return made.done()


def matrix_trees(batch: GraphBatch) -> Vertices:
    """Trees whose leaves are a vector and a matrix, both embeddings of the word."""
    assert batch.kind is not None
    made = _Recorder()
    states = made.add(["vector", "inner"], batch.kind.astype(np.int64))
    matrices = states.copy()
    leaves = np.flatnonzero(batch.kind == 0)
    matrices[leaves] = made.add("matrix", len(leaves))
    parents, children = _edges(batch)
    for operand in (states, matrices):
        made.read(states[parents], operand[children])
    made.losses(states)
    return made.done()


def _lattices(batch: GraphBatch, sums: int) -> Vertices:
    """Lattices of characters and words, where `sums` sums put together what ends at one position."""
    assert batch.kind is not None
    assert isinstance(batch.children, tuple)
    made = _Recorder()
    cells = made.add(["character", "word"], batch.kind.astype(np.int64))
    parents, children = _edges(batch)
    # A character's vertex stands for the position, too: what it reads there are the words that end with it, and what
    # reads it reads the state of the position.
    ends = batch.kind[children] == 1
    several = np.unique(parents[ends])
    fan_in = np.bincount(parents[ends], minlength=batch.n_vertices) + 1
    names = [f"sum of {k}" for k in range(fan_in.max() + 1)]
    states = [cells.copy() for _ in range(sums)]
    for state in states:
        state[several] = made.add(names, fan_in[several])
        made.read(state[several], cells[several])
        made.read(state[parents[ends]], cells[children[ends]])
        made.read(cells[parents[~ends]], state[children[~ends]])
    made.losses(states[0][batch.kind == 0])
    return made.done()


def lattice_lstm(batch: GraphBatch) -> Vertices:
    """Lattices with states and memories."""
    return _lattices(batch, sums=2)


def lattice_gru(batch: GraphBatch) -> Vertices:
    """Lattices with states."""
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
"""By task of the zoo."""
