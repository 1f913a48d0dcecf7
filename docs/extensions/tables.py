"""Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; an empty line follows."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines) + "\n"


def code(text: str) -> str:
    """Inline code; nothing for nothing."""
    return f"`{text}`" if text else ""


def escaped(text: str) -> str:
    """Text whose characters stand for themselves, but for inline code."""
    return re.sub(r"`[^`]*`|[*_\[<]", lambda found: found[0] if found[0][0] == "`" else "\\" + found[0], text)
