"""The reference of public functions: those of the op table by form, and those written by hand."""

from __future__ import annotations

from collections.abc import Iterable

from vpps.graph import functions, primitives
from vpps.model import optim
from vpps.ops import OPS, Form

# Functions whose form would put them elsewhere, or that are no op.
HEADINGS = {
    "Element by element": ("clamp", "eq", "where"),
    "Reductions": ("min", "norm"),
    "Products, distances": ("dot", "cosine", "squared_distance", "bilinear"),
    "Parts": ("pick", "split", "stack"),
    "Lists": ("each",),
    "Losses": ("cross_entropy", "hinge", "mse", "kl_div", "binary_cross_entropy_with_logits"),
}
OF_FORM = {
    Form.MAP: "Element by element",
    Form.DROPOUT: "Element by element",
    Form.ROWWISE: "Reductions",
    Form.MATMUL: "Products, distances",
    Form.TRANSPOSE: "Products, distances",
    Form.CONCAT: "Parts",
    Form.LOOKUP: "Parts",
    Form.RESHAPE: "Parts",
}


def markdown() -> str:
    placed = {name: heading for heading, names in HEADINGS.items() for name in names}
    found: dict[str, list[str]] = {heading: [] for heading in HEADINGS}
    for name in (*primitives.__all__, *functions.__all__):
        found[placed.get(name) or OF_FORM[OPS[name].form]].append(name)
    return "".join(f"## {heading}\n\n{_documented('function', names)}" for heading, names in found.items())


def optimizers() -> str:
    return _documented("class", optim.__all__)


def _documented(kind: str, names: Iterable[str]) -> str:
    lines = "".join(f".. auto{kind}:: {name}\n" for name in names)
    return f"```{{eval-rst}}\n.. currentmodule:: vpps\n\n{lines}```\n\n"
