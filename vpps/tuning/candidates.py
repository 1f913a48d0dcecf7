"""Candidates: the configurations among which tuning chooses, as axes that are combined.

An axis is a list of changes to a configuration, the first of which changes nothing. What cannot be had (too many rows
for the registers, a gradient strategy that does not fit) stays in the list with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

from vpps.engine.configuration import Configuration
from vpps.errors import CapacityError, HandleError
from vpps.kernel.chip import WARPS
from vpps.placement.onchip import ChipOptions, Device, MatrixSpec, OnChip, plan_onchip
from vpps.placement.onchip.holding import TIERS, TILES, valid_rpws
from vpps.planner.policies import WORTH_TRYING

Change = Mapping[str, Any]
"""New values of a configuration's fields; those of `onchip` and `passes` as mappings of their fields."""

NO_CHANGE: Change = {}
POLICIES: list[Change] = [{"policy": policy} for policy in WORTH_TRYING]
PASSES: list[Change] = [{"passes": {"recompute": True}}]

MOST_COMBINED = 64
"""Candidates of a full grid. With more, axes are searched one after the other."""

GAIN = 1.02
"""What a configuration must gain over the default to be chosen instead of it."""

_EVERY_COUNT = 8  # of virtual processors is tried up to so many cores
_ROLES = 4  # matrices and transposes, the largest ones, whose tier is varied


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration to try.

    Attributes:
        configuration: it.
        reason: why it cannot be had; "" where it can, as far as is known before compiling.
    """

    configuration: Configuration
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TunedChip:
    """What of a model and a GPU candidates depend on.

    Attributes:
        matrices: that the kernel multiplies by (`vpps.compiler.arrangement.matrices_of`).
        device: the GPU.
        vps: blocks that run side by side, of all groups; None for all that the device has room for.
        train: whether transposes and gradients are needed.
    """

    matrices: tuple[MatrixSpec, ...]
    device: Device
    vps: int | None = None
    train: bool = True

    def planned(self, options: ChipOptions) -> OnChip:
        """The planner's best under these options. Raises HandleError, CapacityError."""
        blocks = self.device.sms * (options.blocks_per_sm or 1) if self.vps is None else self.vps
        return plan_onchip(self.matrices, self.device, max(1, blocks // max(1, options.groups)), options)


def cpu_axes(names: Sequence[str], cores: int, usual_vps: int, tiles: Sequence[str]) -> dict[str, list[Change]]:
    """Axes of the cpu target by name.

    Args:
        names: of `vpps.targets.CPU.axes`.
        cores: that the process may use.
        usual_vps: virtual processors by default.
        tiles: names, the usual one first.
    """
    axes: dict[str, Iterable[Change]] = {
        "vps": ({"vps": n} for n in _counts(cores) if n != usual_vps),
        "tile": ({"tile": name} for name in tiles[1:]),
        "policy": POLICIES,
        "passes": PASSES,
    }
    return {name: [NO_CHANGE, *axes[name]] for name in names}


def gpu_axes(names: Sequence[str], chip: TunedChip, base: ChipOptions) -> dict[str, list[Change]]:
    """Axes of targets cuda and simt by name.

    Args:
        names: of the axes of a row of `vpps.targets` that is a GPU.
        chip: model and GPU.
        base: what the user forces.

    Raises:
        HandleError: what the user forces is malformed.
        CapacityError: what the user forces does not fit.
    """

    def chip_option(field: str, *values: Any) -> list[Change]:
        return [{"onchip": {field: value}} for value in values]

    axes: dict[str, Iterable[Change]] = {
        "slots": _slots(chip, base),  # plans only where it is asked for
        "blocks": chip_option("blocks_per_sm", 2),
        "groups": chip_option("groups", 2, 4),
        "gradients": chip_option("gradients", "overlay", "registers", "passes", "gemm") if chip.train else (),
        "transposed": chip_option("transposed", "copy", "atomic") if chip.train else (),
        "policy": POLICIES,
        "schedule": [{"schedule": "paper"}],
        "passes": PASSES,
    }
    return {name: [NO_CHANGE, *axes[name]] for name in names}


def combined(base: Configuration, axes: Mapping[str, Sequence[Change]]) -> list[Configuration]:
    """The full grid: the base first, none twice."""
    return without_repetitions(applied(base, *changes) for changes in product(*axes.values()))


def one_by_one(base: Configuration, axes: Mapping[str, Sequence[Change]]) -> list[Configuration]:
    """The base, then for each axis all its changes of the base alone."""
    return without_repetitions(applied(base, change) for change in chain([NO_CHANGE], *axes.values()))


def n_combined(axes: Mapping[str, Sequence[Change]]) -> int:
    """Size of the full grid."""
    return math.prod(map(len, axes.values()))


def applied(base: Configuration, *changes: Change) -> Configuration:
    """A configuration with changes made, in order."""
    for change in changes:
        values: dict[str, Any] = dict(change)
        for nested in ("onchip", "passes"):
            if nested in values:
                values[nested] = replace(getattr(base, nested), **values[nested])
        base = replace(base, **values)
    return base


def checked(configurations: Iterable[Configuration], chip: TunedChip | None) -> tuple[list[Candidate], int]:
    """Candidates of configurations, and how many were left out because another one before gives the same kernel.

    Args:
        chip: model and GPU; None where the chip holds nothing (cpu).
    """
    if chip is None:
        return list(map(Candidate, configurations)), 0
    found: list[Candidate] = []
    kernels: set[Any] = set()
    repeated = 0
    for configuration in configurations:
        try:
            kernel = _kernel(configuration, chip.planned(configuration.onchip))
        except (HandleError, CapacityError) as error:
            found.append(Candidate(configuration, str(error)))
            continue
        if kernel in kernels:
            repeated += 1
            continue
        kernels.add(kernel)
        found.append(Candidate(configuration))
    return found, repeated


def _kernel(configuration: Configuration, onchip: OnChip) -> Any:
    """What tells a kernel and its scripts from others."""
    held = tuple((h.name, h.tier, h.shape, h.ownership, h.gradient) for h in onchip.held)
    options = configuration.onchip
    return onchip.to_key(), held, options.groups, repr(replace(configuration, onchip=ChipOptions()))


def _slots(chip: TunedChip, base: ChipOptions) -> Iterator[Change]:
    """Rows per warp dealt in turns, as in VPPS; our slot shapes with other tiles, and with a role in another tier."""
    planned = chip.planned(base)
    tallest = max((held.rows for held in planned.held), default=1)
    valid = valid_rpws(planned.held, chip.device.registers(base.blocks_per_sm or 1))
    for rpw in valid:
        if rpw > valid.start and WARPS * (rpw - valid.step) >= tallest:
            break  # a block has all rows of any matrix already; more would be padding
        yield {"onchip": {"ownership": "round-robin", "rpw": rpw}}
    for tile in TILES:
        yield {"onchip": {"tile": tile}}
    largest = sorted(planned.held, key=lambda held: -held.rows * held.columns)[:_ROLES]
    for held in largest:
        for tier in TIERS:
            if tier != held.tier and (tier != "atomic" or held.transposed):
                yield {"onchip": {"tiers": {**base.tiers, held.name: tier}}}


def _counts(cores: int) -> list[int]:
    """Virtual processors to try: all numbers on small machines; on larger ones fewer, but all cores and one less."""
    if cores <= _EVERY_COUNT:
        return list(range(1, cores + 1))
    few = {2**k for k in range(cores.bit_length())} | {cores * 3 // 4, cores - 1, cores}
    return sorted(n for n in few if n <= cores)


def without_repetitions(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Each once, where it comes first."""
    found: dict[str, Configuration] = {}
    for configuration in configurations:
        found.setdefault(repr(configuration), configuration)
    return list(found.values())
