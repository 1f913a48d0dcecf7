"""Blocks `with handle.trace()`, in which launches record timelines."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vpps.engine.timeline import Timeline
from vpps.errors import HandleError, VppsError
from vpps.report.trace import Trace, checked
from vpps.session.configurator import Configurator
from vpps.turns import Turn, serialised


class Tracing:
    """Makes a handle record the launches within a block; only one block can be open at a time."""

    def __init__(self, configurator: Configurator, turn: Turn) -> None:
        self.pid = os.getpid()
        self._configurator = configurator
        self._turn = turn
        self._trace: Trace | None = None  # trace of the block that has begun but not ended
        self._open = False  # True until the block is left
        self._recorded_before = False  # True if the handle records outside of blocks, too

    @contextmanager
    def block(
        self, path: str | os.PathLike[str] | None, check_usable: Callable[[], None], finish: Callable[[], None]
    ) -> Iterator[Trace]:
        """Implement `Handle.trace`.

        Args:
            check_usable: callback that raises if the handle cannot be used.
            finish: callback that waits for background work.
        """
        where = None if path is None else checked(path)
        trace = Trace(self._configurator.engine.machine.target)
        try:
            try:
                self.begin(trace, check_usable)
                yield trace
            finally:
                if self._trace is trace:
                    self._open = False
                if os.getpid() != self.pid:  # a forked child leaves the block, too: the file belongs to its parent
                    where = None
                else:
                    finish()
                self.end(trace)
        except BaseException as error:
            if where is not None and trace.timelines:
                try:
                    trace.write_perfetto(where)
                except VppsError as unwritten:
                    error.add_note(str(unwritten))
            raise
        if not trace.timelines and os.getpid() == self.pid:
            message = "trace: no launch was recorded; call fb, forward or gradients within the block"
            warnings.warn(message, RuntimeWarning, stacklevel=3)  # at the end of the with statement
        if where is not None:
            trace.write_perfetto(where)

    @serialised
    def begin(self, trace: Trace, check_usable: Callable[[], None]) -> None:
        """Add the timeline of every launch from now on to the trace."""
        check_usable()
        if self._trace is not None:
            raise HandleError("trace: the handle records one already; leave that block first")
        self._configurator.engine.wait()  # for launches from before the block
        self._recorded_before, self._open, self._trace = self._configurator.records, True, trace
        self._configurator.configure(records=True)
        self._configurator.exchange()
        self._configurator.listeners.append(trace.timelines.append)

    @serialised
    def end(self, trace: Trace) -> None:
        """End the recording of a block, if it has begun; may be called again after an interruption."""
        if self._trace is not trace:
            return
        try:
            if self._configurator.engine.machine.is_open and os.getpid() == self.pid:
                self._configurator.engine.wait()
        finally:
            self._configurator.listeners.clear()
            self._configurator.configure(records=self._recorded_before)
            self._trace = None

    def timeline(self, wait: bool) -> Timeline:
        """Return the timeline of a launch for `Handle.timeline`."""
        engine = self._configurator.engine
        if not engine.records:
            raise HandleError("timeline: this handle records none; make it with Handle(model, timeline=True)")
        if wait:
            engine.wait()
        engine.check_begun()
        found = engine.latest_timeline()
        if found is None:
            raise HandleError("timeline: no launch has ended yet; call fb, forward or gradients first")
        return found

    def recover(self) -> None:
        """End a block that was left but not ended because of Ctrl-C."""
        if self._trace is not None and not self._open:
            self.end(self._trace)
