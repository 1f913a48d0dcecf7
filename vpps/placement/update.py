"""What the end of a launch does with gradients: the optimizer's step, averages of the weights, rows of tables."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.model.model import Parameter
from vpps.model.optim import Optimizer
from vpps.placement.distribution import Distribution, ParameterPlace

NO_COUNTS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Averaging:
    """How the moving averages of the weights follow an update.

    Attributes:
        decay: average = decay * average + (1 - decay) * weights.
        idle: factor by which the averages of some rows of a table approached the weights since they were last updated.
    """

    decay: float
    idle: Callable[[Parameter, NDArray[np.int64]], NDArray[np.float32]]


class Ending(NamedTuple):
    """What the end of a launch does with which parameters.

    Attributes:
        rule: name of the optimizer; None where no launch makes a step.
        averaging: of the weights, or None.
    """

    distribution: Distribution
    rule: str | None
    averaging: Averaging | None


@dataclass(frozen=True, slots=True)
class Update:
    """What the end of a launch does with the gradients.

    Attributes:
        optimizer: its rule and hyper-parameters.
        number: of the update, from 1, for schedules.
        step: the same, for bias correction, of a parameter that is not among `counts`.
        clip_norm: bound of the gradients' global norm, or None.
        averaging: of the weights, or None.
        counts: by name, how many more steps a parameter has taken. Another object when they are others.
    """

    optimizer: Optimizer
    number: int
    step: int
    clip_norm: float | None
    averaging: Averaging | None = None
    counts: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)
    _rules: dict[str | None, Optimizer] = field(default_factory=dict, compare=False)

    def hyper(self, parameter: str, group: str | None) -> array[float]:
        """Hyper-parameters of a parameter, by name, and of others of its group and count; a schedule is asked once."""
        if group not in self._rules:
            self._rules[group] = self.optimizer.at(self.number, parameter)
        return self._rules[group].hyper(self.step + self.counts.get(parameter, 0))


@dataclass(frozen=True, slots=True)
class UsedRows:
    """Rows of a lookup table that a batch uses.

    Attributes:
        rows: their numbers, sorted, each once.
        gradient: address of their gradients, a row each; 0 where they go to the table's own gradient.
        offsets: script position of the CSR offsets into the addresses of the gradient rows to sum.
        numbers: script position of `rows`, or of the addresses of their gradients in the table's own.
        idle: script position of the factors of their averages, or 0.
    """

    rows: NDArray[np.int64]
    gradient: int
    offsets: int
    numbers: int
    idle: int


def step_fields(place: ParameterPlace, averaging: Averaging | None) -> dict[str, Any]:
    """Fields of an optimizer's step that say where the weights, moments and average of a parameter are."""
    moment0, moment1 = (*place.moments, 0, 0)[:2]
    return {
        "weights": place.weights,
        "transposed": place.transposed,
        "moment0": moment0,
        "moment1": moment1,
        "average": place.average,
        "complement": 1 - averaging.decay if averaging is not None else 0.0,
    }
