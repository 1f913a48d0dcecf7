"""Methods of what a handle is made of run one after the other, whatever threads call them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """Has the lock of a handle, and the process that made it."""

    pid: int
    _lock: threading.RLock


S = TypeVar("S", bound=Locked)
P = ParamSpec("P")
R = TypeVar("R")


def serialised(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one thread in at a time: a forward-only handle or `model.save` on another one pulls weights from here."""

    @functools.wraps(method)
    def locked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if os.getpid() != self.pid:  # a forked child: a thread that no longer exists may hold the lock
            return method(self, *args, **kwargs)
        with self._lock:
            return method(self, *args, **kwargs)

    return locked
