"""Keeps the latest training step's loss, and reports steps whose loss or gradients are not finite."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Callable
from typing import Literal

from vpps.errors import NonFiniteError

_log = logging.getLogger(__name__)

OnNonfinite = Literal["warn", "raise", "skip"]
ON_NONFINITE: tuple[OnNonfinite, ...] = ("warn", "raise", "skip")


class Losses:
    """The losses of one handle.

    Args:
        on_nonfinite: reaction to a skipped step: warn once, raise, or only count it.
        warns: False if another process, which skips the same steps, issues the warnings.

    Attributes:
        latest: loss of the latest finished step; NaN before the first.
        skipped: number of skipped steps.
    """

    def __init__(self, on_nonfinite: OnNonfinite, warns: bool = True) -> None:
        self.on_nonfinite, self._warns = on_nonfinite, warns
        self.latest = math.nan
        self.skipped = 0
        self._warned = False

    def note(self, step: int, loss: float | None, left_out: bool, dropped: bool, where: Callable[[], str]) -> None:
        """Record the end of a step. Raises NonFiniteError if the step was skipped and `on_nonfinite` is "raise".

        Args:
            loss: loss of the step; None if the user gave gradients instead.
            left_out: True if the step was skipped because its loss or gradients are not finite.
            dropped: True if accumulated gradients were lost with the step; the user is then always told.
            where: callback that returns the origin in the user's words, "" if unknown.
        """
        if loss is not None:
            self.latest = loss
        if not left_out:
            return
        self.skipped += 1
        if not dropped and (self.on_nonfinite == "skip" or (self.on_nonfinite == "warn" and self._warned)):
            return
        what = "gradients are not finite, or too large to be squared"
        if loss is None:
            what = f"step {step}: {what}"
        else:
            what = f"the loss of step {step} is {loss:.6g}{f', but its {what}' if math.isfinite(loss) else ''}"
        try:
            found = where()
        except Exception:  # the message must still be shown
            _log.exception("cannot find where loss or gradients of step %d stopped being finite", step)
            found = ""
        lost = "; the accumulated gradients are discarded" if dropped else ""
        message = (
            f"{what}: the step is left out, and weights, moments and averages do not change{lost}. "
            f"{found + ' ' if found else ''}Lower the learning rate, clip gradients, or check the data"
        )
        if self.on_nonfinite == "raise":
            raise NonFiniteError(message)
        self._warned = True
        if not self._warns:
            return
        warnings.warn(f"{message} (handle.skipped counts such steps)", RuntimeWarning, stacklevel=users_level("vpps"))


def users_level(*packages: str) -> int:
    """Return the `stacklevel` with which a warning from the caller points to the user's code.

    Args:
        packages: packages whose frames are skipped.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in packages:
        frame, level = frame.f_back, level + 1
    return level
