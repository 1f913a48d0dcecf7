"""Element types: how a number of an array is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WORD_BYTES = 4
"""Of a register, of a word of a script, and of what addresses of the pool count in."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """How a number of an array is kept.

    Attributes:
        name: as NumPy has it, where it has it.
        bytes: of a number.
    """

    name: str
    bytes: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """For arrays of the host."""
        return np.dtype(self.name)

    def words(self, n: int) -> int:
        """Registers, or words of the pool, that `n` numbers take."""
        return -(-n * self.bytes // WORD_BYTES)


FLOAT32 = ElementType("float32", WORD_BYTES)
BFLOAT16 = ElementType("bfloat16", 2)
TF32 = ElementType("tf32", WORD_BYTES)
TF32_PAIR = ElementType("pair of tf32", 2 * WORD_BYTES)  # a float32 as the sum of two
