"""Specification of a kernel that is specialised to a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vpps.errors import CompileError
from vpps.kernel.chip import MEMORY_ONLY, Chip
from vpps.script.tails import Tail
from vpps.targets import TARGETS


def check_numbers(tails: Iterable[Tail]) -> None:
    """Raise CompileError if two tails share a number. The probability is 1 in 100 000 for a model with 300 tails."""
    by_number: dict[int, Tail] = {}
    for tail in tails:
        if by_number.setdefault(tail.number, tail) != tail:
            raise CompileError(
                f"two programs made of cells have the number {tail.number:#x}: write one of the cells a little "
                "differently, or use Handle(..., passes=vpps.Passes(fusion=False))"
            )


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Inputs for the source of a cuda or simt kernel. On cpu, one kernel serves all models, so only the tails matter.

    Attributes:
        instructions: names of the instructions that the kernel supports; it rejects all others.
        chip: the weights that the virtual processors hold, and their places.
        tails: programs of tails.
        rounds: True if products may round operands from memory.
        timeline: True if the kernel records a timeline (runtime/stamps.py); set by the machines in vpps/runtime.
    """

    instructions: frozenset[str]
    chip: Chip = MEMORY_ONLY
    tails: frozenset[Tail] = frozenset()
    rounds: bool = False
    timeline: bool = False

    def __post_init__(self) -> None:
        check_numbers(self.tails)

    def of(self, vps: int) -> KernelSpec:
        """A copy for a fixed number of virtual processors, so that the compiler divides by it with multiplications."""
        return replace(self, chip=replace(self.chip, vps=vps))

    def made_for(self, target: str, vps: int) -> KernelSpec:
        """The specification that a target compiles, with `vps` fixed if the target requires a fixed number."""
        return self.of(vps) if TARGETS[target].fixed_vps else self

    def recording(self, timeline: bool) -> KernelSpec:
        """A copy with or without a timeline."""
        return replace(self, timeline=timeline)

    def joined(self, other: KernelSpec) -> KernelSpec:
        """The other specification, with this one's instructions and tails added if both hold the same weights."""
        if self.chip != other.chip:
            return other
        return replace(other, instructions=self.instructions | other.instructions, tails=self.tails | other.tails)

    def covers(self, other: KernelSpec) -> bool:
        """True if a kernel with this specification can run the scripts for the other."""
        alike = self.chip == other.chip and self.rounds == other.rounds
        return alike and self.instructions >= other.instructions and self.tails >= other.tails
