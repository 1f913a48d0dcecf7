"""Ops on computed matrices agree with the reference, in the graph and inside cells, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import vpps
from tests.comparison import VP_COUNTS, assert_agrees_with_reference, relative_error
from tests.ops.test_on_targets import weighted
from vpps.ops import OPS, size
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.cpu

E = vpps.Expression
Shape = tuple[int, ...]


def table(model: vpps.Model, name: str, *shape: int, rows: int = 4) -> vpps.Lookup:
    """Return trainable matrices (or vectors), so that gradients are compared."""
    values = np.random.default_rng(sum(map(ord, name))).uniform(-1, 1, (rows, *shape))
    return model.lookup(name, (rows, *shape), init=values)


def check(model: vpps.Model, graph: vpps.Graph, results: Sequence[E], vp_counts: Sequence[int] = VP_COUNTS) -> None:
    """Check values, and gradients of a loss with a different weight for each element; its terms are of order one."""
    terms = [weighted(graph, y, i) * (1 / size(y.shape)) for i, y in enumerate(results)]
    loss = vpps.sum(terms) * (1 / len(results))
    assert_agrees_with_reference(model, graph, loss, results, vp_counts)


# Matrices of (m, k) and (k, n): single elements, rows, columns, panels of every tile with and without a remainder, and
# a block with more columns than are multiplied at once.
PRODUCTS = [(1, 1, 1), (1, 5, 1), (5, 1, 7), (1, 6, 40), (33, 4, 1), (6, 7, 5), (8, 33, 32), (9, 20, 70), (40, 64, 33)]
FORMS: dict[str, tuple[str, Callable[[E, E], E]]] = {
    "A B": ("a:mk b:kn", lambda a, b: a @ b),
    "A B^T": ("a:mk b:nk", lambda a, b: a @ b.T),
    "A^T B": ("a:km b:kn", lambda a, b: a.T @ b),
    "A^T B^T": ("a:km b:nk", lambda a, b: a.T @ b.T),
}


class Formula(NamedTuple):
    """A computation on matrices and vectors, in a graph and in a cell.

    Attributes:
        operands: names and shapes, by letters or numbers. Lower-case operands differ from vertex to vertex, the others
            are parameters; F is a frozen parameter.
        letters: the sizes that the letters stand for.
        n: number of vertices.
        bare: True to compute it also outside cells.
    """

    function: Callable[..., Any]
    operands: str
    letters: str = ""
    sizes: Sequence[tuple[int, ...]] = ((),)
    n: Sequence[int] = (4,)
    bare: bool = True

    def made(
        self, sizes: tuple[int, ...] = (), n: int = 4, seed: int = 1, values: Callable[..., Any] | None = None
    ) -> tuple[vpps.Model, vpps.Graph, list[E]]:
        """Return a model and a graph of n vertices; `values` makes the operands that differ from vertex to vertex."""
        model, bound = vpps.Model(seed=seed), dict(zip(self.letters, sizes, strict=True))
        given: dict[str, Any] = {}
        for name, _, shape in (operand.partition(":") for operand in self.operands.split()):
            dimensions = [bound.get(x) or int(x) for x in (shape.split(",") if "," in shape else shape) if x]
            if not name.islower():
                init = "normal" if len(dimensions) == 1 else "glorot_uniform"
                given[name] = model.parameter(name, tuple(dimensions), init=init, trainable=name != "F")
            elif values is None:
                given[name] = table(model, name, *dimensions)
            else:
                given[name] = model.lookup(name, (4, *dimensions), init=values(seed, 4, *dimensions))
        rows = [name for name in given if name.islower()]
        parameters = {name: p for name, p in given.items() if name not in rows}

        def computed(*values: E) -> Any:
            return self.function(*(parameters[x] if x in parameters else values[rows.index(x)] for x in given))

        graph, results = vpps.Graph(), []
        forms = [vpps.cell(computed), computed] if self.bare else [vpps.cell(computed)]
        for i in range(n):
            found = forms[i % len(forms)](*(graph.lookup(given[x], (i + k) % 4) for k, x in enumerate(rows)))
            results += found if isinstance(found, tuple) else [found]
        return model, graph, results


def concatenated(W: E, V: E, a: E, b: E) -> tuple[E, E, E]:
    """Segments end inside the tiles of the weight gradient; the last one is also an output, so it is computed."""
    both = vpps.concat([a, b])
    return W @ vpps.concat([a, vpps.concat([b[3:], a[:24]]), vpps.concat([a[1:], b[:1]])]), V @ both, both


def of_every_origin(W: E, V: E, F: E, x: E, y: E, constant: E) -> tuple[E, ...]:
    """Arguments, parts of other matrices, transposes and products are read by transposes, products and slices."""
    product, (upper, lower) = W @ x, vpps.split(vpps.concat([x, y]), 2)
    return (
        product @ product.T, (V @ x.T).T @ product[3], W @ upper + W @ (x * 2.0) - W @ lower,
        vpps.tanh(F @ x)[1:3], W @ constant[2:8], W @ vpps.reshape(vpps.concat([x[4], x[5]]), (6, 11)),
    )  # fmt: skip


def coder(W: E, B: E, x: E) -> tuple[E, E]:
    """Covers products with both the transpose and the matrix, on the vertex's vectors and on concatenations."""
    y = W @ vpps.tanh(W.T @ x + B)
    return y, W.T @ vpps.concat([y[1:], x[:1]]) if y.shape[0] > 1 else W.T.T @ B


