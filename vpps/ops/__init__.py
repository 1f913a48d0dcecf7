"""The op table: all knowledge about a primitive in one row (see `table.py`)."""

from vpps.ops import dropout, elementwise, lists, matrices, rowwise, structure  # noqa: F401 - they fill the table
from vpps.ops.table import OPS, Form, Op, Shape, size

__all__ = ["OPS", "Form", "Op", "Shape", "size"]
