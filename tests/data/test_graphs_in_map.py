"""`graph.map` on batches of a `GraphSet` gives the same bits as single cell calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.data import GraphBatch, GraphSet, graphs_of_trees, read_lattices, read_text, synthetic_treebank

pytestmark = pytest.mark.cpu

H = 6
LATTICE = "2\n4\n0 1 2 1\n0\n1 0 3\n2 1 4 0 2\n3 2 5 1 1 0 3\n\n3\n0 1 1\n0\n1 0 1\n1 1 2\n"


@pytest.fixture
def model() -> vpps.Model:
    return vpps.Model(seed=3)


def children(batch: GraphBatch) -> Iterator[list[int]]:
    """Yield every vertex's children, as plain ints."""
    if isinstance(batch.children, tuple):
        ends, indices = batch.children
        return (indices[a:b].tolist() for a, b in pairwise(ends.tolist()))
    return iter(batch.children.tolist())


def assert_equal(model: vpps.Model, build: Callable[[vpps.Graph, bool], vpps.Expression]) -> None:
    """Assert that loss and gradients of the bulk form (`build(graph, True)`) have the bits of single calls."""
    with vpps.Handle(model, vps=2) as handle:
        results = []
        for bulk in (True, False):
            graph = vpps.Graph()
            results.append(handle.gradients(graph, build(graph, bulk)))
    (loss, gradients), (expected_loss, expected) = results
    assert loss == expected_loss != 0
    for name, gradient in expected.items():
        assert gradient.any()
        np.testing.assert_array_equal(gradients[name], gradient, err_msg=name)


@pytest.mark.parametrize("levels", [True, False], ids=["levels of the set", "levels found again"])
def test_trees(levels: bool, model: vpps.Model) -> None:
    trees = graphs_of_trees(synthetic_treebank(20, 1).train)
    words = model.lookup("words", (len(trees.vocabularies["word"]), H))
    u, o = model.parameter("U", (H, 2 * H)), model.parameter("Wo", (5, H))

    @vpps.cell
    def leaf(word: Any) -> Any:
        return vpps.tanh(vpps.lookup(words, word))

    @vpps.cell
    def inner(left: Any, right: Any) -> Any:
        return vpps.tanh(u @ vpps.concat([left, right]))

    batch = trees[[7, 2, 7, 19]]

    def build(graph: vpps.Graph, bulk: bool) -> vpps.Expression:
        if bulk:
            structure = batch.structure if levels else {"kind": batch.kind, "children": batch.children}
            h = graph.map([leaf, inner], **structure, inputs={"word": batch["word"]})
            return vpps.sum(vpps.cross_entropy(o @ h, batch["label"]))
        states: list[Any] = []
        for word, (left, right) in zip(batch["word"].tolist(), children(batch), strict=True):
            states.append(inner(states[left], states[right]) if left >= 0 else graph.call(leaf, word))
        labels = batch["label"].tolist()
        return vpps.sum([vpps.cross_entropy(o @ h, label) for h, label in zip(states, labels, strict=True)])

    assert_equal(model, build)


