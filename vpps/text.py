"""Text layout for reports: plain text, 110 columns wide, with tables."""

from __future__ import annotations

import html
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any

from vpps.hints import hint_of

KIB = 1024
WIDTH = 110
"""Characters per line of a report."""


class Readable:
    """Base class of objects that notebooks and IPython show as the text of `str`."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return f'<pre style="font-family: monospace; white-space: pre; overflow-x: auto">{html.escape(str(self))}</pre>'

    def _repr_mimebundle_(self, **asked: Any) -> dict[str, str]:  # `_repr_pretty_` comes after a dataclass's repr
        return {"text/plain": str(self).rstrip("\n")}


class Text(Readable, str):
    """Lines for a reader; an interpreter shows them without quotes and escapes."""

    __slots__ = ()
    __repr__ = str.__str__


def dir_without(names: str) -> Callable[[object], list[str]]:
    """Return a `__dir__` for completion, without some names (separated by spaces) that only other packages of vpps use,
    and without names that exist only for their hints."""
    internal = frozenset(names.split())

    def listed(x: object) -> list[str]:
        if "IPython" in sys.modules:
            _complete_as_dir(type(x))  # type: ignore[arg-type]
        return [n for n in object.__dir__(x) if n not in internal and hint_of(type(x), n) is None]

    return listed


@cache
def _complete_as_dir(kind: type) -> None:
    """Limit IPython's completion to the names of `dir`: without jedi it adds all names of the class."""
    from IPython.utils.generics import complete_object

    complete_object.register(kind, lambda x, names: sorted({*dir(x)}.intersection(names)))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], text_columns: Iterable[int] = (0,)) -> list[str]:
    """Format a table as lines.

    Args:
        head: names of the columns.
        rows: rows of cells.
        text_columns: numbers of the left-aligned columns; the others hold numbers and are right-aligned.
    """
    return columns([head], [list(map(shown, row)) for row in rows], set(text_columns))


def shown(value: object) -> str:
    """Format a cell: ints with thousands separators, None as "-"."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def counted(count: int, what: str, plural: str = "") -> str:
    """Format a count with its noun: "1 barrier", "2 barriers"."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def columns(
    heads: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], left: Collection[int], most: int | None = None
) -> list[str]:
    """Format a table as lines.

    Args:
        heads: lines above the columns.
        rows: rows of cells.
        left: numbers of the left-aligned columns; the others are right-aligned.
        most: most characters per line. A wider table first gets narrower gaps; then its first column is wrapped.
    """
    widths = [max(map(len, column)) for column in zip(*heads, *rows, strict=True)]
    between, gap = len(widths) - 1, 2
    if most is not None:
        gap = 2 if sum(widths) + 2 * between <= most else 1
        widths[0] = min(widths[0], max(8, most - sum(widths[1:]) - gap * between))

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return (" " * gap).join(padded).rstrip()

    lines = [*map(line, heads), "─" * (sum(widths) + gap * between)]
    for row in rows:
        pieces = [row[0]] if most is None else textwrap.wrap(row[0], widths[0]) or [""]
        lines += [line([pieces[0], *row[1:]]), *pieces[1:]]
    return lines


def note(mark: str, text: str) -> str:
    """Wrap a paragraph that begins with a mark, and indent its other lines."""
    return textwrap.fill(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark))


def labelled(lines: Iterable[tuple[str, str]]) -> str:
    """Format paragraphs, each with its name on the left."""
    return "".join(note(f"{name:<15}", text) + "\n" for name, text in lines)


def in_bytes(count: int) -> str:
    """Format a number of bytes, in B, KiB or MiB."""
    if count < KIB:
        return f"{count} B"
    if count < 10 * KIB * KIB:
        return f"{count / KIB:.0f} KiB"
    return f"{count / KIB / KIB:.0f} MiB"
