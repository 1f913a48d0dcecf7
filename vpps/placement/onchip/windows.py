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
from itertools import product
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
    NARROW,
    NARROW_ROWS,
    ROW_SLICED,
    TILES,
    ChipOptions,
    Limits,
    MatrixRole,
    MatrixSpec,
    Place,
    roles_of,
)
from vpps.script.slices import most_units
from vpps.text import KIB

# Vectors of a pass, at most, and vectors for which there must be room if they are brought whole.
VECTORS = ((32, 8), (24, 8), (16, 8), (16, 0), (8, 0), (4, 0))
FEWEST_VECTORS = 16  # of a pass: with fewer, slots are no slower
MOST_ROWS, MOST_SUMS = 12, 48  # of a lane
FEW_VECTORS = (1, 8)  # for which there are tiles beside those for as many as a pass may have
# How much longer a tile may take than the best one if another matrix has it already, as code is scarce: few vectors,
# many in several groups, many in one group, where they wait for L2.
CLOSE_FOR_FEW, CLOSE_IN_GROUPS, CLOSE_IN_ONE = 1.5, 1.1, 1.35
MOST_HOMES = 80  # registers of a thread for matrices that are not needed yet: with 104 a Tree-LSTM of 256 units spilled
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
    places: dict[str, Place] = {}
    wanted: list[MatrixRole] = []
    for role in roles:
        if role.sliced_by_rows(vps):
            places[role.name] = Place("L2", None, ROW_SLICED)
        elif options.tiers.get(role.name) == "L2":
            places[role.name] = Place("L2", None, "forced to L2")
        elif role.columns < NARROW:
            places[role.name] = Place("L2", None, NARROW_ROWS)
        else:
            wanted.append(role)
    room, registers = device.shared, min(MOST_HOMES, device.registers)
    close = CLOSE_IN_GROUPS if options.groups > 1 else CLOSE_IN_ONE
    for arrangement in _arrangements(wanted, vps, close, limits) if wanted else ():
        if options.products == "auto" and arrangement.vectors < FEWEST_VECTORS:
            break
        if arrangement.bytes <= room and arrangement.registers <= registers:
            return arrangement.windows(places)
    if options.products == "windows" and wanted:
        raise CapacityError(
            f"products='windows': windows and vectors take {arrangement.bytes // KIB} KiB of shared memory and "
            f"{arrangement.registers} registers of each thread, and there are {room // KIB} KiB and {registers}; leave "
            "products to 'auto'"
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


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Some roles in windows, some of these at home in registers first."""

    roles: Sequence[MatrixRole]
    at_home: frozenset[str]
    rows: Mapping[str, int]
    vectors: int
    whole: int
    close: float

    def chip(self) -> Chip:
        """With numbers of no meaning."""
        tiles, masks = _choose_tiles([(self.rows[r.name], r.columns) for r in self.roles], self.vectors, self.close)
        windows: dict[str, int] = {}
        for role in self.roles:
            is_alone = role.name not in self.at_home and f"{role.matrix.name}^T" not in self.at_home
            windows[role.name] = 2 * self._matrix_number(role) + (is_alone and role.transposed)
        sizes: dict[int, int] = {}
        for role in self.roles:
            floats = self.rows[role.name] * pitch_of(role.columns)
            sizes[windows[role.name]] = max(sizes.get(windows[role.name], 0), floats)
        starts, numbers, at, register = dict[int, int](), dict[int, int](), 0, 0
        for number, (window, floats) in enumerate(sizes.items()):
            starts[window], numbers[window] = at, number
            at += floats
        dense = []
        for role, mask in zip(self.roles, masks, strict=True):
            window = windows[role.name]
            home = register if role.name in self.at_home else -1
            what = f"{role.name} {role.rows}x{role.columns}"
            matrix = DenseMatrix(
                0, self.rows[role.name], role.columns, numbers[window], starts[window], home, mask, what
            )
            register += 4 * matrix.fours if home >= 0 else 0
            dense.append(matrix)
        sums = max((t.sums for t in tiles), default=0)
        return Chip(
            dense=tuple(dense),
            product_tiles=tiles,
            whole_vectors=self.whole,
            registers=register,
            sums=sums,
            results=RESULT_FLOATS,
        )

    def _matrix_number(self, role: MatrixRole) -> int:
        names = list(dict.fromkeys(r.matrix.name for r in self.roles))
        return names.index(role.matrix.name)

    @property
    def bytes(self) -> int:
        """Of shared memory."""
        return FLOAT32.bytes * self.chip().held_floats

    @property
    def registers(self) -> int:
        """Of each thread."""
        return self.chip().registers

    def windows(self, others: Mapping[str, Place]) -> Windows:
        """With the places of what is in none."""
        chip = self.chip()
        dense = {role.name: matrix for role, matrix in zip(self.roles, chip.dense, strict=True)}
        places = {**others, **{r.name: self._place(r) for r in self.roles}}
        return Windows(places, dense, chip.product_tiles, self.whole, self.bytes, chip.registers)

    def _place(self, role: MatrixRole) -> Place:
        if role.name in self.at_home:
            return Place("registers", None, "in registers until backward needs it: then it takes the window")
        return Place("shared", None, "fits in shared memory, where products read it")


def _arrangements(roles: Sequence[MatrixRole], vps: int, close: float, limits: Limits) -> Iterator[_Arrangement]:
    """The best one first: with many vectors at a time, then with few registers."""
    rows = {role.name: most_units(role.rows, role.parts, vps) for role in roles}
    names = {role.name for role in roles}
    pairs = [r for r in roles if r.transposed and r.matrix.name in names and r.name not in limits.evicted]
    pairs.sort(key=lambda r: -min(rows[r.name] * r.columns, rows[r.matrix.name] * r.matrix.columns))
    for (vectors, whole), some in product(VECTORS, range(len(pairs) + 1)):
        yield _Arrangement(roles, frozenset(r.name for r in pairs[:some]), rows, vectors, whole, close)


def _choose_tiles(
    matrices: Sequence[tuple[int, int]], most: int, close: float
) -> tuple[tuple[ProductTile, ...], list[tuple[int, int, int]]]:
    """Tiles, and for each matrix of (rows, columns) the numbers of those for few, for some and for many vectors."""
    chosen: list[ProductTile] = []
    of_matrix: list[list[ProductTile]] = []
    for rows, columns in matrices:
        suits: list[ProductTile] = []
        vectors = min(most, RESULT_FLOATS // rows) if rows * TILES[0] <= SUM_FLOATS else most  # tails take no more rows
        for n in (*FEW_VECTORS, most):
            tiles = list(_tiles(vectors))
            if n in FEW_VECTORS:  # brought at once, and multiplied by all rows
                tiles = [tile for tile in tiles if tile.all_rows >= rows] or tiles
            clocks = {tile: _clocks(tile, rows, columns, n) for tile in tiles}
            best = min(clocks, key=lambda t: (clocks[t], t))
            suits.append(
                next(
                    (
                        t
                        for t in chosen
                        if clocks.get(t, inf) <= (CLOSE_FOR_FEW if n in FEW_VECTORS else close) * clocks[best]
                    ),
                    best,
                )
            )
            chosen += [suits[-1]] * (suits[-1] not in chosen)
        of_matrix.append(sorted(suits, key=lambda t: t.all_vectors))
    return tuple(chosen), [(chosen.index(a), chosen.index(b), chosen.index(c)) for a, b, c in of_matrix]


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
