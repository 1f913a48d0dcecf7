"""Signatures as a user reads them: defaults by their values, and no constructor where vpps itself makes the objects."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import TypeAliasForwardRef

# Classes that users meet but do not construct.
MADE = {
    "Cell", "Expression", "GraphBatch", "Inspection", "Lookup", "Parameter", "Rows", "Specialized", "SpelledBatch",
    "Summary", "Timeline", "Trace", "World",
}  # fmt: skip
OPERANDS = "Expression | Parameter | Rows"  # what the hints of public functions call a Value


def process(
    app: Sphinx, what: str, name: str, obj: Any, options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """The arguments and the result of a function or class as they are to be shown."""
    if what == "class" and name.rpartition(".")[2] in MADE:
        return "", None
    if arguments is None:
        return None, result
    if what == "class" and dataclasses.is_dataclass(obj):
        for field in dataclasses.fields(obj):
            if field.default_factory is not dataclasses.MISSING:
                arguments = arguments.replace("<factory>", repr(field.default_factory()), 1)
    arguments = re.sub(r"<function ([\w.]+)[^>]*>", r"\1", arguments)
    return arguments.replace(OPERANDS, "Value"), result


def setup(app: Sphinx) -> dict[str, Any]:
    # Sphinx shows an alias (`autodoc_type_aliases`) within other types as TypeAliasForwardRef('Name').
    TypeAliasForwardRef.__repr__ = lambda alias: alias.name  # type: ignore[method-assign]
    app.connect("autodoc-process-signature", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
