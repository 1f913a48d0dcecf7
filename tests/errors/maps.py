"""Wrong uses of `graph.map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import vpps
from tests.errors.expressions import again
from tests.errors.table import read

H = 4
CHILDREN = np.array([[-1, -1], [-1, -1], [0, 1], [2, -1]], np.int32)
LISTS = (np.array([0, 0, 0, 2, 3]), np.array([0, 1, 2]))
KIND = np.array([0, 0, 1, 1], np.int8)
WORDS = np.array([3, 1, -1, -1])
LEVELS = np.array([0, 0, 1, 2], np.int32)


class World:
    """A model with cells, and a graph for the tests to misuse.

    Args:
        given: default arguments of all maps.
    """

    def __init__(self, **given: Any) -> None:
        self.model = vpps.Model(seed=1)
        self.E = self.model.lookup("words", (6, H), init="normal")
        self.U = self.model.parameter("U", (H, 2 * H))
        self.b = self.model.parameter("b", (H,), init="normal")
        self.graph = vpps.Graph()
        self.x = self.graph.rows(np.ones((4, H)))
        self.elsewhere = vpps.Graph().rows(np.ones((4, H)))
        self.given = given

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

    def names(self) -> dict[str, Any]:
        """Return the names that the table's calls use."""
        helpers = {f.__name__: f for f in (with_child, pushes, vpps.gather, vpps.scatter, vpps.push, vpps.pull)}
        own = {"map": self.map, "nodes": self.nodes, "trees": self.trees, "lists": self.lists, "again": again}
        return {**globals(), **vars(self), **helpers, **own}

    def map(self, cells: Any, **arguments: Any) -> Any:
        return self.graph.map(cells, **self.given | arguments)

    def nodes(self, cells: Any = None, **arguments: Any) -> Any:
        """Make a correct map of leaves and inner nodes, except for the given arguments."""
        right: dict[str, Any] = {"kind": KIND, "children": CHILDREN, "inputs": {"word": WORDS}}
        return self.map([self.leaf, self.inner] if cells is None else cells, **right | arguments)

    def trees(self, function: Any, **arguments: Any) -> Any:
        """Make a map of one function over a table of children."""
        return self.map(function, **{"children": CHILDREN} | arguments)

    def lists(self, function: Any = None, **arguments: Any) -> Any:
        """Make a map over lists of children; without a given function, it is correct."""
        return self.map(function or self.summed, **{"children": LISTS, "inputs": {"x": self.x}} | arguments)


def with_child(vertex: int, column: int, child: int) -> Any:
    changed = CHILDREN.copy()
    changed[vertex, column] = child
    return changed


def pushes(*widths: int) -> Callable[[], None]:
    def vertex() -> None:
        x = vpps.pull("x")
        vpps.scatter(x)
        vpps.push(*(x[:k] for k in widths))

    return vertex


