"""Windows: which float32 matrices lie in shared memory, and by which tiles their products are made.

Rows are dealt by units, and a thread block has its rows of a matrix in a window, a part of shared memory. Where not all
fit, a matrix and its transpose share a window: forward needs one and backward the other. The transpose is then in
registers until the block first multiplies by it, which is quicker than to read it again from L2. If they still do not
fit, all go to slots.

Windows are for groups of blocks: a block of a group has so many rows that it multiplies longer than it waits for
vectors. One group of all blocks has few rows in each, and keeps its slots until a GPU has said which is faster there.

Tiles are chosen for one vector, for eight, and for as many as a pass may have, by a model of a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from math import inf

from vpps.errors import CapacityError, HandleError
from vpps.kernel.chip import (
    RESULT_FLOATS,
    SUM_FLOATS,
    WARPS,
    Chip,
    DenseMatrix,
    ProductTile,
    fours_of,
    pitch_of,
)
from vpps.ops.element import FLOAT32
from vpps.placement.onchip.device import Device
from vpps.placement.onchip.holding import (
    TILES,
    ChipOptions,
    Limits,
    MatrixRole,
    MatrixSpec,
    Place,
    never_held,
    roles_of,
)
from vpps.script.slices import most_units
from vpps.text import KIB

# Vectors of a pass, at most, and vectors for which there must be room if they are brought whole.
VECTORS = ((32, 8), (24, 8), (16, 8), (16, 0), (8, 0), (4, 0))
FEWEST_VECTORS = 16  # of a pass: with fewer, slots are no slower
MOST_ROWS, MOST_SUMS = 12, 48  # of a lane
FEW_VECTORS = 8  # for so many, and for one, there are tiles beside those for as many as a pass may have
# How much longer a tile may take than the best one if another matrix has it already, as code is scarce: few vectors,
# many in several groups, many in one group, where they wait for L2.
CLOSE_FOR_FEW, CLOSE_IN_GROUPS, CLOSE_IN_ONE = 1.5, 1.1, 1.35
MOST_HOMES = 80  # registers of a thread for matrices that are not needed yet: with 104 a Tree-LSTM of 256 units spilled
AT_HOME = Place("registers", None, "in registers until backward needs it: then it takes the window")
IN_WINDOW = Place("shared", None, "fits in shared memory, where products read it")
PASS_CLOCKS = 700  # of a pass, beside multiplying: barriers, addresses, latency


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the float32 matrices are whose rows are dealt by units.

    Attributes:
        places: tier and reason, by name of the role.
        dense: those in windows, by name; their numbers are not theirs yet.
        tiles: of their products.
        whole: vectors that are brought whole, at most.
        bytes: of shared memory.
        registers: of each thread.
    """

    places: Mapping[str, Place] = field(default_factory=dict)
    dense: Mapping[str, DenseMatrix] = field(default_factory=dict)
    tiles: tuple[ProductTile, ...] = ()
    whole: int = 0
    bytes: int = 0
    registers: int = 0

    def behind(self, registers: int) -> Windows:
        """The same, for a kernel whose first registers are others'."""
        moved = {k: replace(m, home=m.home + registers) if m.home >= 0 else m for k, m in self.dense.items()}
        return replace(self, dense=moved)


def place_windows(
    matrices: Sequence[MatrixSpec], device: Device, vps: int, options: ChipOptions, limits: Limits
) -> Windows:
    """Choose windows. There are none if not all float32 matrices find a place, or if slots are asked for.

    Raises:
        HandleError: windows are asked for together with what only slots have.
        CapacityError: windows are asked for, and matrices do not fit.
    """
    roles = [role for role in roles_of(matrices) if role.matrix.element == FLOAT32]
    wants = _asks_for_slots(options, {role.name for role in roles})
    if options.products == "windows":
        if wants:
            raise HandleError(f"products='windows' with {wants}: only slots have that; leave one of them out")
        if matrices and not roles:
            raise HandleError("products='windows': no matrix is multiplied in float32; leave products to 'auto'")
    elif options.products == "slots" or options.groups == 1 or wants or not limits.windows:
        return Windows()
    why = {role.name: never_held(role, vps, options) for role in roles}
    places = {name: Place("L2", None, reason) for name, reason in why.items() if reason}
    wanted = [role for role in roles if not why[role.name]]
    if not wanted:
        return Windows()
    rows = {role.name: most_units(role.rows, role.parts, vps) for role in wanted}
    pairs = [r for r in wanted if r.transposed and r.matrix.name in rows and r.name not in limits.evicted]
    pairs.sort(key=lambda r: -min(rows[r.name] * r.columns, rows[r.matrix.name] * r.matrix.columns))
    close = CLOSE_IN_GROUPS if options.groups > 1 else CLOSE_IN_ONE
    for vectors, whole in VECTORS:
        if options.products == "auto" and vectors < FEWEST_VECTORS:
            break
        tiles, numbers = _choose_tiles([(rows[r.name], r.columns) for r in wanted], vectors, close)
        for some in range(len(pairs) + 1):
            homes = {role.name for role in pairs[:some]}
            dense = _lay_out(wanted, rows, homes, numbers)
            sums = max(tile.sums for tile in tiles)
            chip = Chip(
                dense=tuple(dense.values()), product_tiles=tiles, whole_vectors=whole, sums=sums, results=RESULT_FLOATS
            )
            size, registers = FLOAT32.bytes * chip.held_floats, sum(4 * m.fours for m in chip.homes)
            if size <= device.shared and registers <= min(MOST_HOMES, device.registers):
                for role in wanted:
                    places[role.name] = AT_HOME if role.name in homes else IN_WINDOW
                return Windows(places, dense, tiles, whole, size, registers)
    if options.products == "windows":
        raise CapacityError(
            f"products='windows': windows and vectors take {size // KIB} KiB of shared memory and {registers} "
            f"registers of each thread, and there are {device.shared // KIB} KiB and "
            f"{min(MOST_HOMES, device.registers)}; leave products to 'auto'"
        )
    return Windows()


