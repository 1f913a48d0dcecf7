"""Wrong uses of expressions, rows and cells."""

from __future__ import annotations

from typing import Any

import numpy as np

import vpps
import vpps.nn
from tests.errors.table import read
from vpps.data import GraphSet


class World:
    """A model, and a graph for the tests to misuse."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.E = self.model.lookup("words", (10, 8))
        self.W = self.model.parameter("W", (4, 8))
        self.S = self.model.parameter("S", (8, 8))
        self.b = self.model.parameter("b", (4,), init="normal")
        self.graph = vpps.Graph()
        self.rows = self.graph.rows(np.ones((5, 8)))  # calls 0 to 4
        self.x = self.graph.lookup(self.E, 3)  # call 5, shape (8,)
        self.y = vpps.tanh(self.W @ self.x + self.b)  # calls 6 to 8, shape (4,)
        self.s = self.y[0]  # call 9, shape ()
        self.matrix = self.graph.input(np.ones((8, 8)))  # call 10
        other = vpps.Graph()
        self.elsewhere = other.lookup(self.E, 3)
        self.rows_elsewhere = other.rows(np.ones((5, 8)))
        self.labels = np.array([3, 0, 7, 7, 1])
        self.chains = GraphSet([3, 2], [[-1], [0], [1], [-1], [0]])[:]
        self.lstm, self.crf = vpps.nn.LSTM(self.model, 8, 8), vpps.nn.CRF(self.model, 8)

        def embed(word: Any) -> Any:
            return vpps.lookup(self.E, word)

        self.cells = {f.__name__: vpps.cell(f) for f in (two, pairs, scales, classifies, embed)}
        self.cells["declared"] = vpps.cell(elements={"xs": (8,)})(listed)

    def names(self) -> dict[str, Any]:
        """Return the names that the table's calls use."""
        return {**globals(), **vars(self), **self.cells, "call": self.call}

    def call(self, function: Any, *arguments: Any, **statics: Any) -> Any:
        """Call a cell that has the function's name."""
        cell = function if isinstance(function, vpps.Cell) else vpps.cell(function)
        return self.graph.call(cell, *arguments, **statics)

    def calls(self) -> None:
        """Make correct calls, twice, so that mistakes differ from earlier calls to the same cells."""
        x, y, c = self.x, self.y, self.cells
        for _ in range(2):
            c["two"](x, x), c["two"](y, y), c["pairs"]([x], [x]), self.call(c["pairs"], [], [])
            c["classifies"](y, 1), c["scales"](x, gain=2.0), self.call(c["embed"], 1), c["declared"](x, [x, x])
            vpps.sum([x, x]), vpps.tanh(x), vpps.dot(x, x), vpps.concat([x, x]), vpps.cross_entropy(y, 1), x + x, x * 2
            self.W @ x, self.matrix @ x, x[0], vpps.split(x, 2), self.graph.lookup(self.E, 1), self.graph.zeros(8)

    def loss(self) -> vpps.Expression:
        return vpps.cross_entropy(self.y, 2)


def branches(x: Any) -> Any:
    return x if x[0] > 0 else -x


def two(x: Any, y: Any) -> Any:
    return x + y


def pairs(xs: Any, ys: Any) -> Any:
    return vpps.sum(vpps.each(lambda a, b: a * b, xs, ys))


def mixes(xs: Any, ys: Any) -> Any:
    return vpps.sum(vpps.each(lambda a: vpps.sum(vpps.each(lambda b: a * b, ys)), xs))


def scales(x: Any, *, gain: Any) -> Any:
    return x * gain


def attends(xs: Any) -> Any:
    return vpps.sum(vpps.each(lambda q: vpps.sum(vpps.each(lambda k: vpps.dot(q, k) * k, xs)), xs))


def untold(m: Any, xs: Any) -> Any:
    return vpps.sum(m) * vpps.sum(vpps.sum(vpps.each(vpps.tanh, xs)))


def classifies(x: Any, label: Any) -> Any:
    return vpps.cross_entropy(x, label)


def open_ended(x: Any, **options: Any) -> Any:
    return x


@vpps.cell
def again(x: Any) -> Any:
    return again(x) + 1


