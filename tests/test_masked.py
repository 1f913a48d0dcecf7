"""NumPy's masked arrays are refused wherever vpps takes arrays or numbers: NumPy's conversions drop the mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.data import GraphSet

pytestmark = pytest.mark.host
CHAIN = np.array([[-1], [0], [1]])


def masked(array: Any) -> Any:
    """Return the same numbers with the last one masked out."""
    numbers = np.asarray(array)
    mask = np.zeros(numbers.shape, bool)
    mask[(-1,) * numbers.ndim] = True
    return np.ma.masked_array(numbers, mask=mask)  # type: ignore[no-untyped-call]


class CallArguments:
    """Arguments for the calls below."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        self.W, self.E = self.model.parameter("W", (3, 3)), self.model.lookup("E", (5, 3))
        self.graph = vpps.Graph()
        self.rows = self.graph.rows(np.ones((3, 3)))

    def map(self, **changed: Any) -> None:
        """Map twice; the compiled recorder records the second map if it can."""
        good = {"children": CHAIN, "inputs": {"w": np.arange(3)}, "levels": np.arange(3)}
        table = self.E

        @vpps.cell
        def chain(w: Any, h: Any) -> Any:
            return vpps.lookup(table, w) + h

        self.graph.map(chain, **good)
        self.graph.map(chain, **good | changed)

    def halves(self) -> vpps.Handle:
        handle = vpps.Handle(self.model, vpps.SGD(0.1))
        handle.forward(self.graph, [self.W @ self.rows], keep=True)
        return handle

    def set(self, **changed: Any) -> GraphSet:
        return GraphSet(**{"sizes": [2, 1], "children": CHAIN[[0, 1, 0]], "columns": {"word": np.arange(3)}} | changed)


SQUARE, INTS = masked(np.ones((3, 3))), masked(np.arange(3))
PLACES: dict[str, Callable[[CallArguments], Any]] = {
    "init": lambda x: x.model.parameter("V", (3, 3), init=SQUARE),
    "init by a function": lambda x: x.model.parameter("V", (3, 3), init=lambda rng, shape: SQUARE),
    "init, a number": lambda x: x.model.parameter("V", (3, 3), init=masked(2.0)),
    "shape": lambda x: x.model.parameter("V", (3, masked(3))), "assign": lambda x: x.W.assign(SQUARE),
    "assign rows": lambda x: x.W.assign([masked([1, 2, 3])] * 3),
    "assign lists": lambda x: x.W.assign([[1, 2, 3], [1, np.ma.masked, 3], (1, 2, 3)]),
    "input": lambda x: x.graph.input(masked([1.0, 2.0])), "rows": lambda x: x.graph.rows(SQUARE, grad=True),
    "lookup": lambda x: x.graph.lookup(x.E, INTS), "lookup of one": lambda x: x.graph.lookup(x.E, masked(1)),
    "labels": lambda x: vpps.cross_entropy(x.rows, INTS), "label": lambda x: vpps.pick(x.rows[0], masked(1)),
    "rows by ints": lambda x: x.rows[INTS], "rows by bools": lambda x: x.rows[masked([True, False, True])],
    "a slice of rows": lambda x: x.rows[0 : masked(2)], "constant": lambda x: x.rows * masked(2.0),
    "masked constant": lambda x: x.rows[0] > np.ma.masked, "map, children": lambda x: x.map(children=masked(CHAIN)),
    "map, CSR": lambda x: x.map(children=(masked([0, 0, 1, 2]), np.arange(2))),
    "map, levels": lambda x: x.map(levels=INTS), "map, kind": lambda x: x.map(kind=masked([0, 0, 0])),
    "map, ints": lambda x: x.map(inputs={"w": INTS}), "map, floats": lambda x: x.map(inputs={"w": SQUARE}),
    "map, examples": lambda x: x.map(examples=INTS), "seed": lambda x: x.halves().backward([SQUARE]),
    "gradient": lambda x: x.halves().apply({"W": SQUARE.astype(np.float32)}),
    "rows of gradients": lambda x: x.halves().apply({"E": (INTS, np.ones((3, 3), np.float32))}),
    "rate": lambda x: vpps.SGD(masked(0.1)), "sizes": lambda x: x.set(sizes=masked([2, 1])),
    "children": lambda x: x.set(children=masked(CHAIN[[0, 1, 0]])),
    "lists of children": lambda x: x.set(children=([0, 0, 1, 1], masked([0]))),
    "column": lambda x: x.set(columns={"word": INTS}),
    "column of edges": lambda x: x.set(edge_columns={"role": masked(CHAIN)}),
    "column of graphs": lambda x: x.set(graph_columns={"label": masked([1, 2])}),
    "kind": lambda x: x.set(kind=masked([0, 0, 0])), "graphs": lambda x: x.set()[masked([0, 1])],
    "subset": lambda x: x.set().subset(masked([True, False])),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_masked_elements_are_refused(place: str) -> None:
    with pytest.raises(vpps.DtypeError, match="the array has masked elements: fill them"):
        PLACES[place](CallArguments())


def test_a_mask_of_nothing_is_no_mask() -> None:
    given = CallArguments()
    given.W.assign(np.ma.masked_array(np.full((3, 3), 2.0), mask=False))  # type: ignore[no-untyped-call]
    assert given.W.numpy().tolist() == [[2.0] * 3] * 3
    itself: list[Any] = [1.0, INTS.data]
    itself.append(itself)
    with pytest.raises(vpps.DtypeError, match="cannot be read as an array"):
        given.W.assign(itself)
