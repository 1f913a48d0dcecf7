"""Task: a network of the zoo with its data, loss and scores, as `vpps-train` trains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, tee
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

import vpps
from vpps.distributed import World

Batch = TypeVar("Batch", bound="Sized")
Batch_co = TypeVar("Batch_co", bound="Sized", covariant=True)
Result = TypeVar("Result")

EVALUATION_BATCH = 64


class Sized(Protocol):
    """A batch that knows its number of examples (`len`) and the number in all ranks' mini-batch (`whole`)."""

    def __len__(self) -> int: ...

    @property
    def whole(self) -> int: ...


class Examples(Protocol[Batch_co]):
    """A set for training or evaluation, such as a `vpps.data.GraphSet`."""

    def __len__(self) -> int: ...

    def __getitem__(self, examples: slice | ArrayLike, /) -> Batch_co: ...

    def batches(
        self, size: int, *, seed: int = 1, epoch: int = 0, shuffle: bool = True, world: World | None = None
    ) -> Iterator[Batch_co]: ...


def setting(default: Any, help: str, *, min: float | None = None, shapes_model: bool = False) -> Any:
    """Declare a field of `Settings`, which becomes an option of the task's command.

    Args:
        shapes_model: True if weights depend on the setting, so that a resumed run must not change it.
    """
    return field(default=default, metadata={"help": help, "min": min, "shapes_model": shapes_model})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of every task. Each task adds the sizes of its network."""

    data: Path | None = setting(None, "Real data: a file or folder; see the end of this page. Without: synthetic data.")
    limit: int | None = setting(None, "Use only the first N training examples.", min=1)
    seed: int = setting(1, "Initial weights and the order of the data follow from it.", min=0)


class Task(ABC, Generic[Batch]):
    """A network to train. The constructor reads the data and declares the parameters, but runs nothing.

    Attributes:
        name: name in `vpps-train NAME`.
        settings_type: class of the task's settings.
        training: default options of the training loop: epochs, batch_size, optimizer, lr.
        data_help: data that `--data` accepts, for the command's help.
        lower_is_better: True if a lower first score is better.
        model: model with the parameters.
        network: network of `vpps.zoo`.
        train, dev: data for training and for evaluation.
        unit: unit that the reported loss is averaged over, such as "node".
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
        """Read the data, and declare the network's parameters.

        Args:
            settings: an instance of `settings_type`.
            state: result of `state()` from the checkpoint; None in a new run.

        Raises:
            DataError: a file is missing or malformed, or holds classes that the resumed network does not know.
        """

    @property
    def description(self) -> str:
        """Sizes of data and model, for the first line of output."""
        return f"{len(self.train)} train and {len(self.dev)} dev examples, {self.model.n_weights} weights"

    @abstractmethod
    def loss(self, graph: vpps.Graph, batch: Batch) -> vpps.Expression:
        """Return the loss of a mini-batch, summed over its units; a scalar."""

    @abstractmethod
    def units(self, batch: Batch) -> int:
        """Return the number of units in the loss of a batch. It is additive over batches."""

    @abstractmethod
    def outputs(self, graph: vpps.Graph, batch: Batch) -> vpps.Rows:
        """Return the input of `scores`: one row per unit of the loss, such as the logits of every word."""

    @abstractmethod
    def scores(self, results: Iterable[tuple[Batch, NDArray[np.float32]]]) -> dict[str, float]:
        """Return scores of the outputs by name. The first score selects the best weights.

        Args:
            results: batches with the values of their `outputs`.
        """

    def evaluate(self, handle: vpps.Handle, world: World | None = None) -> dict[str, float]:
        """Return scores on the dev data.

        Args:
            world: all its ranks must call this; each computes a part, and all get the scores of the whole.
        """
        return self.scores(self.results(handle, self.dev, world))

    def results(
        self, handle: vpps.Handle, examples: Examples[Batch], world: World | None = None
    ) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
        """Return batches with the values of their outputs, in order; `world` as in `evaluate`."""

        def values(batch: Batch) -> NDArray[np.float32]:
            graph = vpps.Graph()
            return handle.forward(graph, [self.outputs(graph, batch)])[0]

        batches, asked = tee(examples.batches(EVALUATION_BATCH, shuffle=False))
        return zip(batches, in_turns(values, asked, world), strict=True)

    def state(self) -> dict[str, Any]:
        """Return, as JSON types, what a checkpoint needs besides weights and settings to recreate this task."""
        return {}


def in_turns(compute: Callable[[Batch], Result], batches: Iterable[Batch], world: World | None) -> Iterable[Result]:
    """Apply `compute` to every batch, and return the results in order. The ranks of a world take whole batches in turn,
    so that results do not depend on the number of ranks. Every rank gets all results."""
    if world is None or world.size == 1:
        return map(compute, batches)
    found = world.gather([compute(batch) for batch in islice(batches, world.rank, None, world.size)])
    return [found[k % world.size][k // world.size] for k in range(sum(map(len, found)))]