MISTAKES = read(r"""
[graph.map(cells)]
map([])  # GraphError: graph.map([]): expected a cell
map('leaf', kind=KIND)  # GraphError: expected a cell or a function
map(len, kind=KIND)  # TraceError: is no Python function; wrap it
trees(lambda a, b, *, rate: a)  # TraceError: cannot give the static argument rate; wrap the call
trees(lambda a, b, *, x=1: a, inputs={'x': x})  # TraceError: x is keyword-only, so static, but an input
trees(lambda a, b, y=1, x=2: a, inputs={'x': x})  # TraceError: y has a default *make y keyword-only
trees(lambda left, right, x: vpps.tanh(U @ vpps.concat([x[:H], left, right]) + b), inputs={'x': np.ones((4, 3 * H))})
    # ShapeError: cell '<lambda>' uses its children's results as (2,), but children give (4,); does a
lists(lambda: scatter(vpps.tanh(b + sum(gather()))), inputs={})  # TraceError: use vpps.each(f, xs), *vpps.sum(xs)
map(again, inputs={'x': x})  # TraceError: cell 'again' calls itself without end
trees(lambda: scatter(gather(0) + undefined))  # NameError: undefined

[graph.map(kind=)]
nodes(kind=None)  # GraphError: 2 cells and no kind=
nodes(kind=KIND * 1.0)  # DtypeError: kind is of ints, not of dtype float64; convert it to int8
nodes(kind=[KIND, KIND])  # ShapeError: kind of shape (2, 4); expected (n,)
nodes(kind=KIND + 1)  # IndexRangeError: vertex 2 is of kind 2, but there are 2 cells, 0 to 1
nodes(kind=-KIND)  # IndexRangeError: vertex 2 is of kind -1

[graph.map(cells by kind, kinds=)]
nodes(`{} | {1: inner}`)  # GraphError: no cell for kind 0: every kind needs one, numbered from 0
nodes({'leaf': leaf}, kinds=('leaf', 'inner'))  # GraphError: no cell for kind 'inner': *, the kinds are leaf, inner
nodes({'leaf': leaf, 'iner': inner}, kinds=('leaf', 'inner'))
    # GraphError: a cell for kind 'iner', but there is no such kind: the kinds are leaf, inner
nodes({0: leaf, 2: inner}, kinds=('leaf', 'inner'))  # GraphError: a cell for kind 2, but there is no such kind: the
nodes({0: leaf, -1: inner})  # GraphError: a cell for kind -1, but there is no such kind: numbered from 0
nodes({'leaf': leaf, 'inner': inner, 1: inner}, kinds=('leaf', 'inner'))
    # GraphError: two cells for kind 1, by name and by number
nodes({'leaf': leaf, 'inner': inner})  # GraphError: a cell for kind 'leaf' and no kinds=: *structure
nodes({'leaf': leaf}, kinds=`'leaf' | 2`)  # DtypeError: kinds=`: expected the name of each kind, by number

[graph.map(children=table)]
nodes(children=CHILDREN * 1.0)  # DtypeError: children are ints, -1 for none, *float64
nodes(children=np.array([[None, 1]] * 4))  # DtypeError: children are ints, -1 for none, not of dtype object
nodes(children=CHILDREN < 0)  # DtypeError: not of dtype bool
nodes(children=CHILDREN[None])  # ShapeError: children of shape (1, 4, 2)
nodes(children=CHILDREN[:3])  # ShapeError: children of 3 vertices, but there are 4
nodes(children=with_child(2, 1, 4))  # IndexRangeError: vertex 2 has child 4; * 0 to 3, or -1
nodes(children=with_child(3, 0, -2))  # IndexRangeError: vertex 3 has child -2
nodes(children=with_child(3, 1, 3))  # GraphError: form a cycle of 1 vertices*: 3; take an edge
nodes(children=with_child(2, 1, 3))  # GraphError: form a cycle of 2 vertices*: 2, 3;
map(lambda h: vpps.tanh(b * h), children=np.roll(np.arange(50), 1))  # GraphError: cycle of 50 vertices*, ...;
nodes(children=with_child(1, 0, 0))
    # GraphError: vertex 1 has more children than its cell 'leaf' takes, which is none; change the vertex's kind
nodes(children=np.column_stack([CHILDREN, [-1, -1, -1, 0]]))  # GraphError: vertex 3 *which is 2;
map(leaf, children=CHILDREN, inputs={'word': abs(WORDS)})
    # GraphError: no cell takes anything of its children; leave children= out

[graph.map(children=lists)]
map([leaf, lambda hs: vpps.tanh(vpps.sum(hs))], kind=[0, 0, 0, 1], children=LISTS, inputs={'word': [1, 1, 1, 1]})
    # GraphError: vertex 2 has more children than its cell 'leaf' takes
lists(lambda: scatter(vpps.tanh(gather(0)) + b), state=H, inputs={})
    # GraphError: vertex 2 has more children than its cell '<lambda>' takes, which is 1; change the vertex's kind
lists(children=(*LISTS, 1))  # ShapeError: children is a tuple of 3; expected
lists(children=(LISTS[0], CHILDREN))  # ShapeError: not (5,) and (4, 2)
lists(children=(np.array([0, 2, 1, 3, 3]), LISTS[1]))  # ShapeError: children: offsets begin with 0, do not fall
lists(children=(LISTS[0] // 2, LISTS[1]))  # ShapeError: number of elements, 3
lists(children=(LISTS[0] * 1.0, LISTS[1]))  # DtypeError: offsets are ints
lists(children=(LISTS[0], LISTS[1] * 1.0))  # DtypeError: the indices of children are ints
lists(children=(LISTS[0], LISTS[1] + 2))  # IndexRangeError: vertex 3 has child 4
lists(children=(LISTS[0], np.array([0, 3, 2])))  # GraphError: cycle of 2 vertices

[graph.map(inputs=)]
nodes(inputs=[WORDS])  # DtypeError: expected a dict of arrays and rows by name
map(leaf, kind=KIND * 0)  # GraphError: cell 'leaf': no value for word*no children=
map(lambda x, y: x + y, inputs={'x': x})  # GraphError: no value for y: *(the inputs are x)
nodes(inputs={})  # DtypeError: cell 'leaf': lookup: *(word: no inputs of the map, so treated
nodes(inputs={'word': WORDS, 'label': WORDS})  # GraphError: no cell has a parameter 'label' or pulls it
nodes(inputs={'word': WORDS[:3]})  # ShapeError: input 'word' is of shape (3,), but there are 4
lists(inputs={'x': x[:2]})  # ShapeError: input 'x' has 2 rows, but there are 4 vertices
nodes(inputs={'word': np.array([None] * 4)})  # DtypeError: input 'word' is of dtype object
nodes(inputs={'word': ['a', 'b', 'c', 'd']})  # DtypeError: input 'word' is of dtype <U1
nodes(inputs={'word': WORDS > 1})  # DtypeError: input 'word' is of dtype bool
nodes(inputs={'word': CHILDREN})  # ShapeError: expected one per vertex: give each column
lists(inputs={'x': np.ones((4, 1, 1, 1))})  # ShapeError: a scalar, vector or matrix per row
nodes(inputs={'word': WORDS * 1.0})  # DtypeError: lookup: expected an int
lists(inputs={'x': WORDS})  # TraceError: takes no int here
nodes(inputs={'word': `WORDS + 3 | 6`})
    # IndexRangeError: graph.map, cell 'leaf', row 0: index 6 is out of range; rows of 'words': 6, so 0 to 5
nodes(inputs={'word': WORDS - 2})  # IndexRangeError: cell 'leaf', row 1: index -1
lists(inputs={'x': `elsewhere | elsewhere[0] | [*x[:3], elsewhere[3]]`})  # GraphError: input 'x': *belong to two graphs
lists(inputs={'x': [x[0], x[1], x[2], 3]})  # ShapeError: one per vertex; it holds 3
map(lambda xs: vpps.sum(xs), inputs={'xs': (LISTS[0], elsewhere[:3])})  # GraphError: two graphs
lists(inputs={'x': x, 'xs': LISTS})
    # DtypeError: input 'xs': *look ints up in a table, (offsets, graph.lookup(table, ints))
lists(inputs={'x': x, 'xs': (LISTS[0][:4], x)})  # ShapeError: input 'xs': 4 vertices have 5 offsets
map(lambda u, v: vpps.sum(vpps.each(vpps.dot, u, v)), inputs={'u': (LISTS[0], x[:3]), 'v': (LISTS[0] * 0, x[:0])})
    # ShapeError: row 2: lists that the cell maps together have lengths 2 and 0
map(lambda x: x, inputs={'x': x[0]})  # GraphError: how many vertices

[graph.map(examples=)]
nodes(examples=[0.5] * 4)  # DtypeError: examples are ints, one per row
nodes(examples=[[1, 2, 3, 4]])  # DtypeError: of shape (1, 4)
nodes(examples=[1, 2, -1, 3])  # IndexRangeError: go from -1 to 3; expected 0 to 2147483647
nodes(examples=[1, 2, 2**31, 3])  # IndexRangeError: go from 1 to 2147483648
nodes(examples=[1, 2, 3])  # ShapeError: examples of 3 rows, but there are 4

[graph.map(levels=)]
nodes(levels=LEVELS * 0.5)  # DtypeError: levels are ints, not of dtype float64
nodes(levels=np.array([0, 0, 0, 2]))
    # GraphError: vertex 2 of level 0 has child 0 of level 0; *leave levels= out
nodes(levels=np.array([0, 1, 1, 2], np.int32))  # GraphError: vertex 2 of level 1 has child 1 of level 1;
`nodes | lists`(levels=np.array([0, 0, 3, 1], np.int32))  # GraphError: vertex 3 of level 1 has child 2 of level 3;
nodes(levels=np.array([-1, 0, 1, 2], np.int32))  # GraphError: vertex 0 has level -1; levels of 4 vertices are from 0
`nodes | lists`(levels=np.array([0, 0, 1, 4], np.int32))  # GraphError: vertex 3 has level 4;
lists(levels=np.array([0, 0, 0, 2], np.int32))  # GraphError: vertex 2 of level 0 has child 0 of level 0;
lists(levels=np.array([0, 1, 1, 2]))  # GraphError: vertex 2 of level 1 has child 1 of level 1;
lists(levels=np.array([-1, 0, 1, 2], np.int32))  # GraphError: vertex 0 has level -1; levels of 4 vertices are from 0

[graph.map(state=) and the children's results]
nodes([lambda word: vpps.lookup(E, word)[:3], inner])  # ShapeError: cell 'inner': *got (4, 8), (6,)
map([lambda: b * 1.0, lambda: b[:2]], kind=KIND)  # ShapeError: cell '<lambda>' returns (2,), cell '<lambda>' (4,)
nodes([lambda word: (vpps.lookup(E, word),) * 2, inner])  # ShapeError: gives its parents *same from children
nodes([leaf, lambda a, b, c: b * 1.0])  # GraphError: 1 results of each of up to 2 children
map([leaf, lambda a, b: vpps.sum(a)], kind=KIND, children=LISTS, inputs={'word': WORDS})
    # GraphError: so they are lists of the children's results, one per result: take 1 such arguments, or * --fixed
trees(lambda a, b: vpps.tanh(a))  # TraceError: declare them: graph.map*state=
trees(lambda a, c: b * 1.0, state=3)  # ShapeError: gives its parents (4,), but state= gives (3,)
trees(lambda a, b: a, state=())  # ShapeError: one scalar is state=[()]
trees(lambda a, b: a, state='four')  # ShapeError: state='four': expected a length
map(lambda h: vpps.tanh(h), children=[-1, 0, 1, 2])
    # TraceError: nothing in the cell tells the shape of the children's results (h: *(..., state=64))
map(lambda h: vpps.tanh(h[1:]), children=[-1, 0, 1, 2])
    # TraceError: its result is as long as the children's results, whose length is unknown (h: *(..., state=64))
map(lambda h, s: (h[1:], s), children=[-1, 0, 1, 2])
    # TraceError: tells the shape of the children's results (h, s: no *(..., state=[(64,), (64,)]))

[vpps.gather, pull, scatter, push]
gather(0)  # TraceError: gather outside of a cell
graph.call(vpps.cell(lambda: pull('x')))  # TraceError: called as an ordinary cell
trees(lambda: scatter(vpps.tanh(b * gather(2))))  # GraphError: gather(2): children has 2 columns, 0 to 1
lists(lambda: scatter(gather(-1)), inputs={})  # GraphError: gather(-1): children are counted from 0
trees(lambda: scatter(vpps.sum(gather(start=3))))  # GraphError: gather(start=3): children has 2 columns, 0 to 1
lists(lambda: scatter(gather(0, start=1)), inputs={})  # GraphError: gather(0, start=1): one child or a list, not both
map(lambda: gather(0), kind=KIND * 0)  # GraphError: has no children; give
map(lambda: scatter(vpps.tanh(gather(0))), children=[-1, 0, 1, 2])  # TraceError: children's results*state=(64, 64)
nodes([lambda: push(pull('x')), lambda: push(gather(0))], inputs={'x': x})
    # GraphError: gathers, but no cell of the map scatters anything
nodes([lambda: pull('y'), inner], inputs={'x': x})  # GraphError: pull('y'): the inputs of the map are 'x'
map(lambda: scatter(1.0), kind=KIND * 0)  # TraceError: scatter(1.0)
trees(lambda: push(pull()), inputs={'xs': (LISTS[0], x[:3])})  # TraceError: push(<list
map(lambda: vpps.sum(vpps.each(lambda x: push(x), pull())), inputs={'xs': (LISTS[0], x[:3])})
    # TraceError: one value per child; reduce it
map(lambda x: push(x) or x, inputs={'x': x})  # TraceError: besides calling scatter or push
map([pushes(2), pushes(3)], kind=KIND, inputs={'x': x})
    # ShapeError: returns (3,), cell 'vertex' (2,); all cells of a map return the same
map([pushes(2), pushes(2, 2)], kind=KIND, inputs={'x': x})  # ShapeError: (2,) and (2,)
""")
