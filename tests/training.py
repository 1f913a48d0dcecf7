"""Training in float64: the reference of any target, without another target to compare with."""

from __future__ import annotations

import vpps
from tests.fuzz.expected import Expected


class ReferenceTraining(Expected):
    """The steps of a handle, by the reference's gradients and the optimizer's own reference.

    Args:
        model: gives the initial weights; it stays unchanged.
        clip_norm, ema: as of a handle.

    Attributes:
        weights, averages: after the updates so far, by name.
    """

    def __init__(
        self, model: vpps.Model, optimizer: vpps.Optimizer, clip_norm: float | None = None, ema: float | None = None
    ) -> None:
        super().__init__(model, optimizer, ema or 0.0, clip_norm)

    def fb(self, graph: vpps.Graph, loss: vpps.Expression, accumulate: bool = False) -> float:
        """Work as a handle's `fb`, but return this call's loss."""
        found = self.accumulate(graph, loss)
        if not accumulate:
            self.update()
        return found
