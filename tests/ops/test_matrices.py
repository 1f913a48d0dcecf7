"""Ops on computed matrices agree with the reference, in the graph and inside cells, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import vpps
from tests import comparison
from tests.comparison import VP_COUNTS, assert_agrees_with_reference, relative_error
from tests.ops.test_on_targets import weighted
from vpps.ops import OPS, size
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

E = vpps.Expression
Shape = tuple[int, ...]


def table(model: vpps.Model, name: str, *shape: int, rows: int = 4) -> vpps.Lookup:
    """Trainable matrices (or vectors), so that gradients are compared."""
    values = np.random.default_rng(sum(map(ord, name))).uniform(-1, 1, (rows, *shape))
    return model.lookup(name, (rows, *shape), init=values)


def check(model: vpps.Model, graph: vpps.Graph, results: Sequence[E], vp_counts: Sequence[int] = VP_COUNTS) -> None:
    """Values, and the gradients of a loss that weighs every element differently; its terms are of order one."""
    terms = [weighted(graph, y, i) * (1 / size(y.shape)) for i, y in enumerate(results)]
    loss = vpps.sum(terms) * (1 / len(results))
    assert_agrees_with_reference(model, graph, loss, results, vp_counts)


# Matrices of (m, k) and (k, n): single elements, rows, columns, panels of every tile with and without a rest, more
# columns of a block than are multiplied at once.
PRODUCTS = [(1, 1, 1), (1, 5, 1), (5, 1, 7), (1, 6, 40), (33, 4, 1), (6, 7, 5), (8, 33, 32), (9, 20, 70), (40, 64, 33)]
FORMS: dict[str, Callable[[E, E], E]] = {
    "A B": lambda a, b: a @ b,
    "A B^T": lambda a, b: a @ b.T,
    "A^T B": lambda a, b: a.T @ b,
    "A^T B^T": lambda a, b: a.T @ b.T,
}


@pytest.mark.parametrize("shape", PRODUCTS)
@pytest.mark.parametrize("form", FORMS)
def test_product(shape: tuple[int, int, int], form: str) -> None:
    """Half of them in a cell, some of each shape and form."""
    in_cell = (PRODUCTS.index(shape) + list(FORMS).index(form)) % 2
    m, k, n = shape
    model = vpps.Model(seed=1)
    a = table(model, "a", *((k, m) if form.startswith("A^T") else (m, k)))
    b = table(model, "b", *((n, k) if form.endswith("B^T") else (k, n)))
    product = vpps.cell(FORMS[form]) if in_cell else FORMS[form]
    graph = vpps.Graph()
    results = [product(graph.lookup(a, i), graph.lookup(b, 3 - i)) for i in range(4)]
    assert results[0].shape == (m, n)
    check(model, graph, results)


@pytest.mark.parametrize("n", range(1, 10))
def test_product_for_any_number_of_vertices(n: int) -> None:
    model = vpps.Model(seed=1)
    a, b = table(model, "a", 12, 9), table(model, "b", 9, 21)

    @vpps.cell
    def product(a: E, b: E) -> E:
        return vpps.tanh(a @ b)

    graph = vpps.Graph()
    check(model, graph, [product(graph.lookup(a, i % 4), graph.lookup(b, i % 3)) for i in range(n)])


MANY = (1, 2, 5, 7, 13)  # virtual processors


@pytest.mark.parametrize("shape", [(20, 300, 70), (3, 300, 70), (64, 64, 64), (100, 130, 17)])
@pytest.mark.parametrize("form", FORMS)
def test_product_of_one_vertex_is_divided_among_many(shape: tuple[int, int, int], form: str) -> None:
    """Slices that begin and end inside rows, blocks of the inner dimension, packed panels, several panels at once."""
    m, k, n = shape
    model = vpps.Model(seed=1)
    a = table(model, "a", *((k, m) if form.startswith("A^T") else (m, k)), rows=1)
    b = table(model, "b", *((n, k) if form.endswith("B^T") else (k, n)), rows=1)
    graph = vpps.Graph()
    check(model, graph, [vpps.cell(FORMS[form])(graph.lookup(a, 0), graph.lookup(b, 0))], MANY)


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_the_reference_of_a_transposed_product_is_that_of_the_product_of_transposes(
    transposed: tuple[bool, bool],
) -> None:
    rng = np.random.default_rng(1)
    op = OPS["matmul"]
    plain = {"transposed_a": False, "transposed_b": False}
    attrs = dict(zip(plain, transposed, strict=True))
    a, b, dy = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 4, 5)), rng.normal(size=(3, 2, 5))
    stored = [x.swapaxes(1, 2) if flip else x for x, flip in zip((a, b), transposed, strict=True)]
    y = op.forward(plain, a, b)
    np.testing.assert_allclose(op.forward(attrs, *stored), y)
    assert op.shape([x.shape[1:] for x in stored], attrs) == (2, 5)
    for got, expected, flip in zip(
        op.backward(attrs, stored, y, dy), op.backward(plain, [a, b], y, dy), transposed, strict=True
    ):
        assert got is not None
        assert expected is not None
        np.testing.assert_allclose(got.swapaxes(1, 2) if flip else got, expected)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (7, 5), (33, 64), (64, 100), (130, 260)])
@pytest.mark.parametrize("in_cell", [False, True])
def test_matrix_times_vector(shape: tuple[int, int], in_cell: bool) -> None:
    rows, columns = shape
    model = vpps.Model(seed=1)
    m, x, y = table(model, "m", rows, columns), table(model, "x", columns), table(model, "y", rows)
    p = model.parameter("p", (columns,), init="normal")

    def products(m: E, x: E, y: E) -> tuple[E, E, E]:
        return m @ x, m.T @ y, m @ p

    f = vpps.cell(products) if in_cell else products
    graph = vpps.Graph()
    results = [v for i in range(4) for v in f(graph.lookup(m, i), graph.lookup(x, 3 - i), graph.lookup(y, i))]
    assert [v.shape for v in results[:3]] == [(rows,), (columns,), (rows,)]
    check(model, graph, results)


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (8, 1), (5, 7), (32, 33), (64, 70)])
@pytest.mark.parametrize("in_cell", [False, True])
def test_outer_product(shape: tuple[int, int], in_cell: bool) -> None:
    model = vpps.Model(seed=1)
    a, b = table(model, "a", shape[0]), table(model, "b", shape[1])

    def products(a: E, b: E) -> tuple[E, E, E]:
        m = vpps.outer(a, b)
        return m, vpps.outer(b, a).T, m @ b

    f = vpps.cell(products) if in_cell else products
    graph = vpps.Graph()
    results = [v for i in range(4) for v in f(graph.lookup(a, i), graph.lookup(b, 3 - i))]
    assert results[0].shape == results[1].shape == shape
    check(model, graph, results)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (4, 4), (5, 7), (16, 33), (37, 64), (70, 70)])
@pytest.mark.parametrize("in_cell", [False, True])
def test_transpose(shape: tuple[int, int], in_cell: bool) -> None:
    model = vpps.Model(seed=1)
    m = table(model, "m", *shape)

    def transposes(x: E) -> tuple[E, E]:
        return vpps.transpose(x), (x.T * 2.0).T * x

    f = vpps.cell(transposes) if in_cell else transposes
    graph = vpps.Graph()
    results = [v for i in range(4) for v in f(graph.lookup(m, i))]
    assert results[0].shape == shape[::-1]
    check(model, graph, results)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 7, 5), (6, 1, 4), (5, 8, 1), (9, 5, 12), (64, 32, 33), (40, 70, 64), (33, 9, 150)]
)
@pytest.mark.parametrize("n, in_cell", [(1, True), (4, False), (9, True)])
def test_parameter_times_matrix(shape: tuple[int, int, int], n: int, in_cell: bool) -> None:
    rows, inner, columns = shape
    model = vpps.Model(seed=1)
    m = table(model, "m", inner, columns)
    W = model.parameter("W", (rows, inner))

    def product(x: E) -> E:
        return W @ x

    f = vpps.cell(product) if in_cell else product
    graph = vpps.Graph()
    results = [f(graph.lookup(m, i % 4)) for i in range(n)]
    assert results[0].shape == (rows, columns)
    check(model, graph, results)


@pytest.mark.parametrize("columns", [1, 5, 40])
@pytest.mark.parametrize("n", [1, 9])
def test_parameter_times_concatenated_matrices_reads_its_segments(columns: int, n: int) -> None:
    """Segments end inside the tiles of the weight gradient; the last one is an output as well, so it is made."""
    model = vpps.Model(seed=1)
    a, b = table(model, "a", 50, columns), table(model, "b", 21, columns)
    W, V = model.parameter("W", (40, 142)), model.parameter("V", (5, 71))

    @vpps.cell
    def layer(a: E, b: E) -> tuple[E, E, E]:
        both = vpps.concat([a, b])
        return W @ vpps.concat([a, vpps.concat([b[3:], a[:24]]), vpps.concat([a[1:], b[:1]])]), V @ both, both

    graph = vpps.Graph()
    check(model, graph, [y for i in range(n) for y in layer(graph.lookup(a, i % 4), graph.lookup(b, i % 3))])


@pytest.mark.parametrize("n", [7_000])
def test_weight_gradients_of_very_many_matrices_keep_their_digits(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "PAPER_VP_COUNTS", ())  # whose script has an instruction for each
    model = vpps.Model(seed=1)
    W = model.parameter("W", (3, 2))
    graph = vpps.Graph()
    x = graph.input([[0.1, 0.2, 0.3], [0.7, 0.6, 0.5]])
    loss = vpps.sum([W @ x for _ in range(n)])
    assert_agrees_with_reference(model, graph, vpps.sum(loss) * 1e-4, vp_counts=[1])


def test_a_product_with_no_matrix_at_all_has_a_zero_gradient() -> None:
    """With all lists empty, the weight gradient is zero, not what the launch before left behind."""
    model = vpps.Model(seed=1)
    m = table(model, "m", 8, 5)
    U = model.parameter("U", (8, 8))

    @vpps.cell(elements={"ms": (8, 5)})
    def node(x: E, ms: list[E]) -> E:
        return vpps.tanh(x + vpps.sum(vpps.each(lambda m: U @ m, ms)))

    with vpps.Handle(model, vps=2) as handle:
        for n, expected in ((2, True), (0, False)):
            graph = vpps.Graph()
            loss = vpps.sum(node(graph.lookup(m, 0), [graph.lookup(m, 1 + i) for i in range(n)]))
            assert handle.gradients(graph, loss)[1]["U"].any() == expected


def test_parameter_times_matrices_of_every_origin() -> None:
    """Arguments, parts of other matrices, transposes, inputs, products; read by transposes, products and slices."""
    model = vpps.Model(seed=1)
    m = table(model, "m", 6, 33)
    W, V = model.parameter("W", (20, 6)), model.parameter("V", (33, 33))
    frozen = model.parameter("F", (4, 6), trainable=False)
    C = table(model, "c", 12, 6)

    @vpps.cell
    def mixed(x: E, wide: E, row: int) -> tuple[E, ...]:
        y = W @ x
        upper, lower = vpps.split(wide, 2)
        constant = vpps.lookup(C, row)
        return (
            y @ y.T,
            (V @ x.T).T @ y[3],
            W @ upper + W @ (x * 2.0) - W @ lower,
            vpps.tanh(frozen @ x)[1:3],
            W @ constant[2:8],
            W @ vpps.reshape(vpps.concat([x[4], x[5]]), (6, 11)),
        )

    graph = vpps.Graph()
    xs = [graph.lookup(m, i) for i in range(3)]
    results = [v for i, x in enumerate(xs) for v in mixed(x, vpps.concat([x, xs[0]]), i)]
    check(model, graph, results)


def test_gradients_of_parameters_times_matrices_are_added_to_those_of_vectors() -> None:
    model = vpps.Model(seed=1)
    m, x = table(model, "m", 40, 3), table(model, "x", 40)
    W = model.parameter("W", (40, 40))

    @vpps.cell
    def both(m: E, x: E) -> E:
        return (W @ m) @ vpps.tanh(W @ x)[:3] + W @ vpps.tanh((W @ (W @ m))[2][0] * x)

    graph = vpps.Graph()
    check(model, graph, [both(graph.lookup(m, i), graph.lookup(x, i)) for i in range(4)])


def test_views_of_views_of_matrices() -> None:
    """Gradients flow through chains of reshapes, slices and transposes, into parts that others use as well."""
    model = vpps.Model(seed=1)
    x = table(model, "x", 24)
    m = table(model, "m", 6, 8)
    p = model.parameter("p", (24,), init="normal")

    @vpps.cell
    def chains(x: E, m: E) -> tuple[E, ...]:
        a = vpps.reshape(x, (4, 6))
        b = vpps.reshape(a[1:3], (3, 4))
        c = vpps.reshape(vpps.reshape(b.T, 12)[2:11], (3, 3))
        d = vpps.reshape(p, (4, 6))
        e = vpps.reshape(m, (-1, 4))[4:10]
        f = vpps.reshape(vpps.tanh(m), (2, 24))
        return c, c.T @ c, a @ m, d, d.T * 2.0, d @ m, e.T @ e, vpps.reshape(m, -1), f[1] * x, m[5], m[-1][2] * x

    graph = vpps.Graph()
    results = [v for i in range(5) for v in chains(graph.lookup(x, i % 4), graph.lookup(m, i % 3))]
    check(model, graph, results)


def test_reshapes_slices_and_transposes_in_the_graph() -> None:
    model = vpps.Model(seed=1)
    m = table(model, "m", 6, 8)
    graph = vpps.Graph()
    results: list[E] = []
    for i in range(3):
        x = graph.lookup(m, i)
        results += [vpps.reshape(x, (4, -1)), vpps.reshape(x, 48), x[2], x[-2:], x[1][3], vpps.reshape(x[2:4].T, (16,))]
        results += [*vpps.split(x, 3), vpps.reshape(vpps.reshape(x[0][0], (1, 1)), ())]
    assert [y.shape for y in results[:6]] == [(4, 12), (48,), (8,), (2, 8), (), (16,)]
    check(model, graph, results)


def test_a_reshaped_value_that_is_handed_out_and_used_again() -> None:
    model = vpps.Model(seed=1)
    x = table(model, "x", 12)

    @vpps.cell
    def twice(x: E) -> tuple[E, E, E]:
        y = vpps.tanh(x)
        m = vpps.reshape(y, (3, 4))
        return m, y, m @ m.T

    graph = vpps.Graph()
    a, b, c = twice(graph.lookup(x, 0))
    d, e, f = twice(vpps.reshape(a, 12) * b)
    check(model, graph, [a, b, c, d, e, f])


@pytest.mark.parametrize("columns", [1, 5, 40])
def test_concatenated_matrices(columns: int) -> None:
    model = vpps.Model(seed=1)
    a, b, v = table(model, "a", 3, columns), table(model, "b", 1, columns), table(model, "v", columns)
    W = model.parameter("W", (4, 8))

    @vpps.cell
    def stacked(a: E, b: E, v: E) -> tuple[E, E]:
        m = vpps.concat([a, b, a, vpps.reshape(v, (1, columns))])
        return m, W @ m

    graph = vpps.Graph()
    triples = [(graph.lookup(a, i), graph.lookup(b, i), graph.lookup(v, 3 - i)) for i in range(4)]
    results = [y for t in triples for y in stacked(*t)] + [vpps.concat([a, b, a]) for a, b, _ in triples]
    assert results[0].shape == (8, columns)
    check(model, graph, results)


def test_elementwise_and_rowwise_ops_on_matrices() -> None:
    model = vpps.Model(seed=1)
    m, k = table(model, "m", 5, 13), table(model, "k", 5, 13)

    @vpps.cell
    def ops(a: E, b: E) -> tuple[E, ...]:
        total = vpps.tanh(a) * b + vpps.maximum(a, b) / (vpps.square(b) + 1.0) - a[0][3]
        return total, vpps.sum(a * b) * b, vpps.mean(total), vpps.dot(a, b), vpps.mse(a, b), vpps.sum([a, b, total])

    graph = vpps.Graph()
    results = [y for i in range(4) for y in ops(graph.lookup(m, i), graph.lookup(k, 3 - i))]
    a, b = graph.lookup(m, 0), graph.lookup(k, 1)
    check(
        model, graph, [*results, a * b, vpps.sigmoid(a) - b * 2.0, vpps.dot(a, b), vpps.mean([a, b]), vpps.max([a, b])]
    )


@pytest.mark.parametrize("outputs", [None, 1, 5, 33])
@pytest.mark.parametrize("in_cell", [False, True])
def test_bilinear_form(outputs: int | None, in_cell: bool) -> None:
    model = vpps.Model(seed=1)
    x, y = table(model, "x", 7), table(model, "y", 12)
    W = model.parameter("W", ((outputs or 1) * 7, 12))

    def form(x: E, y: E) -> E:
        return vpps.bilinear(x, W, y, outputs)

    f = vpps.cell(form) if in_cell else form
    graph = vpps.Graph()
    results = [f(graph.lookup(x, i), graph.lookup(y, 3 - i)) for i in range(4)]
    assert results[0].shape == (() if outputs is None else (outputs,))
    check(model, graph, results)
    with vpps.Handle(model, train=False) as handle:
        (got,) = handle.forward(graph, [results[1]])
    tensor = W.numpy().reshape(-1, 7, 12)
    expected = np.einsum("kab,a,b->k", tensor, model["x"].numpy()[1], model["y"].numpy()[2])
    assert relative_error(np.atleast_1d(got), expected) < 1e-5


def test_bilinear_form_of_a_computed_matrix() -> None:
    model = vpps.Model(seed=1)
    x, m = table(model, "x", 6), table(model, "m", 6, 6)
    graph = vpps.Graph()
    form = vpps.cell(lambda x, m: vpps.bilinear(x, m + m.T, x))
    check(model, graph, [form(graph.lookup(x, i), graph.lookup(m, i)) for i in range(4)])


def test_a_matrix_times_itself() -> None:
    model = vpps.Model(seed=1)
    m = table(model, "m", 11, 11)

    @vpps.cell
    def powers(a: E) -> tuple[E, ...]:
        return a @ a, a @ a.T, a.T @ a, a.T @ a.T, (a @ a) @ (a @ a.T).T[0]

    graph = vpps.Graph()
    check(model, graph, [y for i in range(3) for y in powers(graph.lookup(m, i))])


@pytest.mark.parametrize("size", [3, 40])
def test_products_of_list_elements(size: int) -> None:
    """A matrix of the vertex meets the elements, matrices are elements, a parameter multiplies matrices of elements."""
    model = vpps.Model(seed=1)
    m, x = table(model, "m", size, size), table(model, "x", size)
    W = model.parameter("W", (size, size))

    @vpps.cell(elements={"xs": (size,), "ms": (size, size)})
    def node(a: E, xs: list[E], ms: list[E]) -> tuple[E, E, E]:
        mapped = vpps.each(lambda x: vpps.tanh(a @ x), xs)
        composed = vpps.each(lambda m, x: (W @ m) @ x + vpps.outer(x, a[0]).T @ x + m.T[1], ms, xs)
        return vpps.sum(mapped), vpps.mean(composed), vpps.sum(vpps.each(lambda m: m @ a, ms))

    graph = vpps.Graph()
    results: list[E] = []
    for n in (0, 1, 5):
        xs, ms = [graph.lookup(x, i % 4) for i in range(n)], [graph.lookup(m, i % 3) for i in range(n)]
        results += node(graph.lookup(m, 3), xs, ms)
    check(model, graph, results)


def test_inputs_of_matrices_hand_back_their_gradients() -> None:
    model = vpps.Model(seed=1)
    W = model.parameter("W", (4, 6))
    graph = vpps.Graph()
    rng = np.random.default_rng(1)
    x, y = graph.input(rng.normal(size=(6, 5)), grad=True), graph.input(rng.normal(size=(5, 4)))
    loss = vpps.sum((W @ x) @ y)
    reference = Reference(graph, weights_of(model))
    reference.backward(loss)
    with vpps.Handle(model, vps=2) as handle:
        handle.gradients(graph, loss)
        got = handle.input_gradient(x)
    assert relative_error(got, reference.gradient(x)) < 1e-5


def mv_rnn(model: vpps.Model, d: int) -> tuple[Callable[[vpps.Graph, Sequence[int]], E], vpps.Parameter]:
    """Matrix-vector recursive network (Socher et al. 2012): a vector and a matrix per word; parents compose both."""
    words, matrices = table(model, "words", d), table(model, "matrices", d, d)
    W, Wm = model.parameter("W", (d, 2 * d)), model.parameter("Wm", (d, 2 * d))
    out = model.parameter("out", (3, d))

    @vpps.cell
    def compose(a: E, A: E, b: E, B: E) -> tuple[E, E]:
        return vpps.tanh(W @ vpps.concat([B @ a, A @ b])), Wm @ vpps.concat([A, B])

    def loss(graph: vpps.Graph, sentence: Sequence[int]) -> E:
        identity = graph.input(np.eye(d))
        nodes = [(graph.lookup(words, i), graph.lookup(matrices, i) * 0.1 + identity) for i in sentence]
        while len(nodes) > 1:
            nodes = [compose(*nodes[i], *nodes[i + 1]) for i in range(0, len(nodes) - 1, 2)] + nodes[
                len(nodes) // 2 * 2 :
            ]
        vector, matrix = nodes[0]
        return vpps.cross_entropy(out @ vector, sum(sentence) % 3) + vpps.sum(vpps.square(matrix)) * (0.01 / d)

    return loss, Wm


@pytest.mark.parametrize("d", [1, 9, 40])
def test_a_matrix_vector_recursive_network(d: int) -> None:
    model = vpps.Model(seed=1)
    sentence_loss, Wm = mv_rnn(model, d)

    def batch() -> tuple[vpps.Graph, E]:
        graph = vpps.Graph()
        return graph, vpps.mean([sentence_loss(graph, s) for s in ([0, 1, 2], [3, 3], [1], [2, 0, 1, 3, 2])])

    for policy in ("sinks-last", "depth"):
        graph, loss = batch()
        assert_agrees_with_reference(model, graph, loss, policy=policy)
    reference = Reference(graph, weights_of(model)).backward(loss)
    expected = Wm.numpy() - 0.05 * reference["Wm"]
    with vpps.Handle(model, vpps.SGD(lr=0.05), vps=3) as handle:
        handle.fb(*batch())
        assert relative_error(Wm.numpy(), expected) < 1e-5
        losses = [handle.fb(*batch()) for _ in range(30)]
    assert losses[-1] < losses[0] * 0.95


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (33, 64), (70, 5)])
@pytest.mark.parametrize("in_cell", [False, True])
def test_matrices_and_vectors_over_their_rows_and_products_with_transposed_parameters(
    shape: Shape, in_cell: bool
) -> None:
    rows, columns = shape
    model = vpps.Model(seed=1)
    m, x, square = table(model, "m", rows, columns), table(model, "x", columns), table(model, "s", columns, rows)
    W = model.parameter("W", shape)
    p = model.parameter("p", (columns,), init="normal")

    def f(m: E, x: E, s: E) -> tuple[E, ...]:
        over = m + x, x - m, m * p, vpps.maximum(x, m) / 2, vpps.where(m > x, m, x), vpps.where(x > 0, W + m, 0)
        return *over, W.T @ m, s @ W, W @ s

    g = vpps.cell(f) if in_cell else f
    graph = vpps.Graph()
    check(model, graph, [y for i in range(3) for y in g(*(graph.lookup(t, i) for t in (m, x, square)))])