def halves(W: E, x: E) -> tuple[E, E]:
    """With parts narrower than a panel, a product once computed its panels, and added them, once per part."""
    t = vpps.tanh(x)
    a, b = vpps.split(t, 2)
    return W @ t, vpps.concat([b, a])


def views_of_views(P: E, x: E, m: E) -> tuple[E, ...]:
    """Gradients flow through chains of reshapes, slices and transposes into shared parts."""
    a = vpps.reshape(x, (4, 6))
    b = vpps.reshape(a[1:3], (3, 4))
    c = vpps.reshape(vpps.reshape(b.T, 12)[2:11], (3, 3))
    d = vpps.reshape(P, (4, 6))
    e = vpps.reshape(m, (-1, 4))[4:10]
    f = vpps.reshape(vpps.tanh(m), (2, 24))
    return c, c.T @ c, a @ m, d, d.T * 2.0, d @ m, e.T @ e, vpps.reshape(m, -1), f[1] * x, m[5], m[-1][2] * x


def views(m: E) -> tuple[E, ...]:
    parts = [vpps.reshape(m, (4, -1)), vpps.reshape(m, 48), m[2], m[-2:], m[1][3], vpps.reshape(m[2:4].T, (16,))]
    assert [y.shape for y in parts] == [(4, 12), (48,), (8,), (2, 8), (), (16,)]
    return (*parts, *vpps.split(m, 3), vpps.reshape(vpps.reshape(m[0][0], (1, 1)), ()))


def elementwise(a: E, b: E) -> tuple[E, ...]:
    total = vpps.tanh(a) * b + vpps.maximum(a, b) / (vpps.square(b) + 1.0) - a[0][3]
    reduced = vpps.dot(a, b), vpps.mse(a, b), vpps.sum([a, b, total]), vpps.mean([a, b]), vpps.max([a, b])
    return total, vpps.sum(a * b) * b, vpps.mean(total), vpps.sigmoid(a) - b * 2.0, *reduced


