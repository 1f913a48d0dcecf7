"""The loss of the latest step of training, and what is said of one that is not finite."""

from __future__ import annotations

import math
import warnings
from typing import Literal

from vpps.errors import NonFiniteError

OnNonfinite = Literal["warn", "raise"]


class Losses:
    """Of one handle.

    Args:
        on_nonfinite: whether a loss that is not finite is warned of, once, or raises.

    Attributes:
        latest: of the step that ended last, NaN before the first.
    """

    def __init__(self, on_nonfinite: OnNonfinite) -> None:
        self.on_nonfinite = on_nonfinite
        self.latest = math.nan
        self._warned = False

    def note(self, step: int, loss: float) -> None:
        """A step has ended. Raises NonFiniteError if that is wanted."""
        self.latest = loss
        if math.isfinite(loss):
            return
        message = f"the loss of step {step} is {loss}; lower the learning rate, clip gradients, or check the data"
        if self.on_nonfinite == "raise":
            raise NonFiniteError(message)
        if not self._warned:
            self._warned = True
            warnings.warn(message, RuntimeWarning, stacklevel=5)
