"""Dropout masks depend on an example's place in the whole mini-batch: in maps, rows and graphs that Python records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet, graphs_of_trees, synthetic_treebank
from vpps.reference import Reference, key_of, weights_of

pytestmark = pytest.mark.cpu

E = vpps.Expression
Array = NDArray[np.float32]
WIDTH = 9
PARTS = [[4, 0], [1, 2, 5], [], [3]]


class Net:
    """Trees with two kinds of cells, with dropout in one kind and after gathered rows and words."""

    def __init__(self) -> None:
        self.trees: GraphSet = graphs_of_trees(synthetic_treebank(n_train=6, n_dev=1).train)
        self.model = vpps.Model(seed=3)
        self.words = self.model.lookup("words", (300, WIDTH), init="normal")
        self.W = self.model.parameter("W", (WIDTH, 2 * WIDTH))

    @vpps.cell
    def leaf(self, word: int) -> E:
        return vpps.lookup(self.words, word)

    @vpps.cell
    def inner(self) -> E:
        left, right = vpps.gather()
        return vpps.tanh(self.W @ vpps.concat([vpps.dropout(left, 0.3), right]))

    @vpps.cell
    def join(self, h: E, hs: list[E]) -> E:
        return vpps.sum(vpps.each(lambda x: vpps.dropout(x, 0.5), hs)) + h

    def rows(self, graph: vpps.Graph, batch: GraphBatch, **options: Any) -> list[vpps.Rows]:
        """Return rows for every vertex, every root, and again every vertex; all with dropout."""
        structure = {**batch.structure, **options}
        h = graph.map([self.leaf, self.inner], **structure, inputs={"word": batch["word"]})
        x = vpps.dropout(graph.lookup(self.words, np.maximum(batch["word"], 0)).of(batch.examples), 0.5)
        top = h[batch.roots]
        joined: Any = self.join(vpps.dropout(top, 0.5), [top, top])
        return [h, joined, graph.map(lambda x: vpps.dropout(x, 0.5), inputs={"x": x + h})]

    def one_by_one(self, graph: vpps.Graph, batch: GraphBatch) -> list[E]:
        """Return the first of these results, by single calls."""
        hs: list[E] = []
        for k, number in enumerate(batch.numbers.tolist()):
            with graph.example(number):
                for v in range(batch.offsets[k], batch.offsets[k + 1]):
                    word, below = int(batch["word"][v]), batch.children[v]
                    leaf = lambda: graph.call(self.leaf, word)  # noqa: B023, E731
                    children = [hs[child] for child in below.tolist() if child >= 0]
                    hs.append(self.composed(*children) if children else leaf())
        return hs

    @vpps.cell
    def composed(self, left: E, right: E) -> E:
        return vpps.tanh(self.W @ vpps.concat([vpps.dropout(left, 0.3), right]))


@pytest.fixture
def net() -> Net:
    return Net()


def part_of(trees: GraphSet, numbers: Sequence[int]) -> GraphBatch:
    """Return the batch that `GraphSet.batches` gives a single process."""
    part = trees[np.array(numbers, np.int64)]
    part.whole, part.numbers = len(trees), np.array(numbers, np.int64)
    return part


def values(model: vpps.Model, graph: vpps.Graph, wanted: Sequence[E | vpps.Rows], **options: Any) -> list[Array]:
    """Return the values with dropout, after comparing them with the reference."""
    with vpps.Handle(model, target="cpu", vps=2, **options) as handle:
        found = handle.forward(graph, wanted, train=True)
    reference = Reference(graph, weights_of(model), key_of(model))
    for x, value in zip(wanted, found, strict=True):
        np.testing.assert_allclose(value, reference.value(x), rtol=1e-5, atol=1e-6)
        assert np.array_equal(value == 0, reference.value(x) == 0)
    return found


OPTIONS: dict[str, dict[str, Any]] = {"": {}, "distinct": {"distinct": True}, "NumPy's": {"state": WIDTH}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("numbers", PARTS, ids=str)
def test_a_part_has_the_masks_of_the_whole(net: Net, numbers: list[int], options: dict[str, Any]) -> None:
    whole, part = net.trees[:], part_of(net.trees, numbers)
    expected: list[Array] = []
    for again in range(2):  # NumPy records the first map of these cells
        graph = vpps.Graph()
        expected = values(net.model, graph, net.rows(graph, whole, **options))
        graph = vpps.Graph()
        graph.zeros(WIDTH)  # vertices outside examples do not matter
        found = values(net.model, graph, net.rows(graph, part, **options))
        vertices = np.concatenate([np.arange(*whole.offsets[k : k + 2]) for k in numbers] or [np.zeros(0, int)])
        for x, y in zip(found, (expected[0][vertices], expected[1][numbers], expected[2][vertices]), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, err_msg=str(again))
    assert (expected[2] == 0).any()


@pytest.mark.parametrize("recorder", ["python", "compiled"])
def test_calls_one_by_one_have_the_masks_of_a_map(net: Net, recorder: str, use_recorder: Callable[[str], None]) -> None:
    use_recorder(recorder)
    graph, calls = vpps.Graph(), vpps.Graph()
    batch = part_of(net.trees, [4, 1, 2])
    (expected,) = values(net.model, graph, [net.rows(graph, batch)[0]])
    found = values(net.model, calls, net.one_by_one(calls, batch))
    np.testing.assert_allclose(np.stack(found), expected, rtol=1e-5, atol=1e-6)


def dropped(model: vpps.Model, record: Callable[[vpps.Graph, Callable[[], E]], list[E]]) -> Array:
    """Return which of 64 ones some vertices keep."""
    graph = vpps.Graph()
    one = graph.input(np.ones(64))
    return np.stack(values(model, graph, record(graph, lambda: vpps.dropout(one, 0.5)))) != 0


def test_what_belongs_to_no_example_is_numbered_by_itself(net: Net) -> None:
    """The random numbers are those of a graph without examples."""

    def plain(graph: vpps.Graph, drop: Callable[[], E]) -> list[E]:
        return [drop(), drop()]

    def around(graph: vpps.Graph, drop: Callable[[], E]) -> list[E]:
        first = drop()
        with graph.example(7):
            own = [drop(), drop()]
        return [first, drop(), *own]

    found = dropped(net.model, around)
    assert np.array_equal(dropped(net.model, plain), found[:2])
    assert len(np.unique(found, axis=0)) == 4


def test_what_examples_share_is_of_none(net: Net) -> None:
    """Zeros and constants are recorded by the first example that needs them."""

    def first(graph: vpps.Graph, drop: Callable[[], E]) -> list[E]:
        with graph.example(7):
            return [drop() * 3.0 + graph.zeros(64), drop()]

    def second(graph: vpps.Graph, drop: Callable[[], E]) -> list[E]:
        with graph.example(6):
            drop() * 3.0 + graph.zeros(64)
        return first(graph, drop)

    assert np.array_equal(dropped(net.model, first), dropped(net.model, second))


def test_examples_within_examples_and_in_several_pieces(net: Net) -> None:
    def pieces(graph: vpps.Graph, drop: Callable[[], E]) -> list[E]:
        with graph.example(1):
            first = [drop()]
            with graph.example(2):
                inner = [drop()]
            first.append(drop())
        with graph.example(1):
            return [*first, drop(), *inner]

    def straight(graph: vpps.Graph, drop: Callable[[], E]) -> list[E]:
        with graph.example(2):
            inner = [drop()]
        with graph.example(1):
            return [drop(), drop(), drop(), *inner]

    assert np.array_equal(dropped(net.model, pieces), dropped(net.model, straight))


def test_a_step_within_an_example(net: Net) -> None:
    """The step is launched before the example ends."""
    masks = []
    with vpps.Handle(net.model, target="cpu", vps=1) as handle:
        for within in (True, False):
            graph = vpps.Graph()
            one = graph.input(np.ones(64))
            with graph.example(5):
                y = vpps.dropout(one, 0.5)
                if within:
                    masks.append(handle.forward(graph, [y], train=True)[0])
            masks.append(handle.forward(graph, [y], train=True)[0])
    assert np.array_equal(masks[0], masks[1])
    assert np.array_equal(masks[0], masks[2])


def test_rows_keep_their_examples() -> None:
    graph = vpps.Graph()
    rows = graph.rows(np.ones((4, 3))).of([9, 8, 9, 7])
    found = {
        "slice": rows[1:3], "mask": rows[np.array([False, True, True, False])], "op": (rows * 2.0 + 1.0)[[1, 2]],
        "beside others": vpps.dot(graph.rows(np.ones((4, 3))), rows)[1:3], "list": vpps.concat([rows, rows])[1:3],
        "map": graph.map(lambda x: vpps.dropout(x, 0.5), inputs={"x": rows})[1:3],
    }  # fmt: skip
    for name, part in found.items():
        assert part.examples is not None, name
        assert part.examples.numbers.tolist() == [8, 9], name
    assert graph.rows(np.ones((4, 3)))[1:].examples is None


def test_examples_of_another_batch_are_refused(net: Net) -> None:
    """Compiled code that records the map also refuses them."""
    for _ in range(2):
        graph = vpps.Graph()
        net.rows(graph, net.trees[:])
        with pytest.raises(vpps.ShapeError, match=r"graph.map: examples of \d+ rows"):
            net.rows(graph, net.trees[:], examples=net.trees[:2].examples)