class Slotted:
    """A module without a dict."""

    __slots__ = ()

    @vpps.cell
    def step(self, x: Any) -> Any:
        return x


def listed(a: Any, xs: Any) -> Any:
    return a + vpps.sum(xs)


MISTAKES = read(r"""
[elementwise operators]
x + y  # ShapeError: add, call 11: *operands of one shape*over the rows of a matrix*got (8,), (4,)
x - y  # ShapeError: sub, call 11: *got (8,), (4,)
matrix + y  # ShapeError: add*(8, 8), (4,)
y * matrix  # ShapeError: mul*over the rows*(4,), (8, 8)
W * matrix  # ShapeError: mul*(4, 8), (8, 8)
E * x  # ShapeError: mul of <lookup 'words'*take a row of it with lookup
matrix + S.T  # ShapeError: 'S'*left of @ only
x > y  # ShapeError: >*(8,), (4,)
x > np.ones(8)  # DtypeError: > takes*graph.input
x * np.ones(8)  # DtypeError: mul*(8,)*graph.input
np.ones(8) + x  # DtypeError: add*(8,)*graph.input
np.tanh(x)  # DtypeError: (8,)*functions of vpps*handle.forward
x * [1.0] * 8  # DtypeError: mul*list*graph.input
x + None  # DtypeError: add*None
x + 'a'  # DtypeError: add*'a'
x * True  # DtypeError: mul*bool
x / 0  # DivisionError: (8,)*/ 0
x / np.float32(0)  # DivisionError: (8,)*/ 0
2**x  # TraceError: vpps.exp(x * math.log(a))
(x > 0) & (x < 1)  # TraceError: a * b is and
~(x > 0)  # TraceError: vpps.eq(a, 0) is not
x % 2  # TraceError: no rounding and no remainder
2 // x  # TraceError: no rounding and no remainder
round(x)  # TraceError: no rounding and no remainder
f'{x:.3f}'  # TraceError: has no value while *handle.forward
W[0]  # GraphError: x[...]: no*inside a cell*graph.lookup
W + 1  # GraphError: add: no*inside a cell*graph.lookup
2 * E  # GraphError: mul: no*inside a cell*graph.lookup
x + elsewhere  # GraphError: add: *two graphs (graph *of 11 vertices*of 6 vertices)

[a @ b, x.T]
W @ y  # ShapeError: @, call 11: *vector of length 8, or a matrix of 8 rows*shape (4, 8); got (4, 8), (4,)
W @ s  # ShapeError: length 8*(4, 8), ()
W @ matrix[:4]  # ShapeError: @, call 12*8 rows*(4, 8)
matrix @ y  # ShapeError: length 8*(8, 8), (4,)
matrix @ s  # ShapeError: length 8*8 rows*(8, 8), ()
matrix[2:6] @ matrix[:4]  # ShapeError: @, call 13*8 rows*(4, 8), (4, 8)
x @ x  # ShapeError: @, call 11*a matrix on its left*vpps.dot*vpps.outer*(8,)
x @ S  # ShapeError: matrix on its left*m.T @ x
x @ matrix  # ShapeError: matrix on its left*m.T @ x*(8,), (8, 8)
s @ matrix  # ShapeError: matrix on its left*(), (8, 8)
b @ y  # ShapeError: matrix on its left*vpps.dot
E @ x  # ShapeError: 'words'*model.lookup('words'*dense=True*For a row of it there is lookup
matrix @ E  # ShapeError: 'words'*lookup
matrix @ 2.0  # DtypeError: @ takes*2.0
2 @ x  # DtypeError: @ takes*number 2
matrix @ np.ones(8)  # DtypeError: (8,)*graph.input
np.ones((8, 8)) @ matrix  # DtypeError: @ takes*(8, 8)*graph.input
np.ones((8, 8)) @ S  # GraphError: @: no operand*graph.input(array)
W @ b  # GraphError: no operand*graph.call(lambda: ...)
W.T @ S  # GraphError: @: no*inside a cell*graph.lookup
W.T @ x  # ShapeError: length 4*transpose*(4, 8)*(8,)
matrix @ S.T  # ShapeError: 'S'*(W @ M.T).T
x.T  # ShapeError: transpose, call 11*matrix*reshape*(8,)
b.T  # ShapeError: 'b'*matrix
vpps.transpose(s)  # ShapeError: transpose*matrix*()

[x[i], x[a:b]]
x[8]  # ShapeError: [8]*8 elements
x[-9]  # ShapeError: [-9]*8 elements
s[0]  # ShapeError: only vectors
matrix[8]  # ShapeError: [8]*matrix has 8 rows
matrix[1, 2]  # ShapeError: (1, 2)*m[i][j]
x['a']  # ShapeError: 'a'*int or a slice
x[::2]  # ShapeError: step
x[::-1]  # ShapeError: step
x[5:5]  # ShapeError: [5:5]*empty*8 elements
x[9:12]  # ShapeError: [9:12]*8 elements
matrix[3:3]  # ShapeError: [3:3]*empty*8 rows
x.__setitem__(0, 1.0)  # TraceError: expressions never change

[what an expression is not]
list(x)  # TraceError: iterated*vpps.split*x[0:8]
[*x]  # TraceError: iterated*vpps.split
len(x)  # TraceError: len()*x.shape
float(s)  # TraceError: no value*handle.forward*handle.value
int(s)  # TraceError: no value*handle.forward
bool(s)  # TraceError: truth value*Python data
s == 0  # TraceError: truth value*Python data
s != 0.5  # TraceError: truth value*Python data
1 if s > 0 else 2  # TraceError: truth value*vpps.where*Python data
max(s, y[1])  # TraceError: truth value

[vpps.dot, mse, maximum, where]
vpps.`dot | mse`(x, y)  # ShapeError: `*(8,), (4,)
vpps.dot(x, elsewhere)  # GraphError: dot*two graphs
vpps.mse(x, 1.0)  # DtypeError: mse*number 1.0*graph.input
vpps.maximum(x, 0.0)  # DtypeError: 0.0*vpps.clamp(x, low=0.0)
vpps.minimum(x, 2)  # DtypeError: vpps.clamp(x, high=2)
vpps.where(x > 0, y, 1)  # ShapeError: where*(8,), (4,)
vpps.elu(x, alpha='a')  # DtypeError: elu: expected a Python number, got 'a'
vpps.hinge(x)  # TypeError: hinge() missing 1 required positional argument: 'label'

[vpps.softmax, logsumexp]
vpps.softmax(s)  # ShapeError: softmax*a vector (a row of a matrix is A[k]); got ()
vpps.softmax(matrix)  # ShapeError: softmax*a vector*(8, 8)
vpps.softmax([[x], [x]])  # ShapeError: softmax*(8,)*list of expressions of one shape
vpps.log_softmax([x, y])  # ShapeError: log_softmax*(8,)*(4,)*one shape
vpps.softmax([1.0, 2.0])  # ShapeError: softmax([1.0, 2.0])
vpps.logsumexp([])  # ShapeError: logsumexp([])*empty list

[vpps.cross_entropy]
vpps.cross_entropy(s, 0)  # ShapeError: cross_entropy*vector
vpps.cross_entropy(y, 4)  # IndexRangeError: cross_entropy, call 11: index 4*classes: 4, so 0 to 3
vpps.cross_entropy(y, -1)  # IndexRangeError: -1*classes*0 to 3
vpps.cross_entropy(y, 1.0)  # DtypeError: cross_entropy*int*1.0
vpps.cross_entropy(y, [0, 1, 0, 0])  # DtypeError: cross_entropy*int*graph.rows
vpps.cross_entropy(y, np.array([1]))  # DtypeError: array([1])*rows
vpps.cross_entropy(y, torch.tensor([1]))  # DtypeError: tensor([1])*graph.rows
vpps.cross_entropy([x[0], x[1]], 1)  # DtypeError: vpps.stack(xs)
vpps.cross_entropy(x, x)  # DtypeError: -vpps.dot(targets, vpps.log_softmax(logits))

[vpps.concat, stack, split, reshape]
vpps.concat([x, matrix])  # ShapeError: concat*(8,), (8, 8)
vpps.concat([matrix, x])  # ShapeError: concat*vpps.reshape(x, (1, n))*(8, 8), (8,)
vpps.concat([matrix, vpps.reshape(x, (2, 4))])  # ShapeError: concat, call 12*equal numbers of columns*(8, 8), (2, 4)
vpps.concat([])  # ShapeError: concat([])*empty list*graph.zeros
vpps.concat(x)  # TraceError: iterated*split
vpps.concat([x, elsewhere])  # GraphError: concat*two graphs
vpps.stack([])  # ShapeError: stack([])*one or more vectors
vpps.stack([x, y])  # ShapeError: stack*(8,)*(4,)*concat
vpps.split(x, 3)  # ShapeError: split*(8,)*3*multiple
vpps.split(x, 0)  # ShapeError: split*0
vpps.split(s, 1)  # ShapeError: split*vector
vpps.split(matrix, 3)  # ShapeError: split*(8, 8)*number of rows
vpps.reshape(x, (3, 3))  # ShapeError: reshape, call 11*9 elements*(3, 3)*(8,)
vpps.reshape(x, (3, -1))  # ShapeError: reshape*(8,)
vpps.reshape(x, `(2, 2, 2) | 8.0`)  # ShapeError: reshape*`*up to two
vpps.reshape(x, (0, 8))  # ShapeError: reshape*(0, 8)*positive
vpps.reshape(x, (-1, -1))  # ShapeError: reshape*one of which
graph.call(vpps.reshape, np.ones(8), (2, 4))  # DtypeError: reshape*(8,)*graph.input

[vpps.outer, bilinear]
vpps.outer(matrix, x)  # ShapeError: outer*two vectors*(8, 8), (8,)
vpps.outer(x, s)  # ShapeError: outer*two vectors*(8,), ()
vpps.outer(*[graph.input(np.ones(30_000))] * 2)  # ShapeError: outer, call 12*(30000, 30000)*floats
vpps.bilinear(y, S, x)  # ShapeError: bilinear*(4,)*'S'*(8, 8)*(outputs * n, m)
vpps.bilinear(x, S, x, outputs=2)  # ShapeError: bilinear*outputs=2*(outputs * n, m)
vpps.bilinear(x, S, x, outputs=0)  # ShapeError: bilinear*outputs=0*positive int
vpps.bilinear(x, np.eye(8), x)  # DtypeError: bilinear*graph.input

[vpps.sum, mean, each]
vpps.sum([x, y])  # ShapeError: cell 'sum', call 11: *(8,) and (4,)
vpps.`sum | mean`([])  # ShapeError: `*empty list*graph.zeros
vpps.sum([x, 1.0])  # DtypeError: 'sum'*1.0
vpps.sum([1.0, 2.0])  # GraphError: sum*in Python*graph.input
vpps.sum([x, elsewhere])  # GraphError: sum*two graphs
vpps.each(lambda a, b: a + b, [x, x], [x])  # ShapeError: each*lengths*2, 1
vpps.each(vpps.tanh)  # TraceError: each
(lambda xs: xs.append(xs) or vpps.`sum | mean | stack | concat`(xs))([x])  # GraphError: contains itself

[vpps.dropout]
vpps.dropout(x, `1 | -0.1 | float('nan')`)  # DtypeError: graph*of 11 vertices: dropout(*expected a rate in [0, 1)
vpps.dropout(x, `float('inf') | '0.5' | None | True | np.ones(2)`)  # DtypeError: expected a rate in [0, 1)
call(lambda v: vpps.dropout(v, 2), x)  # DtypeError: cell '<lambda>': dropout
call(lambda xs: vpps.sum(vpps.dropout(xs, 0.5)), [x])  # TraceError: use vpps.each

[graph.lookup(table, row)]
graph.lookup(E, `10 | 2**40`)  # IndexRangeError: lookup(words), call 11: index 10*rows of 'words': 10, so 0 to 9
graph.lookup(E, -1)  # IndexRangeError: call 11: index -1*'words'*0 to 9
graph.lookup(E, np.int64(10))  # IndexRangeError: 10*'words'
graph.lookup(E, 1.0)  # DtypeError: lookup, call 11: *int*float 1.0
graph.lookup(E, True)  # DtypeError: lookup*int*bool
graph.lookup(E, [[1, 2]])  # ShapeError: 'words'*(1, 2)
graph.lookup(E, [1.0, 2.0])  # DtypeError: 'words'*ints*float64
graph.lookup(E, np.array([0, 10]))  # IndexRangeError: row 1: index 10 is out of range; rows of 'words': 10, so 0 to 9
graph.`lookup(b, 1) | lookup(two, x) | lookup([E], 1)`  # DtypeError: lookup*model.lookup*rank 2

[graph.input, zeros, rows, example]
graph.input(['a'])  # DtypeError: input, call 11: *numbers
graph.input([True])  # DtypeError: input*bool
graph.input([1j])  # DtypeError: input*complex
graph.input(None)  # DtypeError: input*object
graph.input([[1], [1, 2]])  # DtypeError: input*array
graph.input([s, s])  # DtypeError: input*no array
graph.input([1e39])  # DtypeError: input*range*3.4e38
graph.input([2**24 + 1])  # DtypeError: input*2**24
graph.input(np.ones((2, 2, 2)))  # ShapeError: input, call 11: *(2, 2, 2)
graph.input([])  # ShapeError: input*(0,)
graph.zeros(0)  # ShapeError: zeros*positive int*0
graph.zeros(2.0)  # ShapeError: zeros*2.0
graph.rows(np.ones((2, 2, 2, 2)))  # ShapeError: rows, call 11: *a scalar, vector or matrix per row
graph.rows([['a']])  # DtypeError: expected numbers
graph.example(`-1 | 2**31 | 1.5 | '1'`).__enter__()  # GraphError: expected an int, 0 to 2147483647

[operators and functions of rows]
rows + rows[:3]  # ShapeError: add of rows: operands of 5 and of 3 rows
rows + y  # ShapeError: add*(8,), (4,)
rows + np.ones((5, 8))  # DtypeError: add of rows: *bring data into the graph
rows + E  # ShapeError: take a row of it
rows + rows_elsewhere  # GraphError: belong to two graphs
rows + elsewhere  # GraphError: belong to two graphs
vpps.cross_entropy(rows, labels * 1.0)  # DtypeError: cross_entropy of rows: expected ints*float64
vpps.cross_entropy(rows, labels[:2])  # ShapeError: expected 5 ints*(2,)
vpps.cross_entropy(rows, labels + 2)  # IndexRangeError: cross_entropy of rows, row 2: index 9 *classes: 8, so 0 to 7
vpps.cross_entropy(rows, labels - 1)  # IndexRangeError: row 1: index -1
rows[5]  # IndexRangeError: there are 5 rows
rows[[0, 7]]  # IndexRangeError: out of bounds
rows[[0.5]]  # DtypeError: array of ints or booleans
rows[np.array([True])]  # IndexRangeError: boolean index
rows[0, 1, 2]  # ShapeError: expected rows
bool(rows)  # TraceError: no truth value
np.asarray(rows)  # DtypeError: is no array
rows.of([0.5] * 5)  # DtypeError: examples are ints, one per row
rows.of([[1, 2, 3, 4, 5]])  # DtypeError: of shape (1, 5)
rows.of([1, 2, -1, 3, 4])  # IndexRangeError: go from -1 to 4; expected 0 to 2147483647
rows.of([1, 2, 2**31, 3, 4])  # IndexRangeError: go from 1 to 2147483648
rows.of([1, 2, 3])  # ShapeError: examples of 3 rows, but there are 5

[vpps.cell: what it computes with]
call(lambda u, v: vpps.sigmoid(u) * v, x, y)  # ShapeError: cell '<lambda>': mul*(8,), (4,)
call(lambda v: W @ v, y)  # ShapeError: cell '<lambda>'*length 8*(4, 8), (4,)
call(lambda m: W @ m[1:3], matrix)  # ShapeError: cell '<lambda>': @*8 rows*(4, 8), (2, 8)
call(lambda m, v: (m @ v).T, matrix, x)  # ShapeError: cell '<lambda>'*transpose*(8,)
call(lambda v: E @ v, x)  # ShapeError: cell '<lambda>'*'words'*row of it*lookup
call(lambda v: E.T @ v, x)  # ShapeError: 'words'*dense=True
call(lambda v: vpps.cross_entropy(v, 4), y)  # IndexRangeError: cell '<lambda>': cross_entropy: index 4*0 to 3
call(lambda v: v + vpps.lookup(E, -2), x)  # IndexRangeError: cell '<lambda>': lookup: index -2*'words'*0 to 9
call(lambda v: `v + x | v + elsewhere`, x)  # TraceError: add: cell '<lambda>' closes over*(8,)*Pass the expression
call(lambda v: v + vpps.tanh(x), x)  # TraceError: tanh: cell '<lambda>' closes over
call(lambda v: v * x[0], x)  # TraceError: slice: cell '<lambda>' closes over
call(lambda v: v + rows, x)  # TraceError: closes over <5 rows of shape
call(lambda v: vpps.cell(vpps.tanh)(x) + v, x)  # TraceError: cell*closes over
call(lambda xs: vpps.sum(vpps.each(lambda e: e + x, xs)), [x])  # TraceError: cell '<lambda>' closes over
call(again, x)  # TraceError: cell 'again' calls itself without end
call(branches, x)  # TraceError: in cell 'branches'*traced once*cannot branch*vpps.where*Python data
call(lambda v: `v if v[0] == 0 else -v | v if v[0] else -v | max(v[0], v[1])`, x)  # TraceError: cannot branch
call(lambda v: vpps.sum([vpps.tanh(e) for e in v]), x)  # TraceError: in cell '<lambda>'*vpps.split
call(lambda v: v * float(v[0]), x)  # TraceError: in cell '<lambda>'*no value
call(lambda v: v / len(v), x)  # TraceError: in cell '<lambda>'*x.shape

[vpps.cell: int arguments]
call(lambda v, i: v * (`i + 1 | i // 2`), x, 1)  # TraceError: of cell '<lambda>'*not a Python int*keyword-only
call(lambda v, i: `v if i == 3 else -v | v if i else -v | v[i]`, x, 1)  # TraceError: not a Python int
call(lambda v, i: vpps.sum([v for _ in range(i)]), x, 1)  # TraceError: not a Python int
call(lambda v, i: v * i, x, 1)  # TraceError: cell '<lambda>': mul takes no int

[vpps.cell: list arguments]
call(lambda xs: vpps.sum(xs) / len(xs), [x])  # TraceError: in cell '<lambda>'*different length*vpps.each*vpps.mean
call(lambda xs: vpps.max(xs) / len(xs), [x])  # TraceError: different length*vpps.mean
call(lambda xs: `vpps.sum([vpps.tanh(e) for e in xs]) | xs[0] | vpps.sum(xs + xs)`, [x])  # TraceError: vpps.each
call(lambda xs: vpps.sum(-xs), [x])  # TraceError: different length at every vertex
call(lambda xs: vpps.sum(vpps.softmax(xs) + 1.0), [x])  # TraceError: vpps.each*vpps.softmax(xs)*vpps.max(xs)
call(lambda xs: vpps.sum(xs.T), [matrix])  # TraceError: vpps.each
call(lambda xs, v: vpps.sum(xs @ v), [matrix], x)  # TraceError: vpps.each
call(lambda xs: vpps.sum(S @ xs), [x])  # TraceError: cell '<lambda>': @*vpps.each
call(lambda xs: vpps.tanh(xs), [x])  # TraceError: cell '<lambda>': tanh*vpps.each
call(lambda xs, i: vpps.pick(xs, i), [s], 0)  # TraceError: vpps.logsumexp(scores) - score
call(lambda xs: vpps.sum(vpps.each(lambda e: 1.0, xs)), [x])  # TraceError: cell '<lambda>': each*1.0
call(lambda v, xs: vpps.each(lambda a, b: a * b, xs, [v]), x, [x])  # TraceError: each*Python list
call(mixes, [x], [x])  # TraceError: cell 'mixes'*map both at once
call(attends, [x, x])  # TraceError: cell 'attends': each inside each over the same list
call(untold, matrix, [])  # TraceError: cell 'untold'*list argument 2*empty in its first call*elements=
vpps.cell(elements={'typo': (8,)})(listed)  # TraceError: elements= names typo, which is no argument
declared(x, `x | 1 | rows`)  # TraceError: cell 'listed': elements= declares xs a list, but it is given one value
call(lambda v: declared(v, v), x)  # TraceError: elements= declares xs a list, but it is given one value
graph.map(declared, children=[[-1], [0]], inputs={'a': x})  # TraceError: elements= declares xs a list
graph.map(declared, inputs={'a': x, 'xs': rows})  # TraceError: elements= declares xs a list

[vpps.cell: what it returns, how it is defined]
call(lambda v: x, x)  # TraceError: cell '<lambda>' returns*from its arguments
call(lambda v: None, x)  # TraceError: cell '<lambda>' returns None
call(lambda v: (), x)  # TraceError: '<lambda>' returns nothing
call(lambda v: (v, 1.0), x)  # TraceError: '<lambda>' returns 1.0
call(lambda v: {'v': v}, x)  # TraceError: '<lambda>' returns {
call(lambda xs: vpps.each(vpps.tanh, xs), [x])  # TraceError: returns one value per list element; reduce it with
call(lambda xs: vpps.softmax(vpps.each(vpps.sum, xs)), [x])  # TraceError: one value per list element*vpps.sum
vpps.cell(open_ended)  # TraceError: cell 'open_ended'***kwargs*name the static arguments
Slotted().step(x)  # TraceError: Slotted have __slots__ and no __dict__

[graph.call(cell, ...)]
call(classifies, y, 4)  # IndexRangeError: classifies, call 11: index 4*classes: 4, so 0 to 3
call(embed, 10)  # IndexRangeError: embed, call 11: index 10*'words': 10, so 0 to 9
call(embed, -1)  # IndexRangeError: embed, call 11: index -1*'words'
call(pairs, [x, x], [x])  # ShapeError: cell 'pairs', call 11: *lengths 2 and 1
call(pairs, [x, y], [x, x])  # ShapeError: cell 'pairs', call 11: *(8,) and (4,)
call(pairs, [x], [1.0])  # DtypeError: cell 'pairs', call 11: *1.0
call(two, y, b)  # DtypeError: cell 'two', call 11: *'b'*closes over its parameters
call(two, y, W)  # DtypeError: cell 'two'*'W'*closes over
call(two, y, 1.0)  # DtypeError: cell 'two', call 11: *float*keyword-only*graph.input
call(two, x, np.ones(8))  # DtypeError: ndarray*graph.input
call(two, x, None)  # DtypeError: cell 'two'*NoneType
call(embed, np.arange(3))  # DtypeError: cell 'embed', call 11: *ndarray*graph.map(cell, inputs=
call(embed, torch.tensor([1]))  # DtypeError: Tensor*graph.map(cell, inputs=
call(two, x)  # TraceError: cell 'two'*'y'
call(two, x, x, x)  # TraceError: cell 'two'*too many
call(two, x, x, z=1)  # TraceError: cell 'two'*'z'
call(scales, x)  # TraceError: cell 'scales'*'gain'
call(scales, x, gain=s)  # TraceError: cell 'scales'*gain*by position
call(scales, x, gain=[1.0])  # TraceError: cell 'scales'*hashable*by position
two(x=x, y=x)  # TraceError: 'two'*x=<expression*by position
two(x, elsewhere)  # GraphError: 'two'*two graphs
pairs([x], [elsewhere])  # GraphError: 'pairs'*two graphs
pairs([x, x], [x, elsewhere])  # GraphError: 'pairs'*two graphs
call(two, elsewhere, elsewhere)  # GraphError: 'two'*two graphs*11 vertices
embed(3)  # GraphError: 'embed'*graph.call
graph.call(E, 1)  # DtypeError: call(<lookup*expected a function
graph.call('add', x, x)  # DtypeError: call('add'): expected a function
vpps.cell(lambda u, v: u + v)(rows, np.ones((5, 8), np.float32))  # DtypeError: on rows*graph.rows(array)
vpps.cell(lambda u, vs: u + vpps.sum(vs))(rows, (np.array([0, 9]), rows))  # ShapeError: 5 vertices have 6 offsets

[vpps.nn]
vpps.nn.attend(x, [], [])  # ShapeError: empty list
call(lambda q, ks, vs: vpps.nn.attend(q, ks, vs), x, [x, x], [y])  # ShapeError: cell '<lambda>'*lengths 2 and 1
vpps.nn.LSTM(vpps.Model(), 8, 8).step(x, (x, x))  # TraceError: lstm.step(x, *state)
vpps.nn.NaryTreeLSTM(vpps.Model(), 8, 8).inner(x)  # TraceError: tree_lstm.inner(h_1, c_1, h_2, c_2)*got 1 values
vpps.nn.NaryTreeLSTM(vpps.Model(), 8, 8, inner_input_size=8).node(x, x, x)
    # TraceError: expected tree_lstm.node(x, h_1, c_1, h_2, c_2)*pass graph.zeros(8); got 2 values*arity=2
vpps.nn.NaryTreeLSTM(vpps.Model(), 8, 8, 1).inner(x, x[:2])  # ShapeError: tree_lstm.inner(h_1, c_1)*got <*shape (2,)
vpps.nn.NaryTreeLSTM(vpps.Model(), 8, 8).node(*[x] * 5)
    # TraceError: tree_lstm.node: there are no *inner_input_size=*inner
vpps.nn.NaryTreeLSTM(vpps.Model(), 0, 8).leaf(x)  # TraceError: tree_lstm.leaf: declared with input_size=0
vpps.nn.NaryTreeGRU(vpps.Model(), 8, 8).inner(x)  # TraceError: expected tree_gru.inner(h_1, h_2)*got 1 values
vpps.nn.ChildSumTreeLSTM(vpps.Model(), 8, 8, inner_inputs=False).node(x, [x], [x])
    # TraceError: child_sum.node: declared with inner_inputs=False*leaf(x) and inner(hs, cs)
vpps.nn.ChildSumTreeLSTM(vpps.Model(), 8, 8).node(x, x, x)  # TraceError: child_sum.node(x, hs, cs): expected *in a list
vpps.nn.ChildSumTreeLSTM(vpps.Model(), 8, 8).inner(x, [x])  # TraceError: child_sum.inner(hs, cs): expected *in a list
vpps.nn.Linear(vpps.Model(), 64, 5, name='output')(x)  # ShapeError: cell 'output'
vpps.nn.MLP(vpps.Model(), 3, [], 2)  # ShapeError: without a hidden layer use Linear
vpps.nn.Embedding(vpps.Model(), 5, 3)(3)  # GraphError: Embedding 'embedding'*in a graph call embedding(graph, i)
graph.lookup(vpps.nn.Embedding(vpps.Model(), 5, 3), 3)
    # DtypeError: got <vpps.nn.Embedding 'embedding'*; pass its attribute
lstm([], chains, rows)  # GraphError: lstm(graph, chains, x, state): expected a vpps.Graph, got []
lstm(graph, [[x, x]], rows)  # DataError: a layer reads chains: every vertex has at most one child
lstm(graph, GraphSet([3], [[-1], [0], [0]])[:], rows[:3])  # DataError: one chain per graph; 1 * first, 2 last
lstm(graph, chains, rows, rows[:2])  # ShapeError: expected the state (h0, c0), got 1 parts
lstm(graph, chains, rows, (rows[:2], rows))  # ShapeError: state): c0: expected 2 rows of shape (8,)*got <5 rows
lstm(graph, chains, rows, (np.ones((2, 8)),) * 2)  # ShapeError: h0: expected 2 rows*graph.rows(array)*got array(
vpps.nn.GRU(vpps.Model(), 8, 8, num_layers=2)(graph, chains, rows, rows[:2])
    # ShapeError: gru(graph, chains, x, state): h0: expected 4 rows of shape (8,), one per chain and layer
vpps.nn.GRU(vpps.Model(), 8, 8, dropout=1)  # DtypeError: gru: dropout=1: expected a rate in [0, 1)
crf.loss(graph, chains, rows[:4], labels)  # ShapeError: crf.loss: emissions: expected 5 rows*one per vertex*got <4 rows
crf.loss(graph, chains, rows, labels[:4])  # ShapeError: crf.loss: tags of shape (4,); expected (5,)
crf.loss(graph, chains, rows, labels + 1)  # IndexRangeError: index 8 is out of range*0 to 7
crf.decode(chains, np.ones((4, 8)))  # ShapeError: crf.decode: emissions of shape (4, 8); expected 8 per vertex
vpps.nn.NaryTreeLSTM(vpps.Model(), 8, 8, per_child='no')  # DtypeError: per_child
""")
