"""Vertices' example numbers within the whole mini-batch; dropout masks depend on them (`vpps.ops.philox`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vpps.errors import DtypeError, IndexRangeError, ShapeError
from vpps.record.ranges import Ints
from vpps.values import as_array

MOST = 2**31 - 1
"""Largest example number; larger ones stand for vertices that belong to no example."""

NONE = -1  # example number of a vertex that belongs to no example

UNNUMBERED = -2
"""Number of a vertex made for a constant; it does not shift the dropout masks of later vertices."""


class ExampleNumbers:
    """The examples that n rows belong to, computed on demand: only dropout needs them."""

    __slots__ = ("_find", "_found", "n")

    def __init__(self, n: int, find: Callable[[], Ints]) -> None:
        self.n = n
        self._find = find
        self._found: Ints | None = None

    def __len__(self) -> int:
        return self.n

    @property
    def numbers(self) -> Ints:
        """(n,) contiguous example numbers of the rows."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def of(self, rows: Any, n: int) -> ExampleNumbers:
        """Select n of the rows."""
        return ExampleNumbers(n, lambda: np.ascontiguousarray(self.numbers[rows]))


def example_numbers(given: Any, n: int, where: str) -> ExampleNumbers:
    """Check the example numbers that a user gives for n rows. Raises DtypeError, IndexRangeError, ShapeError."""
    found: ExampleNumbers = given
    if type(given) is not ExampleNumbers:
        numbers = as_array(given, where)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            raise DtypeError(f"{where}: examples are ints, one per row, not {numbers.dtype} of shape {numbers.shape}")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) <= MOST:
            raise IndexRangeError(f"{where}: examples go from {numbers.min()} to {numbers.max()}; expected 0 to {MOST}")
        own = numbers.astype(np.int64)
        found = ExampleNumbers(len(own), lambda: own)
    if len(found) != n:
        raise ShapeError(f"{where}: examples of {len(found)} rows, but there are {n}")
    return found
