"""Mistakes of users: every one raises the right class before anything runs, and the message says what, where and what
to do. Afterwards graph, model and handle work as if nothing had happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new, same_bits
from vpps.reference import Reference, weights_of


@contextmanager
def refused(error: type[BaseException], *words: str) -> Iterator[None]:
    """The block raises exactly this class, with a message that holds all the words."""
    with pytest.raises(error) as caught:
        yield
    assert caught.type is error
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


class World:
    """A model and a graph in which there is something to get wrong."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.E = self.model.lookup("words", (10, 8))
        self.W = self.model.parameter("W", (4, 8))
        self.S = self.model.parameter("S", (8, 8))
        self.b = self.model.parameter("b", (4,), init="normal")
        self.graph = vpps.Graph()
        self.x = self.graph.lookup(self.E, 3)  # call 0, shape (8,)
        self.y = vpps.tanh(self.W @ self.x + self.b)  # calls 1 to 3, shape (4,)
        self.s = self.y[0]  # call 4, shape ()
        self.matrix = self.graph.input(np.ones((8, 8)))  # call 5
        other = vpps.Graph()
        self.elsewhere = other.lookup(self.E, 3)

    def call(self, function: Callable[..., Any], *arguments: Any, **statics: Any) -> Any:
        """As a cell with the name of the function."""
        return self.graph.call(vpps.cell(function), *arguments, **statics)

    def loss(self) -> vpps.Expression:
        return vpps.cross_entropy(self.y, 2)


Mistake = Callable[[World], Any]
Case = tuple[Mistake, type[BaseException], tuple[str, ...]]


# ---- operators and functions on the expressions of a graph

OPERATIONS: dict[str, Case] = {
    "add of two lengths": (lambda w: w.x + w.y, vpps.ShapeError, ("add", "(8,)", "(4,)", "call 6")),
    "sub of two lengths": (lambda w: w.x - w.y, vpps.ShapeError, ("sub", "(8,)", "(4,)", "call 6")),
    "logsumexp of nothing": (lambda w: vpps.logsumexp([]), vpps.ShapeError, ("logsumexp([])", "empty list")),
    "stack of nothing": (lambda w: vpps.stack([]), vpps.ShapeError, ("stack([])", "one or more vectors")),
    "stack of two lengths": (lambda w: vpps.stack([w.x, w.y]), vpps.ShapeError, ("stack", "(8,)", "(4,)", "concat")),
    "where of two lengths": (lambda w: vpps.where(w.x > 0, w.y, 1), vpps.ShapeError, ("where", "(8,)", "(4,)")),
    "comparison of two lengths": (lambda w: w.x > w.y, vpps.ShapeError, (">", "(8,)", "(4,)")),
    "comparison with an array": (lambda w: w.x > np.ones(8), vpps.DtypeError, ("> takes", "graph.input")),
    "mul with a matrix": (lambda w: w.y * w.matrix, vpps.ShapeError, ("mul", "(4,)", "(8, 8)", "over the rows")),
    "matrix times a short vector": (lambda w: w.W @ w.y, vpps.ShapeError, ("length 8", "(4, 8)", "(4,)", "call 6")),
    "matrix times a scalar": (lambda w: w.W @ w.s, vpps.ShapeError, ("length 8", "(4, 8)", "()")),
    "computed matrix times a short vector": (lambda w: w.matrix @ w.y, vpps.ShapeError, ("length 8", "(8, 8)", "(4,)")),
    "vector @ vector": (lambda w: w.x @ w.x, vpps.ShapeError, ("matrix", "(8,)")),
    "vector @ parameter": (lambda w: w.x @ w.S, vpps.ShapeError, ("matrix on its left", "m.T @ x")),
    "matrix parameter of another shape": (lambda w: w.W * w.matrix, vpps.ShapeError, ("mul", "(4, 8), (8, 8)")),
    "table as a matrix": (lambda w: w.E @ w.x, vpps.ShapeError, ("'words'", "model.lookup('words'", "dense=True")),
    "table as an operand": (lambda w: w.E * w.x, vpps.ShapeError, ("mul", "'words'", "row", "lookup")),
    "dot of two lengths": (lambda w: vpps.dot(w.x, w.y), vpps.ShapeError, ("dot", "(8,)", "(4,)")),
    "mse with a number": (lambda w: vpps.mse(w.x, 1.0), vpps.DtypeError, ("mse", "number 1.0", "graph.input")),
    "maximum with a number": (lambda w: vpps.maximum(w.x, 0.0), vpps.DtypeError, ("0.0", "vpps.clamp(x, low=0.0)")),
    "minimum with a number": (lambda w: vpps.minimum(w.x, 2), vpps.DtypeError, ("vpps.clamp(x, high=2)",)),
    "mse of two lengths": (lambda w: vpps.mse(w.x, w.y), vpps.ShapeError, ("mse", "(8,)", "(4,)")),
    "softmax of a scalar": (lambda w: vpps.softmax(w.s), vpps.ShapeError, ("softmax", "vector", "()")),
    "cross entropy of a scalar": (lambda w: vpps.cross_entropy(w.s, 0), vpps.ShapeError, ("cross_entropy", "vector")),
    "concat of matrices": (lambda w: vpps.concat([w.x, w.matrix]), vpps.ShapeError, ("concat", "(8, 8)")),
    "concat of nothing": (lambda w: vpps.concat([]), vpps.ShapeError, ("concat([])", "empty list", "graph.zeros")),
    "concat of an expression": (lambda w: vpps.concat(w.x), vpps.TraceError, ("iterated", "split")),
    "sum of two lengths": (lambda w: vpps.sum([w.x, w.y]), vpps.ShapeError, ("'sum'", "(8,)", "(4,)", "call 6")),
    "sum of nothing": (lambda w: vpps.sum([]), vpps.ShapeError, ("sum", "empty list", "graph.zeros")),
    "mean of nothing": (lambda w: vpps.mean([]), vpps.ShapeError, ("mean", "empty list")),
    "sum with a number": (lambda w: vpps.sum([w.x, 1.0]), vpps.DtypeError, ("'sum'", "1.0")),
    "each over unequal lists": (
        lambda w: vpps.each(lambda a, b: a + b, [w.x, w.x], [w.x]),
        vpps.ShapeError,
        ("each", "lengths", "2, 1"),
    ),
    "each over no list": (lambda w: vpps.each(vpps.tanh), vpps.TraceError, ("each",)),
    "index out of range": (lambda w: w.x[8], vpps.ShapeError, ("[8]", "8 elements")),
    "index before the start": (lambda w: w.x[-9], vpps.ShapeError, ("[-9]", "8 elements")),
    "index of a scalar": (lambda w: w.s[0], vpps.ShapeError, ("only vectors",)),
    "row out of range": (lambda w: w.matrix[8], vpps.ShapeError, ("[8]", "8 rows")),
    "index by a string": (lambda w: w.x["a"], vpps.ShapeError, ("'a'", "int or a slice")),
    "slice with a step": (lambda w: w.x[::2], vpps.ShapeError, ("step",)),
    "reversed slice": (lambda w: w.x[::-1], vpps.ShapeError, ("step",)),
    "empty slice": (lambda w: w.x[5:5], vpps.ShapeError, ("[5:5]", "empty", "8 elements")),
    "slice past the end": (lambda w: w.x[9:12], vpps.ShapeError, ("[9:12]", "8 elements")),
    "split with a rest": (lambda w: vpps.split(w.x, 3), vpps.ShapeError, ("split", "(8,)", "3", "multiple")),
    "split in none": (lambda w: vpps.split(w.x, 0), vpps.ShapeError, ("split", "0")),
    "split of a scalar": (lambda w: vpps.split(w.s, 1), vpps.ShapeError, ("split", "vector")),
    "times an array": (lambda w: w.x * np.ones(8), vpps.DtypeError, ("mul", "(8,)", "graph.input")),
    "ufunc of NumPy": (lambda w: np.tanh(w.x), vpps.DtypeError, ("(8,)", "functions of vpps", "handle.forward")),
    "array plus": (lambda w: np.ones(8) + w.x, vpps.DtypeError, ("add", "(8,)", "graph.input")),
    "times a list": (lambda w: w.x * [1.0] * 8, vpps.DtypeError, ("mul", "list", "graph.input")),
    "plus None": (lambda w: w.x + None, vpps.DtypeError, ("add", "None")),
    "plus a string": (lambda w: w.x + "a", vpps.DtypeError, ("add", "'a'")),
    "times a bool": (lambda w: w.x * True, vpps.DtypeError, ("mul", "bool")),
    "divided by zero": (lambda w: w.x / 0, vpps.DivisionError, ("(8,)", "/ 0")),
    "divided by zero of NumPy": (lambda w: w.x / np.float32(0), vpps.DivisionError, ("(8,)", "/ 0")),
    "iteration": (lambda w: list(w.x), vpps.TraceError, ("iterated", "vpps.split", "x[0:8]")),
    "unpacking": (lambda w: [*w.x], vpps.TraceError, ("iterated", "vpps.split")),
    "len": (lambda w: len(w.x), vpps.TraceError, ("len()", "x.shape")),
    "float": (lambda w: float(w.s), vpps.TraceError, ("no value", "handle.forward", "handle.value")),
    "int": (lambda w: int(w.s), vpps.TraceError, ("no value", "handle.forward")),
    "truth": (lambda w: bool(w.s), vpps.TraceError, ("truth value", "Python data")),
    "equality with a number": (lambda w: w.s == 0, vpps.TraceError, ("truth value", "Python data")),
    "inequality with a number": (lambda w: w.s != 0.5, vpps.TraceError, ("truth value", "Python data")),
    "comparison": (lambda w: 1 if w.s > 0 else 2, vpps.TraceError, ("truth value", "vpps.where", "Python data")),
    "max": (lambda w: max(w.s, w.y[1]), vpps.TraceError, ("truth value",)),
}

