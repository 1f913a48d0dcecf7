"""What `vpps-train` trains: a network of the zoo together with its data, its loss and its scores."""

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
    """A batch knows how many examples it holds, and how many the mini-batch that it may be a part of."""

    def __len__(self) -> int: ...

    @property
    def whole(self) -> int: ...


class Examples(Protocol[Batch_co]):
    """A set to train on or to evaluate with, such as a `vpps.data.GraphSet`."""

    def __len__(self) -> int: ...

    def __getitem__(self, examples: slice | ArrayLike, /) -> Batch_co: ...

    def batches(
        self, size: int, *, seed: int = 1, epoch: int = 0, shuffle: bool = True, world: World | None = None
    ) -> Iterator[Batch_co]: ...


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
        """How many units that loss is a sum of; of several batches as many as of each."""

    @abstractmethod
    def outputs(self, graph: vpps.Graph, batch: Batch) -> vpps.Rows:
        """What `scores` judges: a row per unit of the loss, such as the logits of every word."""

    @abstractmethod
    def scores(self, results: Iterable[tuple[Batch, NDArray[np.float32]]]) -> dict[str, float]:
        """How good outputs are, by name. The first of them decides which weights are best.

        Args:
            results: batches, and the values of their `outputs`.
        """

    def evaluate(self, handle: vpps.Handle, world: World | None = None) -> dict[str, float]:
        """Scores on the dev data.

        Args:
            world: whose ranks all call this, compute a part each and get the scores of all parts.
        """
        return self.scores(self.results(handle, self.dev, world))

    def results(
        self, handle: vpps.Handle, examples: Examples[Batch], world: World | None = None
    ) -> Iterator[tuple[Batch, NDArray[np.float32]]]:
        """Batches and the values of their outputs, in order; `world` as in `evaluate`."""

        def values(batch: Batch) -> NDArray[np.float32]:
            graph = vpps.Graph()
            return handle.forward(graph, [self.outputs(graph, batch)])[0]

        batches, asked = tee(examples.batches(EVALUATION_BATCH, shuffle=False))
        return zip(batches, in_turns(values, asked, world), strict=True)

    def state(self) -> dict[str, Any]:
        """What must be kept beside weights and settings to make this task again; JSON types."""
        return {}


def in_turns(compute: Callable[[Batch], Result], batches: Iterable[Batch], world: World | None) -> Iterable[Result]:
    """What `compute` makes of each batch, in order. The ranks of a world take turns with whole batches, so that results
    do not depend on their number, and all get all."""
    if world is None or world.size == 1:
        return map(compute, batches)
    found = world.gather([compute(batch) for batch in islice(batches, world.rank, None, world.size)])
    return [found[k % world.size][k // world.size] for k in range(sum(map(len, found)))]
