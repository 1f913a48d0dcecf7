"""Ctrl-C at every point where Python checks for signals, one by one: at each call, and after each return."""

from __future__ import annotations

import _weakrefset
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

_FINALIZE = weakref.finalize.__call__.__code__
_REMOVE = (weakref.__file__, "remove"), (_weakrefset.__file__, "_remove")


def interrupted(work: Callable[[], object], every: int = 1) -> Iterator[bool]:
    """Repeat the work, interrupting it later each time, until it is complete.

    The work must take the same path each time: a process's one-time work must be done before.

    Args:
        work: the work.
        every: number of points to advance by.

    Yields:
        After each time, True if the interrupt was passed on (False if the work swallowed it).
    """
    for step in count(0, every):
        met, came = interrupt_at(step, work)
        if not met:
            return
        yield came


def interrupt_at(step: int, work: Callable[[], object]) -> tuple[bool, bool]:
    """Interrupt the work at that point; returns (True if it reached the point, True if the interrupt was passed on)."""
    left, met = step, False

    def interrupt(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left, met
        # A generator may be resumed to be closed, and Python does not check then.
        looks = event == "c_return" or (event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR)
        if looks and argument is not sys.setprofile:
            left -= 1
            if left < 0 and not _in_finaliser(frame):  # looks at all callers, so not at every point
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
    """Python swallows exceptions in finalisers, in callbacks of weak references and of the garbage collector."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("__del__", "gc_callback") or code is _FINALIZE:  # Hypothesis has such a callback
            return True
        if (code.co_filename, code.co_name) in _REMOVE:
            return True
        frame = frame.f_back
    return False
