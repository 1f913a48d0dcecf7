"""Trace: the timelines of all launches in a `Handle.trace` block, as a summary or a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vpps.engine.timeline import Timeline
from vpps.errors import HandleError
from vpps.text import counted
from vpps.values import as_path

if TYPE_CHECKING:
    from vpps.report.summary import Summary


class Trace:
    """The launches that `Handle.trace` records.

    Args:
        target: name of the target.

    Attributes:
        timelines: timelines of the finished launches, in order.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.timelines: list[Timeline] = []

    def __repr__(self) -> str:
        return f"<vpps.Trace of {counted(len(self.timelines), 'launch', 'launches')} on {self.target}>"

    def _repr_html_(self) -> str | None:
        return self.summary()._repr_html_() if self.timelines else None

    def summary(self) -> Summary:
        """Return a printable summary of the time: shares, critical path, cells.

        Raises:
            HandleError: no launch was recorded.
            KernelError: a timeline lacks records.
        """
        if not self.timelines:
            raise HandleError("trace: no launch was recorded; call fb, forward or gradients within the block")
        from vpps.report.summary import Summary

        return Summary(self.timelines, self.target)

    def write_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ui.perfetto.dev. The file appears complete or not at all.

        Raises:
            HandleError: the file cannot be written.
            KernelError: a timeline lacks records.
        """
        from vpps.report.perfetto import write_perfetto

        where = checked(path)
        try:
            write_perfetto(where, self.timelines, self.target)
        except OSError as error:
            raise HandleError(f"trace: {where} cannot be written: {error.strerror}") from error


def checked(path: str | os.PathLike[str]) -> Path:
    """Return the path if a file can apparently be written there. Raises HandleError."""
    where = as_path(path, "trace", HandleError)
    if where.suffix in (".html", ".htm"):
        raise HandleError(f"trace: {where}: a file is for ui.perfetto.dev: name it .json, and print trace.summary()")
    if os.path.isdir(where):
        raise HandleError(f"trace: {where} is a folder; name a file in it")
    if not os.path.isdir(where.parent):
        raise HandleError(f"trace: there is no folder {where.parent}; make it, or choose another path")
    if not os.access(where.parent, os.W_OK):
        raise HandleError(f"trace: the folder {where.parent} is not writable; choose another path")
    return where
