"""An LSTM in both directions over chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.nn.layer import REVERSE, Assignments, Recurrent
from vpps.nn.lstm import LSTM, State, map_chains
from vpps.values import Float32


class BiLSTM(Recurrent):
    """Two LSTMs, one from the first vertex of every chain to the last, one back (Graves & Schmidhuber 2005).

    Neither reads the other, so that level k of both runs at once: as many steps as the longest chain has vertices. As
    `nn.LSTM(bidirectional=True)`, of which it loads a layer: "l0" is both of its directions.

    Args:
        table: inputs are rows of this embedding table; without it, vectors.
    """

    _directions = ("", REVERSE)

    def __init__(
        self,
        model: vpps.Model,
        input_size: int,
        hidden_size: int,
        *,
        table: vpps.Lookup | None = None,
        name: str = "bilstm",
    ) -> None:
        self.name = name
        self.table = table
        with model.scope(name):
            self.forward = LSTM(model, input_size, hidden_size, name="forward")
            self.backward = LSTM(model, input_size, hidden_size, name="backward")

    def _sizes(self) -> tuple[int, int]:
        return self.forward._sizes()

    def _given(self) -> dict[str, Float32]:
        return self.forward._given() | {name + REVERSE: weights for name, weights in self.backward._given().items()}

    def _taken(self, given: Mapping[str, Float32]) -> Assignments:
        back = {name.removesuffix(REVERSE): weights for name, weights in given.items() if name.endswith(REVERSE)}
        return self.forward._taken(given) + self.backward._taken(back)

    def _vector(self, x: Any) -> vpps.Expression:
        return x if self.table is None else vpps.lookup(self.table, x)

    @vpps.cell
    def begin_forward(self, x: Any) -> State:
        """(h, c) of the first vertex."""
        return self.forward.begin(self._vector(x))

    @vpps.cell
    def step_forward(self, x: Any, h: vpps.Expression, c: vpps.Expression) -> State:
        """(h, c) of any other, from those of the one before."""
        return self.forward.step(self._vector(x), h, c)

    @vpps.cell
    def begin_backward(self, x: Any) -> State:
        """(h, c) of the last vertex."""
        return self.backward.begin(self._vector(x))

    @vpps.cell
    def step_backward(self, x: Any, h: vpps.Expression, c: vpps.Expression) -> State:
        """(h, c) of any other, from those of the one behind."""
        return self.backward.step(self._vector(x), h, c)

    def __call__(
        self, graph: vpps.Graph, chains: GraphBatch, x: NDArray[np.int32] | vpps.Rows
    ) -> tuple[vpps.Rows, vpps.Rows]:
        """The state h of every vertex in the forward and in the backward direction, each (hidden_size,).

        Args:
            chains: every vertex has at most one child, the one before it; for example `vpps.data.read_tagged`.
            x: the input of every vertex: (vertices,) rows of the table, or vectors where there is no table.
        """
        forward = map_chains(graph, chains, self.begin_forward, self.step_forward, x=x)
        return forward, map_chains(graph, chains.reversed, self.begin_backward, self.step_backward, x=x)
