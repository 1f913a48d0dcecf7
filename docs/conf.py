"""Sphinx configuration of this site. `scripts/docs` builds it in strict mode, without a network."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "extensions")]

import vpps  # noqa: E402  (of this checkout)

project = "vpps"
author = "the authors of vpps"
version = release = vpps.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings", "sphinx.ext.napoleon", "references"]
exclude_patterns = ["_build"]
nitpicky = True  # a reference to nothing is a warning, and warnings are errors

# Markdown. Links to headings down to the third level work: [text](page.md#heading).
smartquotes = False  # --option is no dash
myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "fieldlist"]

# Docstrings have Google's form; single backticks hold code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_mock_imports = [] if find_spec("torch") else ["torch"]
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_default_options = {"special-members": "__call__, __getitem__, __iter__, __len__, __contains__, __matmul__"}
# Show aliases of types as they are written.
ALIASES = (
    "ArrayLike", "Cells", "Children", "Float32", "Gradients", "Init", "Initialiser", "IntArray", "Ints", "Label",
    "NDArray", "Records", "Schedule", "Score", "Value",
)  # fmt: skip
autodoc_type_aliases = {name: name for name in ALIASES}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 110
toc_object_entries_show_parents = "hide"
# Signatures may mention types of other libraries, which the build cannot look up without a network, and type aliases,
# variables and internal classes of vpps.
nitpick_ignore_regex = [
    ("py:.*", r"(np|numpy|typing|collections|pathlib|types|abc|os|inspect|enum|dataclasses|NDArray|ArrayLike)\b.*"),
    ("py:.*", r"(Any|Callable|Iterable|Iterator|Mapping|MutableMapping|Sequence|Path|Literal|ClassVar|Self)"),
    ("py:.*", r"contextlib\..*"),
    ("py:.*", r"(R|P|Advice|Averages|Batch|Batch_co|Examples?|ExampleNumbers|RetainedForward|Shape|Vector)"),
    ("py:.*", "|".join(ALIASES)),
    ("py:.*", r"vpps\.\w+\.\w+.*"),  # modules that define public names, and internal classes
]

html_theme = "furo"
html_title = f"vpps {release}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