# ---- leaves

LEAVES: dict[str, Case] = {
    "row too large": (lambda w: w.graph.lookup(w.E, 10), vpps.IndexRangeError, ("10", "'words'", "0 to 9", "call 6")),
    "negative row": (lambda w: w.graph.lookup(w.E, -1), vpps.IndexRangeError, ("-1", "'words'", "0 to 9", "call 6")),
    "NumPy row too large": (lambda w: w.graph.lookup(w.E, np.int64(10)), vpps.IndexRangeError, ("10", "'words'")),
    "float row": (lambda w: w.graph.lookup(w.E, 1.0), vpps.DtypeError, ("lookup", "int", "float 1.0", "call 6")),
    "bool row": (lambda w: w.graph.lookup(w.E, True), vpps.DtypeError, ("lookup", "int", "bool")),
    "rows of a matrix": (lambda w: w.graph.lookup(w.E, [[1, 2]]), vpps.ShapeError, ("'words'", "(1, 2)")),
    "rows of floats": (lambda w: w.graph.lookup(w.E, [1.0, 2.0]), vpps.DtypeError, ("'words'", "ints", "float64")),
    "element of a vector": (lambda w: w.graph.lookup(w.b, 1), vpps.DtypeError, ("lookup", "model.lookup", "rank 2")),
    "label too large": (
        lambda w: vpps.cross_entropy(w.y, 4),
        vpps.IndexRangeError,
        ("cross_entropy", "4", "classes", "0 to 3", "call 6"),
    ),
    "negative label": (lambda w: vpps.cross_entropy(w.y, -1), vpps.IndexRangeError, ("-1", "classes", "0 to 3")),
    "float label": (lambda w: vpps.cross_entropy(w.y, 1.0), vpps.DtypeError, ("cross_entropy", "int", "1.0")),
    "one-hot label": (
        lambda w: vpps.cross_entropy(w.y, [0, 1, 0, 0]),
        vpps.DtypeError,
        ("cross_entropy", "int", "graph.rows"),
    ),
    "array of one label": (lambda w: vpps.cross_entropy(w.y, np.array([1])), vpps.DtypeError, ("array([1])", "rows")),
    "tensor of one label": (
        lambda w: vpps.cross_entropy(w.y, pytest.importorskip("torch").tensor([1])),
        vpps.DtypeError,
        ("tensor([1])", "graph.rows"),
    ),
    "input of strings": (lambda w: w.graph.input(["a"]), vpps.DtypeError, ("input", "call 6", "numbers")),
    "input of booleans": (lambda w: w.graph.input([True]), vpps.DtypeError, ("input", "bool")),
    "input of complex numbers": (lambda w: w.graph.input([1j]), vpps.DtypeError, ("input", "complex")),
    "input of None": (lambda w: w.graph.input(None), vpps.DtypeError, ("input", "object")),
    "ragged input": (lambda w: w.graph.input([[1], [1, 2]]), vpps.DtypeError, ("input", "array")),
    "input of expressions": (lambda w: w.graph.input([w.s, w.s]), vpps.DtypeError, ("input", "no array")),
    "input beyond float32": (lambda w: w.graph.input([1e39]), vpps.DtypeError, ("input", "range", "3.4e38")),
    "input of large integers": (lambda w: w.graph.input([2**24 + 1]), vpps.DtypeError, ("input", "2**24")),
    "input of rank 3": (lambda w: w.graph.input(np.ones((2, 2, 2))), vpps.ShapeError, ("input", "(2, 2, 2)", "call 6")),
    "empty input": (lambda w: w.graph.input([]), vpps.ShapeError, ("input", "(0,)")),
    "no zeros": (lambda w: w.graph.zeros(0), vpps.ShapeError, ("zeros", "positive int", "0")),
    "zeros of a float": (lambda w: w.graph.zeros(2.0), vpps.ShapeError, ("zeros", "2.0")),
}

# ---- cells


def shape_mismatch(a: Any, b: Any) -> Any:
    return vpps.sigmoid(a) * b


def branches_on_a_value(x: Any) -> Any:
    return x if x[0] > 0 else -x


