"""Precisions: what products with parameters multiply by. All else is float32: `Field.rounded` says it of every
instruction.

Weights that an optimizer changes (masters), moments, gradients of weights, states, gates and losses are float32
whatever the precision, and sums of products too. What a product reads is rounded for it, forward and backward;
gradients pass roundings by as if they were not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.ops.element import BFLOAT16, FLOAT32, TF32, TF32_PAIR, ElementType


@dataclass(frozen=True, slots=True)
class Precision:
    """How the operands of products with a parameter are rounded.

    Attributes:
        name: what users call it.
        element: of its weights where products read them.
        dropped: bits of a float32's significand that rounding takes away.
        to_even: ties go to the even neighbour; else away from zero.
        on_host: whether the cpu target has it, too.
        doc: for whoever chooses.
    """

    name: str
    element: ElementType
    dropped: int = 0
    to_even: bool = True
    on_host: bool = False
    doc: str = ""

    @property
    def is_reduced(self) -> bool:
        """Whether anything is rounded."""
        return self.dropped > 0

    def round(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """The values as products read them; NaN stays, what is too large becomes infinite.

        Args:
            x: of any shape; first rounded to float32.
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
        """How far any of some vectors is from being rounded the other way: in steps of float32 at its largest element,
        as an error of a sum has the size of what is added. Elements of less than a 512th of that are left out: if one
        is rounded the other way, the vector changes by less than 1e-5 of itself.

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
"""By name. Significands count the bit that is not stored."""

EXACT = PRECISIONS["float32"]
