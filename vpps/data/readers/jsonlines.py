"""Reads arbitrary directed acyclic graphs, one JSON object per line.

    {"kind": ["leaf", "leaf", "add"],
     "children": [[], [], [0, 1]],
     "columns": {"word": ["good", "film", null], "label": [3, 2, 4], "position": [[0.5, 1], [1, 1], [2, 1.5]]},
     "edge_columns": {"role": [[], [], ["modifier", "head"]]},
     "graph": {"rating": 4.5}}

(The object is shown on five lines; in a file it is on one.) Vertices are indices into these lists, from 0.

- `children`: the children of every vertex, in order; null or -1 is a missing child. The alternative is `edges`, pairs
  `[parent, child]`; a vertex's children keep the order of its pairs. With `edges`, `vertices` gives the number of
  vertices unless `kind` or a column implies it.
- `kind` (optional): a name per vertex. Kinds are numbered in order of first appearance (`set.kinds`; `--like` uses the
  numbers of another file). Pass cells to `graph.map` in that order.
- `columns` (optional): one value per vertex in each column. Integers become int32, other numbers float32, lists of
  numbers matrix rows, and strings vocabulary indices (or class numbers). In columns of integers or strings, null
  becomes -1. Numbers must be finite; true and false are 1 and 0.
- `edge_columns` (optional): one value per child, in lists shaped like `children`; with `edges`, one list with a value
  per pair. Values follow the rules of `columns`.
- `graph` (optional): columns with one value for the graph.

All lines must have the same columns with the same types. In a table of children (`lists=False`), edge columns are 0 at
missing children.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vpps.data.graphset import GraphSet
from vpps.data.lines import read_lines
from vpps.data.readers.names import (
    GraphLists,
    Source,
    check_min_count,
    children_of,
    classes_of,
    some_graphs,
    table_of,
    words_of,
)
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError

_FIELDS = ("children", "edges", "vertices", "kind", "columns", "edge_columns", "graph")
NOTHING = "nothing but null"
_FEW_VERTICES = 100
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # half a surrogate pair in JSON; usually the other half follows
_INT32 = np.iinfo(np.int32)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def read_jsonl(
    *paths: Source,
    min_count: int | None = None,
    lists: bool = True,
    classes: Collection[str] = (),
    like: GraphSet | None = None,
) -> GraphSet:
    """Reads graphs from JSON lines, in the format that this module's docstring describes; skips blank lines.

    Args:
        min_count: vocabulary strings that occur less often become unknown; by default none do. Not allowed with `like`.
        lists: store children as lists; False stores a table as wide as the largest number of children.
        classes: string columns with a closed set of values, such as labels. Every string gets a number; a string that
            `like` lacks raises an error.
        like: take kinds, vocabularies, classes, arity and column types from this set.

    Raises:
        DataError: a file cannot be read, holds no graph, or has a malformed line; the message gives file and line.
    """
    check_min_count(min_count, like is not None)
    found = _Graphs()
    for path in paths:
        for number, text in read_lines(path):
            if text.strip():
                found.read(f"{path}:{number}", text)
    some_graphs(paths, len(found.sizes), "one graph a line, as JSON")
    sizes, counts = np.array(found.sizes, np.int64), np.diff(np.array(found.offsets)).astype(np.int64)
    children = np.array(found.children, np.int32)
    if like is not None:
        _take_types(found, like)
    wanted = set(classes) | set(like.classes if like is not None else ())
    of_strings = {c.name for columns in found.given.values() for c in columns.values() if c.kind == "strings"}
    for name in sorted(set(classes) - of_strings):
        raise DataError(f"{', '.join(map(str, paths))}: there is no column {name!r} of strings for classes")
    vocabularies: dict[str, Vocabulary] = {}
    closed: dict[str, tuple[str, ...]] = {}

    def array(column: _Column) -> NDArray[Any]:
        if column.kind != "strings":
            if column.kind in ("integers", NOTHING):
                return np.array([-1 if x is None else x for x in column.values], np.int32)
            column.check_numbers()
            return np.array(column.values, np.float64).reshape(len(column.values), *column.width)
        numbers = np.full(len(column.values), -1, np.int32)
        there = np.array([x is not None for x in column.values], bool)
        strings = [x for x in column.values if x is not None]
        if column.name in wanted:
            where = [source for source, x in zip(column.sources(), column.values, strict=True) if x is not None]
            numbers[there], closed[column.name] = classes_of(strings, where, column.name, like)
        else:
            vocabularies[column.name] = words_of([strings], column.name, min_count, like, default=1)
            numbers[there] = [vocabularies[column.name][x] for x in strings]
        return numbers

    arrays = {where: {name: array(column) for name, column in of.items()} for where, of in found.given.items()}
    kinds, kind = _kinds(found, like)
    lists = lists if like is None else like.arity is None
    form = children_of(counts, children, lists=lists, like=like, sources=found.sources, sizes=sizes)
    if not isinstance(form, tuple):
        of_edges = arrays["edge_columns"]
        of_edges |= {name: table_of(counts, form.shape[1], x, 0) for name, x in of_edges.items()}
    return GraphSet(
        sizes, form, kind=kind, kinds=kinds, columns=arrays["columns"], edge_columns=arrays["edge_columns"],
        graph_columns=arrays["graph"], vocabularies=vocabularies, classes=closed, sources=found.sources,
    )  # fmt: skip


def _take_types(found: _Graphs, like: GraphSet) -> None:
    """Turns integers into numbers if `like` has numbers in that column; raises DataError for other type differences."""
    arrays = like.arrays
    of_like = arrays.columns, arrays.edge_columns, arrays.graph_columns
    for known, columns in zip(of_like, found.given.values(), strict=True):
        for name in known.keys() & columns.keys():
            column, array = columns[name], known[name]
            is_table = known is arrays.edge_columns and like.arity is not None
            if name in like.vocabularies or name in like.classes:
                kind = "strings"
            elif array.dtype.kind == "i":
                kind = "integers"
            else:
                width = array.shape[2 if is_table else 1 :]
                kind = f"rows of {width[0]} numbers" if width else "numbers"
            null = column.kind == NOTHING and (not column.values or kind in ("integers", "strings"))
            if null or (column.kind, kind) == ("integers", "numbers"):
                column.kind = kind
            elif column.kind != kind:
                raise DataError(
                    f"{column.first}: {name!r} holds {column.kind}, but {like.path or 'the set in like='} has {kind}"
                )


def _kinds(found: _Graphs, like: GraphSet | None) -> tuple[tuple[str, ...], NDArray[np.int8] | None]:
    if not found.kind:
        if like is not None and like.kinds != ("vertex",):
            raise DataError(f"{found.sources[0]}: the graph has no kinds: the known ones are {', '.join(like.kinds)}")
        return ("vertex",), None
    names = like.kinds if like is not None else tuple(dict.fromkeys(found.kind))
    numbers = {name: number for number, name in enumerate(names)}
    kind = np.array([numbers.get(name, -1) for name in found.kind])
    if kind.min() < 0:
        vertex = int((kind < 0).argmax())
        graph = int(np.searchsorted(np.cumsum(found.sizes), vertex, side="right"))
        raise DataError(
            f"{found.sources[graph]}: unknown kind {found.kind[vertex]!r}: the known ones are {', '.join(names)}"
        )
    return names, kind


@dataclass(slots=True)
class _Column:
    """A column's values so far; `kind` is "integers", "numbers", "strings", or for example "rows of 3 numbers"."""

    name: str
    kind: str
    first: str
    """The line that determined `kind`."""
    values: list[Any] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)
    """Every line and its number of values."""

    def sources(self) -> Iterator[str]:
        return (source for source, count in self.lines for _ in range(count))

    @property
    def width(self) -> tuple[int, ...]:
        """The shape of a row of numbers; () for a single number."""
        return (int(self.kind.split()[2]),) if self.kind.startswith("rows") else ()

    def check_numbers(self) -> None:
        """Raises DataError for null among numbers, and for ints that float32 would round."""
        for source, value in zip(self.sources(), self.values, strict=True):
            for x in value if self.width else (value,):
                if x is None:
                    raise DataError(f"{source}: {self.name!r} holds null among numbers: replace it by a number")
                if type(x) is int and int(np.float32(x)) != x:
                    raise DataError(f"{source}: {self.name!r} holds {x} among numbers, which float32 would round")