def compares_with_zero(x: Any) -> Any:
    return x if x[0] == 0 else -x


def branches_on_an_element(x: Any) -> Any:
    return x if x[0] else -x


def takes_the_larger(x: Any) -> Any:
    return max(x[0], x[1])


def iterates(x: Any) -> Any:
    return vpps.sum([vpps.tanh(element) for element in x])


def converts(x: Any) -> Any:
    return x * float(x[0])


def measures(x: Any) -> Any:
    return x / len(x)


def calculates(x: Any, word: Any) -> Any:
    return x * (word + 1)


def halves(x: Any, word: Any) -> Any:
    return x * (word // 2)


def compares(x: Any, word: Any) -> Any:
    return x if word == 3 else -x


def asks_for_truth(x: Any, word: Any) -> Any:
    return x if word else -x


def selects(x: Any, word: Any) -> Any:
    return x[word]


def counts_to(x: Any, word: Any) -> Any:
    return vpps.sum([x for _ in range(word)])


def scales(x: Any, word: Any) -> Any:
    return x * word


def two(x: Any, y: Any) -> Any:
    return x + y


def counts(xs: Any) -> Any:
    return vpps.sum(xs) / len(xs)


def loops(xs: Any) -> Any:
    return vpps.sum([vpps.tanh(x) for x in xs])


def picks(xs: Any) -> Any:
    return xs[0]


def adds_to_a_list(xs: Any) -> Any:
    return vpps.sum(xs + xs)


def forgets_to_reduce(xs: Any) -> Any:
    return vpps.each(vpps.tanh, xs)


def pairs(xs: Any, ys: Any) -> Any:
    return vpps.sum(vpps.each(lambda a, b: a * b, xs, ys))


def mixes_lists(xs: Any, ys: Any) -> Any:
    return vpps.sum(vpps.each(lambda a: vpps.sum(vpps.each(lambda b: a * b, ys)), xs))


def one_line(x: Any, *, gain: Any) -> Any:
    return x * gain


def labels(x: Any, label: Any) -> Any:
    return vpps.cross_entropy(x, label)


CELLS: dict[str, Case] = {
    "shape mismatch": (
        lambda w: w.call(shape_mismatch, w.x, w.y),
        vpps.ShapeError,
        ("cell 'shape_mismatch'", "mul", "(8,)", "(4,)"),
    ),
    "wrong matrix": (
        lambda w: w.call(lambda y: w.W @ y, w.y),
        vpps.ShapeError,
        ("cell '<lambda>'", "length 8", "(4, 8)", "(4,)"),
    ),
    "table as an operand": (
        lambda w: w.call(lambda x: w.E @ x, w.x),
        vpps.ShapeError,
        ("cell '<lambda>'", "'words'", "row", "lookup"),
    ),
    "closes over an expression": (
        lambda w: w.call(lambda x: x + w.x, w.x),
        vpps.TraceError,
        ("cell '<lambda>'", "add", "closes over", "(8,)", "Pass the expression"),
    ),
    "closes over an expression of another graph": (
        lambda w: w.call(lambda x: x + w.elsewhere, w.x),
        vpps.TraceError,
        ("cell '<lambda>'", "closes over", "Pass the expression"),
    ),
    "computes with outer expressions only": (
        lambda w: w.call(lambda x: x + vpps.tanh(w.x), w.x),
        vpps.TraceError,
        ("cell '<lambda>'", "tanh", "closes over"),
    ),
    "slices an outer expression": (
        lambda w: w.call(lambda x: x * w.x[0], w.x),
        vpps.TraceError,
        ("cell '<lambda>'", "slice", "closes over"),
    ),
    "hides an outer expression in each": (
        lambda w: w.call(lambda xs: vpps.sum(vpps.each(lambda e: e + w.x, xs)), [w.x]),
        vpps.TraceError,
        ("cell '<lambda>'", "closes over"),
    ),
    "returns an outer expression": (
        lambda w: w.call(lambda x: w.x, w.x),
        vpps.TraceError,
        ("cell '<lambda>'", "returns", "from its arguments"),
    ),
    "returns nothing": (lambda w: w.call(lambda x: None, w.x), vpps.TraceError, ("cell '<lambda>'", "returns None")),
    "returns an empty tuple": (lambda w: w.call(lambda x: (), w.x), vpps.TraceError, ("'<lambda>'", "returns nothing")),
    "returns a number": (lambda w: w.call(lambda x: (x, 1.0), w.x), vpps.TraceError, ("'<lambda>'", "returns 1.0")),
    "returns a dict": (lambda w: w.call(lambda x: {"x": x}, w.x), vpps.TraceError, ("'<lambda>'", "returns {")),
    "returns a list expression": (
        lambda w: w.call(forgets_to_reduce, [w.x]),
        vpps.TraceError,
        ("cell 'forgets_to_reduce'", "vpps.sum"),
    ),
    "branches on a value": (
        lambda w: w.call(branches_on_a_value, w.x),
        vpps.TraceError,
        ("cell 'branches_on_a_value'", "traced once", "cannot branch", "Python data"),
    ),
    "branches on an element": (
        lambda w: w.call(branches_on_an_element, w.x),
        vpps.TraceError,
        ("cell 'branches_on_an_element'", "cannot branch"),
    ),
    "compares with zero": (
        lambda w: w.call(compares_with_zero, w.x),
        vpps.TraceError,
        ("cell 'compares_with_zero'", "cannot branch"),
    ),
    "calls max": (lambda w: w.call(takes_the_larger, w.x), vpps.TraceError, ("'takes_the_larger'", "cannot branch")),
    "iterates over an expression": (lambda w: w.call(iterates, w.x), vpps.TraceError, ("'iterates'", "vpps.split")),
    "calls float": (lambda w: w.call(converts, w.x), vpps.TraceError, ("cell 'converts'", "no value")),
    "calls len": (lambda w: w.call(measures, w.x), vpps.TraceError, ("cell 'measures'", "x.shape")),
    "calculates with an int": (
        lambda w: w.call(calculates, w.x, 1),
        vpps.TraceError,
        ("cell 'calculates'", "not a Python int", "keyword-only"),
    ),
    "divides an int": (lambda w: w.call(halves, w.x, 1), vpps.TraceError, ("'halves'", "not a Python int")),
    "compares an int": (lambda w: w.call(compares, w.x, 1), vpps.TraceError, ("'compares'", "not a Python int")),
    "tests the truth of an int": (lambda w: w.call(asks_for_truth, w.x, 1), vpps.TraceError, ("not a Python int",)),
    "indexes by an int": (lambda w: w.call(selects, w.x, 1), vpps.TraceError, ("'selects'", "not a Python int")),
    "counts to an int": (lambda w: w.call(counts_to, w.x, 1), vpps.TraceError, ("'counts_to'", "not a Python int")),
    "multiplies by an int": (lambda w: w.call(scales, w.x, 1), vpps.TraceError, ("'scales'", "mul", "no int")),
    "calls len of a list": (
        lambda w: w.call(counts, [w.x]),
        vpps.TraceError,
        ("cell 'counts'", "different length", "vpps.each", "vpps.mean"),
    ),
    "loops over a list": (lambda w: w.call(loops, [w.x]), vpps.TraceError, ("cell 'loops'", "vpps.each")),
    "picks from a list": (lambda w: w.call(picks, [w.x]), vpps.TraceError, ("cell 'picks'", "vpps.each")),
    "adds lists": (lambda w: w.call(adds_to_a_list, [w.x]), vpps.TraceError, ("cell 'adds_to_a_list'", "vpps.each")),
    "applies an op to a list": (
        lambda w: w.call(lambda xs: vpps.tanh(xs), [w.x]),
        vpps.TraceError,
        ("cell '<lambda>'", "tanh", "vpps.each"),
    ),
    "maps to something else": (
        lambda w: w.call(lambda xs: vpps.sum(vpps.each(lambda e: 1.0, xs)), [w.x]),
        vpps.TraceError,
        ("cell '<lambda>'", "each", "1.0"),
    ),
    "maps a list with a Python list": (
        lambda w: w.call(lambda x, xs: vpps.each(lambda a, b: a * b, xs, [x]), w.x, [w.x]),
        vpps.TraceError,
        ("each", "Python list"),
    ),
    "maps a list inside another": (lambda w: w.call(mixes_lists, [w.x], [w.x]), vpps.TraceError, ("mixes_lists",)),
    "constant label out of range": (
        lambda w: w.call(lambda y: vpps.cross_entropy(y, 4), w.y),
        vpps.IndexRangeError,
        ("cell '<lambda>'", "cross_entropy", "4", "0 to 3"),
    ),
    "constant row out of range": (
        lambda w: w.call(lambda x: x + vpps.lookup(w.E, -2), w.x),
        vpps.IndexRangeError,
        ("cell '<lambda>'", "lookup", "-2", "'words'", "0 to 9"),
    ),
}


def _embed(w: World) -> Any:
    def embed(word: Any) -> Any:
        return vpps.lookup(w.E, word)

    return embed


CALLS: dict[str, Case] = {
    "label out of range": (
        lambda w: w.call(labels, w.y, 4),
        vpps.IndexRangeError,
        ("labels", "call 6", "index 4", "classes", "0 to 3"),
    ),
    "row out of range": (
        lambda w: w.call(_embed(w), 10),
        vpps.IndexRangeError,
        ("embed", "call 6", "index 10", "'words'", "0 to 9"),
    ),
    "negative row": (lambda w: w.call(_embed(w), -1), vpps.IndexRangeError, ("embed", "call 6", "-1", "'words'")),
    "lists of unequal length": (
        lambda w: w.call(pairs, [w.x, w.x], [w.x]),
        vpps.ShapeError,
        ("cell 'pairs'", "call 6", "lengths", "2", "1"),
    ),
    "list of several shapes": (
        lambda w: w.call(pairs, [w.x, w.y], [w.x, w.x]),
        vpps.ShapeError,
        ("cell 'pairs'", "call 6", "(8,)", "(4,)"),
    ),
    "list of numbers": (lambda w: w.call(pairs, [w.x], [1.0]), vpps.DtypeError, ("cell 'pairs'", "call 6", "1.0")),
    "parameter as an argument": (
        lambda w: w.call(two, w.y, w.b),
        vpps.DtypeError,
        ("cell 'two'", "call 6", "'b'", "closes over its parameters"),
    ),
    "matrix as an argument": (lambda w: w.call(two, w.y, w.W), vpps.DtypeError, ("cell 'two'", "'W'", "closes over")),
    "float as an argument": (
        lambda w: w.call(two, w.y, 1.0),
        vpps.DtypeError,
        ("cell 'two'", "call 6", "float", "keyword-only", "graph.input"),
    ),
    "array as an argument": (lambda w: w.call(two, w.x, np.ones(8)), vpps.DtypeError, ("ndarray", "graph.input")),
    "ints as an argument": (
        lambda w: w.call(_embed(w), np.arange(3)),
        vpps.DtypeError,
        ("cell 'embed'", "call 6", "ndarray", "graph.map(cell, inputs="),
    ),
    "tensor of ints as an argument": (
        lambda w: w.call(_embed(w), pytest.importorskip("torch").tensor([1])),
        vpps.DtypeError,
        ("Tensor", "graph.map(cell, inputs="),
    ),
    "None as an argument": (lambda w: w.call(two, w.x, None), vpps.DtypeError, ("cell 'two'", "NoneType")),
    "too few arguments": (lambda w: w.call(two, w.x), vpps.TraceError, ("cell 'two'", "'y'")),
    "too many arguments": (lambda w: w.call(two, w.x, w.x, w.x), vpps.TraceError, ("cell 'two'", "too many")),
    "unknown keyword": (lambda w: w.call(two, w.x, w.x, z=1), vpps.TraceError, ("cell 'two'", "'z'")),
    "missing keyword": (lambda w: w.call(one_line, w.x), vpps.TraceError, ("cell 'one_line'", "'gain'")),
    "expression as a keyword": (
        lambda w: w.call(one_line, w.x, gain=w.s),
        vpps.TraceError,
        ("cell 'one_line'", "gain", "by position"),
    ),
    "unhashable keyword": (
        lambda w: w.call(one_line, w.x, gain=[1.0]),
        vpps.TraceError,
        ("cell 'one_line'", "hashable", "by position"),
    ),
}

# ---- expressions of two graphs

GRAPHS: dict[str, Case] = {
    "mixed by an operator": (lambda w: w.x + w.elsewhere, vpps.GraphError, ("add", "two graphs", "6 vertices")),
    "mixed by a function": (lambda w: vpps.dot(w.x, w.elsewhere), vpps.GraphError, ("dot", "two graphs")),
    "mixed in a concat": (lambda w: vpps.concat([w.x, w.elsewhere]), vpps.GraphError, ("concat", "two graphs")),
    "mixed in a sum": (lambda w: vpps.sum([w.x, w.elsewhere]), vpps.GraphError, ("sum", "two graphs")),
    "mixed in a call": (lambda w: vpps.cell(two)(w.x, w.elsewhere), vpps.GraphError, ("'two'", "two graphs")),
    "mixed in a list argument": (
        lambda w: vpps.cell(pairs)([w.x], [w.elsewhere]),
        vpps.GraphError,
        ("'pairs'", "two graphs"),
    ),
    "given to graph.call": (
        lambda w: w.graph.call(vpps.cell(two), w.elsewhere, w.elsewhere),
        vpps.GraphError,
        ("'two'", "two graphs", "6 vertices"),
    ),
    "no expression for an op": (lambda w: w.W @ w.b, vpps.GraphError, ("no operand", "graph.call(lambda: ...)")),
    **{
        f"no expression for {name} of a parameter": (
            f,
            vpps.GraphError,
            (f"{name}: no", "inside a cell", "graph.lookup"),
        )
        for name, f in {
            "@": lambda w: w.W.T @ w.S,
            "x[...]": lambda w: w.W[0],
            "add": lambda w: w.W + 1,
            "mul": lambda w: 2 * w.E,
        }.items()
    },
    "an array for an op": (lambda w: np.ones(4) @ w.W, vpps.GraphError, ("@", "graph.input(array)")),
    "numbers for an op": (lambda w: vpps.sum([1.0, 2.0]), vpps.GraphError, ("sum", "in Python", "graph.input")),
    "keywords for a cell": (
        lambda w: vpps.cell(two)(x=w.x, y=w.x),
        vpps.TraceError,
        ("'two'", "x=<expression", "by position"),
    ),
    "no expression for a cell": (lambda w: vpps.cell(_embed(w))(3), vpps.GraphError, ("'embed'", "graph.call")),
}

MISTAKES = OPERATIONS | {f"leaf, {k}": v for k, v in LEAVES.items()}
MISTAKES |= {f"cell, {k}": v for k, v in CELLS.items()}
MISTAKES |= {f"call, {k}": v for k, v in CALLS.items()}
MISTAKES |= {f"graph, {k}": v for k, v in GRAPHS.items()}


@pytest.mark.host
@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_building_a_graph_is_explained_and_leaves_the_graph_usable(case: Case) -> None:
    mistake, error, words = case
    world, witness = World(), World()
    for _ in range(2):  # the second time finds what the first one cached
        with refused(error, *words):
            mistake(world)
    loss, expected = world.loss(), witness.loss()
    values = Reference(world.graph, weights_of(world.model)), Reference(witness.graph, weights_of(witness.model))
    assert values[0].value(loss) == values[1].value(expected)
    assert same_bits(values[0].backward(loss), values[1].backward(expected))


@pytest.fixture(scope="module")
def witness() -> tuple[float, dict[str, Any]]:
    """Loss and gradients of a world without mistakes."""
    world = World()
    with vpps.Handle(world.model, vps=2) as handle:
        return handle.gradients(world.graph, world.loss())


@pytest.mark.cpu
@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES)
def test_a_graph_trains_after_a_mistake(case: Case, witness: tuple[float, dict[str, Any]]) -> None:
    world = World()
    with pytest.raises(case[1]):
        case[0](world)
    with vpps.Handle(world.model, vps=2) as handle:
        loss, gradients = handle.gradients(world.graph, world.loss())
    assert loss == witness[0]
    assert same_bits(gradients, witness[1])


