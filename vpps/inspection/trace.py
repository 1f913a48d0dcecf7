"""Trace: the timelines of all launches of a while, and what to make of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vpps.errors import HandleError
from vpps.inspection.timeline import Timeline
from vpps.values import as_path

if TYPE_CHECKING:
    from vpps.inspection.summary import Summary

PAGE_SUFFIXES = (".html", ".htm")


class Trace:
    """What `Handle.trace` records.

    Args:
        target: its name.

    Attributes:
        timelines: of the launches that have ended, in order.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.timelines: list[Timeline] = []

    def __repr__(self) -> str:
        return f"<vpps.Trace of {len(self.timelines)} launches on {self.target}>"

    def summary(self) -> Summary:
        """Where the time went: shares, critical path, cells, and what would help. `print` it, or take its fields.

        Raises:
            HandleError: no launch was recorded.
            KernelError: a timeline lacks records.
        """
        if not self.timelines:
            raise HandleError("trace: no launch was recorded; call fb, forward or gradients within the block")
        from vpps.inspection.summary import summarise

        return summarise(self.timelines, self.target)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ui.perfetto.dev, or, where its name ends in .html, a page to look at (`write_html`).

        It appears complete or not at all.

        Raises:
            HandleError: it cannot be written.
            KernelError: a timeline lacks records.
        """
        where = checked(path)
        if where.suffix in PAGE_SUFFIXES:
            self.write_html(where)
        else:
            self.write_perfetto(where)

    def write_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ui.perfetto.dev.

        Raises:
            HandleError: it cannot be written.
            KernelError: a timeline lacks records.
        """
        from vpps.inspection.perfetto import write_perfetto

        where = checked(path)
        try:
            write_perfetto(where, self.timelines, self.target)
        except OSError as error:
            raise HandleError(f"trace: {where} cannot be written: {error.strerror}") from error

    def write_html(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write a page that needs nothing else: a row per virtual processor to zoom into, and the summary.

        Args:
            title: of the page; default: number of launches and target.

        Raises:
            HandleError: it cannot be written, or no launch was recorded.
            KernelError: a timeline lacks records.
        """
        from vpps.inspection.page import write_page

        where = checked(path)
        summary = self.summary()
        try:
            write_page(where, self.timelines, summary, title)
        except OSError as error:
            raise HandleError(f"trace: {where} cannot be written: {error.strerror}") from error


def checked(path: str | os.PathLike[str]) -> Path:
    """A path that a file may be written to, as far as one can tell before. Raises HandleError."""
    where = as_path(path, "trace", HandleError)
    if os.path.isdir(where):
        raise HandleError(f"trace: {where} is a folder; name a file in it")
    if not os.path.isdir(where.parent):
        raise HandleError(f"trace: there is no folder {where.parent}; make it, or choose another path")
    if not os.access(where.parent, os.W_OK):
        raise HandleError(f"trace: the folder {where.parent} is not writable; choose another path")
    return where
