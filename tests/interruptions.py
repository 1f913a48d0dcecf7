"""Ctrl-C at every point at which Python looks for it, one after the other: at each call, and when one has returned."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

_FINALIZE = weakref.finalize.__call__.__code__


def interrupted(work: Callable[[], object], every: int = 1) -> Iterator[bool]:
    """Does the work again and again, interrupting it later each time; ends when it comes to its end.

    It has to take the same way each time: what is done once per process has been done before.

    Args:
        work: what is done.
        every: how many points to go on.

    Yields:
        After each time, whether the interrupt came through (work that swallows it gives False).
    """
    for step in count(0, every):
        met, came = interrupt_at(step, work)
        if not met:
            return
        yield came


def interrupt_at(step: int, work: Callable[[], object]) -> tuple[bool, bool]:
    """Does the work and interrupts it at that point; says whether it met one, and whether that came through."""
    left, met = step, False

    def interrupt(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left, met
        # A generator that goes on may do so to be closed, and Python does not look then.
        looks = event == "c_return" or (event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR)
        if looks and argument is not sys.setprofile:
            left -= 1
            if left < 0 and not _in_finaliser(frame):  # which looks at all callers: not at every point
                sys.setprofile(None)
                met = True
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        work()
        came = False
    except KeyboardInterrupt:
        came = True
    finally:
        sys.setprofile(None)
    return met, came


def _in_finaliser(frame: FrameType | None) -> bool:
    """Python swallows what comes in there, and in what garbage collections call: Hypothesis times them."""
    while (
        frame is not None and frame.f_code.co_name not in ("__del__", "gc_callback") and frame.f_code is not _FINALIZE
    ):
        frame = frame.f_back
    return frame is not None
