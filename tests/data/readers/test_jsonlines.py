"""Lines of JSON become graphs, as the reader's docstring says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.graphs import PlainGraph, assert_holds, examples, plain_graphs, weights_of
from vpps.data import GraphSet, read_jsonl
from vpps.errors import DataError, VppsError

pytestmark = pytest.mark.host

EXAMPLE = {
    "kind": ["leaf", "leaf", "add"],
    "children": [[], [], [0, 1]],
    "columns": {"word": ["good", "film", None], "label": [3, 2, 4], "position": [[0.5, 1], [1, 1], [2, 1.5]]},
    "edge_columns": {"role": [[], [], ["modifier", "head"]]},
    "graph": {"rating": 4.5},
}


def read(folder: Path, *lines: Any, **options: Any) -> GraphSet:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "dags.jsonl").write_text(text)
    return read_jsonl(folder / "dags.jsonl", **options)


def test_example_of_the_documentation(tmp_path: Path) -> None:
    graphs = read(tmp_path, EXAMPLE, "", EXAMPLE)
    assert len(graphs) == 2
    assert graphs.kinds == ("leaf", "add")
    graph = graphs[1]
    assert graph.kind is not None
    assert graph.kind.tolist() == [0, 0, 1]
    ends, indices = graph.children
    assert (ends.tolist(), indices.tolist()) == ([0, 0, 0, 2], [0, 1])
    words = graphs.vocabularies["word"].words
    assert [words[k] if k >= 0 else None for k in graph["word"]] == ["good", "film", None]
    assert graph["label"].dtype == np.int32
    assert graph["position"].tolist() == [[0.5, 1], [1, 1], [2, 1.5]]
    assert graph["rating"].tolist() == [4.5]
    roles = graphs.vocabularies["role"].words
    assert [roles[k] for k in graph["role"]] == ["modifier", "head"]


def test_a_column_that_is_null_in_a_whole_line_is_of_the_type_of_the_others(tmp_path: Path) -> None:
    def line(word: str | None, label: int | None) -> dict[str, Any]:
        return {"children": [[]], "columns": {"word": [word], "label": [label], "unused": [None]}}

    graphs = read(tmp_path, line(None, 4), line("good", None), line(None, 2))
    assert graphs[:]["word"].tolist() == [-1, graphs.vocabularies["word"]["good"], -1]
    assert graphs[:]["label"].tolist() == [4, -1, 2]
    assert graphs[:]["unused"].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("as_edges", [False, True])
@examples
@given(data=st.data())
def test_any_graphs(as_edges: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    plain: list[PlainGraph] = data.draw(st.lists(plain_graphs(None), min_size=1, max_size=4))
    lines = []
    for g in plain:
        line: dict[str, Any] = {
            "kind": ["abc"[k] for k in g.kind],
            "columns": {"word": g.word, "position": g.position},
            "graph": {"rating": g.rating},
        }
        if as_edges:
            vertices = range(len(g.children))[::-1]  # children in order, vertices in any order
            line["edges"] = [[v, child] for v in vertices for child in g.children[v]]
            relation: Any = [x for v in vertices for x in g.relation[v]]
        else:
            line["children"] = [[child if child >= 0 else None for child in some] for some in g.children]
            relation = g.relation
        line["edge_columns"] = {"relation": relation, "weight": weights_of(relation)}
        lines.append(line)
    graphs = read(tmp_path_factory.getbasetemp(), *lines)
    names = list(dict.fromkeys(k for g in plain for k in g.kind))
    for g in plain:
        g.kind = [names.index(k) for k in g.kind]
    assert_holds(graphs[:], plain, None)


def test_children_may_be_a_table(tmp_path: Path) -> None:
    graphs = read(tmp_path, EXAMPLE, lists=False)
    assert isinstance(graphs[0].children, np.ndarray)
    assert graphs[0].children.tolist() == [[-1, -1], [-1, -1], [0, 1]]
    assert graphs[0]["role"].tolist() == [
        [0, 0],
        [0, 0],
        [graphs.vocabularies["role"][w] for w in ("modifier", "head")],
    ]


def test_edges_alone_need_the_number_of_vertices(tmp_path: Path) -> None:
    assert read(tmp_path, {"vertices": 3, "edges": [[2, 0], [2, 1]]})[0].levels.tolist() == [0, 0, 1]
    with pytest.raises(DataError, match=r'dags\.jsonl:1: expected "vertices", the number of vertices'):
        read(tmp_path, {"edges": [[2, 0]]})


@pytest.mark.parametrize("n", [101, 2**31 - 1])
def test_a_number_of_vertices_alone_is_limited_by_its_line(n: int, tmp_path: Path) -> None:
    """A line of 38 bytes once made the reader allocate memory for two thousand million lists."""
    path = tmp_path / "graphs.jsonl"
    path.write_text(f'{{"vertices": 100, "edges": []}}\n{{"vertices": {n}, "edges": []}}\n')
    with pytest.raises(DataError, match=rf"graphs\.jsonl:2: {n} vertices, but the line has .*: give every vertex a"):
        read_jsonl(path)


@pytest.mark.parametrize("where", ['"kind": ["%s"]', '"columns": {"word": ["a%s"]}', '"columns": {"%s": [1]}'])
@pytest.mark.parametrize("half", [r"\ud800", r"\uDFFF", r"\udc00\ud800"])
def test_half_a_surrogate_pair_is_no_text(where: str, half: str, tmp_path: Path) -> None:
    path = tmp_path / "graphs.jsonl"
    whole = r"\ud83d\ude00"
    path.write_text("".join(f'{{"children": [[]], {where % text}}}\n' for text in (whole, half)))
    with pytest.raises(DataError, match=r"graphs\.jsonl:2: expected text, found half a surrogate pair, '.ud"):
        read_jsonl(path)


def test_whole_numbers_beside_others_are_numbers(tmp_path: Path) -> None:
    graphs = read(tmp_path, {"children": [[]], "columns": {"x": [1]}}, {"children": [[]], "columns": {"x": [1.5]}})
    assert graphs[:]["x"].dtype == np.float32
    assert graphs[:]["x"].tolist() == [1, 1.5]


def test_strings_may_be_classes(tmp_path: Path) -> None:
    lines = [{"children": [[]], "graph": {"class": name}} for name in ("toxic", "harmless", "toxic")]
    graphs = read(tmp_path, *lines, classes=["class"])
    assert graphs.classes["class"] == ("harmless", "toxic")
    assert graphs[:]["class"].tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"dags\.jsonl:2: unknown class 'odd': the known ones are harmless, toxic"):
        read(tmp_path, lines[0], {"children": [[]], "graph": {"class": "odd"}}, like=graphs)


def test_classes_need_a_column_of_strings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no column 'label' of strings for classes"):
        read(tmp_path, EXAMPLE, classes=["label"])


def test_development_data_is_like_training(tmp_path: Path) -> None:
    train = read(tmp_path, EXAMPLE, lists=False)
    line = {**EXAMPLE, "kind": ["add", "leaf", "leaf"], "children": [[], [], []], "edge_columns": {"role": [[]] * 3}}
    line["columns"] = {**EXAMPLE["columns"], "word": ["film", "zebra", None]}  # type: ignore[dict-item]
    dev = read(tmp_path, line, like=train)
    assert dev[0]["word"].tolist() == [train.vocabularies["word"]["film"], 0, -1]
    assert dev[0].kind is not None
    assert dev[0].kind.tolist() == [1, 0, 0]
    assert dev.arity == 2
    with pytest.raises(DataError, match=r"dags\.jsonl:2: unknown kind 'mul': the known ones are leaf, add"):
        read(tmp_path, EXAMPLE, {**EXAMPLE, "kind": ["leaf", "mul", "add"]}, like=train)


ONE = {"children": [[]], "columns": {"x": [1]}}
EDGE = {"children": [[], [0]]}
FORK = {"children": [[], [0], [0, 1]]}
PAIR = {"vertices": 2, "edges": [[1, 0]]}


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "expected a graph as a JSON object on one line: "),
        ("[" * 100_000, "expected a graph as a JSON object on one line: "),
        ([1], "expected a graph as a JSON object, with children or edges"),
        ({"childern": []}, "unknown field 'childern': the fields of a graph are children, edges, "),
        ({}, 'expected "vertices"'),
        ({"children": []}, "a graph has between 1 and 2147483647 vertices, not 0"),
        ({"vertices": "two", "edges": []}, "a graph has between 1 and 2147483647 vertices, not 'two'"),
        ({"vertices": 10**12, "edges": []}, "not 1000000000000"),
        ({"vertices": 2}, 'expected either "children" or "edges"'),
        ({"children": [[]], "edges": []}, 'expected either "children" or "edges"'),
        ({"children": [0]}, "expected a list of children for every vertex"),
        ({"children": {"0": []}}, "expected a list with a value per vertex as 'children'"),
        ({"children": [[], [2]]}, "vertex 1: there is no child 2: there are 2 vertices (0 to 1)"),
        ({"children": [[], ["0"]]}, "vertex 1: there is no child '0'"),
        ({"children": [[], [True]]}, "vertex 1: there is no child True"),
        ({"children": [[1], [0]]}, "form a cycle"),
        ({"children": [[], [0]], "kind": ["a"]}, "'children' has 2 vertices and 'kind' 1"),
        ({"children": [[]], "kind": [1]}, "kinds must be strings"),
        ({"vertices": 2, "edges": 3}, "expected a list of pairs [parent, child] as edges"),
        ({"vertices": 2, "edges": [[1]]}, "expected an edge as a pair [parent, child], found [1]"),
        ({"vertices": 2, "edges": [[2, 0]]}, "edge [2, 0]: there is no vertex 2: there are 2 (0 to 1)"),
        ({"vertices": 2, "edges": [[1, 2]]}, "vertex 1: there is no child 2"),
        ({**ONE, "columns": [1]}, 'expected columns by name in "columns", "edge_columns" and "graph"'),
        (
            {**EDGE, "edge_columns": {"x": [[]]}},
            "expected a list for each of the 2 vertices, a value per child, as 'x'",
        ),
        ({**EDGE, "edge_columns": {"x": [[], [1, 2]]}}, "vertex 1 has 1 children: expected a list of as many values"),
        ({**EDGE, "edge_columns": {"x": [[], 7]}}, "vertex 1 has 1 children: expected a list of as many values as its"),
        ({**EDGE, "edge_columns": {"x": [[], [{}]]}}, "vertex 1, child 0: 'x' must hold integers"),
        ({**FORK, "edge_columns": {"x": [[], [2], [1, 2**40]]}}, "vertex 2, child 1: 'x' holds 1099511627776, which"),
        ({**FORK, "edge_columns": {"x": [[], ["a"], [3, "b"]]}}, "vertex 2, child 0: 'x' must hold integers"),
        ({**PAIR, "edge_columns": {"x": []}}, "expected a list with a value for each of the 1 edges as 'x'"),
        ({**ONE, "columns": {"x": 1}}, "expected a list with a value per vertex as 'x'"),
        ({**ONE, "columns": {"x": [1, 2]}}, "'children' has 1 vertices and 'x' 2"),
        ({**ONE, "columns": {"x": [{}]}}, "'x' must hold integers, numbers, strings, or lists of as many numbers each"),
        ({**ONE, "columns": {"x": [["a"]]}}, "'x' must hold integers"),
        ({**ONE, "columns": {"x": [2**31]}}, "'x' holds 2147483648, which does not fit int32"),
        ({**ONE, "columns": {"x": [1e39]}}, "'x' holds 1e+39, which does not fit float32"),
        ({**ONE, "columns": {"x": [[10**400]]}}, "which does not fit float32"),
        ('{"children": [[]], "columns": {"x": [1e400]}}', "'x' holds inf, which does not fit float32"),
        ({**ONE, "columns": {"x": [float("nan")]}}, "'x' holds nan, which does not fit float32"),
        ({**ONE, "columns": {"x": [[-float("inf")]]}}, "'x' holds -inf, which does not fit float32"),
        ({"children": [[], []], "columns": {"x": [0.5, 2**24 + 1]}}, "'x' holds 16777217 among numbers, which float32"),
        ('{"children": [[]], "columns": {"x": [1], "x": [2]}}', "it has 'x' twice"),
        ('{"children": [[]], "children": [[]]}', "it has 'children' twice"),
        ({"children": [[], []], "columns": {"x": [1.5, None]}}, "vertex 1: 'x' must hold integers"),
        ({"children": [[], []], "columns": {"x": [[1], [1, 2]]}}, "'x' must hold integers"),
    ],
)
def test_malformed_line_is_located(line: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, line)
    assert "dags.jsonl:1: " in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "line, message",
    [
        ({"children": [[]]}, "columns lacks 'x', which "),
        ({"children": [[]], "columns": {"x": [1], "y": [2]}}, "columns has 'y', which "),
        ({**ONE, "graph": {"y": 1}}, "graph has 'y', which "),
        ({**ONE, "columns": {"x": ["a"]}}, "'x' holds strings, but "),
        ({**ONE, "columns": {"x": [[1, 2]]}}, "'x' holds rows of 2 numbers, but "),
        ({**ONE, "kind": ["a"]}, "either all graphs have kinds or none has"),
    ],
)
def test_line_unlike_the_first_is_located(line: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, ONE, "", line)
    assert "dags.jsonl:3: " in str(error.value)
    assert message in str(error.value)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["a", "0"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_FIELD = st.one_of(_VALUES, st.dictionaries(st.sampled_from(["x", "y"]), _VALUES, max_size=2))


@examples
@given(
    lines=st.lists(
        st.dictionaries(st.sampled_from(["children", "edges", "vertices", "kind", "columns", "graph"]), _FIELD),
        min_size=1,
        max_size=2,
    )
)
def test_any_line_is_a_graph_or_an_error_of_ours(
    lines: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    complaint = None
    try:
        graphs = read(tmp_path_factory.getbasetemp(), *lines)
    except VppsError as error:
        complaint = str(error)
    assert "dags.jsonl" in complaint if complaint is not None else graphs.n_vertices >= len(lines)


COLUMNS: dict[str, list[Any]] = {"x": [0.5, 2.5], "word": ["a", "b"], "row": [[1, 2], [0.5, 1]], "n": [1, 2]}
TYPED = {"columns": COLUMNS, "edge_columns": {"w": [[], [0.5]]}, "graph": {"y": 1.5}, "children": [[], [0]]}


@pytest.mark.parametrize("lists", [True, False])
def test_types_of_columns_are_those_of_the_training_data(lists: bool, tmp_path: Path) -> None:
    train = read(tmp_path, TYPED, lists=lists)
    null = {"x": [1, 2], "word": [None, None], "row": [[1, 2], [3, 4]], "n": [None, None]}
    dev = read(tmp_path, {**TYPED, "columns": null, "edge_columns": {"w": [[], [1]]}, "graph": {"y": 2}}, like=train)
    for name in ("x", "word", "row", "n", "w", "y"):
        assert dev[:][name].dtype == train[:][name].dtype, name
    assert dev.vocabularies == train.vocabularies
    alone = read(tmp_path, {**TYPED, "children": [[], []], "edge_columns": {"w": [[], []]}}, lists=lists, like=train)
    assert alone[:]["w"].dtype == np.float32


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("x", ["a", "b"], "'x' holds strings, but the set in like= has numbers"),
        ("x", [None, None], "'x' holds nothing but null, but the set in like= has numbers"),
        ("x", [1, None], "'x' holds null among numbers"),
        ("x", [2**24 + 1, 1], "'x' holds 16777217 among numbers"),
        ("word", [1, 2], "'word' holds integers, but the set in like= has strings"),
        ("row", [[1], [2]], "'row' holds rows of 1 numbers, but the set in like= has rows of 2 numbers"),
        ("n", [1.5, 2], "'n' holds numbers, but the set in like= has integers"),
    ],
)
def test_a_column_of_another_type_is_located(name: str, values: list[Any], message: str, tmp_path: Path) -> None:
    train = read(tmp_path, TYPED)
    with pytest.raises(DataError, match=f"dags.jsonl:1: {message}"):
        read(tmp_path, {**TYPED, "columns": {**COLUMNS, name: values}}, like=train)


def test_null_of_an_earlier_line_is_no_number(tmp_path: Path) -> None:
    lines = ({"children": [[], []], "columns": {"x": [1, None]}}, {"children": [[]], "columns": {"x": [0.5]}})
    with pytest.raises(DataError, match="'x' holds null among numbers"):
        read(tmp_path, *lines)
