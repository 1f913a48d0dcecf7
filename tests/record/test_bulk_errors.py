"""Mistakes in maps: each is refused before anything is recorded, in the user's words, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

H = 4
CHILDREN = np.array([[-1, -1], [-1, -1], [0, 1], [2, -1]], np.int32)
CSR = (np.array([0, 0, 0, 2, 3]), np.array([0, 1, 2]))
KIND = np.array([0, 0, 1, 1], np.int8)
WORDS = np.array([3, 1, -1, -1])
LEVELS = np.array([0, 0, 1, 2], np.int32)
NAMES = ("leaf", "inner")


class World:
    """A model with cells, and a graph in which there is something to get wrong."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.E = self.model.lookup("words", (6, H), init="normal")
        self.U = self.model.parameter("U", (H, 2 * H))
        self.b = self.model.parameter("b", (H,), init="normal")
        self.graph = vpps.Graph()
        self.x = self.graph.rows(np.ones((4, H)))
        self.other = vpps.Graph().rows(np.ones((4, H)))

        @vpps.cell
        def leaf(word: int) -> vpps.Expression:
            return vpps.tanh(vpps.lookup(self.E, word))

        @vpps.cell
        def inner(left: vpps.Expression, right: vpps.Expression) -> vpps.Expression:
            return vpps.tanh(self.U @ vpps.concat([left, right]) + self.b)

        @vpps.cell
        def summed(hs: list[vpps.Expression], x: vpps.Expression) -> vpps.Expression:
            return vpps.tanh(vpps.sum(hs) + x)

        self.leaf, self.inner, self.summed = leaf, inner, summed

    def map(self, cells: Any = None, **arguments: Any) -> Any:
        """The map that is right, but for what is given."""
        right: dict[str, Any] = {"kind": KIND, "children": CHILDREN, "inputs": {"word": WORDS}}
        return self.graph.map([self.leaf, self.inner] if cells is None else cells, **right | arguments)

    def node(self, **arguments: Any) -> Any:
        """One of CSR children that is right, but for what is given."""
        return self.graph.map(self.summed, **{"children": CSR, "inputs": {"x": self.x}} | arguments)

    def single(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """A map of one plain function."""
        return self.graph.map(function, **{"children": CHILDREN} | arguments)


def with_child(vertex: int, column: int, child: int) -> Any:
    changed = CHILDREN.copy()
    changed[vertex, column] = child
    return changed


def ring(n: int) -> Any:
    return np.roll(np.arange(n), 1)


def pushes(*widths: int) -> Callable[[], None]:
    def vertex() -> None:
        x = vpps.pull("x")
        vpps.scatter(x)
        vpps.push(*(x[:k] for k in widths))

    return vertex


def gathers_both(w: World) -> Callable[..., Any]:
    def node(x: Any) -> Any:
        left, right = vpps.gather()
        return vpps.tanh(w.U @ vpps.concat([x[:H], left, right]) + w.b)

    return node


T, S, D, G, I = vpps.TraceError, vpps.ShapeError, vpps.DtypeError, vpps.GraphError, vpps.IndexRangeError

MISTAKES: dict[str, tuple[Callable[[World], Any], type[BaseException], str]] = {
    # cells
    "no cell": (lambda w: w.graph.map([]), G, r"graph.map\(\[\]\): expected a cell"),
    "no function": (lambda w: w.graph.map("leaf", kind=KIND), G, "expected a cell or a function"),
    "a builtin": (lambda w: w.graph.map(len, kind=KIND), T, "is no Python function; wrap it"),
    "static": (
        lambda w: w.single(lambda a, b, *, rate: a), T, "cannot give the static argument rate; wrap the call"
    ),
    "static input": (
        lambda w: w.single(lambda a, b, *, x=1: a, inputs={"x": w.x}), T, "x is keyword-only, so static, but an input"
    ),
    "a default before an input": (
        lambda w: w.single(lambda a, b, y=1, x=2: a, inputs={"x": w.x}), T, "y has a default .* make y keyword-only"
    ),
    "children of a size that the cell does not return": (
        lambda w: w.single(gathers_both(w), inputs={"x": np.ones((4, 3 * H))}), S,
        r"what cell 'node' does with its children's results takes \(2,\), and children give \(4,\); is a parameter",
    ),
    "the sum of Python of a list of children": (
        lambda w: w.single(lambda: vpps.scatter(vpps.tanh(w.b + sum(vpps.gather()))), children=CSR), T,
        r"use vpps.each\(f, xs\), .*vpps.sum\(xs\)",
    ),
    "a mistake that is no matter of children": (
        lambda w: w.single(lambda: vpps.scatter(vpps.gather(0) + undefined)), NameError, "undefined",  # noqa: F821
    ),
    # kinds
    "several cells, no kind": (lambda w: w.map(kind=None), G, "2 cells and no kind="),
    "kind of floats": (
        lambda w: w.map(kind=KIND * 1.0), D,
        "kind is of ints, not of dtype float64; convert it to int8",
    ),
    "kind of rank 2": (lambda w: w.map(kind=[KIND, KIND]), S, r"kind of shape \(2, 4\); expected \(n,\)"),
    "kind too high": (lambda w: w.map(kind=KIND + 1), I, "vertex 2 is of kind 2, but there are 2 cells, 0 to 1"),
    "negative kind": (lambda w: w.map(kind=-KIND), I, "vertex 2 is of kind -1"),
    # cells by kind
    "no cell by kind": (lambda w: w.map({}), G, "no cell for kind 0: every kind needs one, numbered from 0"),
    "a kind without a cell": (lambda w: w.map({1: w.inner}), G, "no cell for kind 0: every kind needs one"),
    "a name without a cell": (
        lambda w: w.map({"leaf": w.leaf}, kinds=NAMES), G, "no cell for kind 'inner': .*, the kinds are leaf, inner"
    ),
    "a cell of an unknown kind": (
        lambda w: w.map({"leaf": w.leaf, "iner": w.inner}, kinds=NAMES), G,
        "a cell for kind 'iner', which there is not: the kinds are leaf, inner",
    ),
    "a cell of too high a kind": (
        lambda w: w.map({0: w.leaf, 2: w.inner}, kinds=NAMES), G, "a cell for kind 2, which there is not: the kinds"
    ),
    "a cell of a negative kind": (
        lambda w: w.map({0: w.leaf, -1: w.inner}), G, "a cell for kind -1, which there is not: numbered from 0"
    ),
    "two cells of a kind": (
        lambda w: w.map({"leaf": w.leaf, "inner": w.inner, 1: w.inner}, kinds=NAMES), G,
        "two cells for kind 1, by name and by number",
    ),
    "names without kinds": (
        lambda w: w.map({"leaf": w.leaf, "inner": w.inner}), G, r"a cell for kind 'leaf' and no kinds=: .*structure"
    ),
    "kinds that are no names": (
        lambda w: w.map({"leaf": w.leaf}, kinds="leaf"), D, "kinds='leaf': expected the name of each kind, by number"
    ),
    "kinds that are a number": (lambda w: w.map({"leaf": w.leaf}, kinds=2), D, "kinds=2: expected the name of each k"),
    # children
    "children of floats": (lambda w: w.map(children=CHILDREN * 1.0), D, "children are ints, -1 for none, .*float64"),
    "children of objects": (
        lambda w: w.map(children=np.array([[None, 1]] * 4)), D, "children are ints, -1 for none, not of dtype object"
    ),
    "booleans for children": (lambda w: w.map(children=CHILDREN < 0), D, "not of dtype bool"),
    "children of rank 3": (lambda w: w.map(children=CHILDREN[None]), S, r"children of shape \(1, 4, 2\)"),
    "few children": (lambda w: w.map(children=CHILDREN[:3]), S, "children of 3 vertices, but there are 4"),
    "a child too high": (lambda w: w.map(children=with_child(2, 1, 4)), I, "vertex 2 has child 4; .* 0 to 3, or -1"),
    "a child below -1": (lambda w: w.map(children=with_child(3, 0, -2)), I, "vertex 3 has child -2"),
    "own child": (lambda w: w.map(children=with_child(3, 1, 3)), G, "form a cycle of 1 vertices.*: 3; take an edge"),
    "cycle": (lambda w: w.map(children=with_child(2, 1, 3)), G, "form a cycle of 2 vertices.*: (2, 3|3, 2);"),
    "long cycle": (
        lambda w: w.graph.map(lambda h: vpps.tanh(w.b * h), children=ring(50)), G, r"cycle of 50 vertices.*, \.\.\.;"
    ),
    "leaf with a child": (
        lambda w: w.map(children=with_child(1, 0, 0)), G,
        "vertex 1 has more children than its cell 'leaf' takes, which is none; make the vertex of another kind",
    ),
    "three of two children": (
        lambda w: w.map(children=np.column_stack([CHILDREN, [-1, -1, -1, 0]])), G, "vertex 3 .* which is 2;"
    ),
    "a list for a leaf": (
        lambda w: w.graph.map(
            [w.leaf, lambda hs: vpps.tanh(vpps.sum(hs))], kind=[0, 0, 0, 1], children=CSR, inputs={"word": [1, 1, 1, 1]}
        ),
        G, "vertex 2 has more children than its cell 'leaf' takes",
    ),
    "a list longer than what is gathered one by one": (
        lambda w: w.graph.map(lambda: vpps.scatter(vpps.tanh(vpps.gather(0)) + w.b), children=CSR, state=H), G,
        "vertex 2 has more children than its cell '<lambda>' takes, which is 1; make the vertex of another kind",
    ),
    "three parts of CSR": (lambda w: w.node(children=(*CSR, 1)), S, "children is a tuple of 3; expected"),
    "CSR of the wrong ranks": (lambda w: w.node(children=(CSR[0], CHILDREN)), S, r"not \(5,\) and \(4, 2\)"),
    "falling offsets": (
        lambda w: w.node(children=(np.array([0, 2, 1, 3, 3]), CSR[1])), S, "children: offsets begin with 0, do not fall"
    ),
    "offsets that end early": (lambda w: w.node(children=(CSR[0] // 2, CSR[1])), S, "number of elements, 3"),
    "offsets of floats": (lambda w: w.node(children=(CSR[0] * 1.0, CSR[1])), D, "offsets are ints"),
    "indices of floats": (lambda w: w.node(children=(CSR[0], CSR[1] * 1.0)), D, "the indices of children are ints"),
    "CSR child too high": (
        lambda w: w.node(children=(CSR[0], CSR[1] + 2)), I,
        "vertex 2 has child 4|vertex 3 has child",
    ),
    "CSR cycle": (lambda w: w.node(children=(CSR[0], np.array([0, 3, 2]))), G, "cycle of 2 vertices"),
    "children that nobody takes": (
        lambda w: w.graph.map(w.leaf, children=CHILDREN, inputs={"word": abs(WORDS)}), G,
        "no cell takes anything of its children; leave children= out",
    ),
    # inputs
    "no dict": (lambda w: w.map(inputs=[WORDS]), D, "expected a dict of arrays and rows by name"),
    "missing": (lambda w: w.graph.map(w.leaf, kind=KIND * 0), G, "cell 'leaf': nothing gives word.*no children="),
    "missing, with others": (
        lambda w: w.graph.map(lambda x, y: x + y, inputs={"x": w.x}), G, r"nothing gives y: .*\(they are x\)"
    ),
    "missing, with children": (
        lambda w: w.map(inputs={}), D, r"cell 'leaf': lookup: .* \(word: no inputs of the map, so taken"
    ),
    "unknown": (
        lambda w: w.map(inputs={"word": WORDS, "label": WORDS}), G, "no cell has a parameter 'label' or pulls it"
    ),
    "short": (lambda w: w.map(inputs={"word": WORDS[:3]}), S, r"input 'word' is of shape \(3,\), but there are 4"),
    "short rows": (lambda w: w.node(inputs={"x": w.x[:2]}), S, "input 'x' has 2 rows, but there are 4 vertices"),
    "of objects": (lambda w: w.map(inputs={"word": np.array([None] * 4)}), D, "input 'word' is of dtype object"),
    "of strings": (lambda w: w.map(inputs={"word": ["a", "b", "c", "d"]}), D, "input 'word' is of dtype <U1"),
    "of booleans": (lambda w: w.map(inputs={"word": WORDS > 1}), D, "input 'word' is of dtype bool"),
    "ints of rank 2": (lambda w: w.map(inputs={"word": CHILDREN}), S, "expected one per vertex: give each column"),
    "floats of rank 4": (
        lambda w: w.node(inputs={"x": np.ones((4, 1, 1, 1))}), S,
        "a scalar, vector or matrix per row",
    ),
    "floats for ints": (lambda w: w.map(inputs={"word": WORDS * 1.0}), D, "lookup|int"),
    "ints for floats": (lambda w: w.node(inputs={"x": WORDS}), T, "takes no int here"),
    "word too high": (
        lambda w: w.map(inputs={"word": WORDS + 3}), I,
        "graph.map, cell 'leaf', row 0: index 6 is out of range; rows of 'words': 6, so 0 to 5",
    ),
    "negative word": (lambda w: w.map(inputs={"word": WORDS - 2}), I, "cell 'leaf', row 1: index -1"),
    "one word, too high": (lambda w: w.map(inputs={"word": 6}), I, "cell 'leaf', row 0: index 6"),
    "rows of another graph": (lambda w: w.node(inputs={"x": w.other}), G, "input 'x': .*belong to two graphs"),
    "expression of another graph": (lambda w: w.node(inputs={"x": w.other[0]}), G, "belong to two graphs"),
    "list with others": (lambda w: w.node(inputs={"x": [w.x[0], w.x[1], w.x[2], 3]}), S, "one per vertex; it holds 3"),
    "list of two graphs": (lambda w: w.node(inputs={"x": [*w.x[:3], w.other[3]]}), G, "belong to two graphs"),
    "lists of another graph": (
        lambda w: w.graph.map(lambda xs: vpps.sum(xs), inputs={"xs": (CSR[0], w.other[:3])}), G, "two graphs"
    ),
    "lists of ints": (
        lambda w: w.node(inputs={"x": w.x, "xs": (CSR[0], CSR[1])}), D,
        r"input 'xs': .* look ints up in a table, \(offsets, graph.lookup\(table, ints\)\)",
    ),
    "short offsets": (
        lambda w: w.node(inputs={"x": w.x, "xs": (CSR[0][:4], w.x)}), S, "input 'xs': 4 vertices have 5 offsets"
    ),
    "lists of two lengths": (
        lambda w: w.graph.map(
            lambda xs, ys: vpps.sum(vpps.each(lambda x, y: x * y, xs, ys)),
            inputs={"xs": (CSR[0], w.x[:3]), "ys": (CSR[0] * 0, w.x[:0])},
        ),
        S, "row 2: lists that the cell maps together have lengths 2 and 0",
    ),
    "how many": (lambda w: w.graph.map(lambda x: x, inputs={"x": w.x[0]}), G, "how many vertices"),
    # what children give
    "two kinds of state": (
        lambda w: w.map([lambda word: vpps.lookup(w.E, word)[:3], w.inner]), S, r"expected|expects|\(3,\)"
    ),
    "kinds of other results": (
        lambda w: w.graph.map([lambda: w.b * 1.0, lambda: w.b[:2]], kind=KIND), S, r"returns \(2,\), .* returns|\(4,\)"
    ),
    "kinds of fewer results": (
        lambda w: w.map([lambda word: (vpps.lookup(w.E, word),) * 2, w.inner]), S, "gives its parents|same from"
    ),
    "arguments that do not come out": (
        lambda w: w.map([w.leaf, lambda a, b, c: w.b * 1.0]), G, "1 results of each of up to 2 children"
    ),
    "lists that do not come out": (
        lambda w: w.graph.map(
            [w.leaf, lambda a, b: vpps.sum(a)], kind=KIND, children=CSR, inputs={"word": WORDS}
        ),
        G, r"so they are lists of what children give, one per result: take 1 such arguments, or .* --fixed",
    ),
    "nothing tells the state": (lambda w: w.single(lambda a, b: vpps.tanh(a)), T, "declare it: graph.map.*state="),
    "declared otherwise": (
        lambda w: w.single(lambda a, b: w.b * 1.0, state=3), S, r"gives its parents \(4,\), state= \(3,\)"
    ),
    "a state of nothing": (lambda w: w.single(lambda a, b: a, state=()), S, r"one scalar is state=\[\(\)\]"),
    "a state of words": (lambda w: w.single(lambda a, b: a, state="four"), S, "state='four': expected a length"),
    # Cavs's calls
    "gather outside": (lambda w: vpps.gather(0), T, "gather outside of a cell"),
    "pull in an ordinary cell": (
        lambda w: w.graph.call(vpps.cell(lambda: vpps.pull("x"))), T, "called as an ordinary cell"
    ),
    "gather beyond": (
        lambda w: w.single(lambda: vpps.scatter(vpps.tanh(w.b * vpps.gather(2)))), G,
        r"gather\(2\): children has 2 columns, 0 to 1",
    ),
    "gather before the first in CSR": (
        lambda w: w.graph.map(lambda: vpps.scatter(vpps.gather(-1)), children=CSR), G,
        r"gather\(-1\): children are counted from 0",
    ),
    "gather from beyond": (
        lambda w: w.single(lambda: vpps.scatter(vpps.sum(vpps.gather(start=3)))), G,
        r"gather\(start=3\): children has 2 columns, 0 to 1",
    ),
    "gather one and a list": (
        lambda w: w.graph.map(lambda: vpps.scatter(vpps.gather(0, start=1)), children=CSR), G,
        r"gather\(0, start=1\): one child or a list, not both",
    ),
    "gather without children": (
        lambda w: w.graph.map(lambda: vpps.gather(0), kind=KIND * 0), G,
        "has no children; give",
    ),
    "gather what nobody scatters": (
        lambda w: w.map([lambda: vpps.push(vpps.pull("x")), lambda: vpps.push(vpps.gather(0))], inputs={"x": w.x}),
        G, "gathers, but no cell of the map scatters anything",
    ),
    "pull the unknown": (
        lambda w: w.map([lambda: vpps.pull("y"), w.inner], inputs={"x": w.x}), G,
        r"pull\('y'\): the inputs of the map are 'x'",
    ),
    "scatter a number": (lambda w: w.graph.map(lambda: vpps.scatter(1.0), kind=KIND * 0), T, r"scatter\(1.0\)"),
    "push a list": (
        lambda w: w.single(lambda: vpps.push(vpps.pull()), inputs={"xs": (CSR[0], w.x[:3])}), T, r"push\(<list|each"
    ),
    "push elements": (
        lambda w: w.graph.map(
            lambda: vpps.sum(vpps.each(lambda x: vpps.push(x), vpps.pull())), inputs={"xs": (CSR[0], w.x[:3])}
        ),
        T, "one value per child; reduce it",
    ),
    "push and return": (
        lambda w: w.graph.map(lambda x: vpps.push(x) or x, inputs={"x": w.x}), T, "besides calling scatter or push"
    ),
    "pushes of two shapes": (
        lambda w: w.graph.map([pushes(2), pushes(3)], kind=KIND, inputs={"x": w.x}), S,
        r"returns \(3,\), cell 'vertex' \(2,\); all cells of a map return the same",
    ),
    "one push and two": (
        lambda w: w.graph.map([pushes(2), pushes(2, 2)], kind=KIND, inputs={"x": w.x}), S, r"\(2,\) and \(2,\)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_and_leaves_the_graph_as_it_was(name: str) -> None:
    w = World()
    mistake, error, words = MISTAKES[name]
    before = len(w.graph)
    with pytest.raises(error, match=words) as caught:
        mistake(w)
    assert caught.type is error
    assert len(w.graph) == before
    h = w.map()  # and works
    assert np.isfinite(Reference(w.graph, weights_of(w.model)).value(h)).all()


OTHER_LEVELS = {"own child", "cycle", "CSR cycle", "long cycle", "leaf with a child"}
"""Mistakes with which the levels are wrong as well."""


@pytest.mark.parametrize("name", [name for name in MISTAKES if name not in OTHER_LEVELS])
def test_a_mistake_is_refused_where_levels_are_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = World()
    mistake, error, words = MISTAKES[name]
    w.map(levels=LEVELS)  # traced, so that compiled code takes over where it can
    before = len(w.graph)
    monkeypatch.setattr(vpps.Graph, "map", partialmethod(vpps.Graph.map, levels=LEVELS))
    with pytest.raises(error, match=words) as caught:
        mistake(w)
    assert caught.type is error
    assert len(w.graph) == before


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("children", [CHILDREN, CSR], ids=["table", "lists"])
@pytest.mark.parametrize(
    "levels, words",
    [
        ([0, 0, 0, 2], "vertex 2 of level 0 has child 0 of level 0; .* leave levels= out"),
        ([0, 1, 1, 2], "vertex 2 of level 1 has child 1 of level 1; "),
        ([0, 0, 3, 1], "vertex 3 of level 1 has child 2 of level 3; "),
        ([-1, 0, 1, 2], "vertex 0 has level -1; levels of 4 vertices are from 0 to 3"),
        ([0, 0, 1, 4], "vertex 3 has level 4; "),
    ],
)
def test_levels_that_are_wrong_are_refused(levels: list[int], words: str, children: Any, dtype: type) -> None:
    w = World()
    recorded = partial(w.map if children is CHILDREN else w.node, children=children)
    recorded(levels=LEVELS)  # traced, so that compiled code takes over where it can
    before = len(w.graph)
    with pytest.raises(G, match=words):
        recorded(levels=np.array(levels, dtype))
    assert len(w.graph) == before


def test_levels_are_ints() -> None:
    with pytest.raises(D, match="levels are ints, not of dtype float64"):
        World().map(levels=LEVELS * 0.5)
