"""100 random DAGs of random cells agree with the reference, bitwise equal for 1, 2, 3 and 7 virtual processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.plan.policies import POLICIES
from vpps.plan.row_order import LAYOUTS

pytestmark = pytest.mark.cpu

WIDTHS = (3, 32, 70)  # narrower than a panel, a panel, several panels and a rest
SHAPES = {3: (3, 1), 32: (4, 8), 70: (10, 7)}  # vectors of these widths as matrices
E = vpps.Expression


@dataclass
class Drawn:
    """What a random cell is made of: the same numbers give the same cell."""

    width: int
    n_vectors: int
    n_lists: int
    has_int: bool
    ops: list[tuple[int, int, int]]
    n_outputs: int


cells = st.builds(
    Drawn,
    width=st.sampled_from(WIDTHS),
    n_vectors=st.integers(0, 3),
    n_lists=st.integers(0, 2),
    has_int=st.booleans(),
    ops=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=9),
    n_outputs=st.integers(1, 3),
)


class Parameters:
    """One matrix, vector and table per width, shared by all cells."""

    def __init__(self, model: vpps.Model) -> None:
        self.tables = {w: model.lookup(f"E{w}", (6, w), init="normal") for w in WIDTHS}
        self.square = {w: model.parameter(f"W{w}", (w, w)) for w in WIDTHS}
        self.wide = {w: model.parameter(f"U{w}", (3 * w, 2 * w)) for w in WIDTHS}
        self.bias = {w: model.parameter(f"b{w}", (3 * w,), init="normal") for w in WIDTHS}
        self.left = {w: model.parameter(f"L{w}", (SHAPES[w][0], SHAPES[w][0])) for w in WIDTHS}
        self.vector = {w: model.parameter(f"p{w}", (w,), init="normal", trainable=w != 3) for w in WIDTHS}


def random_cell(drawn: Drawn, p: Parameters) -> vpps.Cell[list[E]]:
    """A cell with vector arguments, list arguments and perhaps an int, made of the drawn ops."""
    w = drawn.width
    r, c = SHAPES[w]

    def pick(values: list[E], i: int) -> E:
        return values[i % len(values)]

    def body(vectors: list[E], lists: list[list[E]], row: int | None) -> list[E]:
        values = [*vectors]
        if row is not None:
            values.append(vpps.lookup(p.tables[w], row))
        values.extend(vpps.sum(xs) if k else vpps.mean(xs) for k, xs in enumerate(lists))
        if not values:
            values.append(vpps.tanh(p.vector[w]))
        for kind, i, j in drawn.ops:
            a, b = pick(values, i), pick(values, j)
            values.append(apply(kind, a, b, lists))
        return values[-drawn.n_outputs :]

    def apply(kind: int, a: E, b: E, lists: list[list[E]]) -> E:
        match kind:
            case 0:
                return vpps.tanh(a + b)
            case 1:
                return vpps.sigmoid(a) * b
            case 2:
                return a - b * 0.5
            case 3:
                i, f, o = vpps.split(p.wide[w] @ vpps.concat([a, b]) + p.bias[w], 3)
                return vpps.sigmoid(i) * vpps.tanh(f) + o
            case 4:
                return p.square[w] @ a
            case 5:
                return vpps.relu(p.square[w] @ a + b)
            case 6:
                return vpps.softmax(a) * p.vector[w]
            case 7:
                return vpps.concat([b[w // 2 :], a[: w // 2]])
            case 8:
                return a * vpps.dot(a, b) * (1 / w)
            case 9:
                return vpps.tanh(a) * vpps.mean(b) + p.vector[w][w - 1]
            case 10 if lists:
                return vpps.sum(vpps.each(lambda x: vpps.sigmoid(p.square[w] @ x + a) * b, lists[0]))
            case 11 if lists:
                return vpps.mean(vpps.each(lambda x: vpps.tanh(x[0] * b) - a, lists[-1]))
            case 12:
                return vpps.log_softmax(a + b) * 0.1 + a
            case 13:
                return vpps.tanh(vpps.outer(a, b) @ b * (1 / w))
            case 14:
                m, n = vpps.reshape(vpps.tanh(a), (r, c)), vpps.reshape(vpps.tanh(b), (c, r))
                return vpps.reshape(vpps.tanh((m @ n) @ m * (1 / r)), w)
            case 15:
                return vpps.tanh(vpps.reshape(vpps.reshape(a, (r, c)).T, w) + b)
            case 16:
                y = p.left[w] @ vpps.reshape(a, (r, c))
                return vpps.tanh(vpps.reshape(vpps.concat([y[1:], y[:1]]), w) + b)
            case 17 if lists:
                scores = vpps.each(lambda x: vpps.dot(x, a) * 0.3, lists[0])
                return vpps.sum(vpps.each(lambda s, x: s * x, vpps.softmax(scores), lists[0]))
            case 18 if lists:
                return vpps.max(lists[-1]) + vpps.min(vpps.each(lambda x: vpps.tanh(x) * b, lists[0]))
            case 19 if lists:
                return vpps.mean(vpps.each(lambda p, x: p * vpps.tanh(x), vpps.softmax(lists[0]), lists[0])) - a
            case _:
                return vpps.square(vpps.tanh(a)) + vpps.tanh(b)

    arguments = [f"v{i}" for i in range(drawn.n_vectors)] + [f"xs{i}" for i in range(drawn.n_lists)]
    arguments += ["row"] if drawn.has_int else []
    # The number of arguments belongs to a cell's signature, and their names to the declaration of list elements.
    namespace: dict[str, Callable[..., list[E]]] = {"body": body}  # type: ignore[dict-item]
    vectors = ", ".join(arguments[: drawn.n_vectors])
    lists = ", ".join(arguments[drawn.n_vectors : drawn.n_vectors + drawn.n_lists])
    row = "row" if drawn.has_int else None
    exec(f"def drawn({', '.join(arguments)}): return body([{vectors}], [{lists}], {row})", namespace)
    return vpps.cell(elements={name: (w,) for name in arguments if name.startswith("xs")})(namespace["drawn"])


random_graphs = given(
    drawn=st.lists(cells, min_size=1, max_size=3),
    calls=st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 999), min_size=12, max_size=12)), max_size=14),
    policy=st.sampled_from(list(POLICIES)),
    layout=st.sampled_from(LAYOUTS),
    data=st.integers(0, 10**6),
)


def examples(n: int) -> settings:
    """So many of them, the same ones every time."""
    return settings(max_examples=n, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def random_graph(
    drawn: list[Drawn], calls: list[tuple[int, list[int]]], data: int
) -> tuple[vpps.Model, vpps.Graph, list[E], E]:
    """A random graph of some cells: its model, some of its values, and a loss of these."""
    model = vpps.Model(seed=data)
    p = Parameters(model)
    graph = vpps.Graph()
    rng = np.random.default_rng(data)
    values: dict[int, list[E]] = {
        w: [graph.lookup(p.tables[w], 1), graph.zeros(w), graph.input(rng.normal(size=w)), graph.lookup(p.tables[w], 5)]
        for w in WIDTHS
    }
    made = [(d, random_cell(d, p)) for d in drawn]
    for which, numbers in calls:
        d, cell = made[which % len(made)]
        stock, draw = values[d.width], iter(numbers)
        args: list[object] = [stock[next(draw) % len(stock)] for _ in range(d.n_vectors)]
        for _ in range(d.n_lists):
            length = next(draw) % 4  # empty ones too
            start = next(draw)
            args.append([stock[(start + 3 * k) % len(stock)] for k in range(length)])
        if d.has_int:
            args.append(next(draw) % 6)
        result = graph.call(cell, *args)
        stock.extend(result)
    # Some values are used by the loss, some by nobody.
    used = [v for w in WIDTHS for v in values[w][3::2]] or [values[32][0]]
    loss = vpps.sum([vpps.dot(v, graph.input(rng.normal(size=v.shape))) for v in used]) * (1 / len(used))
    return model, graph, used, loss


def check(drawn: list[Drawn], calls: list[tuple[int, list[int]]], policy: str, layout: str, data: int) -> None:
    """A random graph of some cells agrees with the reference."""
    model, graph, used, loss = random_graph(drawn, calls, data)
    assert_agrees_with_reference(model, graph, loss, used, policy=policy, layout=layout)


test_random_graph_agrees_with_the_reference = examples(100)(random_graphs(check))
