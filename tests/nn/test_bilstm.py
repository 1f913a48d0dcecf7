"""The bidirectional LSTM is an LSTM from left to right and another from right to left."""

from __future__ import annotations

import numpy as np
import pytest

import vpps
from vpps.data import GraphSet
from vpps.nn import BiLSTM
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

X, H = 3, 4


def chains(*sizes: int) -> GraphSet:
    places = np.concatenate([np.arange(size) for size in sizes])
    return GraphSet(sizes, places[:, None] - 1, columns={"word": np.arange(len(places))})


@pytest.mark.parametrize("of_table", [False, True])
def test_each_direction_is_an_lstm_over_the_chain(of_table: bool) -> None:
    """Inputs are vectors, or rows of the layer's table."""
    model = vpps.Model(seed=3)
    table = model.lookup("words", (9, X))
    bilstm = BiLSTM(model, X, H, table=table if of_table else None)
    graph = vpps.Graph()
    batch = chains(3, 5, 1)[:]
    rows = graph.lookup(table, np.arange(9))
    forward, backward = bilstm(graph, batch, np.arange(9) if of_table else rows)
    for first, end in zip(batch.offsets, batch.offsets[1:], strict=False):
        own = list(rows[first:end])
        lefts = bilstm.forward.sequence(graph, own)
        rights = bilstm.backward.sequence(graph, own[::-1])[::-1]
        reference = Reference(graph, weights_of(model))
        for vertex, (left, right) in enumerate(zip(lefts, rights, strict=True), start=first):
            np.testing.assert_allclose(reference.value(forward[vertex]), reference.value(left), rtol=1e-12)
            np.testing.assert_allclose(reference.value(backward[vertex]), reference.value(right), rtol=1e-12)


@pytest.mark.cpu
def test_a_level_of_both_directions_takes_one_barrier() -> None:
    model = vpps.Model(seed=3)
    bilstm = BiLSTM(model, 64, 64)  # large enough for every virtual processor to own units
    barriers = []
    with vpps.Handle(model, vps=2) as handle:
        for length in (7, 12):
            graph = vpps.Graph()
            states = bilstm(graph, chains(length)[:], graph.rows(np.ones((length, 64), np.float32)))
            script = handle.disassemble(graph, vpps.sum(vpps.sum(vpps.concat(states))))
            names = [line.split()[1] for line in script.splitlines() if ";" in line[1:]]
            barriers.append(names.count("wait") + names.count("barrier"))
    assert barriers[1] - barriers[0] == 2 * 5, "forward and backward pass have five levels more"


def test_what_is_no_chain_is_refused() -> None:
    model = vpps.Model(seed=3)
    bilstm = BiLSTM(model, X, H)
    graph = vpps.Graph()
    x = graph.rows(np.ones((3, X), np.float32))
    tree = GraphSet([3], [[-1, -1], [-1, -1], [0, 1]])
    fork = GraphSet([3], [[-1], [0], [0]])
    for graphs in (tree, fork):
        with pytest.raises(vpps.VppsError, match=r"reads chains: every vertex has at most one child"):
            bilstm(graph, graphs[:], x)
