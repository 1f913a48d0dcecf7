"""A cell gives the same results as its function on a graph's plain expressions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pytest

import vpps
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

E = vpps.Expression


def functions(model: vpps.Model) -> dict[str, Callable[..., E]]:
    """Return functions of two vectors, a list and an int, that work both as cells and on plain expressions."""
    W = model.parameter("W", (4, 4))
    U = model.parameter("U", (8, 8))
    p = model.parameter("p", (4,), init="normal")

    def gates(a: E, b: E, xs: list[E], k: int) -> E:
        i, f = vpps.split(vpps.sigmoid(U @ vpps.concat([a, b])), 2)
        return i * vpps.tanh(W @ b) + f * p

    def children(a: E, b: E, xs: list[E], k: int) -> E:
        return a + vpps.sum(vpps.each(lambda x: vpps.sigmoid(W @ x + b) * x, xs)) - vpps.mean(xs)

    def twice(a: E, b: E, xs: list[E], k: int) -> E:
        scores = vpps.each(lambda x: vpps.dot(x, a), xs)
        return vpps.sum(vpps.each(lambda x, s: x * vpps.exp(s), xs, scores)) * vpps.mean(scores) + b

    def losses(a: E, b: E, xs: list[E], k: int) -> E:
        return vpps.sum(vpps.each(lambda x: vpps.cross_entropy(W @ x + a, k), xs)) + b * 0.5

    def slices(a: E, b: E, xs: list[E], k: int) -> E:
        return vpps.concat([a[1:3], b[0], a[-1]]) * vpps.mean(b[:2]) + 1.0 - a / 2

    return {f.__name__: f for f in (gates, children, twice, losses, slices)}


@pytest.mark.parametrize("name", ["gates", "children", "twice", "losses", "slices"])
def test_a_cell_computes_what_its_function_computes_on_plain_expressions(name: str) -> None:
    model = vpps.Model(seed=1)
    function = functions(model)[name]
    cell = vpps.cell(function)
    graph = vpps.Graph()
    rng = np.random.default_rng(0)
    vectors = [graph.input(rng.normal(size=4)) for _ in range(6)]
    traced = cell(vectors[0], vectors[1], vectors[2:], 3)
    plain = function(vectors[0], vectors[1], vectors[2:], 3)
    reference = Reference(graph, weights_of(model))
    np.testing.assert_allclose(reference.value(traced), reference.value(plain), rtol=1e-12)


class Layer:
    """A module with a cell."""

    def __init__(self, model: vpps.Model, value: float) -> None:
        self.p = model.parameter(f"p{value}", (2,), init=value)

    @vpps.cell
    def step(self, x: E) -> E:
        return x + self.p


class Doubled(Layer):
    """Overrides the cell and calls the original."""

    @vpps.cell
    def step(self, x: E) -> E:
        return super().step(x) * 2.0


def test_an_overridden_cell_can_call_the_original() -> None:
    model = vpps.Model()
    layer = Doubled(model, 3.0)
    graph = vpps.Graph()
    y = layer.step(graph.input([1, 2]))
    np.testing.assert_array_equal(Reference(graph, weights_of(model)).value(y), [8, 10])


def test_a_copied_module_binds_its_cells_anew() -> None:
    model = vpps.Model()
    first = Layer(model, 1.0)
    graph = vpps.Graph()
    a = first.step(graph.zeros(2))
    second = copy.copy(first)
    second.p = model.parameter("other", (2,), init=5.0)
    b = second.step(graph.zeros(2))
    c = first.step(graph.zeros(2))
    reference = Reference(graph, weights_of(model))
    assert [reference.value(e).tolist() for e in (a, b, c)] == [[1, 1], [5, 5], [1, 1]]


def test_python_constants_of_a_graph_share_one_program() -> None:
    graph = vpps.Graph()
    x = graph.input([1.0, 2.0])
    for n in range(1, 50):
        _ = x * (1 / n) + n
    assert len(graph.blocks) == 4  # inputs of two shapes, mul, add
    y, z = x * 0.0, x * -0.0
    reference = Reference(graph, {})
    assert np.signbit(reference.value(y)).tolist() == [False, False]
    assert np.signbit(reference.value(z)).tolist() == [True, True]


@vpps.cell(elements={"xs": (3,)})
def declared(a: E, xs: list[E]) -> E:
    return a + vpps.sum(xs)


def test_a_declared_list_may_be_a_list_of_any_length() -> None:
    x = vpps.Graph().input([1.0, 2.0, 3.0])
    of_lists = declared(x, [x]), declared(x, ()), vpps.cell(lambda a: declared(a, [a, a]))(x)
    reference = Reference(x.owner, {})
    assert [reference.value(y).tolist() for y in of_lists] == [[2, 4, 6], [1, 2, 3], [3, 6, 9]]


@dataclass(frozen=True)
class _Config:
    by: object


@pytest.mark.parametrize(
    "inside", [lambda v: v, lambda v: (v,), lambda v: frozenset([v]), _Config, lambda v: (_Config((v,)),)]
)
def test_static_arguments_that_are_equal_within_are_other_programs(inside: Callable[[object], object]) -> None:
    seen: list[str] = []

    @vpps.cell
    def told(x: E, *, config: object) -> E:
        seen.append(repr(config))
        return x + 0.0

    x = vpps.Graph().input([1.0])
    values = [1, True, 1.0, 0.0, -0.0, 0, False, float("nan"), np.float32(1), Decimal(1), Decimal("1.0")]
    for value in [*values, *values]:
        told(x, config=inside(value))
    told(x, config=inside(float("nan")))  # a different object with the same bits
    assert seen == [repr(inside(value)) for value in values]


@pytest.mark.parametrize("rows", [False, True])
def test_constants_that_are_equal_but_of_other_bits_are_told_apart(rows: bool) -> None:
    graph = vpps.Graph()
    x = graph.rows([[-1.0]]) if rows else graph.input([-1.0])
    results = [vpps.leaky_relu(x, 0.0), vpps.leaky_relu(x, -0.0)]
    reference = Reference(graph, {})
    signs = [np.signbit(reference.value(y[0] if rows else y)).item() for y in results]
    assert signs == [True, False]
