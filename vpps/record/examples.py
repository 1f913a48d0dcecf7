"""Which example of the whole mini-batch vertices belong to, as masks of dropout follow that (`vpps.ops.philox`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vpps.errors import DtypeError, IndexRangeError, ShapeError
from vpps.record.ranges import Ints
from vpps.values import as_array

MOST = 2**31 - 1
"""No number of an example is larger: those beyond stand for what belongs to none."""

NONE = -1  # in place of a number

UNNUMBERED = -2
"""In place of the number of a vertex that was made for a constant: it moves no mask of the vertices behind it."""


class ExampleNumbers:
    """The examples that n rows belong to, worked out when somebody asks: only dropout does."""

    __slots__ = ("_find", "_found", "n")

    def __init__(self, n: int, find: Callable[[], Ints]) -> None:
        self.n = n
        self._find = find
        self._found: Ints | None = None

    def __len__(self) -> int:
        return self.n

    @property
    def numbers(self) -> Ints:
        """(n,) in one piece."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def of(self, rows: Any, n: int) -> ExampleNumbers:
        """Those of some of the rows: n of them."""
        return ExampleNumbers(n, lambda: np.ascontiguousarray(self.numbers[rows]))


def example_numbers(given: Any, n: int, where: str) -> ExampleNumbers:
    """What users give for n rows. Raises DtypeError, IndexRangeError, ShapeError."""
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
        raise ShapeError(f"{where}: examples of {len(found)} rows, and there are {n}")
    return found
