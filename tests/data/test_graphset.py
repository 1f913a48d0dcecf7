"""Graphs in flat arrays: batches equal manually joined graphs, and errors name wrong graphs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.graphs import PlainGraph, assert_holds, examples, plain_graphs, set_of
from vpps.data import GraphSet, Vocabulary
from vpps.errors import DataError, DtypeError, IndexRangeError

pytestmark = pytest.mark.host

ARITIES = pytest.mark.parametrize("arity", [1, 2, None], ids=["chain", "table", "lists"])


def chains(*sizes: int) -> GraphSet:
    """Return chains with these lengths; column `at` numbers all vertices."""
    children = np.concatenate([np.arange(n) - 1 for n in sizes])[:, None]
    return GraphSet(sizes, children, columns={"at": np.arange(sum(sizes))})


@ARITIES
class TestBatch:
    @examples
    @given(data=st.data())
    def test_of_any_graphs_equals_them_side_by_side(self, arity: int | None, data: st.DataObject) -> None:
        graphs = data.draw(st.lists(plain_graphs(arity), min_size=1, max_size=5))
        found = set_of(graphs, arity)
        indices = data.draw(st.lists(st.integers(-len(graphs), len(graphs) - 1), max_size=6))
        assert_holds(found[indices], [graphs[k] for k in indices], arity)
        assert_holds(found[np.array(indices, np.int64)], [graphs[k] for k in indices], arity)

    @examples
    @given(data=st.data())
    def test_of_a_slice_a_mask_or_one_equals_them_side_by_side(self, arity: int | None, data: st.DataObject) -> None:
        graphs = data.draw(st.lists(plain_graphs(arity), min_size=1, max_size=5))
        found = set_of(graphs, arity)
        rows = data.draw(st.slices(len(graphs)))
        assert_holds(found[rows], graphs[rows], arity)
        mask = data.draw(st.lists(st.booleans(), min_size=len(graphs), max_size=len(graphs)))
        assert_holds(found[np.array(mask)], [g for g, chosen in zip(graphs, mask, strict=True) if chosen], arity)
        one = data.draw(st.integers(-len(graphs), len(graphs) - 1))
        assert_holds(found[one], [graphs[one]], arity)

    @examples
    @given(data=st.data())
    def test_of_a_subset_equals_them_side_by_side(self, arity: int | None, data: st.DataObject) -> None:
        graphs = data.draw(st.lists(plain_graphs(arity), min_size=2, max_size=6))
        found = set_of(graphs, arity)
        begin = data.draw(st.integers(0, len(graphs) - 1))
        end = data.draw(st.integers(begin + 1, len(graphs)))
        part = found.subset(slice(begin, end))
        assert_holds(part[:], graphs[begin:end], arity)
        assert_holds(part[[-1, 0]], [graphs[end - 1], graphs[begin]], arity)
        again = part.subset([0, 0])
        assert_holds(again[:], [graphs[begin]] * 2, arity)
        assert_holds(part.subset(slice(None, None, 2))[:], graphs[begin:end:2], arity)

    @examples
    @given(data=st.data())
    def test_of_reversed_graphs_has_readers_as_children(self, arity: int | None, data: st.DataObject) -> None:
        graphs = data.draw(st.lists(plain_graphs(arity), min_size=1, max_size=4))
        turned = []
        for g in graphs:
            readers: list[list[int]] = [[] for _ in g.children]
            relation: list[list[int]] = [[] for _ in g.children]
            for vertex, some in enumerate(g.children):
                for child, own in zip(some, g.relation[vertex], strict=True):
                    if child >= 0:
                        readers[child].append(vertex)
                        relation[child].append(own)
            turned.append(PlainGraph(readers, g.kind, g.word, g.position, g.rating, relation))
        single = max(len(some) for g in turned for some in g.children) <= 1
        if single:
            for g in turned:
                g.children = [some or [-1] for some in g.children]
                g.relation = [some or [0] for some in g.relation]
        found = set_of(graphs, arity)
        assert_holds(found.reversed()[:], turned, 1 if single else None)
        part = found.subset(slice(len(graphs) - 1, None)).reversed()
        assert part[0].levels.tolist() == found.reversed()[-1].levels.tolist()
        some = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=4))
        assert_holds(found[some].reversed, [turned[k] for k in some], 1 if single else None)


class TestChoosing:
    def test_arrays_are_read_only(self) -> None:
        found = chains(3, 2)
        with pytest.raises(ValueError, match="read-only"):
            found.arrays.levels[0] = 7
        with pytest.raises(ValueError, match="read-only"):
            found[0]["at"][0] = 7

    def test_callers_array_stays_writeable(self) -> None:
        words = np.arange(3, dtype=np.int32)
        GraphSet([3], np.full((3, 1), -1), columns={"word": words})
        words[0] = 5

    def test_array_is_gathered_once(self) -> None:
        batch = chains(3, 2)[[1, 0]]
        assert batch["at"] is batch["at"]
        assert batch.children is batch.children

    @pytest.mark.parametrize("index", [2, -3, [0, 2], [-3], np.array([5])])
    def test_graph_that_is_not_there_is_named(self, index: Any) -> None:
        wrong = index if isinstance(index, int) else index[-1]
        with pytest.raises(IndexRangeError, match=f"no graph {wrong} in a set of 2"):
            chains(3, 2)[index]

    @pytest.mark.parametrize("index", [[0.5], [[0]], np.array(1.0), [True], "0"])
    def test_index_that_is_no_integer_is_an_error(self, index: Any) -> None:
        with pytest.raises(DtypeError, match="a mask of 2 or a 1-D array of ints"):
            chains(3, 2)[index]

    def test_unknown_column_is_named_beside_the_known(self) -> None:
        with pytest.raises(DataError, match="there is no column 'word': columns at per vertex"):
            chains(3)[0]["word"]

    def test_empty_batch_has_no_vertices(self) -> None:
        batch = chains(3)[[]]
        assert (len(batch), batch.n_vertices, batch.children.shape) == (0, 0, (0, 1))  # type: ignore[union-attr]

    def test_set_survives_pickling(self) -> None:
        again = pickle.loads(pickle.dumps(chains(3, 2)))
        assert again[[1, 0]]["at"].tolist() == [3, 4, 0, 1, 2]


class TestBatches:
    def indices(self, **options: Any) -> list[list[int]]:
        return [batch.indices.tolist() for batch in chains(*range(1, 24)).batches(5, **options)]

    @pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"bucket": 2}, {"bucket": 2, "shuffle": False}])
    def test_every_graph_is_there_once(self, options: dict[str, Any]) -> None:
        batches = self.indices(**options)
        assert sorted(map(len, batches)) == [3, 5, 5, 5, 5]
        assert sorted(k for batch in batches for k in batch) == list(range(23))

    @pytest.mark.parametrize("bucket", [None, 2])
    def test_order_follows_from_seed_and_epoch(self, bucket: int | None) -> None:
        first = self.indices(seed=3, epoch=1, bucket=bucket)
        assert first == self.indices(seed=3, epoch=1, bucket=bucket)
        assert first != self.indices(seed=3, epoch=2, bucket=bucket)
        assert first != self.indices(seed=4, epoch=1, bucket=bucket)

    def test_unshuffled_keeps_the_order(self) -> None:
        assert self.indices(shuffle=False)[1] == [5, 6, 7, 8, 9]

    def test_short_last_batch_can_be_left_out(self) -> None:
        assert [len(batch) for batch in self.indices(drop_last=True)] == [5, 5, 5, 5]

    def test_graphs_of_one_size_meet_in_a_bucket(self) -> None:
        """If the whole set is sorted, sizes within a batch differ by less than the batch's length."""
        assert all(max(batch) - min(batch) < 5 for batch in self.indices(bucket=5))
        assert any(max(batch) - min(batch) >= 5 for batch in self.indices())

    @pytest.mark.parametrize("arguments", [{"size": 0}, {"size": 3, "bucket": 0}])
    def test_sizes_are_positive(self, arguments: dict[str, int]) -> None:
        with pytest.raises(DataError, match="at least 1"):
            chains(2).batches(**arguments)