class _Graphs(GraphLists):
    """Graphs collected while files are read.

    Attributes:
        kind: the kind name of every vertex.
        given: columns by field ("columns", "edge_columns" or "graph"), then by name.
        source: file and line of the current graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind: list[str] = []
        self.given: dict[str, dict[str, _Column]] = {"columns": {}, "edge_columns": {}, "graph": {}}
        self.source = ""

    def fail(self, message: str) -> NoReturn:
        raise DataError(f"{self.source}: {message}")

    def read(self, source: str, text: str) -> None:
        """Adds the graph that a line describes. Raises DataError."""
        self.source = source
        try:
            line = json.loads(text, object_pairs_hook=_object)
            if _SURROGATE.search(text):
                json.dumps(line, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            self.fail(f"expected text, found half a surrogate pair, {error.object[error.start]!a}")
        except (ValueError, RecursionError) as error:
            self.fail(f"expected a graph as a JSON object on one line: {error}")
        if not isinstance(line, dict):
            self.fail("expected a graph as a JSON object, with children or edges")
        unknown = sorted(line.keys() - set(_FIELDS))
        if unknown:
            self.fail(f"unknown field {unknown[0]!r}: the fields of a graph are {', '.join(_FIELDS)}")
        columns, of_edges, graph = (line.get(name, {}) for name in self.given)
        if not all(isinstance(x, dict) for x in (columns, of_edges, graph)):
            self.fail('expected columns by name in "columns", "edge_columns" and "graph"')
        children = self.children_in(line, self.size(line, columns, len(text)))
        kind = line.get("kind", [])
        if bool(self.kind) != bool(kind) and self.sizes:
            self.fail("either all graphs have kinds or none has")
        if not all(isinstance(name, str) for name in kind):
            self.fail("kinds must be strings")

        def edge(number: int) -> str:
            edges = [(vertex, k) for vertex, some in enumerate(children) for k in range(len(some))]
            return "vertex {}, child {}: ".format(*edges[number])

        self.add("columns", columns, "vertex {}: ".format)
        edge_values = {name: self.edge_values(line, name, x, children) for name, x in of_edges.items()}
        self.add("edge_columns", edge_values, edge)
        self.add("graph", {name: [value] for name, value in graph.items()}, lambda _: "")
        self.kind += kind
        for some in children:
            self.vertex(some)
        self.end(source)

    def size(self, line: Mapping[str, Any], columns: Mapping[str, Any], characters: int) -> int:
        """Returns the number of vertices; all fields must agree. If only `vertices` is given, line length limits it."""
        told: dict[str, int] = {}
        for name, values in (*((f, line[f]) for f in ("children", "kind") if f in line), *columns.items()):
            if not isinstance(values, list):
                self.fail(f"expected a list with a value per vertex as {name!r}")
            told[name] = len(values)
        if "vertices" in line:
            told["vertices"] = line["vertices"]
        sizes = list(told.items())
        if not sizes:
            self.fail('expected "vertices", the number of vertices, as neither children nor columns imply it')
        name, n = sizes[0]
        for other, m in sizes[1:]:
            if m != n:
                self.fail(f"{name!r} has {n} vertices and {other!r} {m}")
        if not _is_int(n) or not 1 <= n <= _INT32.max:
            self.fail(f"a graph has between 1 and {_INT32.max} vertices, not {n!r}")
        if name == "vertices" and n > max(_FEW_VERTICES, characters):
            self.fail(
                f"{n} vertices, but the line has only {characters} characters: give every vertex a value of a column, "
                "or its children"
            )
        return n

    def children_in(self, line: Mapping[str, Any], n: int) -> list[list[int]]:
        """Returns the children of every vertex."""
        if ("children" in line) == ("edges" in line):
            self.fail('expected either "children" or "edges"')
        if "children" in line:
            if not all(isinstance(some, list) for some in line["children"]):
                self.fail("expected a list of children for every vertex")
            found = [[-1 if child is None else child for child in some] for some in line["children"]]
        else:
            found = [[] for _ in range(n)]
            edges = line["edges"]
            if not isinstance(edges, list):
                self.fail("expected a list of pairs [parent, child] as edges")
            for edge in edges:
                if not isinstance(edge, list) or len(edge) != 2 or not all(map(_is_int, edge)):
                    self.fail(f"expected an edge as a pair [parent, child], found {json.dumps(edge)}")
                if not 0 <= edge[0] < n:
                    self.fail(f"edge {edge}: there is no vertex {edge[0]}: there are {n} (0 to {n - 1})")
                found[edge[0]].append(edge[1])
        for vertex, some in enumerate(found):
            for child in some:
                if not _is_int(child) or not -1 <= child < n:
                    self.fail(f"vertex {vertex}: there is no child {child!r}: there are {n} vertices (0 to {n - 1})")
        return found

    def edge_values(
        self, line: Mapping[str, Any], name: str, values: Any, children: Sequence[Sequence[int]]
    ) -> list[Any]:
        """Returns an edge column's values, one per child, in the order of the vertices' children."""
        if "edges" in line:
            edges = line["edges"]
            if not isinstance(values, list) or len(values) != len(edges):
                self.fail(f"expected a list with a value for each of the {len(edges)} edges as {name!r}")
            return [values[k] for k in sorted(range(len(edges)), key=lambda k: edges[k][0])]
        if not isinstance(values, list) or len(values) != len(children):
            self.fail(f"expected a list for each of the {len(children)} vertices, a value per child, as {name!r}")
        for vertex, (some, own) in enumerate(zip(children, values, strict=True)):
            if not isinstance(own, list) or len(own) != len(some):
                self.fail(
                    f"vertex {vertex} has {len(some)} children: expected a list of as many values as its {name!r}, "
                    f"found {json.dumps(own)[:80]}"
                )
        return [x for own in values for x in own]

    def add(self, where: str, given: Mapping[str, list[Any]], place: Callable[[int], str]) -> None:
        """Adds the values of this line to the columns; `place` names the vertex or edge of a value."""
        known = self.given[where]
        if self.sizes and known.keys() != given.keys():
            name = min(known.keys() ^ given.keys())
            here, there = ("lacks", "has") if name in known else ("has", "lacks")
            self.fail(f"{where} {here} {name!r}, which {self.sources[0]} {there}")
        for name, values in given.items():
            column = known.setdefault(name, _Column(name, NOTHING, self.source))
            kind = self.type_of(name, values, place) if values else column.kind  # a graph may have no edges
            if not column.values or (column.kind == NOTHING and kind in ("integers", "strings")):  # first typed values
                column.kind, column.first = kind, self.source
            elif kind == NOTHING and column.kind in ("integers", "strings"):
                kind = column.kind
            if {kind, column.kind} == {"integers", "numbers"}:
                kind = column.kind = "numbers"
            if kind != column.kind:
                self.fail(f"{name!r} holds {kind}, but {column.first} has {column.kind}")
            column.values += values
            column.lines.append((self.source, len(values)))

    def type_of(self, name: str, values: list[Any], place: Callable[[int], str]) -> str:
        """Returns the type of a line's values in a column. Raises DataError."""
        kind, wrong = _type_of(values)
        if wrong:
            first = bisect_left(range(len(values)), True, key=lambda k: _type_of(values[: k + 1])[1] != "")
            self.fail(f"{place(first)}{name!r} {wrong}")
        return kind


