"""Rows behave as a Python list of their expressions in operators, functions, cells, reductions and handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

N, W = 5, 6
FLOATS = np.random.default_rng(0).normal(size=(2, N, W)).astype(np.float32)
LABELS = np.array([3, 0, 5, 5, 1])


def same(value: Any, expected: Any) -> bool:
    """Return True if equal up to the order of sums in the reference's products, which depends on the batch."""
    return np.allclose(value, expected, rtol=1e-12, atol=1e-14)


class World:
    """A model, and a graph with rows and a list of the same expressions."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.M = self.model.parameter("M", (8, W))
        self.p = self.model.parameter("p", (W,), init="normal")
        self.q = self.model.parameter("q", (8,), init="normal")
        self.E = self.model.lookup("E", (9, W), init="normal")
        self.graph = vpps.Graph()
        self.a, self.b = (self.graph.rows(x, grad=True) for x in FLOATS)
        self.one = self.graph.input(FLOATS[0, 0])
        self.matrices = self.graph.rows(FLOATS[0].reshape(N, 2, 3))
        self.scalars = self.graph.rows(FLOATS[0, :, 0])


ROW_WISE: dict[str, Callable[[World, Any, Any, Any], Any]] = {
    "product": lambda w, a, b, k: w.M @ a + w.q,
    "arithmetic": lambda w, a, b, k: (a + b) * a - b / (a * a + 1.0) + 2 - 3 * a,
    "reversed": lambda w, a, b, k: 1.0 - a + 2.0 / (b * b + 1.0) - (-a) ** 2,
    "with one for all": lambda w, a, b, k: a * w.one + w.one - a + w.p * a,
    "functions": lambda w, a, b, k: vpps.tanh(a) + vpps.sigmoid(b) + vpps.relu(a) + vpps.softplus(vpps.abs(b)),
    "constants": lambda w, a, b, k: vpps.clamp(vpps.leaky_relu(vpps.elu(a, 0.5), 0.1), -0.5, 0.5),
    "unclamped": lambda w, a, b, k: vpps.clamp(a) + vpps.dropout(b, 0.0),
    "pairs": lambda w, a, b, k: vpps.dot(a, b) + vpps.mse(a, w.p) + vpps.cosine(a, w.one),
    "norms": lambda w, a, b, k: vpps.norm(a) * b + vpps.norm(vpps.reshape(a, (2, 3))) + abs(vpps.norm(b)),
    "softmax": lambda w, a, b, k: vpps.softmax(a) * vpps.log_softmax(b) + vpps.layer_norm(a),
    "scalars": lambda w, a, b, k: vpps.logsumexp(a) * b,
    "concat": lambda w, a, b, k: vpps.concat([a, w.one, b, w.q]),
    "split": lambda w, a, b, k: vpps.split(a, 3)[1] * vpps.split(b, 3)[2],
    "matrices": lambda w, a, b, k: vpps.reshape(vpps.reshape(a, (2, 3)).T @ vpps.reshape(b, (2, 3)), 9),
    "bilinear": lambda w, a, b, k: vpps.bilinear(w.M @ a, w.M, b),
    "outer": lambda w, a, b, k: vpps.outer(a, w.p) @ b,
    "labels": lambda w, a, b, k: vpps.cross_entropy(a, k) + vpps.hinge(b, k) + vpps.pick(a, k),
    "one label": lambda w, a, b, k: vpps.cross_entropy(a, 2),
    "maximum": lambda w, a, b, k: vpps.maximum(a, b) - vpps.minimum(a, w.p),
}


@pytest.mark.parametrize("name", ROW_WISE)
def test_operators_and_functions_act_row_by_row(name: str) -> None:
    w = World()
    function = ROW_WISE[name]
    rows = function(w, w.a, w.b, LABELS)
    singly = [function(w, a, b, int(k)) for a, b, k in zip(w.a, w.b, LABELS, strict=True)]
    assert isinstance(rows, vpps.Rows)
    assert len(rows) == N
    assert rows.shape == singly[0].shape
    blocks = len(w.graph.blocks)
    reference = Reference(w.graph, weights_of(w.model))
    assert same(reference.value(rows), np.stack([reference.value(x) for x in singly]))
    levels = [w.graph.level_of(x.ref) for x in singly]
    assert rows.levels.tolist() == levels
    function(w, w.a, w.b, LABELS)
    assert len(w.graph.blocks) == blocks  # one program for both


def test_matrices_and_scalars_are_rows_too() -> None:
    w = World()
    assert w.matrices.shape == (2, 3)
    assert w.scalars.shape == ()
    product = w.matrices @ w.matrices.T
    scaled = w.scalars * w.a
    last = w.matrices[:, 1]
    reference = Reference(w.graph, weights_of(w.model))
    m = FLOATS[0].reshape(N, 2, 3).astype(np.float64)
    assert np.allclose(reference.value(product), m @ m.transpose(0, 2, 1))
    assert np.allclose(reference.value(scaled), FLOATS[0, :, :1].astype(np.float64) * FLOATS[0])
    assert same(reference.value(last), m[:, 1])


def test_reductions_are_those_of_a_list() -> None:
    w = World()
    for reduce in (vpps.sum, vpps.mean, vpps.max, vpps.min):
        total = reduce(w.a)
        assert isinstance(total, vpps.Expression)
        listed = reduce(list(w.a))
        reference = Reference(w.graph, {})
        assert same(reference.value(total), reference.value(listed))
    one = vpps.sum(w.a[2:3])
    assert same(Reference(w.graph, {}).value(one), FLOATS[0, 2])


def test_indexing_and_iteration() -> None:
    w = World()
    rows = w.a
    assert isinstance(rows[3], vpps.Expression)
    assert rows[-1].ref == rows[4].ref == rows[np.int32(4)].ref
    assert rows[-len(rows)].ref == rows[0].ref
    assert [x.ref for x in rows] == rows.ids.tolist()
    assert rows[1:4].ids.tolist() == rows.ids[1:4].tolist()
    assert rows[::-1].ids.tolist() == rows.ids[::-1].tolist()
    assert rows[[4, 4, 0]].ids.tolist() == rows.ids[[4, 4, 0]].tolist()
    assert rows[LABELS > 2].ids.tolist() == rows.ids[[0, 2, 3]].tolist()
    assert len(rows[[]]) == len(rows[5:]) == 0
    assert rows[:, 1:3].shape == (2,)
    assert rows[2, 0].shape == ()
    assert (rows[[1, 1]] + rows[2:4]).shape == (W,)


@pytest.mark.parametrize("which", [np.array([8, 0, 8]), [8, 7, 6], (8, 7, 6), range(8, 5, -1), []], ids=repr)
def test_rows_of_a_table(which: Any) -> None:
    w = World()
    rows = w.graph.lookup(w.E, which)
    labels = vpps.cross_entropy(rows, range(len(which)))
    assert len(rows) == len(labels) == len(which)
    reference = Reference(w.graph, weights_of(w.model))
    for row, k in zip(rows, which, strict=True):
        assert same(reference.value(row), w.E.numpy()[k])


def test_a_cell_on_rows_is_called_once_per_row() -> None:
    w = World()

    @vpps.cell
    def cell(x: Any, k: int, y: Any, xs: Any) -> Any:
        return vpps.tanh(w.M @ x) * vpps.cross_entropy(y, k), vpps.sum(vpps.each(lambda z: z * y, xs))

    pairs = cell(w.a, LABELS, w.one, [w.b, w.one])
    singly = [cell(a, int(k), w.one, [b, w.one]) for a, k, b in zip(w.a, LABELS, w.b, strict=True)]
    offsets = np.array([0, 2, 2, 3, 4, 4])
    ragged = cell(w.a, 2, w.b, (offsets, w.b[[0, 1, 2, 3]]))
    listed = [
        cell(a, 2, b, [w.b[i] for i in range(offsets[v], offsets[v + 1])])
        for v, (a, b) in enumerate(zip(w.a, w.b, strict=True))
    ]
    labels_first = vpps.cell(lambda k, x: vpps.cross_entropy(x, k))
    assert w.graph.call(labels_first, LABELS, w.a).shape == ()
    reference = Reference(w.graph, weights_of(w.model))
    for rows, one_by_one in ((pairs, singly), (ragged, listed)):
        for k in (0, 1):
            assert same(reference.value(rows[k]), np.stack([reference.value(x[k]) for x in one_by_one]))


def test_empty_rows_record_nothing() -> None:
    w = World()
    before = len(w.graph)
    nothing = vpps.tanh(w.M @ w.a[:0])
    assert (len(nothing), nothing.shape, len(w.graph)) == (0, (8,), before)
    assert len(vpps.cross_entropy(nothing, LABELS[:0])) == 0


@pytest.mark.parametrize("reduced", [vpps.sum, vpps.mean, vpps.max, vpps.min])
def test_reduction_of_no_rows_is_zeros(reduced: Any) -> None:
    """The result equals that of an empty list argument."""
    w = World()
    found = reduced(w.a[:0])
    assert found.shape == w.a.shape
    assert not Reference(w.graph, weights_of(w.model)).value(found).any()
    assert reduced(vpps.cross_entropy(w.a[:0], LABELS[:0])).shape == ()


@pytest.mark.cpu
@pytest.mark.parametrize("width", [5, 64, 200])
def test_rows_are_read_in_any_order_whether_they_are_short_or_long(width: int) -> None:
    array = np.random.default_rng(width).normal(size=(9, width)).astype(np.float32)
    graph = vpps.Graph()
    rows = vpps.stop_gradient(graph.rows(array) * 1.0)
    with vpps.Handle(vpps.Model(seed=1), train=False) as handle:
        (all_rows,) = handle.forward(graph, [rows])
        assert np.array_equal(all_rows, array)
        for which in ([3], [7, 1, 1, 0], slice(2, 6), slice(None, None, -1), slice(0, 9, 2)):
            assert np.array_equal(handle.value(rows[which]), array[which])


@pytest.mark.cpu
def test_handles_read_rows() -> None:
    w = World()
    y = vpps.tanh(w.M @ w.a + w.q)
    unused = w.graph.rows(FLOATS[1], grad=True)
    loss = vpps.sum(vpps.cross_entropy(y, LABELS)) + vpps.dot(w.b[1], w.p)
    assert_agrees_with_reference(w.model, w.graph, loss, list(y), vp_counts=(1, 2))
    reference = Reference(w.graph, weights_of(w.model))
    reference.backward(loss)
    with vpps.Handle(w.model) as handle:
        handle.fb(w.graph, loss)
        assert np.allclose(handle.value(y), reference.value(y), rtol=1e-5)
        assert handle.value(y).tobytes() == np.stack([handle.value(e) for e in y]).tobytes()
        d_a = handle.input_gradient(w.a)
        assert np.allclose(d_a, reference.gradient(w.a), rtol=1e-4, atol=1e-7)
        assert d_a[3].tobytes() == handle.input_gradient(w.a[3]).tobytes()
        assert not handle.input_gradient(w.b)[[0, 2, 3, 4]].any()
        assert not handle.input_gradient(unused).any()
        assert handle.input_gradient(w.a[[2, 2]]).shape == (2, W)
        assert handle.value(y[:0]).shape == (0, 8)
        later = vpps.tanh(w.a)
        first, empty = handle.forward(w.graph, [later, y[:0]])
        assert np.allclose(first, np.tanh(FLOATS[0]), rtol=1e-5)
        assert empty.shape == (0, 8)
