"""Adapts the docstrings and signatures of vpps, which are written for a terminal, to Sphinx."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.inspect import TypeAliasForwardRef

# Attributes of public classes that users do not need.
INTERNAL = (
    r"abandoned|arrangement|graph_made|ids|kernel|parameters|peers|plan_made|planner|ref|spec|stepped_down"
    r"|version"
)
# Classes that users see but do not construct.
MADE = {
    "Cell", "Expression", "GraphBatch", "Inspection", "Lookup", "Parameter", "Rows", "Specialized", "SpelledBatch",
    "Summary", "Timeline", "Trace", "World",
}  # fmt: skip
OPERANDS = "Expression | Parameter | Rows"  # hints of public functions call this a Value
PUBLIC = ("vpps", "vpps.nn", "vpps.data", "vpps.zoo", "vpps.distributed", "vpps.report")


def docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Mark blocks that are indented more than the paragraph before them as code, before napoleon reads the sections."""
    text = "\n".join(lines)
    if what == "class":
        text = re.sub(rf"^( +)(?:{INTERNAL}): .*\n?(?:\1 +.*\n?)*", "", text, flags=re.MULTILINE)
    # Join names of attributes that share a description, not of errors: a blank would separate a type from a name.
    text = re.sub(
        r"^ +(?!\w+Error)\w+(?:, \w+)+(?=: )", lambda names: names[0].replace(", ", ","), text, flags=re.MULTILINE
    )
    text = re.sub(r"^( *)(\S.*)\n\n(?=\1 +\S)", r"\1\2\n\n\1::\n\n", text, flags=re.MULTILINE)
    lines[:] = text.split("\n")
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]  # a comment, so that words before a colon in the first sentence do not become the type


def signature(
    app: Sphinx, what: str, name: str, obj: Any, options: object, arguments: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Show defaults by their values, and no constructor for classes that only vpps constructs."""
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


def public_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element) -> Element | None:
    """Resolve internal names of signatures, such as `vpps.ops.operand.Expression`, to the public `vpps.Expression`."""
    target, domain = node.get("reftarget", ""), env.domains.python_domain
    for module in PUBLIC if node.get("refdomain") == "py" else ():
        full = f"{module}.{target.rpartition('.')[2]}"
        if full != target and full in domain.objects:
            return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], full, node, content)
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    # Within other types, Sphinx shows an alias (`autodoc_type_aliases`) as TypeAliasForwardRef('Name').
    TypeAliasForwardRef.__repr__ = lambda alias: alias.name  # type: ignore[method-assign]
    app.connect("autodoc-process-docstring", docstring, priority=400)  # napoleon has 500
    app.connect("autodoc-process-signature", signature)
    app.connect("missing-reference", public_name)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
