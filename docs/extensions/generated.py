"""The directive `{generated} NAME`: a part of a page that is made of vpps's own tables while the site is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import capacity
import commands
import environment
import functions
import instructions
import operators
import precisions
from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PARTS: dict[str, Callable[..., str]] = {
    "instructions": instructions.markdown,
    "functions": functions.markdown,
    "optimizers": functions.optimizers,
    "operators": operators.markdown,
    "environment": environment.markdown,
    "commands": commands.markdown,
    "precisions": precisions.markdown,
    "capacity": capacity.markdown,
}


class Generated(SphinxDirective):
    """Markdown of a generator, as if it stood in the page; headings included."""

    required_arguments = 1
    optional_arguments = 1  # of the generator, such as the name of a command

    def run(self) -> list[Node]:
        name, *rest = self.arguments
        self.env.note_reread()  # it changes with vpps, not with the page
        return self.parse_text_to_nodes(PARTS[name](*rest), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("generated", Generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
