"""What the planner is asked and what it answers: matrices and options, and who holds what."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vpps.errors import HandleError
from vpps.hints import habit, hinted
from vpps.kernel.chip import WARPS, Chip, DenseMatrix, fours_of, pitch_of, sums_of
from vpps.ops.element import FLOAT32, ElementType
from vpps.ops.precision import PRECISIONS
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.slots import ACCUMULATORS, Ownership, SlotShape, in_slot_order, row_step, valid_rpw
from vpps.script.slices import TURN_BITS, sliced_by_rows, units_of
from vpps.text import KIB
from vpps.values import as_count, as_mapping, said_of

# Where a role's weights are during a launch. Atomic: not at all, a transposed product adds partial sums of W's rows.
Tier = Literal["registers", "shared", "atomic", "L2"]
# Where a weight gradient is summed up. Tiles: in memory, by all blocks (templates/cuda/tiles.cuh). Overlay, in the
# published scheme (VPPS, section III-C1): in the place of W. Nothing is multiplied by W any more then, and the update
# finds W in memory. Only if all matrices are float32.
Gradients = Literal["none", "overlay", "tiles"]

ROW_SLICED = "rows are fewer than VPs: vertices are divided instead"

# Columns below which a row fills less than half of a warp: slots would be padding, and their products all overhead.
NARROW = 16
NARROW_ROWS = f"rows of fewer than {NARROW} columns would fill slots with padding"

SPILLED = "kept out of registers: the kernel spilled"

TIERS = ("registers", "shared", "atomic", "L2")
TILES = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class MatrixSpec:
    """A weight matrix, as far as its place on the chip depends on it.

    Attributes:
        name: of the parameter.
        rows, columns: its shape.
        parts: equal parts of its rows that are dealt alike (the gates of a stacked product).
        role_t_parts: parts of the transpose's rows (the children that a product reads side by side); 0 where no
            transposed product is needed: inference, or operands without gradients.
        trained: whether it has a gradient and is updated.
        uses: how often a launch reads it for each vertex, relative to the other matrices.
        element: of its weights on the chip; in L2 they are float32.
    """

    name: str
    rows: int
    columns: int
    parts: int = 1
    role_t_parts: int = 1
    trained: bool = True
    uses: float = 1.0
    element: ElementType = FLOAT32

    @property
    def precision(self) -> str:
        """Name of that of products with it."""
        return next((p.name for p in PRECISIONS.values() if p.element == self.element), self.element.name)


@dataclass(frozen=True, slots=True)
class ChipOptions:
    """What the user may force. The defaults leave it to the planner.

    Attributes:
        ownership: "aligned" deals units, the same ones of every part; "round-robin" deals whole rows, as VPPS does, and
            with one group keeps gradients on the chip, too, where they fit.
        rpw: rows per warp, with round-robin ownership.
        transposed: "copy" (W^T is a matrix of its own), "atomic" (partial sums of W's rows) or "auto".
        groups: of blocks, each with its own copy of the weights and its own part of the batch.
        products: "slots" (weights are in registers, and lanes divide the columns), "windows" (they are in shared
            memory, or in registers until they are needed there, and lanes have results of their own) or "auto": windows
            with several groups, if all float32 matrices fit.
        tile: vertices that a product computes at a time.
        tiers: tier by name, "U" for the matrix and "U^T" for its transpose. A matrix that is named is not stacked with
            others (`Passes.horizontal`); a stack of "U" and "V" is named "U+V".
    """

    ownership: Ownership = "aligned"
    rpw: int | None = None
    transposed: Literal["auto", "copy", "atomic"] = "auto"
    groups: int = 1
    products: Literal["auto", "slots", "windows"] = "auto"
    tile: int | None = None
    tiers: Mapping[str, Tier] = field(default_factory=dict)

    def __post_init__(self) -> None:
        as_mapping(self.tiers, "ChipOptions(tiers)", HandleError)
        if self.rpw is not None:
            as_count(self.rpw, "rpw", HandleError)


ChipOptions.__init__ = hinted(ChipOptions.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a plan has been stepped down because its kernel spilled (`step_down`).

    Attributes:
        tile: most vertices at a time.
        evicted: names of roles that may not be in registers.
        shapes: shapes that roles keep, by name, so that none spreads into what another one gave up.
        max_rows: most rows R of a slot; None for what the accumulators allow.
        windows: whether products may be made from windows.
    """

    tile: int = TILES[0]
    evicted: frozenset[str] = frozenset()
    shapes: Mapping[str, SlotShape] = field(default_factory=dict)
    max_rows: int | None = None
    windows: bool = True


@dataclass(frozen=True, slots=True)
class MatrixRole:
    """A matrix as its rows are dealt: W itself, or W^T.

    Attributes:
        name: the parameter's, with ^T for the transpose.
        rows, columns, parts: as it is dealt.
        transposed: whether it is W^T.
        matrix: W.
    """

    name: str
    rows: int
    columns: int
    parts: int
    transposed: bool
    matrix: MatrixSpec

    @property
    def floats(self) -> int:
        return self.rows * self.columns

    @property
    def bytes(self) -> int:
        """In memory."""
        return self.floats * FLOAT32.bytes

    @property
    def trained(self) -> bool:
        """Whether it has a gradient: a transpose has none."""
        return not self.transposed and self.matrix.trained

    def sliced_by_rows(self, n_vps: int) -> bool:
        """Whether its product divides vertices, not units: with fewer units than half the VPs most would idle."""
        return sliced_by_rows(self.rows, self.parts, 1, n_vps)


@dataclass(frozen=True, slots=True)
class Place:
    """Tier of a role, shape of its slots if it has any, and why."""

    tier: Tier
    shape: SlotShape | None
    reason: str


@dataclass(frozen=True, slots=True)
class HeldMatrix(MatrixRole):
    """Where one role lives.

    Attributes:
        tier: where its weights are during a launch.
        number: of it among those that have slots, from 1; 0 of others.
        slots: numbers of its slots.
        copies: of it: one per group on the chip, one for all in L2, none where partial sums replace it.
        rows_owned: rows of the block that owns most.
        reason: why this tier, for the user.
        gradient: where its gradient is summed up; "" for a transpose and for a matrix that is not trained.
        shape: of its slots, None where it has none.
        dense: its window; None where it has none.
        ownership, first_vp: how rows are dealt; round-robin begins at first_vp.
    """

    tier: Tier
    number: int
    slots: range
    copies: int
    rows_owned: int
    reason: str
    gradient: Gradients | Literal[""]
    shape: SlotShape | None
    dense: DenseMatrix | None
    ownership: Ownership
    first_vp: int

    @property
    def in_slots(self) -> str:
        """For tables: "2 x (4,8,1)", and its precision unless that is float32; "window 0"; "" without any."""
        if self.dense is not None:
            return f"window {self.dense.window}"
        if self.shape is None:
            return ""
        precision = "" if self.shape.element == FLOAT32 else f" {self.matrix.precision}"
        return f"{self.shape.slots} x ({self.shape.rows},{self.shape.columns},{self.shape.warps}){precision}"

    @property
    def registers(self) -> int:
        """Of each thread, in the tier of that name."""
        return 4 * self.dense.fours if self.dense else self.shape.registers if self.shape else 0

    @property
    def kib(self) -> int:
        """Of a block."""
        if self.dense is None:
            return self.registers
        return -(-FLOAT32.bytes * self.dense.rows * pitch_of(self.columns) // KIB)

    @property
    def warps_busy(self) -> int:
        """Warps of a block that multiply by some of it, in the block that owns most."""
        if self.shape is None:
            return min(WARPS, fours_of(self.columns)) if self.dense else 0
        return min(WARPS, -(-self.rows_owned // self.shape.rows) * self.shape.warps)


@dataclass(frozen=True, slots=True)
class OnChip:
    """Which weights live where.

    Attributes:
        chip: what the kernel's source needs to know of it: slots, those in registers first, and the memory around them.
        held: every role of every matrix, in the order of the matrices.
        gradients: where those are summed up that fit; others are in tiles (`HeldMatrix.gradient`).
        vps: blocks of a group.
        device, matrices, options, limits: what was asked.
    """

    chip: Chip
    held: tuple[HeldMatrix, ...]
    gradients: Gradients
    vps: int
    device: Device
    matrices: tuple[MatrixSpec, ...]
    options: ChipOptions
    limits: Limits

    def of(self, name: str) -> HeldMatrix:
        """A role by name: "U" or "U^T".

        Raises:
            KeyError: there is none.
        """
        return {held.name: held for held in self.held}[name]

    def weights_in(self, tier: Tier) -> int:
        """Registers or KiB that weights take in a tier."""
        in_registers = tier == "registers"
        windows = sum(4 * m.fours for m in self.chip.homes) if in_registers else self.chip.window_kib
        return windows + sum(slot.size for slot in self.chip.slots if slot.in_registers == in_registers)

    def to_key(self) -> Hashable:
        """What the kernel depends on: equal keys, equal kernels."""
        strategies = frozenset(held.gradient for held in self.held)
        return replace(self.chip, matrices=()), strategies, any(held.tier == "atomic" for held in self.held)


def never_held(role: MatrixRole, n_vps: int, options: ChipOptions) -> str:
    """Why a role is not on the chip, whatever room there is; "" if it may be."""
    forced = options.tiers.get(role.name)
    if role.sliced_by_rows(n_vps):
        return ROW_SLICED
    if forced == "L2":
        return "forced to L2"
    return NARROW_ROWS if forced is None and role.columns < NARROW else ""


def written(role: MatrixRole, tier: Tier) -> str:
    """What the user wrote to force a tier."""
    return f"tiers={{{role.name!r}: {tier!r}}}"


def owned_rows(held: HeldMatrix, vp: int, n_vps: int) -> NDArray[np.int32]:
    """Rows of the role's matrix (of W^T: columns of W) that a VP's slots hold.

    Args:
        held: a role of the plan.
        vp: number of the block in its group.
        n_vps: blocks of a group, as planned.

    Returns:
        (slots, groups of warps, R), -1 where there is padding; of a role without slots (0, 0, 0).
    """
    if held.shape is None:
        return np.empty((0, 0, 0), np.int32)
    turns = held.ownership != "aligned"
    parts = WARPS * held.shape.rows | held.first_vp << TURN_BITS if turns else held.parts
    return in_slot_order(units_of(held.rows, parts, 1, vp, n_vps, turns).astype(np.int32), held.shape)


def roles_of(matrices: Sequence[MatrixSpec]) -> list[MatrixRole]:
    """W, and W^T where it is needed, of each matrix."""
    roles = []
    for m in matrices:
        roles.append(MatrixRole(m.name, m.rows, m.columns, m.parts, False, m))
        if m.role_t_parts:
            roles.append(MatrixRole(f"{m.name}^T", m.columns, m.rows, m.role_t_parts, True, m))
    return roles


def check(matrices: Sequence[MatrixSpec], device: Device, vps: int, options: ChipOptions) -> None:
    """Refuse what cannot be planned.

    Raises:
        HandleError: an option or a matrix is malformed; names it and what is expected.
    """
    for m in matrices:
        if m.rows < 1 or m.columns < 1 or m.parts < 1 or m.role_t_parts < 0 or not m.uses >= 0:
            raise HandleError(f"matrix {m.name!r}: sizes and parts must be positive and uses not negative: {m}")
        if m.rows % m.parts or (m.role_t_parts and m.columns % m.role_t_parts):
            raise HandleError(
                f"matrix {m.name!r} of shape {m.rows}x{m.columns}: {m.parts} parts must divide its rows, and "
                f"{m.role_t_parts} parts its columns"
            )
    names = [role.name for role in roles_of(matrices)]
    if len(set(names)) != len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise HandleError(f"matrices must have different names; repeated: {', '.join(repeated)}")
    for option, value, choices in (
        ("ownership", options.ownership, ("aligned", "round-robin")),
        ("transposed", options.transposed, ("auto", "copy", "atomic")),
        ("products", options.products, ("auto", "slots", "windows")),
        ("tile", options.tile, (None, *TILES)),
    ):
        if type(value) not in (str, int, type(None)) or value not in choices:
            raise HandleError(
                f"{option}={value!r}: expected one of {', '.join(map(repr, choices))}{habit(option, value)}"
            )
    for name, tier in options.tiers.items():
        if name not in names:
            raise HandleError(f"tiers={{{name!r}: {tier!r}}}: there is no such matrix; {said_of(name, names)}")
        if not isinstance(tier, str) or tier not in TIERS or (tier == "atomic" and not name.endswith("^T")):
            expected = "'registers', 'shared', 'L2' or, of a transpose, 'atomic'"
            raise HandleError(f"tiers={{{name!r}: {tier!r}}}: expected {expected}")
    _check_rpw(matrices, options)
    _check_blocks(device, vps, options)


def _check_rpw(matrices: Sequence[MatrixSpec], options: ChipOptions) -> None:
    if options.rpw is None:
        return
    if options.ownership != "round-robin" or options.rpw < 1:
        raise HandleError(f"rpw={options.rpw}: expected a positive int, and ownership='round-robin' with it")
    for m in matrices:
        step = row_step(m.element)
        if options.rpw % step:
            raise HandleError(
                f"rpw={options.rpw}: matrix {m.name!r} has the precision {m.precision}, and tensor cores take {step} "
                f"rows at a time; try rpw={-(-options.rpw // step) * step}"
            )
    tile = options.tile or 1
    sums = sums_carried(matrices, options.rpw, tile)
    if tile > 1 and sums > ACCUMULATORS:
        fewer = options.rpw * ACCUMULATORS // sums
        fits = all(fewer % row_step(m.element) == 0 for m in matrices)
        raise HandleError(
            f"rpw={options.rpw} with tile={tile} needs {sums} sums in each thread, more than {ACCUMULATORS}; "
            f"{f'try rpw={fewer}, or ' if fits else ''}leave tile to the planner"
        )


def _check_blocks(device: Device, vps: int, options: ChipOptions) -> None:
    as_count(vps, "vps", HandleError)
    as_count(options.groups, "groups", HandleError)
    if vps * options.groups > device.sms:
        remedy = f"at most {device.sms // options.groups} per group" if options.groups <= device.sms else "fewer groups"
        raise HandleError(
            f"{options.groups} groups of {vps} blocks do not run side by side on {device.name}: {device.sms} "
            f"multiprocessors take one block each; {remedy}"
        )


def sums_carried(matrices: Iterable[MatrixSpec], rpw: int, tile: int) -> int:
    """Sums in a thread with so many rows per warp, at most."""
    return max((sums_of(rpw, tile, m.element) for m in matrices), default=0)


def tile_for(matrices: Sequence[MatrixSpec], rpw: int) -> int:
    """The largest tile of vertices whose sums fit in a thread's registers, given rows per warp."""
    return next((tile for tile in TILES if sums_carried(matrices, rpw, tile) <= ACCUMULATORS), 1)


def valid_rpws(roles: Iterable[MatrixRole], budget: int) -> range:
    """Rows per warp that all roles may have (`valid_rpw`)."""
    found = [valid_rpw(role.columns, budget, role.matrix.element) for role in roles] or [valid_rpw(1, budget)]
    step = max(of.step for of in found)
    return range(step, min(of[-1] + 1 if of else 0 for of in found), step)
