"""The op table: everything vpps knows about a primitive, in one row (see `table.py`)."""

from vpps.ops import dropout, elementwise, lists, matrices, rowwise, structure
from vpps.ops.table import OPS, Cost, Form, Op, Shape, size

__all__ = [
    "OPS",
    "Cost",
    "Form",
    "Op",
    "Shape",
    "dropout",
    "elementwise",
    "lists",
    "matrices",
    "rowwise",
    "size",
    "structure",
]
