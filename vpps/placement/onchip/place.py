"""Which roles get slots, of which shape and in which tier: registers, then shared memory, then L2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vpps.errors import CapacityError
from vpps.kernel.chip import FEWEST_GRADIENT_VERTICES, GRADIENT_FLOATS, THREADS, WARPS, stage_of
from vpps.ops.element import FLOAT32
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.holding import (
    ROW_SLICED,
    SPILLED,
    TILES,
    ChipOptions,
    Gradients,
    Limits,
    MatrixRole,
    MatrixSpec,
    Place,
    Tier,
    never_held,
    roles_of,
    sums_carried,
    tile_for,
    valid_rpws,
    written,
)
from vpps.placement.onchip.slots import (
    ACCUMULATORS,
    MOST_FRAGMENT_ROWS,
    MOST_ROWS,
    SlotShape,
    pieces,
    shapes,
    whole_rows,
)
from vpps.placement.onchip.windows import Windows
from vpps.script.slices import most_units
from vpps.text import KIB

ON_CHIP: tuple[Tier, ...] = ("registers", "shared")

# Bytes that L2 moves for one float added by an atomic: it is read and written there.
ATOMIC_BYTES = 8


# Tastes in shapes: which roles take the one with the fewest registers that there is, instead of the fastest one, and
# whether a slot may be larger than the staging buffer of its matrix, in which it is updated.
TASTES = [(thrifty, flat) for flat in (False, True) for thrifty in ("none", "W", "all")]


@dataclass(frozen=True, slots=True)
class Room:
    """What of a block's registers and shared memory some roles leave to others.

    Attributes:
        registers: of each thread, for slots.
        shared: bytes for the staging buffer, partial sums and slots.
        tile: vertices in the staging buffer.
        widest: columns of a vertex in it.
        fragments: whether some slots are for tensor cores.
        largest: floats of each thread that a slot takes in it, at most.
        tallest: rows R of all slots of a role, at most.
        taken: registers, and KiB of shared memory, of the slots so far.
    """

    registers: int
    shared: int
    tile: int
    widest: int = 0
    fragments: bool = False
    largest: int = 0
    tallest: int = 0
    taken: Mapping[str, int] = field(default_factory=lambda: {"registers": 0, "shared": 0})

    @property
    def stage(self) -> int:
        """Floats of a vertex in the staging buffer."""
        return stage_of(self.widest, self.fragments)

    @property
    def sums(self) -> int:
        """Floats of partial sums: of each row and vertex of a tile, one from every warp that may hold a part of it."""
        return WARPS * self.tallest * self.tile

    @property
    def staged(self) -> int:
        """Floats of the staging buffer. An update brings the weights or gradients of a whole slot there, too."""
        return max(self.tile * self.stage, THREADS * self.largest)

    def beside(self, shape: SlotShape) -> Room:
        """The room that there is once vectors can be multiplied by slots of that shape, wherever those are."""
        return replace(
            self,
            widest=max(self.widest, shape.width),
            fragments=self.fragments or shape.element != FLOAT32,
            largest=max(self.largest, shape.passed),
            tallest=max(self.tallest, shape.slots * shape.rows),
        )

    def takes(self, shape: SlotShape, tier: str) -> bool:
        """Whether slots of that shape still fit."""
        with_it = self.take(shape, tier)
        return with_it.left(tier) >= 0 and with_it.left("shared") >= 0

    def take(self, shape: SlotShape, tier: str) -> Room:
        """What is left with slots of that shape."""
        return replace(self.beside(shape), taken={**self.taken, tier: self.taken[tier] + shape.registers})

    def budget(self, tier: str) -> int:
        """Registers, or whole KiB of shared memory, for slots."""
        if tier == "registers":
            return self.registers
        return (self.shared - FLOAT32.bytes * (self.staged + self.sums)) // KIB

    def left(self, tier: str) -> int:
        """Those that are left."""
        return self.budget(tier) - self.taken[tier]


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What is to be planned: the same for every attempt."""

    matrices: tuple[MatrixSpec, ...]
    device: Device
    vps: int
    options: ChipOptions
    limits: Limits
    windows: Windows = field(default_factory=Windows)

    @property
    def roles(self) -> list[MatrixRole]:
        """W, and W^T where it is needed, of each matrix that may have slots."""
        return [role for role in roles_of(self.matrices) if role.name not in self.windows.places]

    @property
    def may_keep_gradients(self) -> bool:
        """Whether gradients may stay on the chip: those of the published scheme, in float32."""
        is_published = self.options.ownership == "round-robin" and self.options.groups == 1
        return is_published and all(m.element == FLOAT32 for m in self.matrices)


