"""Configuration: all that may be chosen for a handle without changing what it computes, and its precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from vpps.compiler.passes import Passes
from vpps.config import notice
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops.precision import EXACT
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
        tile: name of the tile of products (target cpu, `vpps.kernel.render.TILES`); None for the processor's.
        policy: batching policy.
        schedule: how steps become instructions.
        onchip: how weights are distributed over the chip (cuda, simt).
        passes: of the cell compiler.
        precision: of products with parameters: the user's alone to choose.
    """

    vps: int | None = None
    tile: str | None = None
    policy: str = "sinks-last"
    schedule: str = "vector"
    onchip: ChipOptions = field(default_factory=ChipOptions)
    passes: Passes = field(default_factory=Passes.from_environment)
    precision: Precisions = ALL_EXACT

    @property
    def apart(self) -> list[str]:
        """Names of matrices that the user wants to find by themselves: they are not stacked with others."""
        return [*self.onchip.tiers, *dict(self.precision.named)]

    def as_json(self) -> dict[str, Any]:
        """What differs from the default, whatever the environment says, as JSON types."""
        return _differences(self, Configuration(passes=Passes()))

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Self:
        """From what `as_json` gave. Raises TypeError, AttributeError: it is of another version."""
        onchip, passes = ChipOptions(**kept.get("onchip", {})), Passes(**kept.get("passes", {}))
        precision = Precisions.given(kept.get("precision", EXACT.name))
        return cls(**{**kept, "onchip": onchip, "passes": passes, "precision": precision})

    def on(self, target: str) -> Configuration:
        """As it runs on this machine: where a target cannot generate code for cells, without that, which it says."""
        if not self.passes.fusion or not (generates := TARGETS[target].generates) or generates():
            return self
        notice(NO_COMPILER)
        return replace(self, passes=replace(self.passes, fusion=False))

    def describe(self, beside: Configuration | None = None) -> str:
        """A short line: what differs from another one, or from the default, such as "vps 2, rpw 3"."""
        flat: dict[str, Any] = {}
        for name, value in (self.as_json() if beside is None else _differences(self, beside)).items():
            flat.update(value if isinstance(value, dict) and name != "precision" else {name: value})
        if "rpw" in flat:
            flat.pop("ownership", None)  # there is but one that has rows per warp
        tiers = [f"{name} in {tier}" for name, tier in flat.pop("tiers", {}).items()]
        said = [self.precision.describe()] if flat.pop("precision", None) else []
        return ", ".join([*said, *(f"{name} {value}" for name, value in flat.items()), *tiers]) or "default"


def _differences(value: Any, default: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in fields(value):
        own, usual = getattr(value, f.name), getattr(default, f.name)
        if own != usual:
            found[f.name] = _differences(own, usual) if f.name in ("onchip", "passes") else _plain(own)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Precisions):
        return value.written
    return dict(value) if isinstance(value, Mapping) else value
