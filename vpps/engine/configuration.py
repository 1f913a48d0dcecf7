"""Configuration: all that may be chosen for a handle without changing what it computes, and its precision."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vpps.compiler.passes import Passes
from vpps.config import notice
from vpps.model.learned_policy import LearnedPolicy
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.placement.onchip import ChipOptions
from vpps.targets import TARGETS

NO_COMPILER = (
    "there is no C++ compiler, so elementwise operations of cells run one after the other, at 0.8 of the speed or "
    "more; pip install 'vpps[zig]' brings one"
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """How a handle runs what it is given.

    Attributes:
        vps: virtual processors (of all groups); None for what suits the machine.
        policy: batching policy, by its name or as it was learned.
        schedule: how steps become instructions.
        onchip: how weights are distributed over the chip (cuda, simt).
        passes: of the cell compiler.
        precision: of products with parameters: the user's alone to choose.
    """

    vps: int | None = None
    policy: str | LearnedPolicy = "sinks-last"
    schedule: str = "vector"
    onchip: ChipOptions = field(default_factory=ChipOptions)
    passes: Passes = field(default_factory=Passes.from_environment)
    precision: Precisions = ALL_EXACT

    @property
    def apart(self) -> list[str]:
        """Names of matrices that the user wants to find by themselves: they are not stacked with others."""
        return [*self.onchip.tiers, *dict(self.precision.named)]

    def on(self, target: str) -> Configuration:
        """As it runs on this machine: where a target cannot generate code for cells, without that, which it says."""
        if not self.passes.fusion or not (generates := TARGETS[target].generates) or generates():
            return self
        notice(NO_COMPILER)
        return replace(self, passes=replace(self.passes, fusion=False))
