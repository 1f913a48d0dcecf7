"""Rows: many values with the same shape, such as a cell's results at each of n vertices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from vpps.errors import DtypeError, IndexRangeError, ShapeError
from vpps.hints import Hinting, read_only
from vpps.interop import refuse_masked
from vpps.ops.operand import RECORDED, Expression, Operand, checked_slice, record, take
from vpps.record.examples import ExampleNumbers, example_numbers
from vpps.record.ranges import Ints
from vpps.text import dir_without
from vpps.values import as_index

if TYPE_CHECKING:
    from vpps.graph.graph import Graph


class Rows(Operand, Hinting):
    """n values with the same shape in a graph, made by `graph.map`, `graph.rows`, or any operation on rows.

    Operators, functions and cells act row by row. Other operands may be rows, expressions and parameters that all rows
    share, and (n,) arrays of ints: `vpps.cross_entropy(Wo @ rows + bo, labels)`. Each row becomes a vertex, as if the
    operation were called on one row after the other. `vpps.sum`, `mean`, `max` and `min` reduce rows element by
    element, like a list; without rows, they give zeros. `rows[3]` is an expression; `rows[1:5]`, `rows[[7, 7, 2]]` and
    `rows[mask]` are rows; `rows[:, 0:8]` slices each row; `len(rows)` is n.

    Attributes:
        owner: the graph.
        ids: (n,) value ids.
        examples: the examples that the rows belong to; None if unknown.
    """

    __slots__ = ("_highest", "_levels", "_shape", "examples", "ids", "owner")
    shape: tuple[int, ...] = read_only("_shape", "Shape of one row.")

    def __init__(
        self,
        owner: Graph,
        ids: Ints,
        shape: tuple[int, ...],
        levels: Ints | None = None,
        highest: int | None = None,
        examples: ExampleNumbers | None = None,
    ) -> None:
        self.owner = owner
        self.ids = ids
        self._shape = shape
        self._levels = levels
        self._highest = highest
        self.examples = examples

    __dir__ = dir_without("highest_level ids levels owner")

    def of(self, examples: Any) -> Rows:
        """Return the same rows with example numbers in the whole mini-batch. Dropout masks for values computed from
        these rows use the numbers.

        Rows of a map with `examples=` (for example, from a `GraphBatch`'s `structure`) already have example numbers, as
        do values computed from such rows.

        Args:
            examples: (n,) ints, or `GraphBatch.examples`.

        Raises:
            DtypeError, IndexRangeError, ShapeError: `examples` has the wrong type, range or shape.
        """
        known = example_numbers(examples, len(self), "rows.of")
        return Rows(self.owner, self.ids, self.shape, self._levels, self._highest, known)

    def _part(self, which: Any) -> Rows:
        ids = self.ids[which]
        examples = None if self.examples is None else self.examples.of(which, len(ids))
        return Rows(self.owner, ids, self.shape, examples=examples)

    @property
    def levels(self) -> Ints:
        """(n,) levels of the vertices that compute the rows."""
        if self._levels is None:
            self._levels = self.owner.levels_of(self.ids)
        return self._levels

    def highest_level(self) -> int:
        """Return the highest level; needs at least one row."""
        return int(np.maximum.reduce(self.levels)) if self._highest is None else self._highest

    def __repr__(self) -> str:
        rows = "row" if len(self.ids) == 1 else "rows"
        return f"<{len(self.ids)} {rows} of shape {self.shape} in {self.owner.describe()}>"

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.ids)

    def __iter__(self) -> Iterator[Expression]:
        """Yield an expression for every row."""
        for ref in self.ids.tolist():
            yield Expression(self.owner, ref, self.shape)

    def __matmul__(self, other: Any) -> Any:
        """Multiply each row, a matrix, by the other operand; `W @ rows` multiplies a parameter by each row."""
        return record("matmul", [self, other], transposed_a=False, transposed_b=False)

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Expression: ...
    @overload
    def __getitem__(self, key: Any) -> Rows: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the expression of a row (an int), or rows: a slice, int array or mask; `[which, a:b]` slices each row.

        Raises:
            IndexRangeError: there is no such row.
            DtypeError, ShapeError: the key has the wrong type or shape.
        """
        if isinstance(key, tuple):
            if len(key) != 2:
                raise ShapeError(f"{self!r}[{key!r}]: expected rows[which] or rows[which, slice of each row]")
            chosen = self[key[0]]
            return take(chosen, key[1])
        if isinstance(key, slice):
            return self._part(checked_slice(self, key))
        i = as_index(key)
        if i is not None:
            if not -len(self) <= i < len(self):
                raise IndexRangeError(f"{self!r}[{i}]: out of range, there are {len(self)} rows")
            return Expression(self.owner, int(self.ids[i]), self.shape)
        refuse_masked(key, f"{self!r}[...]")
        which = np.asarray(key)
        if isinstance(key, list) and not key:  # NumPy would make it float
            which = which.astype(np.int64)
        if which.dtype.kind not in "iub" or which.ndim != 1:
            raise DtypeError(
                f"{self!r}[{key!r}]: expected an int, a slice, or a one-dimensional array of ints or booleans"
            )
        try:
            return self._part(which)
        except IndexError as error:
            raise IndexRangeError(f"{self!r}[...]: {error}") from None


RECORDED.add(Rows)  # operators and functions look up the rows' graph


def value_ids(x: Expression | Rows) -> Any:
    """Return the value id of an expression, or the array of value ids of rows."""
    return x.ids if isinstance(x, Rows) else x.ref
