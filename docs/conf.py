"""How Sphinx builds this site; `scripts/docs` runs it in strict mode, without a network."""

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

# Markdown. Headings down to the third level can be linked to: [text](page.md#heading).
smartquotes = False  # --option is no dash
myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "fieldlist"]

# Docstrings: those of Google's form, whose single backticks hold code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_mock_imports = [] if find_spec("torch") else ["torch"]
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_default_options = {"special-members": "__call__, __getitem__, __iter__, __len__, __contains__, __matmul__"}
# Types as they are written: an alias is not replaced by what it stands for.
ALIASES = (
    "ArrayLike", "Cells", "Children", "Float32", "Gradients", "Init", "Initialiser", "IntArray", "Ints", "Label",
    "NDArray", "Records", "Schedule", "Score", "Value",
)  # fmt: skip
autodoc_type_aliases = {name: name for name in ALIASES}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 110
toc_object_entries_show_parents = "hide"
# Types of other libraries, of which this site knows nothing (there is no network to ask), and our own type aliases,
# variables and internal classes, which signatures may mention.
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
