"""What the tasks of `vpps-train` have in common: how networks are made and asked, scores of classes and of words."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch, GraphSet
from vpps.zoo.task import Batch, Task
from vpps.zoo.tasks.files import names_of


class NetworkTask(Task[Batch]):
    """A network of vpps.zoo and its data.

    Attributes:
        network_type: the network, whose arguments are settings or attributes of the task, by name; others are as they
            are by default.
        summary: what the sets hold and what is known of it, a format of `task`.
    """

    network_type: ClassVar[Callable[..., Any]]
    summary: ClassVar[str] = "examples"

    def __init__(self, settings: Any, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.load(settings, state)
        self.model = vpps.Model(seed=settings.seed)
        self.network = self.make_network()

    @abstractmethod
    def load(self, settings: Any, state: Mapping[str, Any] | None) -> None:
        """Set `train`, `dev` and what they tell of the network's sizes; real data, or synthetic where there is none."""

    def make_network(self) -> Any:
        """Declare the parameters in `self.model`."""
        arguments = {}
        for name, parameter in inspect.signature(self.network_type).parameters.items():
            owner = self.settings if hasattr(self.settings, name) else self
            if name != "model" and (hasattr(owner, name) or parameter.default is parameter.empty):
                arguments[name] = getattr(owner, name)
        return self.network_type(self.model, **arguments)

    @property
    def description(self) -> str:
        sets = f"{len(self.train)} train and {len(self.dev)} dev"
        return f"{sets} {self.summary.format(task=self)}, {self.model.n_weights} weights"

    def state(self) -> dict[str, Any]:
        assert isinstance(self.train, GraphSet)
        return {"names": names_of(self.train)}

    def loss(self, graph: vpps.Graph, batch: Batch) -> vpps.Expression:
        loss: vpps.Expression = self.network.loss(graph, batch)
        return loss

    def outputs(self, graph: vpps.Graph, batch: Batch) -> vpps.Rows:
        logits: vpps.Rows = self.network.logits(graph, batch)
        return logits


class GraphLabelTask(NetworkTask[GraphBatch]):
    """Column `label` of graphs, of which the network's `logits` have a row each."""

    train: GraphSet
    dev: GraphSet

    def units(self, batch: GraphBatch) -> int:
        return len(batch)

    def scores(self, results: Iterable[tuple[GraphBatch, NDArray[np.float32]]]) -> dict[str, float]:
        """Accuracy of the graphs' labels."""
        right = total = 0
        for batch, logits in results:
            right += int((logits.argmax(axis=1) == batch["label"]).sum())
            total += len(batch)
        return {"dev accuracy": right / total}


class NextWordTask(NetworkTask[GraphBatch]):
    """The words of a text, each from those before it."""

    lower_is_better: ClassVar[bool] = True
    unit = "word"
    train: GraphSet
    dev: GraphSet

    def outputs(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The cross entropy of every word: one number, where the logits would be thousands."""
        losses: vpps.Rows = self.network.losses(graph, batch)
        return losses

    def scores(self, results: Iterable[tuple[GraphBatch, NDArray[np.float32]]]) -> dict[str, float]:
        """Perplexity: the exponential of the mean cross entropy of all words.

        It is infinite where training has diverged so far that no float holds it.
        """
        total, n = 0.0, 0
        for _, losses in results:
            total += float(losses.sum(dtype=np.float64))
            n += len(losses)
        with np.errstate(over="ignore"):
            return {"dev perplexity": float(np.exp(total / n))}
