"""Inputs for the end of a launch: the optimizer's step, averages of the weights, and the table rows that are used."""

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
    """Moving averages of the weights.

    Attributes:
        decay: average = decay * average + (1 - decay) * weights.
        idle: (table, rows) -> for each row, the factor by which its average approached the weights since its last
            update.
    """

    decay: float
    idle: Callable[[Parameter, NDArray[np.int64]], NDArray[np.float32]]


class Ending(NamedTuple):
    """The part of a launch's end that is the same for all updates.

    Attributes:
        distribution: places of the parameters.
        rule: name of the optimizer; None if no launch updates parameters.
        averaging: averages of the weights, or None.
    """

    distribution: Distribution
    rule: str | None
    averaging: Averaging | None


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the parameters.

    Attributes:
        optimizer: its rule and hyper-parameters.
        number: number of the update, from 1, for schedules.
        step: number of the update, for the bias correction of parameters without `counts`.
        clip_norm: bound of the gradients' global norm, or None.
        averaging: averages of the weights, or None.
        counts: additional steps that a parameter has taken, by name. A change of counts needs a new object.
    """

    optimizer: Optimizer
    number: int
    step: int
    clip_norm: float | None
    averaging: Averaging | None = None
    counts: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)
    _rules: dict[str | None, Optimizer] = field(default_factory=dict, compare=False)

    def hyper(self, parameter: str, group: str | None) -> array[float]:
        """Hyper-parameters of the parameter with this name. Each group evaluates its schedule once."""
        if group not in self._rules:
            self._rules[group] = self.optimizer.at(self.number, parameter)
        return self._rules[group].hyper(self.step + self.counts.get(parameter, 0))


@dataclass(frozen=True, slots=True)
class UsedRows:
    """The rows of a lookup table that a batch uses.

    Attributes:
        rows: their numbers, sorted, without duplicates.
        gradient: address of their gradients, one row each; 0 if these are added to the table's gradient.
        offsets: script position of the CSR offsets into the addresses of the gradient rows to sum.
        numbers: script position of `rows`, or of the addresses of their rows in the table's gradient.
        idle: script position of the factors for their averages, or 0.
    """

    rows: NDArray[np.int64]
    gradient: int
    offsets: int
    numbers: int
    idle: int


def step_fields(place: ParameterPlace, averaging: Averaging | None) -> dict[str, Any]:
    """Fields for a step's instruction: the addresses of a parameter's weights, moments and average."""
    moment0, moment1 = (*place.moments, 0, 0)[:2]
    return {
        "weights": place.weights,
        "transposed": place.transposed,
        "moment0": moment0,
        "moment1": moment1,
        "average": place.average,
        "complement": 1 - averaging.decay if averaging is not None else 0.0,
    }
