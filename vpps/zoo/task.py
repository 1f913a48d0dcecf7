"""What `vpps-train` trains: a network of the zoo together with its data, its loss and its scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

import vpps

Batch = TypeVar("Batch", bound="Sized")
Batch_co = TypeVar("Batch_co", bound="Sized", covariant=True)

EVALUATION_BATCH = 64


class Sized(Protocol):
    """A batch knows how many examples it holds."""

    def __len__(self) -> int: ...


class Examples(Protocol[Batch_co]):
    """A set to train on or to evaluate with, such as a `vpps.data.GraphSet`."""

    def __len__(self) -> int: ...

    def __getitem__(self, examples: slice | ArrayLike) -> Batch_co: ...

    def batches(self, size: int, *, seed: int = 1, epoch: int = 0, shuffle: bool = True) -> Iterator[Batch_co]: ...


def setting(default: Any, help: str, *, min: float | None = None, shapes_model: bool = False) -> Any:
    """A field of `Settings`, and thereby an option of the task's command.

    Args:
        shapes_model: the weights depend on it, so a resumed run may not change it.
    """
    return field(default=default, metadata={"help": help, "min": min, "shapes_model": shapes_model})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every task can be told. Tasks add the sizes of their network."""

    data: Path | None = setting(None, "Real data: a file or folder; see the end of this page. Without: synthetic data.")
    limit: int | None = setting(None, "Use only the first N training examples.", min=1)
    seed: int = setting(1, "Initial weights and the order of the data follow from it.", min=0)


class Task(ABC, Generic[Batch]):
    """A network to train. Making one reads the data and declares the parameters; nothing runs.

    Attributes:
        name: `vpps-train NAME`.
        settings_type: what it can be told.
        training: settings of the training loop that suit it, by option: epochs, batch_size, optimizer, lr.
        data_help: which data `--data` takes, for the command's help.
        lower_is_better: whether the first of the scores is better when it is lower.
        model: the parameters.
        network: of `vpps.zoo`.
        train, dev: the data.
        unit: what the reported loss is an average over, such as "node".
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings
    training: ClassVar[Mapping[str, Any]] = {}
    data_help: ClassVar[str] = ""
    lower_is_better: ClassVar[bool] = False

    model: vpps.Model
    network: Any
    train: Examples[Batch]
    dev: Examples[Batch]
    unit: str = "example"

    @abstractmethod
    def __init__(self, settings: Any, state: Mapping[str, Any] | None = None) -> None:
        """Args:
            settings: of `settings_type`.
            state: what `state()` returned when a checkpoint was written; None in a fresh run.

        Raises:
            DataError: a file is missing or malformed, or has what the resumed network does not know.
        """

    @property
    def description(self) -> str:
        """Sizes of data and model, for the first line of output."""
        return f"{len(self.train)} train and {len(self.dev)} dev examples, {self.model.n_weights} weights"

    @abstractmethod
    def loss(self, graph: vpps.Graph, batch: Batch) -> vpps.Expression:
        """The loss of a mini-batch, summed over its units; a scalar."""

    @abstractmethod
    def units(self, batch: Batch) -> int:
        """How many units that loss is a sum of."""

    @abstractmethod
    def outputs(self, graph: vpps.Graph, batch: Batch) -> vpps.Rows:
        """What `scores` judges: a row per unit of the loss, such as the logits of every word."""

    @abstractmethod
    def scores(self, results: Iterable[tuple[Batch, NDArray[np.float32]]]) -> dict[str, float]:
        """How good outputs are, by name. The first of them decides which weights are best.

        Args:
            results: batches, and the values of their `outputs`.
        """

    def evaluate(self, handle: vpps.Handle) -> dict[str, float]:
        """Scores on the dev data."""
        return self.scores(self.results(handle, self.dev))

    def results(self, handle: vpps.Handle, examples: Examples[Batch]) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
        """Batches and the values of their outputs, in order."""
        for batch in examples.batches(EVALUATION_BATCH, shuffle=False):
            graph = vpps.Graph()
            (values,) = handle.forward(graph, [self.outputs(graph, batch)])
            yield batch, values

    def state(self) -> dict[str, Any]:
        """What must be kept beside weights and settings to make this task again; JSON types."""
        return {}
