"""The batches of DyNet's strategies: small graphs by hand, trees beside what DyNet itself reports."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest
from autobatch import STRATEGIES, Graph, by_agenda, by_depth, matrix_reads, tree_lstm
from trees import Tree

from tests.processes import run

pytestmark = pytest.mark.host

BENCH = Path(__file__).parents[2] / "bench"


def random_tree(rng: random.Random, leaves: int) -> Tree:
    """In post-order, splits at random places."""
    tree = Tree([], [], [], [])

    def grow(leaves: int) -> int:
        if leaves == 1:
            node = rng.randrange(9), -1, -1
        else:
            left = rng.randrange(1, leaves)
            node = -1, grow(left), grow(leaves - left)
        for column, entry in zip((tree.words, tree.left, tree.right), node, strict=True):
            column.append(entry)
        tree.labels.append(rng.randrange(5))
        return len(tree.labels) - 1

    grow(leaves)
    return tree


@pytest.fixture
def trees() -> list[Tree]:
    rng = random.Random(1)
    return [random_tree(rng, leaves) for leaves in (1, 2, 7, 12, 20, 3)]


def test_batches_of_two_chains_by_hand() -> None:
    """Chains of different length: a product at each step, and an output after each of them."""
    graph = Graph()
    outputs = []
    for length in (1, 3):
        h = graph.add("lookup")
        for _ in range(length):
            h = graph.product(["W"], h)
            outputs.append(graph.product(["V"], h))
    assert graph.depths() == [0, 1, 2, 0, 1, 2, 2, 3, 3, 4]
    assert by_depth(graph) == [[0, 3], [1, 4], [2, 5], [6], [7], [8], [9]]
    # W has the lower average depth (7/4 to 11/4), so the outputs wait for each other.
    assert by_agenda(graph) == [[0, 3], [1, 4], [6], [8], [2, 5, 7, 9]]
    assert matrix_reads(graph, by_depth(graph)) == {"W": 2 * 3, "V": 2 * 3}
    assert matrix_reads(graph, by_agenda(graph)) == {"W": 2 * 3, "V": 2 * 1}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_node_runs_once_after_its_inputs(trees: list[Tree], strategy: str) -> None:
    graph = tree_lstm(trees)
    done: set[int] = set()
    for batch in STRATEGIES[strategy](graph):
        assert len({graph.signatures[node] for node in batch}) == 1
        for node in batch:
            assert done.issuperset(graph.inputs[node])
        assert done.isdisjoint(batch)
        done.update(batch)
    assert done == set(range(len(graph.inputs)))


def test_larger_mini_batches_read_less(trees: list[Tree]) -> None:
    for batches_of in STRATEGIES.values():
        alone = sum(sum(matrix_reads(g, batches_of(g)).values()) for g in (tree_lstm([t]) for t in trees))
        together = tree_lstm(trees)
        assert sum(matrix_reads(together, batches_of(together)).values()) < alone / 2


KINDS = {
    "lookup": r"lookup_parameters",
    "leaf or output": r"a \+ a \* a$",
    "inner": r"a \+ a \* a \+ a \* a$",
    "sigmoid": r"\\sigma\(a\)",
    "tanh": r"tanh\(a\)",
    "multiply": r"a \\cdot a",
    "sum": r"a \+ a \+ a$",
}


def kind_of(signature: str) -> str:
    if " + " in signature:
        return "inner"
    return signature if signature in KINDS else "leaf or output"


@pytest.mark.skipif(importlib.util.find_spec("dynet") is None, reason="DyNet is not installed")
@pytest.mark.parametrize("number, strategy", [(1, "agenda"), (2, "depth")])
def test_batches_are_those_that_dynet_reports(trees: list[Tree], number: int, strategy: str) -> None:
    columns = json.dumps([[t.labels, t.words, t.left, t.right] for t in trees])
    out = run(
        f"""
        import sys
        sys.path.insert(0, {str(BENCH)!r})
        import dynet_config
        dynet_config.set(mem=64, random_seed=1, autobatch={number}, profiling=2)
        import dynet
        from peers.dynet_treelstm import DynetTreeLstm
        from treelstm import initial_weights
        from trees import Tree

        peer = DynetTreeLstm(dynet, initial_weights(9, 8, 8), "sgd", 0.1, whole=False)
        trees = [Tree(*columns) for columns in {columns}]
        peer.graph([peer.prepare(tree) for tree in trees]).scalar_value()
        """
    )
    reported = defaultdict(list)
    for size, operation in re.findall(r"^BatchSize:(\d+) (.*?)\s*$", out, re.MULTILINE):
        for kind, pattern in KINDS.items():
            if re.match(pattern, operation):
                reported[kind].append(int(size))
    graph = tree_lstm(trees)
    expected = defaultdict(list)
    for batch in STRATEGIES[strategy](graph):
        if signature := graph.signatures[batch[0]]:
            expected[kind_of(signature)].append(len(batch))
    assert {k: sorted(v) for k, v in reported.items()} == {k: sorted(v) for k, v in expected.items()}
