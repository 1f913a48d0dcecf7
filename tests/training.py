"""Training in float64: what any target must come near to, without another one to compare with."""

from __future__ import annotations

import vpps
from tests.fuzz.expected import Expected


class ReferenceTraining(Expected):
    """What a handle does, made of the reference's gradients and the optimizer's own reference.

    Args:
        model: whose weights it begins with; it stays as it is.
        clip_norm, ema: as of a handle.

    Attributes:
        weights, averages: after the updates so far, by name.
    """

    def __init__(
        self, model: vpps.Model, optimizer: vpps.Optimizer, clip_norm: float | None = None, ema: float | None = None
    ) -> None:
        super().__init__(model, optimizer, ema or 0.0, clip_norm)

    def fb(self, graph: vpps.Graph, loss: vpps.Expression, accumulate: bool = False) -> float:
        """As of a handle, but for the loss that it returns: this call's."""
        found = self.accumulate(graph, loss)
        if not accumulate:
            self.update()
        return found