def _type_of(values: Sequence[Any]) -> tuple[str, str]:
    """Returns the type (see `_Column.kind`) or NOTHING, and an error text to follow the column's name, or ""."""
    types = {type(x) for x in values}
    if types == {type(None)}:
        return NOTHING, ""
    if types <= {str, type(None)} and str in types:
        return "strings", ""
    if types <= {int, bool, type(None)}:
        beyond = next((x for x in values if x is not None and not _INT32.min <= x <= _INT32.max), None)
        return "integers", "" if beyond is None else f"holds {beyond}, which does not fit int32"
    kind, numbers = "numbers", values
    if not types <= {int, float, bool}:
        widths = {len(x) for x in values} if types == {list} else set()
        numbers = [x for row in values for x in row] if len(widths) == 1 else [None]
        if not {type(x) for x in numbers} <= {int, float}:
            return "", "must hold integers, numbers, strings, or lists of as many numbers each"
        kind = f"rows of {widths.pop()} numbers"
    beyond = next((x for x in numbers if not abs(x) <= _FLOAT32_MAX), None)
    return kind, "" if beyond is None else f"holds {str(beyond)[:20]}, which does not fit float32"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for k, (name, _) in enumerate(pairs) if name in dict(pairs[:k]))
        raise ValueError(f"it has {twice!r} twice")
    return found


def _is_int(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)