def test_lattices(model: vpps.Model, tmp_path: Path) -> None:
    (tmp_path / "lattices").write_text(LATTICE)
    lattices = read_lattices(tmp_path / "lattices")
    characters, words = model.lookup("characters", (6, H)), model.lookup("words", (4, H))
    u, v = model.parameter("U", (H, H)), model.parameter("V", (H, H))

    @vpps.cell
    def character(character: Any, hs: Any) -> Any:
        return vpps.tanh(vpps.lookup(characters, character) + u @ vpps.sum(hs))

    @vpps.cell
    def word(word: Any, hs: Any) -> Any:
        return vpps.tanh(vpps.lookup(words, word) + v @ vpps.sum(hs))

    batch = lattices[:]

    def build(graph: vpps.Graph, bulk: bool) -> vpps.Expression:
        if bulk:
            columns = {name: batch[name] for name in ("character", "word")}
            h = graph.map([character, word], **batch.structure, inputs=columns)
            return vpps.sum(vpps.square(vpps.sum(h[batch.roots])))
        assert batch.kind is not None
        states: list[Any] = []
        for vertex, some in enumerate(children(batch)):
            cell, column = (word, "word") if batch.kind[vertex] else (character, "character")
            below = [states[child] if child >= 0 else graph.zeros(H) for child in some]
            states.append(cell(int(batch[column][vertex]), below))
        return vpps.sum(vpps.square(vpps.sum([states[root] for root in batch.roots.tolist()])))

    assert_equal(model, build)


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("distinct", [False, True])
def test_kinds_that_do_not_fit_turned_edges_are_refused(model: vpps.Model, lists: bool, distinct: bool) -> None:
    """The kinds still follow the unreversed edges: now the first vertex of a chain has a child."""
    before = np.array([-1, 0, 1, -1, 0], np.int32)
    of_lists = np.cumsum([0, *(before >= 0)]), before[before >= 0]
    chains = GraphSet(
        [3, 2], of_lists if lists else before[:, None], kind=before >= 0, kinds=("begin", "step"),
        columns={"word": np.arange(5)},
    )  # fmt: skip
    words, u = model.lookup("some words", (5, H)), model.parameter("of the one before", (H, H))

    @vpps.cell
    def begin() -> None:
        vpps.scatter(vpps.tanh(vpps.lookup(words, vpps.pull())))

    @vpps.cell
    def step() -> None:
        vpps.scatter(vpps.tanh(u @ vpps.gather(0) + vpps.lookup(words, vpps.pull())))

    batch = chains[[1, 0]]
    for _ in range(2):  # the second time in compiled code, if available
        inputs = {"word": batch["word"]}
        vpps.Graph().map([begin, step], **batch.structure, inputs=inputs, distinct=distinct)
        graph = vpps.Graph()
        with pytest.raises(
            vpps.GraphError, match="vertex 0 has more children than its cell 'begin' takes, which is none"
        ):
            graph.map([begin, step], **batch.reversed.structure, inputs=inputs, distinct=distinct)
        assert len(graph) == 0


def test_chains_of_both_directions(model: vpps.Model, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b c a\nc\nb a\n")
    forward: GraphSet = read_text(tmp_path / "text", min_count=1)
    batches = [forward[[2, 0]], forward.reversed()[[2, 0]]]
    n = len(forward.vocabularies["word"])
    words, o = model.lookup("words", (n, H)), model.parameter("Wo", (n, 2 * H))
    u = [model.parameter(name, (H, H)) for name in ("forward", "backward")]

    @vpps.cell
    def step(word: Any, h: Any, *, direction: int) -> Any:
        return vpps.tanh(vpps.lookup(words, word) + u[direction] @ h)

    def forward_step(word: Any, h: Any) -> Any:
        return step(word, h, direction=0)

    def backward_step(word: Any, h: Any) -> Any:
        return step(word, h, direction=1)

    cells = [vpps.cell(forward_step), vpps.cell(backward_step)]

    def build(graph: vpps.Graph, bulk: bool) -> vpps.Expression:
        following = batches[0]["next"]
        if bulk:
            both = [
                graph.map(cell, **b.structure, inputs={"word": b["word"]})
                for cell, b in zip(cells, batches, strict=True)
            ]
            return vpps.sum(vpps.cross_entropy(o @ vpps.concat(both), following))
        states: list[list[Any]] = []
        for cell, b in zip(cells, batches, strict=True):
            found: list[Any] = [None] * b.n_vertices
            below = list(children(b))
            for vertex in b.order.tolist():
                (child,) = below[vertex]
                previous = found[child] if child >= 0 else graph.zeros(H)
                found[vertex] = cell(int(b["word"][vertex]), previous)
            states.append(found)
        pairs = zip(*states, following.tolist(), strict=True)
        return vpps.sum([vpps.cross_entropy(o @ vpps.concat([f, b]), k) for f, b, k in pairs])

    assert_equal(model, build)
