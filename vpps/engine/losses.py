"""The loss of the latest step of training, and what is done about steps whose loss or gradients are not finite."""

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
    """Of one handle.

    Args:
        on_nonfinite: whether a step that is left out is warned of, once, or raises, or is only counted.
        warns: False: another process does, which leaves out the same steps.

    Attributes:
        latest: of the step that ended last, NaN before the first.
        skipped: steps that were left out: they have changed nothing.
    """

    def __init__(self, on_nonfinite: OnNonfinite, warns: bool = True) -> None:
        self.on_nonfinite, self._warns = on_nonfinite, warns
        self.latest = math.nan
        self.skipped = 0
        self._warned = False

    def note(self, step: int, loss: float | None, left_out: bool, dropped: bool, where: Callable[[], str]) -> None:
        """A step has ended. Raises NonFiniteError if that is wanted.

        Args:
            loss: None where gradients were given.
            left_out: whether it changed nothing, as its loss or gradients are not finite.
            dropped: but for what was accumulated, which is lost: nobody goes without a word of that.
            where: finds out where that began, in the user's words; "" if nobody knows.
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
        except Exception:  # what is to be said must be said
            _log.exception("nobody knows where loss or gradients of step %d stopped being finite", step)
            found = ""
        lost = "; the accumulated gradients are discarded" if dropped else ""
        message = (
            f"{what}: the step is left out, and weights, moments and averages are as they were{lost}. "
            f"{found + ' ' if found else ''}Lower the learning rate, clip gradients, or check the data"
        )
        if self.on_nonfinite == "raise":
            raise NonFiniteError(message)
        self._warned = True
        if not self._warns:
            return
        warnings.warn(f"{message} (handle.skipped counts such steps)", RuntimeWarning, stacklevel=users_level("vpps"))


def users_level(*packages: str) -> int:
    """The `stacklevel` of a warning that the caller of this function gives of what the user called.

    Args:
        packages: whose functions may have called it.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in packages:
        frame, level = frame.f_back, level + 1
    return level
