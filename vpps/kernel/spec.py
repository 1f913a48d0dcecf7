"""What a kernel that is specialised to a model must be able to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vpps.errors import CompileError
from vpps.kernel.chip import MEMORY_ONLY, Chip
from vpps.script.tails import Tail
from vpps.targets import TARGETS


def check_numbers(tails: Iterable[Tail]) -> None:
    """Raise CompileError where two tails have one number: one chance in 100 000 for a model of 300 of them."""
    by_number: dict[int, Tail] = {}
    for tail in tails:
        if by_number.setdefault(tail.number, tail) != tail:
            raise CompileError(
                f"two programs made of cells have the number {tail.number:#x}: write one of the cells a little "
                "differently, or use Handle(..., passes=vpps.Passes(fusion=False))"
            )


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What the source of a cuda or simt kernel depends on. On cpu, where one kernel serves all models, tails count.

    Attributes:
        instructions: names in the instruction table that it must know; it refuses others.
        chip: which weights the virtual processors hold, and where.
        tails: programs that it must have code for.
        rounds: whether products may round what they read from memory.
        timeline: whether it records what every virtual processor does when (runtime/stamps.py); machines see to that.
    """

    instructions: frozenset[str]
    chip: Chip = MEMORY_ONLY
    tails: frozenset[Tail] = frozenset()
    rounds: bool = False
    timeline: bool = False

    def __post_init__(self) -> None:
        check_numbers(self.tails)

    def of(self, vps: int) -> KernelSpec:
        """The same for one number of virtual processors: divisions by it are then multiplications."""
        return replace(self, chip=replace(self.chip, vps=vps))

    def made_for(self, target: str, vps: int) -> KernelSpec:
        """As a target has it compiled."""
        return self.of(vps) if TARGETS[target].fixed_vps else self

    def recording(self, timeline: bool) -> KernelSpec:
        """The same, for a kernel that records a timeline or none."""
        return replace(self, timeline=timeline)

    def joined(self, other: KernelSpec) -> KernelSpec:
        """A kernel for the other one that, if it holds the same weights, can still do what this one can."""
        if self.chip != other.chip:
            return other
        return replace(other, instructions=self.instructions | other.instructions, tails=self.tails | other.tails)

    def covers(self, other: KernelSpec) -> bool:
        """Whether a kernel made for this one can run what was made for the other."""
        alike = self.chip == other.chip and self.rounds == other.rounds
        return alike and self.instructions >= other.instructions and self.tails >= other.tails
