"""A function redefined for every batch keeps one program while its computation is the same, and shares no other."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.record.trace import TracedCell
from vpps.reference import Reference, weights_of

pytestmark = pytest.mark.host

E = vpps.Expression
FACTOR = 2.0


@pytest.fixture
def model() -> vpps.Model:
    model = vpps.Model(seed=1)
    model.parameter("U", (2, 2))
    model.parameter("V", (2, 2))
    model.lookup("T", (5, 2))
    return model


class Layer:
    """A module that is rebuilt for every batch."""

    def __init__(self, model: vpps.Model, factor: float) -> None:
        self.U, self.factor = model["U"], factor

    @vpps.cell
    def step(self, x: E) -> E:
        return vpps.tanh(self.U @ x) * self.factor


def closure(model: vpps.Model, factor: float) -> vpps.Cell[E]:
    U = model["U"]

    @vpps.cell
    def step(x: E) -> E:
        return vpps.tanh(U @ x) * factor

    return step


def default(model: vpps.Model, factor: float) -> vpps.Cell[E]:
    @vpps.cell
    def step(x: E, *, factor: float = factor) -> E:
        return vpps.tanh(model["U"] @ x) * factor

    return step


def listed(model: vpps.Model, factor: float) -> vpps.Cell[E]:
    held = [1.0]

    @vpps.cell
    def step(x: E) -> E:
        return vpps.tanh(model["U"] @ x) * held[0]

    held[0] = factor  # before it is traced
    return step


def partial(model: vpps.Model, factor: float) -> vpps.Cell[E]:
    def step(x: E, factor: float) -> E:
        return vpps.tanh(model["U"] @ x) * factor

    return vpps.cell(functools.partial(step, factor=factor))


def method(model: vpps.Model, factor: float) -> vpps.Cell[E]:
    layer = Layer(model, factor)
    KEPT.append(layer)
    return layer.step


def of_global(model: vpps.Model, factor: float) -> vpps.Cell[E]:
    @vpps.cell
    def step(x: E) -> E:
        return vpps.tanh(model["U"] @ x) * FACTOR

    global FACTOR
    FACTOR = factor
    return step


KEPT: list[Any] = []
MAKERS = [closure, default, listed, partial, method, of_global]


def program_of(cell: vpps.Cell[E]) -> TracedCell:
    graph = vpps.Graph()
    cell(graph.input([1.0, 2.0]))
    return [*graph.blocks.values()][-1].cell


@pytest.mark.parametrize("make", MAKERS)
def test_cells_that_compute_the_same_share_a_program_and_others_do_not(
    make: Callable[[vpps.Model, float], vpps.Cell[E]], model: vpps.Model
) -> None:
    cells, programs = [], []
    for factor in (2.0, 2.0, 3.0, 2.0):
        cells.append(make(model, factor))
        programs.append(program_of(cells[-1]))
    a, b, other, c = programs
    assert a is b is c
    assert other is not a
    graph = vpps.Graph()
    values = [cell(graph.input([1.0, 2.0])) for cell in cells]
    reference = Reference(graph, weights_of(model))
    expected = np.tanh(model["U"].numpy().astype(float) @ [1.0, 2.0])
    for value, factor in zip(values, (2.0, 2.0, 3.0, 2.0), strict=True):
        np.testing.assert_allclose(reference.value(value), factor * expected, rtol=1e-12)


def test_programs_are_not_shared_if_anything_differs(model: vpps.Model) -> None:
    """Parameters are compared by identity, numbers by bits, functions by their code."""
    twin = vpps.Model(seed=1)
    twin.parameter("U", (2, 2))

    def of(p: Any, bound: float, columns: int) -> TracedCell:
        return program_of(vpps.cell(lambda x: vpps.leaky_relu(p @ x, bound) * vpps.sum(x[:columns])))

    def scaled(p: Any) -> TracedCell:
        return program_of(vpps.cell(lambda x: vpps.leaky_relu(p @ x, 0.0) * vpps.sum(x[:2])))

    given = [(model["U"], 0.0, 2), (model["V"], 0.0, 2), (twin["U"], 0.0, 2), (model["U"], -0.0, 2)]
    programs = [of(*x) for x in given]
    assert len({*programs, scaled(model["U"])}) == len(given) + 1
    assert [of(*x) for x in given] == programs


def test_of_a_list_that_is_empty_first_no_other_shape_is_shared(model: vpps.Model) -> None:
    def cell(size: int) -> vpps.Cell[E]:
        return vpps.cell(elements={"xs": (size,)})(lambda xs: vpps.sum(xs))

    graph = vpps.Graph()
    shapes = [graph.call(cell(size), []).shape for size in (2, 3, 2)]
    assert shapes == [(2,), (3,), (2,)]
    assert len(graph.blocks) == 2


@pytest.mark.parametrize("distinct", [False, True])
def test_maps_of_functions_that_are_defined_anew_share_their_programs(model: vpps.Model, distinct: bool) -> None:
    U, V, T = model["U"], model["V"], model["T"]
    children = np.array([[-1, -1], [-1, -1], [0, 1], [2, 0]])
    found, values = [], []
    leaf = vpps.cell(lambda word: vpps.tanh(V @ vpps.lookup(T, word)))

    for sign in (1.0, 1.0, -1.0):
        gc.collect()

        def node(word: Any) -> None:
            a, b = vpps.gather(0), vpps.gather(1)
            vpps.scatter(vpps.tanh(U @ a + V @ b + V @ vpps.lookup(T, word)) * sign)  # noqa: B023

        graph = vpps.Graph()
        words = {"word": np.array([0, 1, 0, 2])}
        h = graph.map([leaf, node], kind=[0, 0, 1, 1], children=children, inputs=words, distinct=distinct)
        found.append(set(graph.blocks))
        values.append(Reference(graph, weights_of(model)).value(h[3]))
    assert found[0] == found[1] != found[2]
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.allclose(values[0], values[2])
    assert len(leaf.maps) <= 2  # a living cell keeps nothing of other cells that were mapped with it


def test_a_function_that_wraps_another_has_a_cell_of_its_own(model: vpps.Model) -> None:
    """`functools.wraps` copies the attributes of the wrapped function."""
    T, words = model["T"], {"word": np.arange(3)}

    def row(word: Any) -> E:
        return vpps.lookup(T, word)

    @functools.wraps(row)
    def doubled(word: Any) -> E:
        return vpps.lookup(T, word) * 2.0

    inner = vpps.cell(row)

    @functools.wraps(inner)
    def tripled(word: Any) -> E:
        return inner(word) * 3.0

    graph = vpps.Graph()
    rows = [graph.map(f, inputs=words)[1] for f in (row, doubled, vpps.cell(tripled))]
    reference = Reference(graph, weights_of(model))
    for k, value in enumerate(rows, 1):
        np.testing.assert_allclose(reference.value(value), k * reference.value(rows[0]))


def test_a_method_that_is_replaced_is_not_taken_for_the_one_before(model: vpps.Model) -> None:
    class Module:
        step = vpps.cell(lambda self, x: x * 2.0)

    module, graph = Module(), vpps.Graph()
    x = graph.input([1.0])
    before, key = module.step(x), Module.step._key
    Module.step = vpps.cell(lambda self, x: x * 5.0)
    Module.step._key = key  # as if it had the previous key's address
    after = module.step(x)
    reference = Reference(graph, {})
    assert (reference.value(before), reference.value(after)) == (2.0, 5.0)
