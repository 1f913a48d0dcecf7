"""Blocks `with handle.trace()`: for a while, launches leave timelines."""

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
    """Has a handle record what is launched within a block, one block at a time."""

    def __init__(self, configurator: Configurator, turn: Turn) -> None:
        self.pid = os.getpid()
        self._configurator = configurator
        self._turn = turn
        self._trace: Trace | None = None  # of the block that has begun and not ended
        self._open = False  # whether it has not been left
        self._recorded_before = False  # whether the handle records without it

    @contextmanager
    def block(
        self, path: str | os.PathLike[str] | None, check_usable: Callable[[], None], finish: Callable[[], None]
    ) -> Iterator[Trace]:
        """`Handle.trace`.

        Args:
            check_usable: raises where the handle cannot be used.
            finish: waits for what goes on beside the program.
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
                if os.getpid() != self.pid:  # a forked child that leaves the block, too: the file is its parent's
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
        """Have every launch from now on leave its timeline with the trace."""
        check_usable()
        if self._trace is not None:
            raise HandleError("trace: the handle records one already; leave that block first")
        self._configurator.engine.wait()  # for launches that are not in the block
        self._recorded_before, self._open, self._trace = self._configurator.records, True, trace
        self._configurator.configure(records=True)
        self._configurator.exchange()
        self._configurator.listeners.append(trace.timelines.append)

    @serialised
    def end(self, trace: Trace) -> None:
        """End what a block began, if it did; may be called again where that was interrupted."""
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
        """`Handle.timeline`."""
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
        """End a block that was left, but not ended, as Ctrl-C came meanwhile."""
        if self._trace is not None and not self._open:
            self.end(self._trace)