class Attempt:
    """Roles placed with one tile, one number of rows per warp and one taste in shapes.

    Attributes:
        thrifty, flat: one of TASTES.
        places: by name of the role.
        misfit: the message, where something that the user forced does not fit.
        too_wide: whether a role was refused that has room beside vectors of fewer vertices.
    """

    def __init__(self, request: SlotRequest, tile: int, rpw: int | None, thrifty: str, flat: bool) -> None:
        self.request = request
        self.tile = tile
        self.rpw = rpw
        self.thrifty = thrifty
        self.flat = flat
        self.places: dict[str, Place] = {}
        self.misfit = ""
        self.too_wide = False
        beside = FLOAT32.bytes * FEWEST_GRADIENT_VERTICES * GRADIENT_FLOATS * request.may_keep_gradients
        device, windows = request.device, request.windows
        self.room = Room(device.registers - windows.registers, device.shared - beside - windows.bytes, tile)
        for role in sorted(request.roles, key=self._priority):
            self.places[role.name] = self._place(role)

    def _priority(self, role: MatrixRole) -> tuple[bool, float, bool, int]:
        """What the user forced first, then by reuse of a byte, W before any W^T, large before small."""
        forced = self.request.options.tiers.get(role.name) in ("registers", "shared")
        return (not forced, -role.matrix.uses, role.transposed, -role.floats)

    @property
    def score(self) -> tuple[float, float, float]:
        """More is better: weights that L2 need not deliver, those of them in registers, less time."""
        cost = on_chip = in_registers = 0.0
        for role in self.request.roles:
            where = self.places[role.name]
            if where.shape is not None:
                cost += where.shape.cost
                on_chip += role.floats * role.matrix.uses
                in_registers += role.floats * role.matrix.uses * (where.tier == "registers")
        return on_chip, in_registers, -cost

    def gradients(self) -> dict[str, Gradients]:
        """Where the gradient of each trained matrix is summed up: on the chip in the place of the weights."""
        stay = ON_CHIP if self.request.may_keep_gradients else ()
        trained = [m.name for m in self.request.matrices if m.trained]
        return {name: "overlay" if self.places[name].tier in stay else "tiles" for name in trained}

    def candidates(self, role: MatrixRole) -> Sequence[SlotShape]:
        """Shapes that a role may have, best first."""
        kept = self.request.limits.shapes.get(role.name)
        if kept is not None:
            return [kept]
        if self.rpw is not None:
            return [whole_rows(role.rows, role.columns, self.rpw, self.request.vps, role.matrix.element)]
        found = shapes(self.rows_owned(role), role.columns, self.request.limits.max_rows, role.matrix.element)
        thrifty = self.thrifty == "all" or (self.thrifty == "W" and not role.transposed)
        if self.flat:
            found = tuple(sorted(found, key=lambda s: THREADS * s.passed > self.tile * s.width))
        return sorted(found, key=lambda s: s.registers) if thrifty else found

    def rows_owned(self, role: MatrixRole) -> int:
        """Rows of the block that owns most."""
        return most_units(role.rows, role.parts, self.request.vps)

    def _place(self, role: MatrixRole) -> Place:
        options = self.request.options
        forced = options.tiers.get(role.name)
        if role.transposed and (forced == "atomic" or (forced is None and options.transposed == "atomic")):
            return self._atomic_by_force(role, written(role, forced) if forced else "transposed='atomic'")
        if why := never_held(role, self.request.vps, options):
            if why == ROW_SLICED and forced in ("registers", "shared"):
                self.misfit = self.misfit or f"{written(role, forced)}: {why}; leave it out"
            return Place("L2", None, why)
        shapes = self.candidates(role)
        wanted: tuple[Tier, ...] = (forced,) if forced else ("registers", "shared")
        for tier in wanted:
            if tier == "registers" and role.name in self.request.limits.evicted:
                continue
            shape = next((s for s in shapes if self.room.takes(s, tier)), None)
            if shape is not None:
                reason = f"forced to {tier}" if forced else self._why(role, tier, shapes)
                self.room = self.room.take(shape, tier)
                return Place(tier, shape, reason)
            self.too_wide |= any(replace(self.room, tile=1).takes(s, tier) for s in shapes)
        if forced:
            self.misfit = self.misfit or f"{written(role, forced)} does not fit: {self._short(role, shapes)}"
        return self._off_chip(role, shapes)

    def _why(self, role: MatrixRole, tier: Tier, shapes: Sequence[SlotShape]) -> str:
        if tier == "registers":
            return "fits in registers"
        if role.name in self.request.limits.evicted:
            return SPILLED
        least = min(shape.registers for shape in shapes)
        return f"needs {least} registers, {self.room.left('registers')} were left"

    def _short(self, role: MatrixRole, shapes: Sequence[SlotShape]) -> str:
        least = min(shapes, key=lambda s: (s.registers, s.width))
        room = self.room.beside(least)
        left = room.left("shared")
        if left < 0:
            staging, slots = FLOAT32.bytes * (room.staged + room.sums) // KIB, self.room.taken["shared"]
            beside = f", slots {slots} KiB," if slots else ""
            return f"staging {self.tile} of its rows takes {staging} KiB{beside} of {self.room.shared // KIB} KiB"
        shared = f"{least.registers} KiB of shared memory, {left} KiB were left"
        if role.name in self.request.limits.evicted:
            return f"{SPILLED}; needs {shared}"
        return f"needs {least.registers} registers, {self.room.left('registers')} were left, or {shared}"

    def _atomic_by_force(self, role: MatrixRole, by: str) -> Place:
        place = self.places.get(role.matrix.name)
        if place is not None and place.shape is not None:
            return Place("atomic", None, f"forced by {by}")
        if by.startswith("tiers") or place is None or place.reason != ROW_SLICED:
            self.misfit = self.misfit or (
                f"{by}: partial sums of {role.matrix.name!r} need its rows on the chip, and it is in L2 "
                f"({place.reason if place else 'placed later'}); leave {role.name!r} to the planner"
            )
        return Place("L2", None, "partial sums need W on the chip")

    def _off_chip(self, role: MatrixRole, shapes: Sequence[SlotShape]) -> Place:
        """L2, or atomics: whichever moves fewer bytes through L2 for a vertex."""
        short = self._short(role, shapes)
        whole = self.places.get(role.matrix.name) if role.transposed else None
        if whole is None or whole.shape is None or self.request.options.transposed == "copy":
            return Place("L2", None, short)
        copy = role.bytes // self.tile
        atomic = ATOMIC_BYTES * self._owners(role.matrix.rows, role.matrix.parts) * role.rows
        tier: Tier = "atomic" if atomic < copy else "L2"
        traffic = f"a copy in L2 moves {_kib(copy)} KiB per vertex, atomics {_kib(atomic)} KiB"
        return Place(tier, None, f"{short}; {traffic}")

    def _owners(self, rows: int, parts: int) -> int:
        """Blocks that own some of a matrix: each adds a partial sum to every element of the result."""
        shares = pieces(rows, self.rpw) if self.rpw is not None else rows // parts
        return min(self.request.vps, shares)


