"""Parameters and results of a CUDA launch. The results are the loss, or the reason and place of a stop.

Kernels write results to page-locked memory of the host, so that nothing has to be copied between two launches. The
host reads them after the launch has ended, when its writes are visible.
"""

from __future__ import annotations

import ctypes

import numpy as np

from vpps.config import PATIENCE
from vpps.ops.element import FLOAT32, WORD_BYTES
from vpps.placement.distribution import FIRST_FREE
from vpps.runtime.driver import Driver
from vpps.runtime.machine import Failure

# The kernel's report: position + 1 of the instruction that stopped the launch, or 0; the reason; then for every virtual
# processor the position at which it left early, or 0.
_REPORT_WORDS = 2
_UNKNOWN_OPCODE, _CLOCK_LIMIT = 1, 2
_PLACES_NAMED = 6  # largest number of places in a message


class LaunchParameters(ctypes.Structure):
    """The kernel's parameter: `struct Launch` in templates/cuda/prelude.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("pool", "script", "counters", "cleared", "report")),
        ("patience", ctypes.c_ulonglong),
        ("stopped", ctypes.c_void_p),
        ("losses", ctypes.c_void_p),
        ("recording", ctypes.c_void_p),  # this and the next member exist only in kernels that record a timeline
        ("room", ctypes.c_uint),
    )


class Results:
    """Losses, and the reports of launches with even and odd numbers.

    Args:
        vps: number of virtual processors.
        patience: nanoseconds that virtual processors wait; used in messages.

    Attributes:
        losses: the slots among the pool's first floats, each with the value that the latest launch wrote there.
        losses_address: address of `losses` for kernels.
    """

    def __init__(self, driver: Driver, vps: int, patience: int) -> None:
        self._words = _REPORT_WORDS + vps
        self._memory = driver.pinned(WORD_BYTES * (FIRST_FREE + 2 * self._words), "the results of launches")
        self._memory.words[:] = 0
        self._patience = patience
        self.losses = self._memory.words[:FIRST_FREE].view(FLOAT32.dtype)
        self._reports = self._memory.words[FIRST_FREE:].reshape(2, self._words)
        self.losses_address = driver.mapped(self._memory)

    def report_address(self, number: int) -> int:
        """Return the address of a launch's report for kernels."""
        return self.losses_address + WORD_BYTES * FIRST_FREE + WORD_BYTES * self._words * (number & 1)

    def begin(self, number: int) -> None:
        """Clear the report at the start of a launch: it still holds the report from two launches before."""
        self._reports[number & 1] = 0

    def failure(self, number: int) -> Failure | None:
        """Return the failure that stopped a finished launch, or None."""
        report = self._reports[number & 1]
        if not report[0]:
            return None
        position, why = int(report[0]) - 1, int(report[1])
        if why != _CLOCK_LIMIT:
            reason = "" if why == _UNKNOWN_OPCODE else f" (reason {why})"
            return Failure(f"the kernel stopped at word {position} of its script{reason}: {{0}}", (position,))
        left = report[_REPORT_WORDS:]
        places = {p: np.flatnonzero(left == p).tolist() for p in {position, *left[left > 0].tolist()}}
        first = dict(sorted(places.items(), key=lambda place: (place[0] != position, -len(place[1]), place[0])))
        return clock_limit(self._patience, first, np.flatnonzero(left == 0).tolist())


def clock_limit(patience: int, places: dict[int, list[int]], ended: list[int]) -> Failure:
    """Describe a launch that a clock limit ended.

    Args:
        places: position -> virtual processors that stopped there; the place whose clock limit expired comes first.
        ended: virtual processors that had reached the end.
    """
    named = list(places)[:_PLACES_NAMED]
    text = [
        f"{_names(places[p])} {'at' if k else f'waited longer than {patience * 1e-9:.3g} s at'} {{{k}}}"
        for k, p in enumerate(named)
    ]
    if others := sum(len(vps) for vps in list(places.values())[_PLACES_NAMED:]):
        text.append(f"{others} more at other places")
    if ended:
        text.append(f"{_names(ended)} had reached the end")
    return Failure(
        f"{'; '.join(text)}. If other programs keep the GPU busy, or a debugger slows it down, set {PATIENCE.name} "
        "to more seconds (0: no limit); else this is a defect of vpps, please report it",
        tuple(named),
    )


def _names(vps: list[int]) -> str:
    """Format [0, 1, 2, 5] as "virtual processors 0-2, 5"."""
    if not vps:
        return "a virtual processor"
    runs = np.split(np.array(vps), np.flatnonzero(np.diff(vps) > 1) + 1)
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"virtual processor{'s' if len(vps) > 1 else ''} {text}"
