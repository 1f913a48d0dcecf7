"""What a kernel that is specialised to a model must be able to do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vpps.kernel.chip import MEMORY_ONLY, Chip


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What the source of a cuda or simt kernel depends on.

    Attributes:
        instructions: names in the instruction table that it must know; it refuses others.
        chip: which weights the virtual processors hold, and where.
    """

    instructions: frozenset[str]
    chip: Chip = MEMORY_ONLY

    def of(self, vps: int) -> KernelSpec:
        """The same for one number of virtual processors: divisions by it are then multiplications."""
        return replace(self, chip=replace(self.chip, vps=vps))

    def joined(self, other: KernelSpec) -> KernelSpec:
        """A kernel for the other one that, if it holds the same weights, can still do what this one can."""
        return KernelSpec(self.instructions | other.instructions, self.chip) if self.chip == other.chip else other

    def covers(self, other: KernelSpec) -> bool:
        """Whether a kernel made for this one can run what was made for the other."""
        return self.chip == other.chip and self.instructions >= other.instructions
