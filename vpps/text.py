"""What reports have in common: plain text of 110 columns, tables in it."""

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
"""Characters of a line of what explains."""


class Readable:
    """What notebooks and IPython show as the text that `str` gives."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return f'<pre style="font-family: monospace; white-space: pre; overflow-x: auto">{html.escape(str(self))}</pre>'

    def _repr_mimebundle_(self, **asked: Any) -> dict[str, str]:  # `_repr_pretty_` comes after a dataclass's repr
        return {"text/plain": str(self).rstrip("\n")}


class Text(Readable, str):
    """Lines for a reader, which an interpreter shows as such."""

    __slots__ = ()
    __repr__ = str.__str__


def dir_without(names: str) -> Callable[[object], list[str]]:
    """A `__dir__` for completion: without the names, separated by blanks, that other rooms use and nobody else, and
    without those that only say what does it here."""
    internal = frozenset(names.split())

    def listed(x: object) -> list[str]:
        if "IPython" in sys.modules:
            _complete_as_dir(type(x))  # type: ignore[arg-type]
        return [n for n in object.__dir__(x) if n not in internal and hint_of(type(x), n) is None]

    return listed


@cache
def _complete_as_dir(kind: type) -> None:
    """Tell IPython, which without jedi adds all names of the class to those of `dir`. It asks `dir` first."""
    from IPython.utils.generics import complete_object

    complete_object.register(kind, lambda x, names: sorted({*dir(x)}.intersection(names)))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], text_columns: Iterable[int] = (0,)) -> list[str]:
    """Lines of a table.

    Args:
        head: names of the columns.
        rows: their cells.
        text_columns: numbers of those that begin at the left; the others are numbers, which end at the right.
    """
    return columns([head], [list(map(shown, row)) for row in rows], set(text_columns))


def shown(value: object) -> str:
    """A cell: numbers of thousands with commas, "-" for what is not there."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def counted(count: int, what: str, plural: str = "") -> str:
    """ "1 barrier", "2 barriers"."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def columns(
    heads: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], left: Collection[int], most: int | None = None
) -> list[str]:
    """Lines of a table.

    Args:
        heads: lines above the columns.
        rows: their cells.
        left: numbers of columns that begin at the left; the others end at the right.
        most: characters of a line: what does not fit is moved together, then the first cell is cut in pieces.
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
    """A paragraph that begins with a mark and is indented below it."""
    return textwrap.fill(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark))


def labelled(lines: Iterable[tuple[str, str]]) -> str:
    """Paragraphs, each beside its name."""
    return "".join(note(f"{name:<15}", text) + "\n" for name, text in lines)


def in_bytes(count: int) -> str:
    """A number of bytes, for a reader."""
    if count < KIB:
        return f"{count} B"
    if count < 10 * KIB * KIB:
        return f"{count / KIB:.0f} KiB"
    return f"{count / KIB / KIB:.0f} MiB"