SQUARES = [(1, 1), (1, 9), (9, 1), (5, 7), (33, 64), (64, 100), (130, 260)]
FORMULAS: dict[str, Formula] = {
    **{f"product {name}": Formula(f, operands, "mkn", PRODUCTS) for name, (operands, f) in FORMS.items()},
    "product of any number": Formula(lambda a, b: vpps.tanh(a @ b), "a:12,9 b:9,21", n=range(1, 10)),
    "matrix times vector": Formula(
        lambda P, m, x, y: (m @ x, m.T @ y, m @ P), "P:c m:rc x:c y:r", "rc", SQUARES,
    ),
    "outer product": Formula(
        lambda a, b: (vpps.outer(a, b), vpps.outer(b, a).T, vpps.outer(a, b) @ b), "a:r b:c", "rc", SQUARES,
    ),
    "transpose": Formula(lambda m: (vpps.transpose(m), (m.T * 2.0).T * m), "m:rc", "rc", SQUARES),
    "parameter times matrix": Formula(
        lambda W, m: W @ m, "W:ri m:ic", "ric",
        [(1, 1, 1), (1, 7, 5), (6, 1, 4), (5, 8, 1), (9, 5, 12), (64, 32, 33), (40, 70, 64), (33, 9, 150)], (1, 4, 9),
    ),
    "parameter times concatenated matrices": Formula(
        concatenated, "W:40,142 V:5,71 a:50,c b:21,c", "c", [(1,), (5,), (40,)], (1, 9),
    ),
    "parameters times matrices of every origin": Formula(
        of_every_origin, "W:20,6 V:33,33 F:4,6 x:6,33 y:6,33 c:12,6", bare=False,
    ),
    "gradients of products with matrices and vectors": Formula(
        lambda W, m, x: (W @ m) @ vpps.tanh(W @ x)[:3] + W @ vpps.tanh((W @ (W @ m))[2][0] * x), "W:40,40 m:40,3 x:40,",
    ),
    "product with a parameter": Formula(
        lambda W, B, x: (W @ x, vpps.tanh(W @ x + B)), "W:rc B:r x:c", "rc",
        [(1, 1), (5, 3), (40, 33), (128, 64), (70, 200)], (1, 2, 3, 4, 9, 70), bare=False,
    ),
    "product with its transpose": Formula(
        coder, "W:rc B:c x:r", "rc", [(1, 1), (5, 3), (40, 33), (70, 200)], (1, 4, 70), bare=False,
    ),
    "parameters are operands": Formula(
        lambda W, V, x: (
            vpps.tanh(W * 2) @ x, W * V + V[V.shape[0] - 1], W @ x, vpps.sum(vpps.square(W)) * x, V, V[0] - x,
        ),
        "W:rc V:rc x:c", "rc", [(1, 7), (7, 1), (40, 33), (70, 200)], bare=False,
    ),
    "vector parameters are operands": Formula(
        lambda P, Q, x: (vpps.tanh(x * P) - P) * P[3] + Q[10:50] * x + vpps.concat([Q[:30], P[:10]]),
        "P:40, Q:90, x:40,",
        n=(7,), bare=False,
    ),
    "segments of a concatenation": Formula(
        lambda W, a, b: W @ vpps.concat([a, vpps.concat([b[3:], a[:5]]), a[7]]), "W:48,51 a:24, b:24,", n=(6,),
    ),
    "a vector that is also split": Formula(halves, "W:cc x:c", "c", [(16,), (32,), (48,), (96,)], (3,)),
    "views of views": Formula(views_of_views, "P:24, x:24, m:6,8", n=(5,), bare=False),
    "views": Formula(views, "m:6,8"),
    "concatenated matrices": Formula(
        lambda W, a, b, v: (m := vpps.concat([a, b, a, vpps.reshape(v, (1, v.shape[0]))]), W @ m),
        "W:4,8 a:3,c b:1,c v:c,", "c", [(1,), (5,), (40,)],
    ),
    "elementwise and rowwise ops": Formula(elementwise, "a:5,13 b:5,13"),
    "bilinear form of a computed matrix": Formula(lambda x, m: vpps.bilinear(x, m + m.T, x), "x:6 m:6,6"),
    "a matrix times itself": Formula(
        lambda a: (a @ a, a @ a.T, a.T @ a, a.T @ a.T, (a @ a) @ (a @ a.T).T[0]), "a:11,11", n=(3,),
    ),
    "vectors over rows, products with transposed parameters": Formula(
        lambda W, P, m, x, s: (
            m + x, x - m, m * P, vpps.maximum(x, m) / 2, vpps.where(m > x, m, x), vpps.where(x > 0, W + m, 0), W.T @ m,
            s @ W, W @ s,
        ),
        "W:rc P:c m:rc x:c s:cr", "rc", [(1, 1), (5, 7), (33, 64), (70, 5)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name, sizes", [(name, sizes) for name, f in FORMULAS.items() for sizes in f.sizes])
def test_formulas(name: str, sizes: tuple[int, ...]) -> None:
    for n in FORMULAS[name].n:
        check(*FORMULAS[name].made(sizes, n))


MANY = (1, 2, 5, 7, 13)  # virtual processors


@pytest.mark.parametrize("shape", [(20, 300, 70), (3, 300, 70), (64, 64, 64), (100, 130, 17)])
@pytest.mark.parametrize("form", FORMS)
def test_product_of_one_vertex_is_divided_among_many(shape: tuple[int, int, int], form: str) -> None:
    """Slices begin and end inside rows, blocks of the inner dimension and packed panels, or span several panels."""
    m, k, n = shape
    model = vpps.Model(seed=1)
    a = table(model, "a", *((k, m) if form.startswith("A^T") else (m, k)), rows=1)
    b = table(model, "b", *((n, k) if form.endswith("B^T") else (k, n)), rows=1)
    graph = vpps.Graph()
    check(model, graph, [vpps.cell(FORMS[form][1])(graph.lookup(a, 0), graph.lookup(b, 0))], MANY)


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


@pytest.mark.parametrize("size", [3, 40])
def test_products_of_list_elements(size: int) -> None:
    """Covers a vertex's matrix times elements, matrices as elements, and a parameter times elements' matrices."""
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
