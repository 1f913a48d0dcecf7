"""Element types: storage formats of an array's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WORD_BYTES = 4
"""Bytes of a register and of a script word; pool addresses count in such words."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """Storage format of an array's numbers.

    Attributes:
        name: NumPy's name, if it has one.
        bytes: bytes of a number.
    """

    name: str
    bytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype for host arrays."""
        return np.dtype(self.name)

    def words(self, n: int) -> int:
        """Return the number of registers, or pool words, that `n` numbers occupy."""
        return -(-n * self.bytes // WORD_BYTES)


FLOAT32 = ElementType("float32", WORD_BYTES)
BFLOAT16 = ElementType("bfloat16", 2)
TF32 = ElementType("tf32", WORD_BYTES)
TF32_PAIR = ElementType("pair of tf32", 2 * WORD_BYTES)  # a float32 as the sum of two tf32 numbers