@pytest.mark.cpu
def test_a_refused_call_with_ints_and_lists_leaves_no_trace() -> None:
    world = World()

    @vpps.cell
    def weighted(word: int, xs: list[vpps.Expression], ys: list[vpps.Expression]) -> vpps.Expression:
        return vpps.lookup(world.E, word) + vpps.sum(vpps.each(lambda a, b: a * b, xs, ys))

    first = weighted(1, [world.x], [world.x])
    for mistake in ((2, [world.x] * 2, [world.x]), (99, [world.x], [world.x])):
        with pytest.raises((vpps.ShapeError, vpps.IndexRangeError)):
            weighted(*mistake)
    second = weighted(3, [world.x, world.x], [world.x, world.x])
    reference = Reference(world.graph, weights_of(world.model))
    with vpps.Handle(world.model, train=False) as handle:
        for value, e in zip(handle.forward(world.graph, [first, second]), (first, second), strict=True):
            np.testing.assert_allclose(value, reference.value(e), rtol=1e-6)


@pytest.mark.host
def test_cells_with_open_keywords_are_refused_where_they_are_defined() -> None:
    with refused(vpps.TraceError, "cell 'open_ended'", "**kwargs", "name the static arguments"):

        @vpps.cell
        def open_ended(x: vpps.Expression, **options: Any) -> vpps.Expression:
            return x