class TestSplit:
    def test_parts_share_the_memory_of_the_whole(self) -> None:
        whole = chains(*range(1, 11))
        first, second = whole.split(0.9)
        assert (len(first), len(second)) == (9, 1)
        assert second[0]["at"].tolist() == whole[9]["at"].tolist()
        assert np.shares_memory(second.arrays.levels, whole.arrays.levels)

    def test_random_parts_are_disjoint_and_follow_from_the_seed(self) -> None:
        whole = chains(*range(1, 11))
        first, second = (set(part.sizes.tolist()) for part in whole.split(0.7, seed=2))
        assert (len(first), first | second) == (7, set(range(1, 11)))
        assert not first & second
        assert first == set(whole.split(0.7, seed=2)[0].sizes.tolist())
        assert first != set(whole.split(0.7, seed=3)[0].sizes.tolist())

    @pytest.mark.parametrize("fraction", [0, 1, 0.01, -0.5, 1.5, float("nan")])
    def test_empty_part_is_an_error(self, fraction: float) -> None:
        with pytest.raises(DataError, match="at least one graph"):
            chains(1, 2, 3).split(fraction)

    def test_empty_subset_is_an_error(self) -> None:
        with pytest.raises(DataError, match="at least one graph"):
            chains(1, 2, 3).subset([])


