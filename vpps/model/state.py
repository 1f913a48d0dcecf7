"""Training state besides weights and moments. The Model owns it, so that it outlives handles and is saved."""

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
    """Summed gradients of `fb(accumulate=True)` calls, until an update uses them.

    Attributes:
        calls: number of these calls.
        gradients: sums by parameter name; for a lookup table only the rows with a gradient, in the order of `rows`.
        rows: sorted row numbers by table name.
    """

    calls: int
    gradients: dict[str, Float32] = field(default_factory=dict)
    rows: dict[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass
class Averages:
    """Exponential moving averages of the weights: average = decay * average + (1 - decay) * weights after each update,
    starting from the weights before the first update.

    An average of the iterates generalises better than the last iterate (Polyak & Juditsky 1992 use equal weights; the
    exponential form is common practice). It starts from weights, not from zeros, and so needs no bias correction.

    Table rows are averaged lazily. If k updates leave a row unchanged, its distance from its average shrinks by the
    factor decay^k. That factor is applied when the row is next updated, read or assigned.

    Attributes:
        decay: decay of the average, in [0, 1).
        updates: number of updates so far.
        values: averages by parameter name; for a table, each row's average as of its last update.
        current: number of updates that each row's average includes, by table name.
    """

    decay: float
    updates: int = 0
    values: dict[str, Float32] = field(default_factory=dict)
    current: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def of(self, p: Parameter) -> Float32:
        """Return a copy of a parameter's average, or of its weights if it is frozen. Its weights must be current."""
        value = self.values.get(p.name)
        if value is None or not p.trainable:
            return p.host.copy()
        if p.name not in self.current:
            return value.copy()
        factor = factors(self.decay, self.updates, self.current[p.name]).reshape((-1,) + (1,) * (value.ndim - 1))
        weights = p.host.astype(np.float64)
        return np.where(factor == 1, value, weights + factor * (value - weights)).astype(np.float32)

    def catch_up(self, p: Parameter) -> None:
        """Bring a parameter's whole average up to date, before its weights or the decay change."""
        if p.name in self.current:
            self.values[p.name] = self.of(p)
            self.current[p.name] = np.full(len(self.current[p.name]), self.updates)

    def forget(self, p: Parameter) -> None:
        """Restart a parameter's average from its weights."""
        self.values.pop(p.name, None)
        self.current.pop(p.name, None)


def factors(decay: float, updates: int, current: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return decay^k per row, where k counts the updates since the row's average was current."""
    return (decay ** (updates - current).astype(np.float64)).astype(np.float32)