@pytest.mark.host
def test_an_expression_that_left_its_cell_is_refused() -> None:
    world = World()
    escaped: list[vpps.Expression] = []

    def leaks(x: vpps.Expression) -> vpps.Expression:
        escaped.append(vpps.tanh(x))
        return x + escaped[0]

    world.call(leaks, world.x)
    with pytest.raises((vpps.GraphError, vpps.TraceError), match="cell 'leaks'"):
        world.x + escaped[0]


# ---- models

DECLARATIONS: dict[str, tuple[Callable[[vpps.Model], Any], type[BaseException], tuple[str, ...]]] = {
    "duplicate name": (lambda m: m.parameter("W", (2, 2)), vpps.ModelError, ("'W'", "already", "(3, 4)", "scope")),
    "duplicate name of a table": (lambda m: m.lookup("W", (2, 2)), vpps.ModelError, ("'W'", "already", "scope")),
    "empty name": (lambda m: m.parameter("", (2,)), vpps.ModelError, ("''", "name")),
    "unprintable name": (lambda m: m.parameter("a\n", (2,)), vpps.ModelError, ("name", "printable")),
    "name that is no string": (lambda m: m.parameter(3, (2,)), vpps.ModelError, ("3", "name")),
    "shape of an int": (lambda m: m.parameter("p", 3), vpps.ShapeError, ("'p'", "tuple", "3")),
    "empty dimension": (lambda m: m.parameter("p", (3, 0)), vpps.ShapeError, ("'p'", "positive", "(3, 0)")),
    "fractional dimension": (lambda m: m.parameter("p", (2.5,)), vpps.ShapeError, ("'p'", "ints", "(2.5,)")),
    "rank 3": (lambda m: m.parameter("p", (2, 2, 2)), vpps.ShapeError, ("'p'", "0 or 1 or 2", "(2, 2, 2)")),
    "table of rank 0": (lambda m: m.lookup("p", ()), vpps.ShapeError, ("'p'", "()")),
    "unknown initialiser": (
        lambda m: m.parameter("p", (2, 2), init="xavier"),
        vpps.ModelError,
        ("'p'", "'xavier'", "glorot_uniform", "orthogonal"),
    ),
    "initialiser of another rank": (
        lambda m: m.parameter("p", (3,), init="orthogonal"),
        vpps.ModelError,
        ("'p'", "(3,)", "matrix"),
    ),
    "initial array of another shape": (
        lambda m: m.parameter("p", (3, 2), init=np.zeros((2, 3))),
        vpps.ShapeError,
        ("'p'", "(3, 2)", "(2, 3)"),
    ),
    "initialiser that returns another shape": (
        lambda m: m.parameter("p", (3,), init=lambda rng, shape: rng.normal(size=4)),
        vpps.ShapeError,
        ("'p'", "(3,)", "(4,)"),
    ),
    "NaN in the initial array": (
        lambda m: m.parameter("p", (3,), init=[0, np.nan, np.inf]),
        vpps.ModelError,
        ("'p'", "2 of 3", "NaN", "(1,)"),
    ),
    "initial array of strings": (lambda m: m.parameter("p", (1,), init=["x"]), vpps.DtypeError, ("'p'", "numbers")),
    "initial bool": (lambda m: m.parameter("p", (1,), init=True), vpps.DtypeError, ("'p'", "bool")),
    "assigned NaN": (
        lambda m: m["W"].assign(np.full((3, 4), np.nan)),
        vpps.ModelError,
        ("'W'", "12 of 12", "NaN", "(0, 0)"),
    ),
    "assigned infinity": (lambda m: m["b"].assign([1, np.inf, 1]), vpps.ModelError, ("'b'", "1 of 3", "(1,)")),
    "assigned shape": (lambda m: m["W"].assign(np.ones((4, 3))), vpps.ShapeError, ("'W'", "(3, 4)", "(4, 3)")),
    "assigned strings": (lambda m: m["b"].assign(["a", "b", "c"]), vpps.DtypeError, ("'b'", "numbers")),
    "assigned complex numbers": (lambda m: m["b"].assign([1j, 1, 1]), vpps.DtypeError, ("'b'", "complex")),
    "assigned beyond float32": (lambda m: m["b"].assign([1e39, 1, 1]), vpps.DtypeError, ("'b'", "range")),
    "unknown name": (lambda m: m["V"], vpps.ModelError, ("'V'", "W, b")),
    "unnamed scope": (lambda m: m.scope("").__enter__(), vpps.ModelError, ("''", "scope")),
    "metadata of numbers": (lambda m: m.save("unused", {"epoch": 3}), vpps.ModelError, ("strings", "3")),
}


