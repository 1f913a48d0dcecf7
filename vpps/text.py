"""What every report has in common: plain text, and JSON types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from vpps.placement.onchip.report import columns


class Report(ABC):
    """Something found out, to be read by a person or a program. `str` of it is its text."""

    __slots__ = ()

    @abstractmethod
    def text(self) -> str:
        """Plain text; lines end in a newline."""

    def as_json(self) -> Any:
        """The same as JSON types: dicts, lists, strings, numbers, booleans, None."""
        return plain(self, top=True)

    def __str__(self) -> str:
        return self.text()


def plain(value: Any, top: bool = False) -> Any:
    """A value made of dataclasses, mappings and sequences as JSON types; what is a report says itself how."""
    if isinstance(value, Report) and not top:
        return value.as_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return value


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
