"""Precisions: how operands of products with parameters are rounded. `Field.rounded` marks these operands in
instructions; all other operands are float32.

Master weights (which an optimizer changes), moments, weight gradients, states, gates and losses are float32 in every
precision, as are sums of products. Product operands are rounded forward and backward; gradients treat rounding as the
identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.ops.element import BFLOAT16, FLOAT32, TF32, TF32_PAIR, ElementType


@dataclass(frozen=True, slots=True)
class Precision:
    """Rounding of operands in products with a parameter.

    Attributes:
        name: the user's name for it.
        element: element type of the weights that products read.
        dropped: bits of a float32's significand that rounding removes.
        to_even: ties go to the even neighbour; else away from zero.
        on_host: True if the cpu target also supports this precision.
        doc: description for users who choose a precision.
    """

    name: str
    element: ElementType
    dropped: int = 0
    to_even: bool = True
    on_host: bool = False
    doc: str = ""

    @property
    def is_reduced(self) -> bool:
        """True if anything is rounded."""
        return self.dropped > 0

    def round(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the values as products read them; NaN remains NaN, and values that are too large become infinite.

        Args:
            x: array of any shape; first rounded to float32.
        """
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        if not self.dropped:
            return bits.view(np.float32)
        half = np.uint32(1 << (self.dropped - 1))
        add = half - np.uint32(1) + (bits >> np.uint32(self.dropped) & np.uint32(1)) if self.to_even else half
        kept = np.uint32(0xFFFFFFFF << self.dropped & 0xFFFFFFFF)
        special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
        quiet = np.where(np.isnan(bits.view(np.float32)), bits | np.uint32(0x00400000), bits)
        return np.where(special, quiet & kept, (bits + add) & kept).astype(np.uint32).view(np.float32)

    def nearest_tie(self, x: NDArray[Any]) -> float:
        """Return how close any element of some vectors is to being rounded the other way. The unit is a float32 step at
        the vector's largest element, because a sum's error scales with its terms. Elements below a 512th of the largest
        are ignored: rounding one of them the other way changes the vector by less than 1e-5 of itself.

        Args:
            x: (n, ...), n vectors or matrices.
        """
        x = np.ascontiguousarray(x, np.float32)
        x = x.reshape(len(x), x[:1].size)
        size = np.abs(x)
        largest = size.max(axis=1, keepdims=True, initial=0)
        cut = (x.view(np.uint32) & np.uint32((1 << self.dropped) - 1)).astype(np.int64) - (1 << (self.dropped - 1))
        matters = np.isfinite(largest) & (size > 0) & (size >= largest / 512)
        with np.errstate(invalid="ignore"):
            steps = np.abs(cut) * (np.spacing(size) / np.spacing(largest))
        return float(steps[matters].min(initial=np.inf))


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("float32", FLOAT32, on_host=True, doc="nothing is rounded"),
        Precision("bf16", BFLOAT16, 16, on_host=True, doc="8 bits of significand, the range of float32"),
        Precision("tf32", TF32, 13, to_even=False, doc="11 bits of significand; tensor cores, no less memory"),
        Precision("3xtf32", TF32_PAIR, doc="float32 as sums of two tf32: three products of tensor cores for one"),
    )
}
"""Precisions by name. Significand widths count the implicit bit."""

EXACT = PRECISIONS["float32"]
