"""What tasks have in common whose graphs have one label each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.zoo.task import Task


class GraphLabelTask(Task[GraphBatch]):
    """Column `label` of graphs, from the network's `logits`, a row per graph."""

    network: Any

    def loss(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Expression:
        loss: vpps.Expression = self.network.loss(graph, batch)
        return loss

    def units(self, batch: GraphBatch) -> int:
        return len(batch)

    def outputs(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        logits: vpps.Rows = self.network.logits(graph, batch)
        return logits

    def scores(self, results: Iterable[tuple[GraphBatch, NDArray[np.float32]]]) -> dict[str, float]:
        """Accuracy of the graphs' labels."""
        right = total = 0
        for batch, logits in results:
            right += int((logits.argmax(axis=1) == batch["label"]).sum())
            total += len(batch)
        return {"dev accuracy": right / total}