@pytest.mark.host
@pytest.mark.parametrize("case", DECLARATIONS.values(), ids=DECLARATIONS)
def test_a_mistake_with_a_model_is_explained_and_changes_nothing(
    case: tuple[Callable[[vpps.Model], Any], type[BaseException], tuple[str, ...]],
) -> None:
    model = vpps.Model(seed=1)
    model.parameter("W", (3, 4))
    model.parameter("b", (3,), init="normal")
    before = model.numpy()
    mistake, error, words = case
    with refused(error, *words):
        mistake(model)
    assert same_bits(model.numpy(), before)
    assert model.parameter("p", (2,)).name == "p"  # the name is still free, no scope is left open


@pytest.mark.host
@pytest.mark.parametrize("seed", [1.5, "a", None, True])
def test_a_seed_is_an_int(seed: Any) -> None:
    with refused(vpps.ModelError, "seed", repr(seed), "int"):
        vpps.Model(seed=seed)


@pytest.mark.host
def test_the_first_name_stays_taken_in_its_scope_only() -> None:
    model = vpps.Model()
    with model.scope("encoder"):
        model.parameter("W", (2, 2))
        with refused(vpps.ModelError, "'encoder/W'", "already"):
            model.parameter("W", (2, 2))
    model.parameter("W", (2, 2))
    with refused(vpps.ModelError, "'encoder/W'", "already"):
        model.parameter("encoder/W", (2, 2))


@pytest.mark.host
def test_a_parameter_whose_model_is_gone_says_so() -> None:
    orphan = vpps.Model().parameter("b", (3,))
    graph = vpps.Graph()
    with refused(vpps.ModelError, "'b'", "no longer exists", "reference"):
        graph.input([1, 2, 3]) + orphan


# ---- handles

Use = Callable[[vpps.Handle, World], Any]

USES: dict[str, tuple[Use, type[BaseException], tuple[str, ...]]] = {
    "vector loss": (
        lambda h, w: h.fb(w.graph, w.y),
        vpps.GraphError,
        ("scalar", "(4,)", "vpps.sum(x)", "vpps.mean(x)", "x[i]"),
    ),
    "vector loss for gradients": (lambda h, w: h.gradients(w.graph, w.y), vpps.GraphError, ("scalar", "(4,)")),
    "vector loss for disassemble": (lambda h, w: h.disassemble(w.graph, w.y), vpps.GraphError, ("scalar", "(4,)")),
    "matrix loss": (lambda h, w: h.fb(w.graph, w.matrix), vpps.GraphError, ("scalar", "(8, 8)")),
    "loss of another graph": (
        lambda h, w: h.fb(w.graph, vpps.sum(w.elsewhere)),
        vpps.GraphError,
        ("loss", "another graph", "2 vertices", "7 vertices"),
    ),
    "number as a loss": (lambda h, w: h.fb(w.graph, 1.0), vpps.GraphError, ("loss", "expression", "1.0")),
    "nothing as a loss": (lambda h, w: h.fb(w.graph, None), vpps.GraphError, ("loss", "expression", "None")),
    "list as a loss": (lambda h, w: h.fb(w.graph, [w.s]), vpps.GraphError, ("loss", "expression", "[")),
    "parameter as a loss": (lambda h, w: h.fb(w.graph, w.b), vpps.GraphError, ("loss", "expression", "'b'")),
    "empty graph": (lambda h, w: h.fb(vpps.Graph(), w.s), vpps.GraphError, ("fb", "empty")),
    "empty graph for forward": (lambda h, w: h.forward(vpps.Graph(), []), vpps.GraphError, ("forward", "empty")),
    "model in place of a graph": (lambda h, w: h.fb(w.model, w.s), vpps.GraphError, ("fb", "vpps.Graph", "Model")),
    "no parameter": (
        lambda h, w: h.fb(*_without_parameters()),
        vpps.NoGradientError,
        ("no trainable parameter", "forward"),
    ),
    "no parameter of the loss": (
        lambda h, w: h.fb(w.graph, vpps.sum(w.matrix)),
        vpps.NoGradientError,
        ("no trainable parameter", "handle.forward"),
    ),
    "parameter of another model": (
        lambda h, w: h.fb(*_of_another_model()),
        vpps.ModelError,
        ("'strange'", "another model"),
    ),
    "table of another model": (
        lambda h, w: h.forward(*_of_another_table()),
        vpps.ModelError,
        ("'strange'", "another model"),
    ),
    "forward of one expression": (lambda h, w: h.forward(w.graph, w.s), vpps.GraphError, ("list", "[expression]")),
    "forward of another graph": (
        lambda h, w: h.forward(w.graph, [w.s, w.elsewhere]),
        vpps.GraphError,
        ("forward", "another graph"),
    ),
    "forward of a number": (lambda h, w: h.forward(w.graph, [1.0]), vpps.GraphError, ("forward", "1.0")),
    "value of another graph": (lambda h, w: h.value(w.elsewhere), vpps.GraphError, ("value", "another graph")),
    "value of a parameter": (lambda h, w: h.value(w.b), vpps.GraphError, ("value", "expression", "'b'")),
    "value of what came later": (lambda h, w: h.value(vpps.tanh(w.x)), vpps.GraphError, ("not computed", "latest")),
    "gradient of what is no input": (
        lambda h, w: h.input_gradient(w.x),
        vpps.GraphError,
        ("input_gradient", "grad=True"),
    ),
    "gradient of an input that was not asked for": (
        lambda h, w: h.input_gradient(w.matrix),
        vpps.GraphError,
        ("input_gradient", "grad=True"),
    ),
    "backward of a loss": (
        lambda h, w: h.backward(w.s),
        vpps.HandleError,
        ("nothing was kept", "keep=True", "handle.fb(graph, loss)"),
    ),
    "second training handle": (
        lambda h, w: vpps.Handle(w.model),
        vpps.HandleError,
        ("already has an open training handle", "close", "train=False"),
    ),
    "learning rate": (lambda h, w: _with_lr(h, w, -1.0), vpps.ModelError, ("SGD", "lr=-1.0", ">= 0")),
    "learning rate that is not a number": (lambda h, w: _with_lr(h, w, np.nan), vpps.ModelError, ("SGD", "lr=nan")),
    "clip_norm": (lambda h, w: setattr(h, "clip_norm", 0), vpps.HandleError, ("clip_norm=0", "positive")),
    "optimizer of another kind": (
        lambda h, w: setattr(h, "optimizer", vpps.Adam()),
        vpps.HandleError,
        ("Adam", "SGD", "close"),
    ),
    "optimizer out of range": (
        lambda h, w: setattr(h, "optimizer", vpps.SGD(lr=-1)),
        vpps.ModelError,
        ("SGD", "lr=-1"),
    ),
}


