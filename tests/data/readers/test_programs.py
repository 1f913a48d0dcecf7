"""Python functions to graphs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from vpps.data import GraphSet, read_programs
from vpps.data.readers.programs import OTHER, UnreadableProgramWarning, first_word
from vpps.errors import DataError

pytestmark = pytest.mark.host


def read(text: str, tmp_path: Path, **options: object) -> GraphSet:
    (tmp_path / "program.py").write_text(text)
    return read_programs(tmp_path / "program.py", min_count=1, **options)  # type: ignore[arg-type]


def vertices(graphs: GraphSet, graph: int = 0) -> list[tuple[str, str, list[int]]]:
    """Type, name and children of every vertex."""
    batch = graphs[graph]
    types, names = (graphs.vocabularies[column].words for column in ("type", "name"))
    offsets, indices = batch.children
    children = [indices[a:b].tolist() for a, b in pairwise(offsets.tolist())]
    return [(types[t], names[n], c) for t, n, c in zip(batch["type"], batch["name"], children, strict=True)]


def test_places_that_name_one_variable_are_one_vertex(tmp_path: Path) -> None:
    graphs = read("def area(r):\n    return r * r - 1\n", tmp_path)
    assert vertices(graphs) == [
        ("Constant.int", "1", []),
        ("Name", "r", []),
        ("BinOp.Mult", "", [1, 1]),
        ("BinOp.Sub", "", [2, 0]),
        ("Return", "", [3]),
        ("arguments", "", [1]),
        ("FunctionDef", "", [5, 4]),
    ]
    assert graphs[0].roots.tolist() == [6]
    assert graphs.kinds == ("leaf", "inner")
    assert graphs[0].kind is not None
    assert graphs[0].kind.tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_equal_constants_of_different_types_are_different(tmp_path: Path) -> None:
    found = vertices(read("def f():\n    return 1, 1.0, True, 1, 'a', b'a', 'a'\n", tmp_path))
    constants = [(kind, name) for kind, name, _ in found if kind.startswith("Constant")]
    assert sorted(constants) == [
        ("Constant.bool", "True"), ("Constant.bytes", "b'a'"), ("Constant.float", "1.0"), ("Constant.int", "1"),
        ("Constant.str", "'a'"),
    ]  # fmt: skip


def test_name_decorators_and_docstring_are_hidden(tmp_path: Path) -> None:
    text = '@trace\ndef fact(n: int):\n    """The factorial."""\n    return n * fact(n - 1) if n > 1 else self.fact\n'
    graphs = read(text, tmp_path)
    words = graphs.vocabularies["name"].words
    assert not {"fact", "trace", "'The factorial.'"} & set(words)
    found = vertices(graphs)
    (call,) = [children for kind, _, children in found if kind == "Call"]
    assert found[call[0]][:2] == ("Name", "<unk>")
    assert ("Attribute", "<unk>") in {(kind, name) for kind, name, _ in found}
    (argument,) = [(name, children) for kind, name, children in found if kind == "arg"]
    assert argument[0] == "n"
    assert [found[child][:2] for child in argument[1]] == [("Name", "n"), ("Name", "int")]


def test_operators_are_part_of_the_type(tmp_path: Path) -> None:
    found = vertices(read("def f(a, b):\n    a += -b\n    return a < b <= 2 and not a\n", tmp_path))
    types = {kind for kind, _, _ in found}
    assert {"AugAssign.Add", "UnaryOp.USub", "Compare.Lt.LtE", "BoolOp.And", "UnaryOp.Not"} <= types


def test_functions_within_functions_are_graphs_too(tmp_path: Path) -> None:
    graphs = read("def get_all():\n    def make(x): return x\n    return make\nasync def getOne(): pass\n", tmp_path)
    assert [graphs.classes["label"][k] for k in graphs[:]["label"]] == ["get", "get", "make"]
    assert len(graphs) == 3


@pytest.mark.parametrize(
    "name, word", [("get_x", "get"), ("_getName", "get"), ("__init__", "init"), ("HTTPServer", "http"), ("_", "_")]
)
def test_first_word(name: str, word: str) -> None:
    assert first_word(name) == word


def test_rare_words_are_one_class_also_of_sets_like_it(tmp_path: Path) -> None:
    text = "def get_a(): pass\ndef get_b(x): x\ndef is_c(): pass\ndef is_d(): pass\ndef put(): pass\n"
    train = read(text, tmp_path, n_classes=3)
    assert train.classes["label"] == (OTHER, "get", "is")
    assert train[:]["label"].tolist() == [1, 1, 2, 2, 0]
    (tmp_path / "dev.py").write_text("def isx(y): pass\ndef is_e(y): x\n")
    dev = read_programs(tmp_path / "dev.py", like=train)
    assert dev[:]["label"].tolist() == [0, 2]
    assert {name for _, name, _ in vertices(dev, 1)} == {"", "x", "<unk>"}


def test_folders_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/one.py", "a.py"):
        (tmp_path / name).write_text("def f(): pass\n")
    graphs = read_programs(tmp_path)
    assert len(graphs) == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ("def f(:\n", "program.py:1: expected a Python program: invalid syntax"),
        ("x = 1\n", "program.py: expected Python functions, found none"),
        (
            "def f():\n    return '\0'\n",
            "program.py:2: expected a Python program: source code string cannot contain null",
        ),
        ("x = 1\nz = " + "-" * 20_000 + "1\nz = (\n1)\n", "program.py:2: expected a Python"),
        ("x = 1\ny = [\n1]\nz = " + "1 +" * 50_000 + "1\nif x:\n  y = 2\nelse:\n  y = 3\n", "program.py:4: expected"),
    ],
)
def test_what_is_no_program_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(text, tmp_path)
    assert message in str(error.value)


def test_integers_too_long_for_decimal_are_constants(tmp_path: Path) -> None:
    graphs = read("def f():\n    return 0x" + "f" * 10_000 + ", 0x" + "f" * 9_999 + "\n", tmp_path)
    assert graphs.n_vertices == 6  # two constants, the tuple, return, arguments, the function


def test_unreadable_programs_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print 'old'\n")
    (tmp_path / "b.py").write_text("def f(): pass\n")
    with pytest.raises(DataError, match=r"a\.py:1: expected a Python program"):
        read_programs(tmp_path)
    with pytest.warns(UnreadableProgramWarning, match="left out: .*a.py:1"):
        assert len(read_programs(tmp_path, skip_unreadable=True)) == 1
    with pytest.raises(DataError, match=r"missing\.py: cannot be read"):
        read_programs(tmp_path / "missing.py")


def test_like_must_be_a_set_of_programs(tmp_path: Path) -> None:
    plain = GraphSet([1], [[-1]], columns={"label": [0]})
    with pytest.raises(DataError, match="has no vocabulary for 'type'"):
        read("def f(): pass\n", tmp_path, like=plain)


def test_the_standard_library() -> None:
    """Every function has one root, the function, whatever Python's own programmers write."""
    graphs = read_programs(Path(json.__file__).parent)
    assert len(graphs) > 20
    batch = graphs[:]
    types = graphs.vocabularies["type"].words
    assert len(batch.roots) == len(graphs)
    assert {types[k] for k in batch["type"][batch.roots]} <= {"FunctionDef", "AsyncFunctionDef"}
    assert graphs.stat().fan_in.max > 4
    assert graphs.stat().max_readers > 4
