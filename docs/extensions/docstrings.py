"""Docstrings of vpps as reStructuredText: they are written to be read in a terminal."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

# Attributes of public classes that are nothing to their users.
INTERNAL = (
    r"abandoned|arrangement|graph_made|ids|kernel|parameters|peers|plan_made|planner|ref|spec|stepped_down"
    r"|version"
)


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Before napoleon reads the sections: indented blocks are code, and a few forms that it takes for others."""
    text = "\n".join(lines)
    if what == "class":
        text = re.sub(rf"^( +)(?:{INTERNAL}): .*\n?(?:\1 +.*\n?)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"^Raises:\n +As `(\w+)`\.", r"Raises what `\1` raises.", text, flags=re.MULTILINE)
    # Attributes that are described together, not errors: a blank would part a type from a name.
    text = re.sub(
        r"^ +(?!\w+Error)\w+(?:, \w+)+(?=: )", lambda names: names[0].replace(", ", ","), text, flags=re.MULTILINE
    )
    lines[:] = literal_blocks(text.split("\n"))
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]  # a comment; else what comes before a colon in the first sentence would be the type


def literal_blocks(lines: list[str]) -> list[str]:
    """Marks blocks that are indented more than the paragraph before them as code."""
    found: list[str] = []
    before = 0  # indentation of the line above that is not empty
    for line in lines:
        indentation = len(line) - len(line.lstrip())
        if line.strip():
            if found and not found[-1].strip() and any(found) and indentation > before:
                found += [" " * before + "::", ""]
            before = indentation
        found.append(line)
    return found


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process, priority=400)  # napoleon has 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
