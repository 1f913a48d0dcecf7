"""Tables of vectors, by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

import numpy as np

import vpps
from vpps.errors import GraphError
from vpps.model.model import Init
from vpps.nn.layer import Assignments, Layer
from vpps.ops.operand import IntArray, Operand, running
from vpps.values import Float32


class Embedding(Layer):
    """Row i of a table: `embedding(i)` in a cell, `embedding(graph, i)` in a graph, where i may be an array. As
    `nn.Embedding`, but without its `padding_idx`, a row that is not trained.

    Args:
        init: of the table; an array of pretrained vectors, for example.
        trainable: False keeps the vectors as they are.
        name: of the parameter, scopes before it and nothing behind: `groups={"embedding": {"lr": 0.01}}`.

    Example:
        >>> vectors = np.random.default_rng(0).normal(size=(100, 8))
        >>> words = Embedding(vpps.Model(), *vectors.shape, init=vectors, trainable=False)
        >>> words.table.shape
        (100, 8)
    """

    def __init__(
        self,
        model: vpps.Model,
        rows: int,
        size: int,
        *,
        init: Init | None = None,
        trainable: bool = True,
        name: str = "embedding",
    ) -> None:
        self.name = name
        self.table = model.lookup(name, (rows, size), init=init, trainable=trainable)

    def _given(self) -> dict[str, Float32]:
        return {"weight": self.table.numpy()}

    def _taken(self, given: Mapping[str, Float32]) -> Assignments:
        return [(self.table, given["weight"])]

    def _sizes(self) -> tuple[int, int]:
        return self.table.shape[0], self.table.shape[1]

    @overload
    def __call__(self, i: Any, /) -> vpps.Expression: ...
    @overload
    def __call__(self, graph: vpps.Graph, i: int | np.integer[Any], /) -> vpps.Expression: ...
    @overload
    def __call__(self, graph: vpps.Graph, i: IntArray, /) -> vpps.Rows: ...
    def __call__(self, *given: Any) -> Any:
        """The vector of shape (size,) of a cell's argument, or of an int in a graph; `Rows` of an array of ints."""
        if len(given) == 2 and isinstance(given[0], vpps.Graph):
            return given[0].lookup(self.table, given[1])
        if len(given) == 1 and (isinstance(given[0], Operand) or running.current is not None):
            return vpps.lookup(self.table, given[0])
        raise GraphError(
            f"{self!r}: in a cell call it on an int argument, embedding(i); in a graph embedding(graph, i)"
        )