def _without_parameters() -> tuple[vpps.Graph, vpps.Expression]:
    graph = vpps.Graph()
    return graph, vpps.sum(vpps.tanh(graph.input([1.0, 2.0])))


def _of_another_model() -> tuple[vpps.Graph, vpps.Expression]:
    model = vpps.Model()
    strange = model.parameter("strange", (8,))
    graph = vpps.Graph()
    return graph, vpps.sum(graph.input(np.ones(8)) * strange)


def _of_another_table() -> tuple[vpps.Graph, list[vpps.Expression]]:
    model = vpps.Model()
    graph = vpps.Graph()
    return graph, [graph.lookup(model.lookup("strange", (10, 8)), 3)]


def _with_lr(handle: vpps.Handle, world: World, lr: float) -> None:
    before = handle.optimizer.lr
    handle.optimizer.lr = lr
    try:
        handle.fb(world.graph, world.loss())
    finally:
        handle.optimizer.lr = before


@pytest.mark.cpu
@pytest.mark.parametrize("case", USES.values(), ids=USES)
def test_a_mistake_with_a_handle_is_explained_before_anything_runs(
    case: tuple[Use, type[BaseException], tuple[str, ...]],
) -> None:
    use, error, words = case
    worlds = World(), World()
    results = []
    for world, mistaken in zip(worlds, (True, False), strict=True):
        with vpps.Handle(world.model, vpps.SGD(lr=0.1), vps=2) as handle:
            handle.fb(world.graph, world.loss())
            loss = handle.sync_get_latest_loss()
            if mistaken:
                before = world.model.numpy()
                with refused(error, *words):
                    use(handle, world)
                assert same_bits(world.model.numpy(), before)
                assert world.model.step == 1
                assert handle.sync_get_latest_loss() == loss
                assert handle.value(world.y).shape == (4,)
            assert handle.fb(world.graph, world.loss()) == loss
            results.append(world.model.numpy())
    assert same_bits(*results)


ARGUMENTS: dict[str, tuple[dict[str, Any], type[BaseException], tuple[str, ...]]] = {
    "target": ({"target": "tpu"}, vpps.HandleError, ("target='tpu'", "'cpu'")),
    "policy": ({"policy": "widest"}, vpps.HandleError, ("policy='widest'", "sinks-last", "sufficient")),
    "layout": ({"layout": "readers"}, vpps.HandleError, ("Handle(layout=...): removed",)),
    "on_nonfinite": ({"on_nonfinite": "ignore"}, vpps.HandleError, ("on_nonfinite='ignore'", "'warn'", "'raise'")),
    "optimizer": ({"optimizer": "adam"}, vpps.HandleError, ("optimizer='adam'", "vpps.Adam()")),
    "optimizer class": ({"optimizer": vpps.Adam}, vpps.HandleError, ("optimizer=", "vpps.Adam()")),
    "negative rate": ({"optimizer": vpps.SGD(lr=-1)}, vpps.ModelError, ("SGD(lr=-1)", ">= 0")),
    "infinite rate": ({"optimizer": vpps.SGD(lr=np.inf)}, vpps.ModelError, ("SGD(lr=inf)",)),
    "negative decay": ({"optimizer": vpps.SGD(0.1, -0.1)}, vpps.ModelError, ("weight_decay=-0.1", ">= 0")),
    "momentum of one": ({"optimizer": vpps.Momentum(0.1, momentum=1)}, vpps.ModelError, ("Momentum(momentum=1)",)),
    "beta1": ({"optimizer": vpps.Adam(beta1=1.0)}, vpps.ModelError, ("Adam(beta1=1.0)", "[0, 1)")),
    "beta2": ({"optimizer": vpps.Adam(beta2=-0.1)}, vpps.ModelError, ("Adam(beta2=-0.1)", "[0, 1)")),
    "eps": ({"optimizer": vpps.Adam(eps=0)}, vpps.ModelError, ("Adam(eps=0)", "positive")),
    "clip_norm of zero": ({"clip_norm": 0}, vpps.HandleError, ("clip_norm=0", "positive")),
    "clip_norm of nan": ({"clip_norm": np.nan}, vpps.HandleError, ("clip_norm=nan", "positive")),
    "clip_norm of a string": ({"clip_norm": "1"}, vpps.HandleError, ("clip_norm='1'", "positive")),
    **{
        f"vps of {v!r}": ({"vps": v}, vpps.HandleError, (f"vps={v!r}", "1 to 1024"))
        for v in (0, -1, 1025, 1.5, "2", True)
    },
    **{
        f"pool_limit of {v!r}": ({"pool_limit": v}, vpps.HandleError, (f"pool_limit={v!r}", "bytes"))
        for v in (0, -1, 1e9, "1G")
    },
}


@pytest.mark.host
@pytest.mark.parametrize("case", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_wrong_argument_of_a_handle_is_named(
    case: tuple[dict[str, Any], type[BaseException], tuple[str, ...]],
) -> None:
    arguments, error, words = case
    model = new().model
    with refused(error, *words):
        vpps.Handle(model, **arguments)
    assert model.trainer is None


_RATES: dict[str, Any] = {"string": "0.1", "list": [0.1, 0.2], "model": vpps.Model(), "nothing": None}


@pytest.mark.host
@pytest.mark.parametrize("lr", _RATES.values(), ids=_RATES)
def test_what_is_no_learning_rate_is_refused_by_the_optimizer(lr: Any) -> None:
    with refused(vpps.ModelError, f"Adam(lr={lr!r})", "a function of the number", "vpps.Handle(model, vpps.Adam("):
        vpps.Adam(lr)


@pytest.mark.host
def test_a_handle_needs_a_model() -> None:
    with refused(vpps.HandleError, "vpps.Model", "None"):
        vpps.Handle(None)  # type: ignore[arg-type]


@pytest.mark.host
def test_the_default_target_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_TARGET", "abacus")
    with refused(vpps.HandleError, "VPPS_TARGET=abacus", "'cpu'"):
        vpps.Handle(vpps.Model())


@pytest.mark.cpu
def test_a_failed_handle_does_not_keep_the_model() -> None:
    net = new()
    with pytest.raises(vpps.HandleError):
        vpps.Handle(net.model, vps=0)
    with vpps.Handle(net.model) as handle:
        net.train(handle, range(1))


@pytest.mark.cpu
def test_training_handles_may_follow_one_another_and_forward_only_ones_stand_side_by_side() -> None:
    net = new()
    with vpps.Handle(net.model) as handle, vpps.Handle(net.model, train=False), vpps.Handle(net.model, train=False):
        with pytest.raises(vpps.HandleError):
            vpps.Handle(net.model)
        net.train(handle, range(1))
    with vpps.Handle(net.model) as handle:
        net.train(handle, range(1))


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["fb", "gradients", "disassemble"])
def test_a_forward_only_handle_does_not_train(name: str) -> None:
    net = new()
    graph, loss = net.batch(1)
    with vpps.Handle(net.model, train=False) as handle:
        with refused(vpps.HandleError, name, "forward-only", "train=False"):
            getattr(handle, name)(graph, loss)
        assert handle.forward(graph, [loss])[0] > 0


