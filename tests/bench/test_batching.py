"""ED-Batch's networks as typed graphs, and the batches that policies make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import edbatch_graphs
import numpy as np
import pytest
from batching_whole import Learner, by, by_depth, encodings, typed, within
from edbatch_graphs import Vertices

from vpps.data import GraphSet, graphs_of_trees, synthetic_lattices, synthetic_treebank
from vpps.planner.native.typed_graphs import LearningSettings, learn

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trees() -> GraphSet:
    return graphs_of_trees(synthetic_treebank(n_train=24, n_dev=1).train)


@pytest.fixture(scope="module")
def lattices() -> GraphSet:
    return synthetic_lattices(n_train=24, n_dev=1)[0]


TREE = GraphSet([3], np.array([[-1, -1], [-1, -1], [0, 1]]), kind=[0, 0, 1], kinds=("leaf", "inner"))
# Two characters, a word from the beginning that ends with the second, and a third character.
ENDS = [0, 1, 2, 4, 5], [-1, -1, 0, 1, 2]  # of: character, word, the character that ends it, character
LATTICE = GraphSet([4], ENDS, kind=[0, 1, 0, 0], kinds=("character", "word"))
CHAIN = GraphSet([2], np.array([[-1], [0]]))
PAIR = GraphSet([2], np.array([[-1], [0]]), kind=[0, 1], kinds=("source", "target"))
EDGES: list[tuple[Callable[[Any], Vertices], GraphSet, str]] = [
    (edbatch_graphs.trees, TREE, "leaf-inner 2, leaf-product 2, inner-product 1, product-loss 3, loss-total 3"),
    (edbatch_graphs.matrix_trees, TREE,
     "vector-inner 2, matrix-inner 2, vector-product 2, inner-product 1, product-loss 3, loss-total 3"),
    (edbatch_graphs.lattice_gru, LATTICE,
     "character-character 1, character-sum of 2 1, word-sum of 2 1, sum of 2-character 1, character-product 2, "
     "sum of 2-product 1, product-loss 3, loss-total 3"),
    (edbatch_graphs.lattice_lstm, LATTICE,
     "character-character 2, character-sum of 2 2, word-sum of 2 2, sum of 2-character 2, character-product 2, "
     "sum of 2-product 1, product-loss 3, loss-total 3"),
    (edbatch_graphs.tagger, CHAIN,
     "embedding-forward 2, embedding-backward 2, forward-forward 1, backward-backward 1, forward-loss 2, "
     "backward-loss 2, loss-total 2"),
    (edbatch_graphs.translation, PAIR, "encoder-decoder 1, decoder-product 1, product-loss 1, loss-total 1"),
]  # fmt: skip


@pytest.mark.host
@pytest.mark.parametrize("network, graphs, edges", EDGES, ids=[network.__name__ for network, *_ in EDGES])
def test_edges_lead_from_type_to_type(network: Callable[[Any], Vertices], graphs: GraphSet, edges: str) -> None:
    graph = network(graphs[:])
    ends = (graph.type_of[graph.producers].tolist(), graph.type_of[graph.readers].tolist())
    found = Counter(f"{graph.types[a]}-{graph.types[b]}" for a, b in zip(*ends, strict=True))
    assert {f"{pair} {n}" for pair, n in found.items()} == set(edges.split(", "))


@pytest.mark.host
def test_trees_are_batched_at_the_bound_but_for_depth_and_agenda(trees: GraphSet) -> None:
    graph = typed(edbatch_graphs.trees(trees[:16]))
    bound = learn(graph, LearningSettings(trials=0)).lower_bound
    assert bound == 1 + int(trees[:16].levels.max()) + 3
    learner = Learner(typed(edbatch_graphs.trees(trees[16:])), LearningSettings(trials=100))
    assert by("sufficient")(graph).batches == bound
    assert within(lambda part: by_depth)(graph).batches == bound
    assert learner.parts(encodings()["fsm-sort"])(graph) == (bound, by_depth(graph).stages, 0)
    assert by_depth(graph).batches > 1.5 * bound  # each level's outputs are a separate batch
    assert by("agenda")(graph).batches > bound


@pytest.mark.host
def test_a_machine_is_learned_once_and_counts_what_it_does_not_know(lattices: GraphSet) -> None:
    learner = Learner(typed(edbatch_graphs.lattice_gru(lattices[16:])), LearningSettings(trials=20))
    graph = typed(edbatch_graphs.lattice_gru(lattices[:16]))
    encoding = encodings()["fsm-sort-phase"]
    found = learner.whole(encoding)(graph)
    assert found == learner.whole(encoding)(graph)
    assert len(learner.learned) == 1
    assert learn(graph, LearningSettings(trials=0)).lower_bound <= found.batches
    assert found.unseen > 0  # the graph is larger, and trials were few