class TestWrongGraphs:
    """Two chains with 3 and 2 vertices, each time with an error in the second."""

    SIZES = (3, 2)
    CHILDREN = np.array([[-1, -1], [0, -1], [1, 0], [-1, -1], [0, -1]])

    def make(self, children: Any = CHILDREN, **options: Any) -> GraphSet:
        return GraphSet(self.SIZES, children, **options)

    @pytest.mark.parametrize("lists", [False, True])
    @pytest.mark.parametrize("child", [2, -2, 2**31 - 1])
    def test_child_out_of_range_is_named(self, child: int, lists: bool) -> None:
        table = self.CHILDREN.copy()
        table[4, 1] = child
        with pytest.raises(DataError, match=rf"graph 1: vertex 1: there is no child {child}: .* 2 vertices \(0 to 1\)"):
            self.make((np.arange(0, 11, 2), table.reshape(-1)) if lists else table)

    def test_graph_is_called_by_its_source(self) -> None:
        table = self.CHILDREN.copy()
        table[4, 1] = 2
        with pytest.raises(DataError, match=r"^b\.txt:7: vertex 1: there is no child 2"):
            self.make(table, sources=["b.txt:3", "b.txt:7"])

    def test_vertex_that_is_its_own_child_is_a_cycle(self) -> None:
        table = self.CHILDREN.copy()
        table[4, 1] = 1
        with pytest.raises(DataError, match="graph 1: vertices 1 -> 1 form a cycle"):
            self.make(table)

    def test_cycle_is_shown(self) -> None:
        table = self.CHILDREN.copy()
        table[0, 0] = 2  # 0 reads 2, which reads 1 and 0; 1 reads 0
        with pytest.raises(DataError, match=r"graph 0: vertices (0 -> 2 -> 0|2 -> 0 -> 2|0 -> 2 -> 1 -> 0) form a cy"):
            self.make(table)

    def test_long_cycle_is_cut(self) -> None:
        with pytest.raises(DataError, match=r"graph 0: vertices \d+ -> .* -> \.\.\. form a cycle") as error:
            GraphSet([5000], (np.arange(5000)[:, None] - 1) % 5000)
        assert len(str(error.value)) < 200

    @pytest.mark.parametrize("kind", [3, -1])
    def test_unknown_kind_is_named(self, kind: int) -> None:
        with pytest.raises(DataError, match=rf"graph 1: vertex 0: there is no kind {kind}: there are 2 \(leaf, inner"):
            self.make(kind=[0, 1, 1, kind, 1], kinds=("leaf", "inner"))

    @pytest.mark.parametrize(
        "make, message",
        [
            (lambda: GraphSet([], np.zeros((0, 1), int)), "at least one graph"),
            (lambda: GraphSet([2, 0], [[-1], [0]]), "graph 1 has 0 vertices"),
            (lambda: GraphSet([3], [[-1], [0]]), r"shape \(3, arity\).*not \(2, 1\)"),
            (lambda: GraphSet([2], [-1, 0]), r"not \(2,\)"),
            (lambda: GraphSet([2], ([0, 1], [0])), r"\(offsets, indices\) of shapes \(3,\)"),
            (lambda: GraphSet([2], ([0, 0, 2], [0])), "rise from 0 to 1"),
            (lambda: GraphSet([2], ([0, 2, 1], [0])), "rise from 0 to 1"),
            (lambda: GraphSet([2], [[-1], [0]], sources=["a", "b"]), "2 sources for 1 graphs"),
            (lambda: GraphSet([2], [[-1], [0]], kind=[0]), r"kind must have shape \(2,\)"),
            (lambda: GraphSet([2], [[-1], [0]], kind=[0, 0], kinds=[f"k{i}" for i in range(129)]), "at most 128"),
            (lambda: GraphSet([2], [[-1], [0]], columns={"x": [1]}), "column 'x' must have a row for each of the 2 v"),
            (lambda: GraphSet([2], [[-1], [0]], graph_columns={"x": [1, 2]}), "each of the 1 graphs"),
            (
                lambda: GraphSet([2], [[-1], [0]], columns={"x": [1, 2]}, graph_columns={"x": [1]}),
                "'x' names a column of vertices and a column of graphs",
            ),
            (
                lambda: GraphSet([2], [[-1], [0]], columns={"x": [1, 2]}, edge_columns={"x": [[1], [2]]}),
                "'x' names a column of vertices and a column of edges",
            ),
            (
                lambda: GraphSet([2], [[-1], [0]], edge_columns={"x": [1, 2]}),
                r"of children, \(2, 1\), .*not shape \(2,\)",
            ),
            (lambda: GraphSet([2], ([0, 0, 1], [0]), edge_columns={"x": [1, 2]}), "'x' must .* each of the 1 edges"),
            (lambda: GraphSet([2], ([0, 0, 1], [0]), edge_columns={"x": [[], [1]]}), "column 'x': expected an array"),
            (lambda: GraphSet([2], [[], [0]]), "children: expected an array"),
            (
                lambda: GraphSet([2], [[-1], [0]], edge_columns={"x": [[0], [2]]}, classes={"x": ("a", "b")}),
                "'x' holds 2, but there are 2 names",
            ),
            (lambda: GraphSet([2], [[-1], [0]])[:].child_offsets, "children are a table for 1 each; give its columns"),
            (lambda: GraphSet([1], [[-1]], columns={"x": [2]}, classes={"x": ("a", "b")}), "'x' holds 2, but there a"),
            (lambda: GraphSet([1], [[-1]], classes={"x": ("a", "b")}), "names for 'x', but no integer column"),
            (
                lambda: GraphSet(
                    [1], [[-1]], columns={"x": [0]}, classes={"x": ("a",)}, vocabularies={"x": Vocabulary(["<unk>"])}
                ),
                "'x' has a vocabulary and classes",
            ),
        ],
    )
    def test_contradiction_is_named(self, make: Callable[[], GraphSet], message: str) -> None:
        with pytest.raises(DataError, match=message):
            make()

    @pytest.mark.parametrize(
        "make, message",
        [
            (lambda: GraphSet([2.0], [[-1], [0]]), "sizes must be integers, not float64"),
            (lambda: GraphSet([2], [[-1.0], [0]]), "children must be integers, not float64"),
            (lambda: GraphSet([2], [[-1], [2**40]]), "which does not fit int32"),
            (lambda: GraphSet([1], [[-1]], columns={"x": [2**31]}), "column 'x' hold 2147483648 to .*int32"),
            (lambda: GraphSet([1], [[-1]], columns={"x": ["a"]}), "column 'x' must hold numbers"),
            (lambda: GraphSet([1], [[-1]], columns={"x": [1e300]}), "beyond the range of float32"),
        ],
    )
    def test_wrong_type_is_named(self, make: Callable[[], GraphSet], message: str) -> None:
        with pytest.raises(DtypeError, match=message):
            make()

    @pytest.mark.parametrize("children, x", [([[-1], [0]], [[99], [1]]), (([0, 1, 2], [-1, 0]), [99, 1])])
    def test_beside_no_child_may_be_a_number_without_a_name(self, children: Any, x: Any) -> None:
        made = GraphSet([2], children, edge_columns={"x": x}, classes={"x": ("a", "b")})
        assert made[:]["x"].ravel().tolist() == [99, 1]