@pytest.mark.cpu
@pytest.mark.parametrize("name", ["value", "input_gradient"])
def test_a_fresh_handle_has_no_values(name: str) -> None:
    net = new()
    graph, loss = net.batch(1)
    with vpps.Handle(net.model) as handle:
        with refused(vpps.GraphError, name, "nothing has been computed", "fb"):
            getattr(handle, name)(loss)
        handle.fb(graph, loss)
        assert handle.value(loss) > 0


@pytest.mark.cpu
def test_forward_has_no_input_gradients() -> None:
    world = World()
    x = world.graph.input(np.ones(8), grad=True)
    loss = vpps.sum(world.W @ x)
    with vpps.Handle(world.model) as handle:
        handle.forward(world.graph, [loss])
        with refused(vpps.GraphError, "input_gradient", "forward"):
            handle.input_gradient(x)
        handle.gradients(world.graph, loss)
        np.testing.assert_allclose(handle.input_gradient(x), world.W.numpy().sum(axis=0), rtol=1e-5)


CLOSED: dict[str, Use] = {
    "fb": lambda h, w: h.fb(w.graph, w.loss()),
    "sync_get_latest_loss": lambda h, w: h.sync_get_latest_loss(),
    "forward": lambda h, w: h.forward(w.graph, [w.s]),
    "gradients": lambda h, w: h.gradients(w.graph, w.loss()),
    "value": lambda h, w: h.value(w.s),
    "input_gradient": lambda h, w: h.input_gradient(w.matrix),
    "disassemble": lambda h, w: h.disassemble(w.graph, w.loss()),
}


@pytest.mark.cpu
@pytest.mark.parametrize("use", CLOSED.values(), ids=CLOSED)
def test_a_closed_handle_is_not_used(use: Use) -> None:
    world = World()
    handle = vpps.Handle(world.model)
    handle.fb(world.graph, world.loss())
    handle.close()
    with refused(vpps.HandleError, "closed", "new one"):
        use(handle, world)
    assert world.model["W"].numpy().any()
    with vpps.Handle(world.model) as other:
        use(other, world) if use is CLOSED["fb"] else other.fb(world.graph, world.loss())


# ---- capacity


@pytest.mark.cpu
class TestPool:
    def test_too_small_says_what_is_needed_and_what_is_allowed(self) -> None:
        net, witness = new(), new()
        large = net.batch(5, sentences=200)
        with vpps.Handle(net.model, pool_limit=64 * 1024) as handle, vpps.Handle(witness.model) as other:
            handle.fb(*net.batch(1))
            loss = handle.sync_get_latest_loss()
            with refused(vpps.CapacityError, "MiB", "0.1 MiB", "pool_limit=", "smaller batches"):
                handle.fb(*large)
            assert net.model.step == 1
            assert handle.fb(*net.batch(2)) == loss  # as if the large batch had never been
            witness.train(other, range(1, 3))
            assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_what_the_message_asks_for_is_enough(self) -> None:
        net = new()
        large = net.batch(5, sentences=200)
        with vpps.Handle(net.model, pool_limit=4096) as handle, pytest.raises(vpps.CapacityError) as caught:
            handle.forward(large[0], [large[1]])
        with vpps.Handle(net.model, pool_limit=64 * 1024) as handle, pytest.raises(vpps.CapacityError) as caught:
            handle.fb(*large)
        needed = re.search(r"needs a pool of ([\d.]+) MiB", str(caught.value))
        assert needed
        limit = int((float(needed[1]) + 0.05) * 2**20)  # printed with one digit
        with vpps.Handle(net.model, pool_limit=limit) as handle:
            handle.fb(*large)
            assert handle.sync_get_latest_loss() > 0

    def test_a_model_that_does_not_fit_says_so(self) -> None:
        model = vpps.Model()
        W = model.parameter("W", (512, 512))
        graph = vpps.Graph()
        loss = vpps.sum(W @ graph.input(np.ones(512)))
        with vpps.Handle(model, pool_limit=2**20) as handle:
            for _ in range(2):
                with refused(vpps.CapacityError, "1.0 MiB", "pool_limit="):
                    handle.fb(graph, loss)
        assert model.step == 0

    def test_a_parameter_that_no_longer_fits_loses_nothing(self) -> None:
        net, witness = new(), new()
        with vpps.Handle(net.model, pool_limit=2**20) as handle:
            net.train(handle, range(2))
            net.model.parameter("huge", (1024, 1024))
            with pytest.raises(vpps.CapacityError):
                handle.fb(*net.batch(2))
        with vpps.Handle(witness.model) as handle:
            witness.train(handle, range(2))
        weights = net.model.numpy()
        del weights["huge"]
        assert same_bits(weights, witness.model.numpy())

    def test_grows_by_itself_and_keeps_weights_and_moments(self) -> None:
        growing, roomy = new(), new()
        sizes = (1, 2, 40, 3, 80, 300)
        with vpps.Handle(growing.model, vpps.Adam()) as handle, vpps.Handle(roomy.model, vpps.Adam()) as other:
            other.gradients(*roomy.batch(0, sentences=1000))
            for seed, n in enumerate(sizes):
                handle.fb(*growing.batch(seed, sentences=n))
                other.fb(*roomy.batch(seed, sentences=n))
        assert same_bits(growing.model.numpy(), roomy.model.numpy())


@pytest.mark.host
def test_expressions_can_be_kept_in_lists_sets_and_dicts() -> None:
    """They compare by identity with each other; only a comparison with a number is a mistake."""
    world = World()
    items = [world.x, world.y]
    assert items.index(world.y) == 1
    assert world.s not in items
    assert {world.x: 1, world.y: 2}[world.y] == 2
    assert world.x == world.x
    assert world.x != world.y
    assert world.b in [world.W, world.b]
    assert vpps.each(vpps.tanh, (e for e in items))[1].shape == (4,)
