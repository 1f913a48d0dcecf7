"""Inputs and results of the planner: matrices, options, and the place of each matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vpps.errors import HandleError
from vpps.hints import habit, hinted
from vpps.kernel.chip import WARPS, Chip, DenseMatrix, KernelSlot
from vpps.ops.element import FLOAT32, ElementType
from vpps.ops.precision import PRECISIONS
from vpps.placement.onchip.device import Device
from vpps.script.slices import sliced_by_rows
from vpps.text import KIB
from vpps.values import as_count, as_mapping, said_of

# Place of a role's weights during a launch. "atomic", in the published scheme: the transpose is not stored, because a
# transposed product adds partial sums over W's rows.
Tier = Literal["registers", "shared", "atomic", "L2"]
Ownership = Literal["aligned", "round-robin"]

ROW_SLICED = "rows are fewer than VPs: vertices are divided instead"

# With fewer columns, a row fills less than half a warp, and overhead dominates products.
NARROW = 16
NARROW_ROWS = f"rows of fewer than {NARROW} columns are quicker to read from memory"


@dataclass(frozen=True, slots=True)
class MatrixSpec:
    """The properties of a weight matrix that determine its place on the chip.

    Attributes:
        name: name of the parameter.
        rows, columns: its shape.
        parts: equal parts of its rows that are dealt identically (the gates of a stacked product).
        role_t_parts: parts of the transpose's rows (the children that a product concatenates); 0 if no transposed
            product is needed: inference, or operands without gradients.
        trained: True if it has a gradient and is updated.
        element: element type of its weights on the chip; in L2 they are float32.
    """

    name: str
    rows: int
    columns: int
    parts: int = 1
    role_t_parts: int = 1
    trained: bool = True
    element: ElementType = FLOAT32

    @property
    def precision(self) -> str:
        """Name of the precision in which products use the matrix."""
        return next((p.name for p in PRECISIONS.values() if p.element == self.element), self.element.name)


@dataclass(frozen=True, slots=True)
class ChipOptions:
    """Placement options that override the planner. By default, the planner decides.

    Attributes:
        ownership: "aligned" deals units (the same ones in every part), and products read windows in shared memory.
            "round-robin" deals whole rows and multiplies them in registers, as VPPS does, in float32.
        rpw: rows per warp, with round-robin ownership.
        groups: number of groups of blocks; each has a copy of the weights and a part of the batch. None: two, or one if
            the copies do not fit into shared memory, the number of blocks is odd, or ownership is "round-robin".
        tiers: name -> "L2" for matrices to keep in memory: "U" is the matrix and "U^T" its transpose. A matrix named
            here is not stacked with others (`Passes.horizontal`); a stack of "U" and "V" is named "U+V".
    """

    ownership: Ownership = "aligned"
    rpw: int | None = None
    groups: int | None = None
    tiers: Mapping[str, Literal["L2"]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        as_mapping(self.tiers, "ChipOptions(tiers)", HandleError)
        if self.rpw is not None:
            as_count(self.rpw, "rpw", HandleError)


ChipOptions.__init__ = hinted(ChipOptions.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class MatrixRole:
    """A matrix whose rows are dealt to blocks: W itself, or W^T.

    Attributes:
        name: the parameter's name, with ^T for the transpose.
        rows, columns, parts: shape and parts of W or W^T.
        transposed: True for W^T.
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
        """Bytes in memory."""
        return self.floats * FLOAT32.bytes

    @property
    def trained(self) -> bool:
        """True if it has a gradient; a transpose has none."""
        return not self.transposed and self.matrix.trained

    def sliced_by_rows(self, n_vps: int) -> bool:
        """True if its product divides vertices, not units: with fewer units than half the VPs, most would idle."""
        return sliced_by_rows(self.rows, self.parts, 1, n_vps)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a role, and the reason for it.

    Attributes:
        tier: tier during a launch.
        reason: explanation for the user.
        rows_owned: maximum rows per block.
        dense: its window; None if it has none. The planner sets its number later.
        slots: its slots in the published scheme.
        refilled: True if a launch reads it from memory more than once.
    """

    tier: Tier
    reason: str
    rows_owned: int = 0
    dense: DenseMatrix | None = None
    slots: tuple[KernelSlot, ...] = ()
    refilled: bool = False


@dataclass(frozen=True, slots=True)
class HeldMatrix(MatrixRole):
    """A role with its place.

    Attributes:
        place: its place.
        number: its number among those on the chip, from 1; 0 for others.
        copies: number of copies: one per group on the chip, one in L2 for all groups, none if partial sums replace it.
        turn: rows that each block gets in its turn; 0: units are dealt.
        first_vp: block that gets the first turn.
    """

    place: Place
    number: int
    copies: int
    turn: int
    first_vp: int

    @property
    def tier(self) -> Tier:
        """Tier of its weights during a launch."""
        return self.place.tier

    @property
    def dense(self) -> DenseMatrix | None:
        """Its window; None if it has none."""
        return self.place.dense

    @property
    def held_as(self) -> str:
        """Text for tables: "window 0", with its precision unless that is float32; "2 x (4, 8)" for 2 slots of 4 rows
        per warp and 8 columns per lane; otherwise ""."""
        if self.dense is not None:
            precision = "" if self.dense.element == FLOAT32 else f" {self.matrix.precision}"
            return f"window {self.dense.window}{precision}"
        slots = self.place.slots
        return f"{len(slots)} x ({slots[0].rows}, {slots[0].columns})" if slots else ""

    @property
    def registers(self) -> int:
        """Registers per thread that hold the role."""
        if self.dense is not None:
            return self.dense.registers if self.dense.is_at_home else 0
        return sum(slot.size for slot in self.place.slots)

    @property
    def kib(self) -> int:
        """Size per block, in KiB."""
        return -(-FLOAT32.bytes * self.dense.size // KIB) if self.dense is not None else self.registers

    @property
    def warps_busy(self) -> int:
        """Number of warps with a part of the role, in the block that owns the most rows."""
        if self.dense is not None:
            return min(WARPS, self.dense.steps)
        return min(WARPS, self.turn and -(-self.place.rows_owned * WARPS // self.turn))


@dataclass(frozen=True, slots=True)
class OnChip:
    """Plan of the weights' places.

    Attributes:
        chip: the part of the plan that determines the kernel's source.
        held: every role of every matrix, in matrix order.
        vps: blocks per group.
        device, matrices, options: inputs of the planner.
        registers: registers per thread available for weights.
    """

    chip: Chip
    held: tuple[HeldMatrix, ...]
    vps: int
    device: Device
    matrices: tuple[MatrixSpec, ...]
    options: ChipOptions
    registers: int

    @property
    def groups(self) -> int:
        """Number of groups of blocks."""
        return self.chip.groups

    def of(self, name: str) -> HeldMatrix:
        """Return a role by name: "U" or "U^T".

        Raises:
            KeyError: there is no such role.
        """
        return {held.name: held for held in self.held}[name]


def never_held(role: MatrixRole, n_vps: int, options: ChipOptions) -> str:
    """Reason to keep a role off the chip even if there is room; "" if there is no reason."""
    if role.sliced_by_rows(n_vps):
        return ROW_SLICED
    if role.name in options.tiers:
        return "forced to L2"
    return NARROW_ROWS if role.columns < NARROW else ""


def roles_of(matrices: Sequence[MatrixSpec]) -> list[MatrixRole]:
    """W of each matrix, and W^T if it is needed."""
    roles = []
    for m in matrices:
        roles.append(MatrixRole(m.name, m.rows, m.columns, m.parts, False, m))
        if m.role_t_parts:
            roles.append(MatrixRole(f"{m.name}^T", m.columns, m.rows, m.role_t_parts, True, m))
    return roles


def check(matrices: Sequence[MatrixSpec], device: Device, vps: int, options: ChipOptions) -> None:
    """Reject invalid matrices and options.

    Raises:
        HandleError: an option or a matrix is malformed; the message names it and the expected values.
    """
    for m in matrices:
        if m.rows < 1 or m.columns < 1 or m.parts < 1 or m.role_t_parts < 0:
            raise HandleError(f"matrix {m.name!r}: sizes and parts must be positive: {m}")
        if m.rows % m.parts or (m.role_t_parts and m.columns % m.role_t_parts):
            raise HandleError(
                f"matrix {m.name!r} of shape {m.rows}x{m.columns}: {m.parts} parts must divide its rows, and "
                f"{m.role_t_parts} parts its columns"
            )
    names = [role.name for role in roles_of(matrices)]
    if len(set(names)) != len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise HandleError(f"matrices must have different names; repeated: {', '.join(repeated)}")
    if not isinstance(options.ownership, str) or options.ownership not in ("aligned", "round-robin"):
        raise HandleError(
            f"ownership={options.ownership!r}: expected 'aligned' or 'round-robin'"
            f"{habit('ownership', options.ownership)}"
        )
    for name, tier in options.tiers.items():
        if name not in names:
            raise HandleError(f"tiers={{{name!r}: {tier!r}}}: there is no such matrix; {said_of(name, names)}")
        if not isinstance(tier, str) or tier != "L2":
            raise HandleError(f"tiers={{{name!r}: {tier!r}}}: expected 'L2'; the planner chooses places on the chip")
    _check_published(matrices, options)
    _check_blocks(device, vps, options)


def _check_published(matrices: Sequence[MatrixSpec], options: ChipOptions) -> None:
    if options.ownership == "aligned":
        if options.rpw is not None:
            raise HandleError(
                f"rpw={options.rpw}: rows per warp belong to ownership='round-robin'; add it, or leave rpw out"
            )
        return
    if options.groups not in (None, 1):
        raise HandleError(
            f"groups={options.groups} with ownership='round-robin': the published scheme has one group; leave one of "
            "them out"
        )
    for m in matrices:
        if m.element != FLOAT32:
            raise HandleError(
                f"ownership='round-robin': matrix {m.name!r} has the precision {m.precision}, and the published scheme "
                "multiplies in float32; leave one of them out"
            )


def _check_blocks(device: Device, vps: int, options: ChipOptions) -> None:
    as_count(vps, "vps", HandleError)
    groups = 1 if options.groups is None else as_count(options.groups, "groups", HandleError)
    if vps * groups > device.sms:
        remedy = f"at most {device.sms // groups} per group" if groups <= device.sms else "fewer groups"
        raise HandleError(
            f"{groups} groups of {vps} blocks do not run side by side on {device.name}: {device.sms} "
            f"multiprocessors take one block each; {remedy}"
        )