class TestStatistics:
    def test_says_what_the_set_holds(self) -> None:
        found = GraphSet(
            [3, 1],
            [[-1, -1], [-1, -1], [0, 1], [-1, -1]],
            kind=[0, 0, 1, 0],
            kinds=("leaf", "inner"),
            columns={"word": [1, 2, -1, 0], "x": np.array([[0.5, 1]] * 4)},
            graph_columns={"y": [1.5, 2]},
            edge_columns={"z": [[9, 9], [9, 9], [4, 5], [9, 9]]},
            vocabularies={"word": Vocabulary(["<unk>", "a", "b"])},
        ).stat()
        assert (found.graphs, found.vertices, found.edges, found.arity, found.max_readers) == (2, 4, 2, 2, 1)
        assert vars(found.vertices_per_graph) == {"min": 1, "mean": 2, "max": 3}
        assert vars(found.levels_per_graph) == {"min": 1, "mean": 1.5, "max": 2}
        assert vars(found.fan_in) == {"min": 0, "mean": 0.5, "max": 2}
        assert found.kinds == {"leaf": 3, "inner": 1}
        assert {name: (c.per, c.type, c.min, c.max) for name, c in found.columns.items()} == {
            "word": ("vertex", "int32", -1, 2),
            "x": ("vertex", "float32[2]", 0.5, 1),
            "y": ("graph", "float32", 1.5, 2),
            "z": ("edge", "int32", 4, 5),
        }
        assert found.vocabularies == {"word": 3}

    def test_of_a_part_counts_the_part(self) -> None:
        part = chains(2, 5, 3).subset(slice(1, 2)).stat()
        assert (part.graphs, part.vertices, part.edges, part.levels_per_graph.max) == (1, 5, 4, 5)
        assert part.bytes == chains(5).stat().bytes
