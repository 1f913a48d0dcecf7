"""Mistakes with computed matrices and lists: the message names operands and remedy, and the graph stays usable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import same_bits
from tests.test_errors import Case, World, refused
from vpps.nn import attend
from vpps.reference import Reference, weights_of

MATRICES: dict[str, Case] = {
    "vector @ vector": (lambda w: w.x @ w.x, vpps.ShapeError, ("@", "vpps.dot", "vpps.outer", "(8,)", "call 6")),
    "vector @ matrix": (lambda w: w.x @ w.matrix, vpps.ShapeError, ("matrix on its left", "m.T @ x", "(8,), (8, 8)")),
    "scalar @ matrix": (lambda w: w.s @ w.matrix, vpps.ShapeError, ("matrix on its left", "(), (8, 8)")),
    "matrix @ scalar": (lambda w: w.matrix @ w.s, vpps.ShapeError, ("length 8", "8 rows", "(8, 8), ()")),
    "matrix @ matrix of other rows": (
        lambda w: w.matrix[2:6] @ w.matrix[:4],
        vpps.ShapeError,
        ("@", "8 rows", "(4, 8), (4, 8)", "call 8"),
    ),
    "matrix @ table": (lambda w: w.matrix @ w.E, vpps.ShapeError, ("'words'", "lookup")),
    "matrix @ number": (lambda w: w.matrix @ 2.0, vpps.DtypeError, ("@ takes", "2.0")),
    "matrix @ array": (lambda w: w.matrix @ np.ones(8), vpps.DtypeError, ("(8,)", "graph.input")),
    "array @ matrix": (lambda w: np.ones((8, 8)) @ w.matrix, vpps.DtypeError, ("@ takes", "(8, 8)", "graph.input")),
    "array @ parameter": (lambda w: np.ones((8, 8)) @ w.S, vpps.GraphError, ("no operand", "graph.input")),
    "number @ vector": (lambda w: 2 @ w.x, vpps.DtypeError, ("@ takes", "number 2")),
    "too large an outer product": (
        lambda w: vpps.outer(*[w.graph.input(np.ones(30_000))] * 2),
        vpps.ShapeError,
        ("outer", "(30000, 30000)", "floats", "call 7"),
    ),
    "parameter @ matrix of other rows": (
        lambda w: w.W @ w.matrix[:4],
        vpps.ShapeError,
        ("@", "8 rows", "(4, 8)", "call 7"),
    ),
    "vector parameter @ vector": (lambda w: w.b @ w.y, vpps.ShapeError, ("matrix on its left", "vpps.dot")),
    "T of a vector": (lambda w: w.x.T, vpps.ShapeError, ("transpose", "matrix", "(8,)", "reshape", "call 6")),
    "T of a scalar": (lambda w: vpps.transpose(w.s), vpps.ShapeError, ("transpose", "matrix", "()")),
    "T of a table": (lambda w: w.call(lambda x: w.E.T @ x, w.x), vpps.ShapeError, ("'words'", "dense=True")),
    "T of a vector parameter": (lambda w: w.b.T, vpps.ShapeError, ("'b'", "matrix")),
    "T of a parameter on the right": (lambda w: w.matrix @ w.S.T, vpps.ShapeError, ("'S'", "(W @ M.T).T")),
    "T of a parameter in a sum": (lambda w: w.matrix + w.S.T, vpps.ShapeError, ("'S'", "left of @ only")),
    "T of a parameter times a short vector": (
        lambda w: w.W.T @ w.x,
        vpps.ShapeError,
        ("length 4", "transpose", "(4, 8)", "(8,)"),
    ),
    "reshape to another size": (
        lambda w: vpps.reshape(w.x, (3, 3)),
        vpps.ShapeError,
        ("reshape", "9 elements", "(3, 3)", "(8,)", "call 6"),
    ),
    "reshape with a rest": (lambda w: vpps.reshape(w.x, (3, -1)), vpps.ShapeError, ("reshape", "(8,)")),
    "reshape to rank 3": (
        lambda w: vpps.reshape(w.x, (2, 2, 2)),
        vpps.ShapeError,
        ("reshape", "(2, 2, 2)", "up to two"),
    ),
    "reshape to nothing": (lambda w: vpps.reshape(w.x, (0, 8)), vpps.ShapeError, ("reshape", "positive", "(0, 8)")),
    "reshape with two unknowns": (lambda w: vpps.reshape(w.x, (-1, -1)), vpps.ShapeError, ("reshape", "one of which")),
    "reshape to a float": (lambda w: vpps.reshape(w.x, 8.0), vpps.ShapeError, ("reshape", "8.0")),
    "reshape of an array": (
        lambda w: w.graph.call(vpps.reshape, np.ones(8), (2, 4)),
        vpps.DtypeError,
        ("reshape", "(8,)", "graph.input"),
    ),
    "concat of unequal columns": (
        lambda w: vpps.concat([w.matrix, vpps.reshape(w.x, (2, 4))]),
        vpps.ShapeError,
        ("concat", "equal numbers of columns", "(8, 8), (2, 4)", "call 7"),
    ),
    "concat of a matrix and a vector": (
        lambda w: vpps.concat([w.matrix, w.x]),
        vpps.ShapeError,
        ("concat", "vpps.reshape(x, (1, n))", "(8, 8), (8,)"),
    ),
    "outer of a matrix": (
        lambda w: vpps.outer(w.matrix, w.x),
        vpps.ShapeError,
        ("outer", "two vectors", "(8, 8), (8,)"),
    ),
    "outer of a scalar": (lambda w: vpps.outer(w.x, w.s), vpps.ShapeError, ("outer", "two vectors", "(8,), ()")),
    "bilinear of other lengths": (
        lambda w: vpps.bilinear(w.y, w.S, w.x),
        vpps.ShapeError,
        ("bilinear", "(4,)", "'S'", "(8, 8)", "(outputs * n, m)"),
    ),
    "bilinear with too many outputs": (
        lambda w: vpps.bilinear(w.x, w.S, w.x, outputs=2),
        vpps.ShapeError,
        ("bilinear", "outputs=2", "(outputs * n, m)"),
    ),
    "bilinear with no outputs": (
        lambda w: vpps.bilinear(w.x, w.S, w.x, outputs=0),
        vpps.ShapeError,
        ("bilinear", "outputs=0", "positive int"),
    ),
    "bilinear of an array": (
        lambda w: vpps.bilinear(w.x, np.eye(8), w.x),
        vpps.DtypeError,
        ("bilinear", "graph.input"),
    ),
    "row past the end": (lambda w: w.matrix[8], vpps.ShapeError, ("[8]", "matrix has 8 rows")),
    "no rows": (lambda w: w.matrix[3:3], vpps.ShapeError, ("[3:3]", "empty", "8 rows")),
    "element by two positions": (lambda w: w.matrix[1, 2], vpps.ShapeError, ("(1, 2)", "m[i][j]")),
    "split of rows with a rest": (
        lambda w: vpps.split(w.matrix, 3),
        vpps.ShapeError,
        ("split", "(8, 8)", "number of rows"),
    ),
    "sum of a matrix and a vector": (
        lambda w: w.matrix + w.y,
        vpps.ShapeError,
        ("add", "(8, 8), (4,)", "over the rows of a matrix"),
    ),
    "softmax of a matrix": (lambda w: vpps.softmax(w.matrix), vpps.ShapeError, ("softmax", "a vector", "(8, 8)")),
    "in a cell": (
        lambda w: w.call(lambda m, x: (m @ x).T, w.matrix, w.x),
        vpps.ShapeError,
        ("cell '<lambda>'", "transpose", "(8,)"),
    ),
    "parameter @ matrix in a cell": (
        lambda w: w.call(lambda m: w.W @ m[1:3], w.matrix),
        vpps.ShapeError,
        ("cell '<lambda>'", "@", "8 rows", "(4, 8), (2, 8)"),
    ),
}


def returns_weights(xs: Any) -> Any:
    return vpps.softmax(vpps.each(vpps.sum, xs))


def adds_to_weights(xs: Any) -> Any:
    return vpps.sum(vpps.softmax(xs) + 1.0)


def transposes_a_list(ms: Any) -> Any:
    return vpps.sum(ms.T)


def multiplies_a_list(ms: Any, x: Any) -> Any:
    return vpps.sum(ms @ x)


def counts_elements(xs: Any) -> Any:
    return vpps.max(xs) / len(xs)


def tells_nothing(m: Any, xs: Any) -> Any:
    return vpps.sum(m) * vpps.sum(vpps.sum(vpps.each(vpps.tanh, xs)))


LISTS: dict[str, Case] = {
    "softmax of nested lists": (
        lambda w: vpps.softmax([[w.x], [w.x]]),
        vpps.ShapeError,
        ("softmax", "(8,)", "list of expressions of one shape"),
    ),
    "log_softmax of two shapes": (
        lambda w: vpps.log_softmax([w.x, w.y]),
        vpps.ShapeError,
        ("log_softmax", "(8,)", "(4,)", "one shape"),
    ),
    "softmax of numbers": (lambda w: vpps.softmax([1.0, 2.0]), vpps.ShapeError, ("softmax", "[1.0, 2.0]")),
    "returns a softmax": (
        lambda w: w.call(returns_weights, [w.x]),
        vpps.TraceError,
        ("cell 'returns_weights'", "one value per list element", "vpps.sum"),
    ),
    "adds to a softmax": (
        lambda w: w.call(adds_to_weights, [w.x]),
        vpps.TraceError,
        ("cell 'adds_to_weights'", "vpps.each", "vpps.softmax(xs)", "vpps.max(xs)"),
    ),
    "transposes a list": (
        lambda w: w.call(transposes_a_list, [w.matrix]),
        vpps.TraceError,
        ("cell 'transposes_a_list'", "vpps.each"),
    ),
    "multiplies a list": (
        lambda w: w.call(multiplies_a_list, [w.matrix], w.x),
        vpps.TraceError,
        ("cell 'multiplies_a_list'", "vpps.each"),
    ),
    "divides by the length of a list": (
        lambda w: w.call(counts_elements, [w.x]),
        vpps.TraceError,
        ("cell 'counts_elements'", "different length", "vpps.mean"),
    ),
    "parameter times a list": (
        lambda w: w.call(lambda xs: vpps.sum(w.S @ xs), [w.x]),
        vpps.TraceError,
        ("cell '<lambda>'", "@", "vpps.each"),
    ),
    "an empty list of unknown shape": (
        lambda w: w.call(tells_nothing, w.matrix, []),
        vpps.TraceError,
        ("cell 'tells_nothing'", "list argument 2", "empty in its first call", "elements="),
    ),
    "attention over lists of two lengths": (
        lambda w: w.call(lambda q, ks, vs: attend(q, ks, vs), w.x, [w.x, w.x], [w.y]),
        vpps.ShapeError,
        ("cell '<lambda>'", "lengths 2 and 1"),
    ),
    "attention over nothing": (lambda w: attend(w.x, [], []), vpps.ShapeError, ("empty list",)),
}

MISTAKES = {f"matrix, {k}": v for k, v in MATRICES.items()} | {f"list, {k}": v for k, v in LISTS.items()}


@pytest.mark.host
@pytest.mark.parametrize("case", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_explained_and_leaves_the_graph_usable(case: Case) -> None:
    mistake, error, words = case
    world, witness = World(), World()
    for _ in range(2):  # the second time finds what the first one cached
        with refused(error, *[word for word in words if not word.startswith("call ")]):
            mistake(world)
    with refused(error, *words):
        mistake(World())
    loss, expected = world.loss(), witness.loss()
    values = Reference(world.graph, weights_of(world.model)), Reference(witness.graph, weights_of(witness.model))
    assert values[0].value(loss) == values[1].value(expected)
    assert same_bits(values[0].backward(loss), values[1].backward(expected))
