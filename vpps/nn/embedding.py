"""Embedding tables: lookup of vectors by index."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

import vpps
from vpps.errors import GraphError
from vpps.model.model import Init
from vpps.nn.layer import Layer
from vpps.ops.operand import IntArray, Operand, running


class Embedding(Layer):
    """An embedding table, like `nn.Embedding` without `padding_idx` (a row that is not trained). Call `embedding(i)` in
    a cell, or `embedding(graph, i)` in a graph with an int or an array of ints.

    Args:
        init: initial value of the table, such as an array of pretrained vectors.
        trainable: False freezes the vectors.
        name: name of the parameter. Unlike other layers, this one opens no scope: `groups={"embedding": {"lr": 0.01}}`.

    Example:
        >>> vectors = np.random.default_rng(0).normal(size=(100, 8))
        >>> words = Embedding(vpps.Model(), *vectors.shape, init=vectors, trainable=False)
        >>> words.table.shape
        (100, 8)
    """

    _in_torch = (("weight", "table"),)

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

    def _sizes(self) -> tuple[int, int]:
        return self.table.shape[0], self.table.shape[1]

    @overload
    def __call__(self, i: Any, /) -> vpps.Expression: ...
    @overload
    def __call__(self, graph: vpps.Graph, i: int | np.integer[Any], /) -> vpps.Expression: ...
    @overload
    def __call__(self, graph: vpps.Graph, i: IntArray, /) -> vpps.Rows: ...
    def __call__(self, *given: Any) -> Any:
        """Return a vector of shape (size,) for a cell's argument or an int in a graph; `Rows` for an array of ints."""
        if len(given) == 2 and isinstance(given[0], vpps.Graph):
            return given[0].lookup(self.table, given[1])
        if len(given) == 1 and (isinstance(given[0], Operand) or running.current is not None):
            return vpps.lookup(self.table, given[0])
        raise GraphError(
            f"{self!r}: in a cell call embedding(i) with an int argument; in a graph call embedding(graph, i)"
        )
