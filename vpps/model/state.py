"""What training keeps beside weights and moments; owned by the Model, so that it outlives handles and is saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpps.values import Float32

if TYPE_CHECKING:
    from vpps.model.model import Parameter


@dataclass
class AccumulatedGradients:
    """Sums of the gradients of calls `fb(accumulate=True)`, which no update has used yet.

    Attributes:
        calls: number of them.
        gradients: by parameter name; of a lookup table only the rows that have one, in the order of `rows`.
        rows: their numbers, sorted, by the name of the table.
    """

    calls: int
    gradients: dict[str, Float32] = field(default_factory=dict)
    rows: dict[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass
class Averages:
    """Exponential moving averages of the weights: average = decay * average + (1 - decay) * weights after each update,
    beginning with the weights before the first one.

    An average of the iterates generalises better than the last of them (Polyak & Juditsky 1992 average all alike; the
    exponential form is common practice). As it begins with weights and not with zeros it needs no bias correction.

    A row of a table that updates leave alone is averaged lazily: while its weights stand still for k updates, its
    average approaches them by the factor decay^k, which is applied when the row is next updated, read or assigned.

    Attributes:
        decay: of the average, in [0, 1).
        updates: number of them so far.
        values: by parameter name; of a table as they were when each row was last updated.
        current: of tables, by name: the number of updates that each row's average includes.
    """

    decay: float
    updates: int = 0
    values: dict[str, Float32] = field(default_factory=dict)
    current: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def of(self, p: Parameter) -> Float32:
        """The average of a parameter whose weights are current; a copy. The weights, where it is not trained."""
        value = self.values.get(p.name)
        if value is None or not p.trainable:
            return p.host.copy()
        if p.name not in self.current:
            return value.copy()
        factor = factors(self.decay, self.updates, self.current[p.name]).reshape((-1,) + (1,) * (value.ndim - 1))
        weights = p.host.astype(np.float64)
        return np.where(factor == 1, value, weights + factor * (value - weights)).astype(np.float32)

    def catch_up(self, p: Parameter) -> None:
        """Bring all of a parameter's average up to date, because its weights or the decay are about to change."""
        if p.name in self.current:
            self.values[p.name] = self.of(p)
            self.current[p.name] = np.full(len(self.current[p.name]), self.updates)

    def forget(self, p: Parameter) -> None:
        """Let the average of a parameter begin anew, with its weights."""
        self.values.pop(p.name, None)
        self.current.pop(p.name, None)


def factors(decay: float, updates: int, current: NDArray[np.int64]) -> NDArray[np.float32]:
    """How much of its distance from the weights the average of each row keeps, after the updates that passed it by."""
    return (decay ** (updates - current).astype(np.float64)).astype(np.float32)
