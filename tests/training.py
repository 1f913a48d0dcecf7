"""Training in float64: the reference for any target, without comparing with another target."""

from __future__ import annotations

import vpps
from tests.fuzz.expected import Expected


class ReferenceTraining(Expected):
    """A handle's steps, by the reference's gradients and the optimizer's reference.

    Args:
        model: provides the initial weights; it is not changed.
        clip_norm, ema: as for a handle.

    Attributes:
        weights, averages: values after the updates so far, by name.
    """

    def __init__(
        self, model: vpps.Model, optimizer: vpps.Optimizer, clip_norm: float | None = None, ema: float | None = None
    ) -> None:
        super().__init__(model, optimizer, ema or 0.0, clip_norm)

    def fb(self, graph: vpps.Graph, loss: vpps.Expression, accumulate: bool = False) -> float:
        """Do what a handle's `fb` does, but return this call's loss."""
        found = self.accumulate(graph, loss)
        if not accumulate:
            self.update()
        return found