def _asks_for_slots(options: ChipOptions, names: Collection[str]) -> str:
    """What is forced of some roles that only slots have; "" if nothing is."""
    tiers = {name: tier for name, tier in options.tiers.items() if tier != "L2" and name in names}
    forced = {
        f"ownership={options.ownership!r}": options.ownership != "aligned",
        f"tile={options.tile}": options.tile is not None,
        f"transposed={options.transposed!r}": options.transposed == "atomic",
        f"tiers={tiers}": bool(tiers),
    }
    return ", ".join(name for name, is_forced in forced.items() if is_forced)


def _lay_out(
    roles: Sequence[MatrixRole],
    rows: Mapping[str, int],
    homes: Collection[str],
    numbers: Sequence[tuple[int, int, int]],
) -> dict[str, DenseMatrix]:
    """Windows one behind the other. A transpose at home has that of its matrix."""
    sharing = {role.name: role.matrix.name if role.name in homes else role.name for role in roles}
    sizes: dict[str, int] = {}
    for role in roles:
        floats = rows[role.name] * pitch_of(role.columns)
        sizes[sharing[role.name]] = max(sizes.get(sharing[role.name], 0), floats)
    order = list(sizes)
    starts = dict(zip(order, accumulate(sizes.values(), initial=0), strict=False))
    found: dict[str, DenseMatrix] = {}
    register = 0
    for role, tiles in zip(roles, numbers, strict=True):
        window = sharing[role.name]
        found[role.name] = matrix = DenseMatrix(
            number=0,
            rows=rows[role.name],
            columns=role.columns,
            window=order.index(window),
            at=starts[window],
            home=register if role.name in homes else -1,
            tiles=tiles,
            what=f"{role.name} {role.rows}x{role.columns}",
        )
        register += 4 * matrix.fours * (role.name in homes)
    return found


def _choose_tiles(
    matrices: Sequence[tuple[int, int]], most: int, close: float
) -> tuple[tuple[ProductTile, ...], list[tuple[int, int, int]]]:
    """Tiles, and for each matrix of (rows, columns) the numbers of those for few, for some and for many vectors."""
    chosen: list[ProductTile] = []
    of_matrix: list[tuple[int, int, int]] = []
    for rows, columns in matrices:
        vectors = min(most, RESULT_FLOATS // rows) if rows * TILES[0] <= SUM_FLOATS else most  # tails take no more rows
        every = list(_tiles(vectors))
        high = [tile for tile in every if tile.all_rows >= rows] or every  # few vectors are multiplied by all rows
        suits: list[ProductTile] = []
        for n, tiles, bound in ((1, high, CLOSE_FOR_FEW), (FEW_VECTORS, high, CLOSE_FOR_FEW), (most, every, close)):
            clocks = {tile: _clocks(tile, rows, columns, n) for tile in tiles}
            best = min(clocks, key=lambda t: (clocks[t], t))
            near = (tile for tile in chosen if clocks.get(tile, inf) <= bound * clocks[best])
            suits.append(next(near, best))
            chosen += [suits[-1]] * (suits[-1] not in chosen)
        few, some, many = (chosen.index(tile) for tile in sorted(suits, key=lambda t: t.all_vectors))
        of_matrix.append((few, some, many))
    return tuple(chosen), of_matrix


def _tiles(most: int) -> Iterator[ProductTile]:
    for lanes, vectors in product((1, 2, 4, 8, 16, 32), (1, 2, 3, 4)):
        if lanes * vectors <= most:
            for rows in range(1, min(MOST_ROWS, MOST_SUMS // vectors) + 1):
                yield ProductTile(lanes, rows, vectors)


def _clocks(tile: ProductTile, rows: int, columns: int, n: int) -> float:
    """Of a multiprocessor, for the products of n vectors. Every four columns all warps load what their lanes need of
    vectors and rows, eight different fours at a time, and multiply, two warps on a scheduler."""
    passes = -(-n // tile.all_vectors) * -(-rows // tile.all_rows)
    steps = -(-fours_of(columns) // WARPS)
    loads = WARPS * (tile.vectors * -(-tile.lanes // 8) + tile.rows * -(-(32 // tile.lanes) // 8))
    issued = 2 * (4 * tile.rows * tile.vectors + tile.vectors + tile.rows + 2)
    finishing = 40 * -(-tile.all_vectors * min(rows, tile.all_rows) // 256)
    return passes * (steps * max(loads, issued) + finishing + PASS_CLOCKS)
