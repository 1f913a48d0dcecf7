"""Trace: the timelines of all launches of a while, and what to make of them."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vpps.engine.timeline import Timeline
from vpps.errors import HandleError
from vpps.files import replacing
from vpps.text import counted
from vpps.values import as_path

if TYPE_CHECKING:
    from vpps.report.summary import Summary

PAGE_SUFFIXES = (".html", ".htm")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 2em; }}</style>
</head>
<body>
<h1>{title}</h1>
<pre>{summary}</pre>
</body>
</html>
"""


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
        return f"<vpps.Trace of {counted(len(self.timelines), 'launch', 'launches')} on {self.target}>"

    def _repr_html_(self) -> str | None:
        return self.summary()._repr_html_() if self.timelines else None

    def summary(self) -> Summary:
        """Where the time went: shares, critical path, cells, and what would help. `print` it, or take its fields.

        Raises:
            HandleError: no launch was recorded.
            KernelError: a timeline lacks records.
        """
        if not self.timelines:
            raise HandleError("trace: no launch was recorded; call fb, forward or gradients within the block")
        from vpps.report.summary import summarise

        return summarise(self.timelines, self.target)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ui.perfetto.dev, or, where its name ends in .html, a page of the summary (`write_html`).

        It appears complete or not at all.

        Raises:
            HandleError: it cannot be written.
            KernelError: a timeline lacks records.
        """
        write = self.write_html if checked(path).suffix in PAGE_SUFFIXES else self.write_perfetto
        write(path)

    def write_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ui.perfetto.dev.

        Raises:
            HandleError: it cannot be written.
            KernelError: a timeline lacks records.
        """
        from vpps.report.perfetto import write_perfetto

        with _writing(path) as where:
            write_perfetto(where, self.timelines, self.target)

    def write_html(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write the summary as a page that needs nothing else. To zoom into a row per virtual processor, have
        `write_perfetto` make a file for ui.perfetto.dev.

        Args:
            title: of the page; default: number of launches and target.

        Raises:
            HandleError: it cannot be written, or no launch was recorded.
            KernelError: a timeline lacks records.
        """
        title = title or f"{counted(len(self.timelines), 'launch', 'launches')} on {self.target}"
        with _writing(path) as where:
            page = _PAGE.format(title=html.escape(title), summary=html.escape(self.summary().text()))
            with replacing(where) as new:
                new.write_text(page, encoding="utf-8", errors="backslashreplace")  # names of files may be no UTF-8


@contextmanager
def _writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to; raises HandleError for what keeps that from being done."""
    where = checked(path)
    try:
        yield where
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
