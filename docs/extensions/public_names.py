"""Links to classes by the names under which they are public: signatures name the module that defines them."""

from __future__ import annotations

from typing import Any

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

PUBLIC = ("vpps", "vpps.nn", "vpps.data", "vpps.zoo", "vpps.distributed", "vpps.report")


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: Element) -> Element | None:
    """`vpps.ops.operand.Expression` is documented as `vpps.Expression`."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py":
        return None
    domain = env.domains.python_domain
    name = target.rpartition(".")[2]
    for module in PUBLIC:
        full = f"{module}.{name}"
        if full != target and full in domain.objects:
            builder = app.builder
            return domain.resolve_xref(env, node["refdoc"], builder, node["reftype"], full, node, content)
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
