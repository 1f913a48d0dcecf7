"""Tables of vectors, by number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import vpps
from vpps.model.model import Init
from vpps.nn.layer import Assignments, Layer
from vpps.values import Float32


class Embedding(Layer):
    """Row i of a table: `Embedding(...)(i)` in a cell, `graph.lookup(embedding.table, i)` in a graph, where i may be an
    array. As `nn.Embedding`, but without its `padding_idx`, a row that is not trained.

    Args:
        init: of the table; an array of pretrained vectors, for example.
        trainable: False keeps the vectors as they are.

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
        self.table = model.lookup(name, (rows, size), init=init, trainable=trainable)

    def _given(self) -> dict[str, Float32]:
        return {"weight": self.table.numpy()}

    def _taken(self, given: Mapping[str, Float32]) -> Assignments:
        return [(self.table, given["weight"])]

    def __call__(self, i: Any) -> vpps.Expression:
        """The vector of shape (size,) of a cell's argument."""
        return vpps.lookup(self.table, i)
