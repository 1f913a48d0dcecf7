"""Small models of every kind, which the emulated kernel trains. The same seed gives the same batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import vpps
from vpps.nn import LSTM, ChildSumTreeLSTM, attend
from vpps.zoo import TreeLSTMSentiment

E = vpps.Expression
Batch = tuple[vpps.Graph, E]


class Network(NamedTuple):
    """A model with a function that creates its batches.

    Attributes:
        model: the parameters.
        batch: seed -> a graph and its loss. A `graph.input(..., grad=True)` in the graph is also in `inputs`.
        inputs: inputs of the latest batch.
    """

    model: vpps.Model
    batch: Callable[[int], Batch]
    inputs: list[E]


def tree_lstm(
    hidden: int = 20, embedding: int = 24, dropout: float = 0.0, leaves: Sequence[int] = (4, 1, 5)
) -> Network:
    """Return a sentiment model for random binary trees with these numbers of leaves, plus one shared leaf."""
    model = vpps.Model(seed=5)
    network = TreeLSTMSentiment(model, 12, embedding=embedding, hidden=hidden)
    inputs: list[E] = []

    @vpps.cell
    def from_outside(x: E) -> tuple[E, E]:
        h, c = network.tree_lstm.leaf(vpps.dropout(x, dropout) if dropout else x)
        return h, c

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses = []
        inputs[:] = [graph.input(rng.normal(size=embedding), grad=True)]
        for n in leaves:
            nodes = [graph.call(network.leaf, int(rng.integers(12))) for _ in range(n)] + [from_outside(inputs[0])]
            while len(nodes) > 1:
                k = int(rng.integers(len(nodes) - 1))
                left, right = nodes[k : k + 2]
                nodes[k : k + 2] = [network.tree_lstm.inner(*left, *right)]
                losses.append(graph.call(network.node_loss, nodes[k][0], int(rng.integers(5))))
        return graph, vpps.sum(losses) * 0.1

    return Network(model, batch, inputs)


def tagger(hidden: int = 16, embedding: int = 20, lengths: Sequence[int] = (1, 5, 3, 3)) -> Network:
    """Return two LSTMs that read sentences of these lengths in both directions, and a classifier at every word."""
    model = vpps.Model(seed=6)
    words = model.lookup("words", (15, embedding))
    there = LSTM(model, embedding, hidden, name="there")
    back = LSTM(model, embedding, hidden, name="back")
    Wo, bo = model.parameter("Wo", (7, 2 * hidden)), model.parameter("bo", (7,))

    @vpps.cell
    def tag_loss(a: E, b: E, tag: int) -> E:
        return vpps.cross_entropy(Wo @ vpps.concat([a, b]) + bo, tag)

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses = []
        for length in lengths:
            xs = [graph.lookup(words, int(i)) for i in rng.integers(0, 15, length)]
            for a, b in zip(there.sequence(graph, xs), back.sequence(graph, xs[::-1])[::-1], strict=True):
                losses.append(graph.call(tag_loss, a, b, int(rng.integers(7))))
        return graph, vpps.mean(losses)

    return Network(model, batch, [])


def child_sum(hidden: int = 18, size: int = 20, sizes: Sequence[int] = (1, 6, 9)) -> Network:
    """Return a model of nodes with lists of children, some of which are empty."""
    model = vpps.Model(seed=7)
    words = model.lookup("words", (9, size), init="normal")
    network = ChildSumTreeLSTM(model, size, hidden)
    v = model.parameter("v", (hidden,), init="normal")

    @vpps.cell
    def score(h: E) -> E:
        return vpps.square(vpps.dot(v, h) - 1.0)

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses = []
        for n in sizes:
            stock: list[tuple[E, E]] = []
            for _ in range(n):
                children = stock[-int(rng.integers(4)) :] if len(stock) > 3 else []
                x = graph.lookup(words, int(rng.integers(9)))
                stock.append(network.node(x, [h for h, _ in children], [c for _, c in children]))
            losses.append(score(stock[-1][0]))
        return graph, vpps.mean(losses)

    return Network(model, batch, [])


def attention(width: int = 33, lengths: Sequence[int] = (0, 1, 5, 17)) -> Network:
    """Return attention over memories of any length; one matrix reads each memory twice."""
    model = vpps.Model(seed=8)
    rows = model.lookup("rows", (20, width))
    W, V = model.parameter("W", (width, width)), model.parameter("V", (11, width))

    @vpps.cell(elements={"memory": (width,)})
    def read(x: E, memory: list[E]) -> E:
        return V @ vpps.tanh(W @ vpps.tanh(attend(W @ x, memory, memory) + x))

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses = []
        for length in lengths:
            memory = [graph.lookup(rows, int(i)) for i in rng.integers(0, 20, length)]
            y = read(graph.lookup(rows, int(rng.integers(20))), memory)
            losses.append(vpps.dot(y, graph.input(rng.normal(size=11))))
        return graph, vpps.sum(losses)

    return Network(model, batch, [])


def mv_rnn(size: int = 9, lengths: Sequence[int] = (3, 2, 1, 5)) -> Network:
    """Return a model with computed matrices (Socher et al. 2012): a vector and a matrix per word; parents compose both.
    The matrix that multiplies them is in memory; other matrices need not be."""
    model = vpps.Model(seed=1)
    words, matrices = model.lookup("words", (4, size)), model.lookup("matrices", (4, size, size), init="normal")
    W, Wm = model.parameter("W", (size, 2 * size)), model.parameter("Wm", (size, 2 * size))
    out = model.parameter("out", (3, size))

    @vpps.cell
    def compose(a: E, A: E, b: E, B: E) -> tuple[E, E]:
        return vpps.tanh(W @ vpps.concat([B @ a, A @ b])), Wm @ vpps.concat([A, B])

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        identity, losses = graph.input(np.eye(size)), []
        for length in lengths:
            sentence = rng.integers(0, 4, length).tolist()
            nodes = [(graph.lookup(words, i), graph.lookup(matrices, i) * 0.1 + identity) for i in sentence]
            while len(nodes) > 1:
                pairs = [compose(*a, *b) for a, b in zip(nodes[::2], nodes[1::2], strict=False)]
                nodes = pairs + nodes[len(pairs) * 2 :]
            vector, matrix = nodes[0]
            loss = vpps.cross_entropy(out @ vector, sum(sentence) % 3)
            losses.append(loss + vpps.sum(vpps.square(matrix)) * (0.01 / size))
        return graph, vpps.mean(losses)

    return Network(model, batch, [])


def tied(width: int = 20, words: int = 9, steps: int = 4) -> Network:
    """Return a decoder whose embeddings "E" also give its logits, with an autoencoder ("W" and its transpose) in every
    step. Only "U" does nothing but multiply vectors. Batches with even seeds omit the other uses of "E" and "W"."""
    model = vpps.Model(seed=3)
    made = (
        model.parameter(name, (rows, width), init="uniform")
        for name, rows in zip("EWU", (words, width, width), strict=True)
    )
    table, W, U = made

    @vpps.cell
    def plain(h: E) -> E:
        return vpps.tanh(W @ (U @ h))

    @vpps.cell
    def step(h: E, word: int) -> tuple[E, E]:
        h = vpps.tanh(U @ h + vpps.lookup(table, word) * 5)
        h = h + W.T @ vpps.tanh(W @ h)
        return h, vpps.cross_entropy(table @ h, word)

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        h, losses = graph.input(rng.normal(size=width)), []
        for word in rng.integers(0, words, steps).tolist():
            if seed % 2:
                h, loss = step(h, word)
            else:
                h = plain(h)
                loss = vpps.cross_entropy(table @ h, word)
            losses.append(loss)
        return graph, vpps.mean(losses)

    return Network(model, batch, [])


def layers(*shapes: tuple[int, int], n: int = 5, before: int = 0) -> Network:
    """Return products of each matrix, W0, W1, ..., with `n` vectors and with one vector; all of these have gradients.

    Args:
        before: number of a vector's elements before the multiplied elements.
    """
    model = vpps.Model(seed=9)
    tables = [model.lookup(f"x{k}", (6, before + columns), init="normal") for k, (_, columns) in enumerate(shapes)]
    matrices = [model.parameter(f"W{k}", shape) for k, shape in enumerate(shapes)]
    cells = [vpps.cell(lambda x, W=W: vpps.tanh(W @ x[before:])) for W in matrices]

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        graph = vpps.Graph()
        losses = []
        for k, (rows, _) in enumerate(shapes):
            weights = graph.input(rng.normal(size=rows))
            ys = [cells[k](graph.lookup(tables[k], int(i))) for i in rng.integers(0, 6, n)]
            losses += [vpps.dot(weights, y) for y in ys]
            losses.append(vpps.dot(weights, matrices[k] @ graph.lookup(tables[k], 0)[before:]))
        return graph, vpps.mean(losses)

    return Network(model, batch, [])
