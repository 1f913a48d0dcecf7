"""Configuration of a handle: the choices that do not affect its results, and the precision."""

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
    "more; install one with pip install 'vpps[zig]'"
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings with which a handle runs its graphs.

    Attributes:
        vps: number of virtual processors in all groups; None for the machine's default.
        policy: batching policy, by name or as a learned policy.
        schedule: name of the scheme that turns steps into instructions.
        onchip: on-chip weight distribution (cuda, simt).
        passes: the cell compiler's passes.
        precision: precision of products with parameters. Only the user chooses it.
    """

    vps: int | None = None
    policy: str | LearnedPolicy = "sinks-last"
    schedule: str = "vector"
    onchip: ChipOptions = field(default_factory=ChipOptions)
    passes: Passes = field(default_factory=Passes.from_environment)
    precision: Precisions = ALL_EXACT

    @property
    def apart(self) -> list[str]:
        """Names of the matrices that have individual settings; these are not stacked with other matrices."""
        return [*self.onchip.tiers, *dict(self.precision.named)]

    def on(self, target: str) -> Configuration:
        """Return the configuration for this machine: without fusion, and after a notice, if there is no compiler."""
        if not self.passes.fusion or not (generates := TARGETS[target].generates) or generates():
            return self
        notice(NO_COMPILER)
        return replace(self, passes=replace(self.passes, fusion=False))