def _kib(count: float) -> str:
    return f"{count / KIB:.{1 if count < 10 * KIB else 0}f}"


def place(request: SlotRequest) -> Attempt:
    """The best way to place all roles.

    A smaller tile is taken only where the staging buffer refuses a role otherwise; shapes with fewer registers only
    where more gets on the chip that way.

    Raises:
        CapacityError: something forced does not fit.
    """
    best: Attempt | None = None
    misfit = ""
    for tile, rpws in _tiles(request):
        attempts = [Attempt(request, tile, rpw, *taste) for rpw in rpws for taste in TASTES]
        misfit = misfit or attempts[0].misfit
        fitting = [attempt for attempt in attempts if not attempt.misfit]
        for attempt in fitting:
            if best is None or attempt.score > best.score:
                best = attempt
        if fitting and not any(attempt.too_wide for attempt in fitting):
            break
    if best is None:
        raise CapacityError(misfit)
    return best


def _tiles(request: SlotRequest) -> Iterator[tuple[int, list[int | None]]]:
    """Tiles to try, largest first, each with the numbers of rows per warp to try."""
    options, limits = request.options, request.limits
    tiles = [options.tile] if options.tile else [t for t in TILES if 2 <= t <= limits.tile]
    if options.ownership == "aligned":
        for tile in tiles:
            yield tile, [None]
        return
    rpws, matrices = _rpws(request), request.matrices
    if options.rpw is not None and not options.tile:
        fitting = [t for t in tiles if sums_carried(matrices, options.rpw, t) <= ACCUMULATORS]
        tiles = fitting or [tile_for(matrices, options.rpw)]
    for tile in tiles:
        yield tile, [rpw for rpw in rpws if options.rpw or sums_carried(matrices, rpw, tile) <= ACCUMULATORS]


def _rpws(request: SlotRequest) -> list[int]:
    """Rows per warp to try.

    Raises:
        CapacityError: the forced one does not fit the widest matrix in the registers.
    """
    options, budget = request.options, request.device.registers
    held = [
        r
        for r in request.roles
        if not r.sliced_by_rows(request.vps) and options.tiers.get(r.name) not in ("L2", "atomic")
    ]
    if options.transposed == "atomic":
        held = [r for r in held if not r.transposed]
    valid = valid_rpws(held, budget)
    if options.rpw is None:
        most = MOST_ROWS if valid.step == 1 else MOST_FRAGMENT_ROWS
        return [rpw for rpw in valid if rpw <= min(most, request.limits.max_rows or most)] or [valid.step]
    if options.rpw not in valid:
        rows = [(r.matrix.element.words(-(-r.columns // 32)), r.columns) for r in held]
        each, widest = max(rows, default=(1, 1))
        expected = f"{valid[0]} to {valid[-1]}" if valid else "none: let 'aligned' ownership spread rows over warps"
        alone = valid_rpws([r for r in request.roles if not r.transposed], budget)
        remedy = f", or transposed='atomic' with {alone[0]} to {alone[-1]}" if len(alone) > len(valid) else ""
        raise CapacityError(
            f"rpw={options.rpw}: rows of up to {widest} columns take {each} registers each of the {budget} "
            f"for slots; valid: {expected}{remedy}"
        )
    return [options.rpw]
