"""Which weights live where on the chip (kernel.md 4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OnChip:
    """Slots of a kernel."""


NOTHING_ON_CHIP = OnChip()
