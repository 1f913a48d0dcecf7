"""Turns: serialise all calls that use the same weights.

A model has a turn, and its training handle shares it. A call that reads or writes the weights in the host's memory
takes the turn. A forward-only handle has its own turn, and takes it before the model's.

A lock is not enough. A signal handler, or a schedule that an update calls, runs in the thread that holds the
lock, in the middle of a call. A call that it makes is recognised by the frames of user code between it and the running
call. Calls that only read get the state after the last whole step; others are refused.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from vpps.errors import HandleError

_log = logging.getLogger(__name__)


class _Call(NamedTuple):
    """A call that holds the turn: id of its frame, name of the method, thread that runs it."""

    frame: int
    name: str
    thread: int


class Turn:
    """The lock of a model or forward-only handle, and the call that holds it.

    Args:
        above: the turn that is taken after this one; a thread that holds `above` must not wait for this turn.

    Attributes:
        call: the innermost running call, or None if the turn is free.
        torn: in a forked child, the reason that the weights may mix two steps; "" if they do not.
    """

    def __init__(self, above: Turn | None = None) -> None:
        self.above = above
        self.call: _Call | None = None
        self.torn = ""
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._left: deque[Callable[[], None]] = deque()

    def check_process(self) -> None:
        """In a forked child, drop the lock and the call that belong to threads that do not exist there."""
        if self._pid == os.getpid():
            return
        if self.call is not None:
            self.torn = (
                f"this process was forked while another thread was in {self.call.name}, so its copy of the weights may "
                "mix two steps; fork between calls, or load a checkpoint here"
            )
        self.lock, self.call, self._pid = threading.RLock(), None, os.getpid()

    def is_interrupted(self, frame: FrameType | None) -> bool:
        """Return True if user code stands between a frame and the running call."""
        assert self.call is not None
        outside = False
        while frame is not None:
            if id(frame) == self.call.frame:
                return outside
            name = frame.f_globals.get("__name__", "")
            outside = outside or not (name.startswith("vpps.") or name == "contextlib")
            frame = frame.f_back
        return False  # Ctrl-C left the entry of a call that has ended

    def finally_do(self, work: Callable[[], None]) -> None:
        """Run `work` when the turn is free: now, or at the end of the call that holds it. The garbage collector may
        run in the middle of any call, and must not wait for it."""
        self._left.append(work)
        self.do_what_is_left()

    def do_what_is_left(self) -> None:
        """Run the work that `finally_do` postponed, if the turn is free."""
        while self._left and self.lock.acquire(blocking=False):
            try:
                if self.call is not None or not self._left:
                    return
                self._left.popleft()()
            except Exception:
                _log.exception("an unused handle could not be closed")
            finally:
                self.lock.release()


class HasTurn(Protocol):
    """An object whose calls take turns. An object with `reading` calls also has `_as_after_last_step(read)`: it calls
    `read` on the state after the last whole step, and then restores the current state."""

    @property
    def _turn(self) -> Turn:
        """The turn that the object's calls take."""


S = TypeVar("S", bound=HasTurn)
P = ParamSpec("P")
R = TypeVar("R")


def serialised(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let one call run at a time. Raises HandleError if a signal handler or callback calls it during another call."""
    return _taking_turns(method, reads=False)


def reading(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Like `serialised`, but a signal handler or callback sees the last whole step.

    Raises:
        HandleError: the running call changes weights other than by a step.
    """
    return _taking_turns(method, reads=True)


def _taking_turns(method: Callable[Concatenate[S, P], R], reads: bool) -> Callable[Concatenate[S, P], R]:
    name = method.__name__

    @functools.wraps(method)
    def in_turn(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        turn = self._turn
        turn.check_process()
        # A forward-only handle is called within a call of its model: other threads may wait for that call.
        if turn.above is not None and (running := turn.above.call) and running.thread == threading.get_ident():
            raise _refused(name, running.name)
        if turn.torn and reads:
            raise HandleError(f"{name}: {turn.torn}")
        try:
            with turn.lock:
                before = turn.call
                interrupts = turn.call is not None and turn.is_interrupted(sys._getframe(1))
                if before is not None and interrupts and not (reads and before.name not in _WRITES):
                    raise _refused(name, before.name)
                try:
                    turn.call = _Call(id(sys._getframe()), name, threading.get_ident())
                    if interrupts:
                        return cast(Any, self)._as_after_last_step(lambda: method(self, *args, **kwargs))  # type: ignore[no-any-return]
                    return method(self, *args, **kwargs)
                finally:
                    turn.call = before
        finally:
            if turn._left:
                turn.do_what_is_left()

    return in_turn


_WRITES = {"assign", "restore", "_add", "_set_trainable", "_show_averages", "_hide_averages"}


def _refused(name: str, running: str) -> HandleError:
    return HandleError(
        f"{name}: called by a signal handler or callback (such as a schedule) while {running.strip('_')} runs in the "
        "same thread. Only save, numpy, average, sync_get_latest_loss, skipped and accumulated can be called there: "
        "set a flag and act on it after that call"
    )
