"""What of the chip a kernel uses: slots of weights, registers, shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vpps.ops.element import BFLOAT16, FLOAT32, TF32, TF32_PAIR, WORD_BYTES, ElementType

THREADS = 256  # of a thread block: with fewer, 255 registers per thread do not reach the whole register file
WARPS = THREADS // 32
SCRIPT_WORDS = 2048  # of a script that a thread block has in shared memory at a time; no instruction may be longer
SUM_FLOATS = 512  # for sums of the block, or for results of products that wait for the tail behind them
SCRATCH_FLOATS = SUM_FLOATS + 4  # and for the verdict of a wait
KERNEL_SHARED = WORD_BYTES * (SCRIPT_WORDS + SCRATCH_FLOATS)  # bytes of shared memory that every kernel takes
AMPLE_REGISTERS = 128  # that weights take of a thread, at most, where some are left: with more, kernels spilled
RESULT_FLOATS = 5 * THREADS  # for such results where there is room: five gates for as many units as there are threads
FEWEST_GRADIENT_VERTICES = 8  # that are brought together to add up gradients: one for each warp
GRADIENT_FLOATS = 2 * 192  # of shared memory, a vertex: 128 of dy and 64 of x, in two buffers (cuda/tiles.cuh)
CHUNK_COLUMNS = 256  # of a vector that are brought to shared memory at a time
PLACES = 512  # of segments of vectors that are looked up together, at most
KINDS = (FLOAT32, BFLOAT16, TF32, TF32_PAIR)  # of slots, by number: the first, or fragments for tensor cores
MMA_ROWS, MMA_VECTORS = 16, 8  # of an mma.sync m16n8
FRAGMENT_ROWS = 8  # slots of fragments have a multiple: of a last mma only half of the rows are kept
# Rows of fragments, and columns a lane, that the staging buffer has room for: half of them pass at a time, gradients
# beside weights and moments of their step.
PIECE_ROWS, PIECE_COLUMNS = 16, 4


def stage_of(width: int, fragments: bool) -> int:
    """Floats from a vector in shared memory to the next, `width` of them taken. With fragments four vectors begin in
    different quarters of the banks, so that as many lanes of an mma's B operand find theirs at once."""
    return width + (8 - width) % 32 if fragments else width


def floats_passed(rows: int, columns: int, element: ElementType) -> int:
    """Floats of each thread that a slot's weights or gradients take in the staging buffer: all, or a piece."""
    return rows * columns if element == FLOAT32 else min(rows, PIECE_ROWS) * min(columns, PIECE_COLUMNS)


def sums_of(rows: int, tile: int, element: ElementType) -> int:
    """Sums that a thread carries of a slot of so many rows and a tile of vectors: with tensor cores four of an mma."""
    return rows * tile if element == FLOAT32 else 4 * -(-rows // MMA_ROWS) * -(-tile // MMA_VECTORS)


@dataclass(frozen=True, slots=True)
class KernelSlot:
    """A slot: `rows` rows for each of the groups of `warps` warps that lie along a row, `columns` columns a lane.

    Of fragments every warp has 32 * `columns` columns, too, dealt to its lanes as the A operand of mma.sync wants it:
    packed pairs of bf16, tf32, or two tf32 for each. Vectors are its B operand, 8 at a time, whatever the tile.
    Weights are rounded when a slot is filled, from float32 in the staging buffer.

    Attributes:
        at: its first register, or its first unit of shared memory (a float of every thread, 1 KiB of a block).
        in_registers: which of the two.
        keeps_gradient: whether the gradient takes the place of the weights once nothing is multiplied by them any more.
        trained: whether its matrix has a gradient at all (a transpose has none).
        element: of the weights in it.
    """

    rows: int
    columns: int
    warps: int
    at: int
    in_registers: bool = True
    keeps_gradient: bool = False
    trained: bool = True
    element: ElementType = FLOAT32

    @property
    def size(self) -> int:
        """Registers of every thread, or units of shared memory."""
        return self.element.words(self.floats)

    @property
    def floats(self) -> int:
        """Weights of a lane."""
        return self.rows * self.columns

    @property
    def passed(self) -> int:
        """Floats of each thread that go to or from the staging buffer at a time."""
        return floats_passed(self.rows, self.columns, self.element)

    @property
    def end(self) -> int:
        """First register (or unit) behind it."""
        return self.at + self.size

    @property
    def width(self) -> int:
        """Columns of a row."""
        return 32 * self.columns * self.warps

    def __str__(self) -> str:
        """As members of an enum of the kernel."""
        return (
            f"R = {self.rows}, C = {self.columns}, W = {self.warps}, AT = {self.at}, "
            f"IN_REGISTERS = {int(self.in_registers)}, KEEPS_GRADIENT = {int(self.keeps_gradient)}, "
            f"TRAINED = {int(self.trained)}, KIND = {KINDS.index(self.element)}"
        )


@dataclass(frozen=True, slots=True)
class KernelMatrix:
    """A matrix in slots.

    Attributes:
        number: that instructions call it by, from 1.
        first, last: its slots, as a range.
        what: its name, for whoever reads the kernel.
    """

    number: int
    first: int
    last: int
    what: str


def fours_of(columns: int) -> int:
    """Fours of floats that a row of so many takes in shared memory: an even number."""
    return 2 * -(-columns // 8)


def pitch_of(columns: int) -> int:
    """Floats from a row in shared memory to the next one: eight rows begin in different banks."""
    return 4 * (fours_of(columns) + 1)


class ProductTile(NamedTuple):
    """Results that a warp makes at a time: `lanes` lanes have different vectors, the others different rows.

    Attributes:
        lanes: a power of two.
        rows, vectors: of a lane.
    """

    lanes: int
    rows: int
    vectors: int

    @property
    def all_vectors(self) -> int:
        """Vectors of a warp. All warps have the same vectors, and other columns."""
        return self.lanes * self.vectors

    @property
    def all_rows(self) -> int:
        """Rows of a warp."""
        return 32 // self.lanes * self.rows

    @property
    def pitch(self) -> int:
        """Floats from the partial sums of a vector to those of the next one: in different banks."""
        return self.all_rows | 1

    @property
    def sums(self) -> int:
        """Floats of partial sums of all warps."""
        return WARPS * self.all_vectors * self.pitch

    def __str__(self) -> str:
        """As members of an enum of the kernel."""
        return (
            f"LV = {self.lanes}, LR = {32 // self.lanes}, RT = {self.rows}, VT = {self.vectors}, "
            f"VECTORS = {self.all_vectors}, PITCH = {self.pitch}"
        )


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """A matrix whose rows lie one after the other in a window, a part of shared memory.

    Attributes:
        number: that instructions call it by.
        rows: of the block that owns most.
        columns: of a row.
        window: number of its window; a matrix and its transpose may have one.
        at: the window's first float.
        home: the first of the registers that hold it until it is needed; -1: it is in the window from the beginning.
        tiles: numbers of the product tiles for few, some and many vectors.
        what: its name, for whoever reads the kernel.
    """

    number: int
    rows: int
    columns: int
    window: int
    at: int
    home: int
    tiles: tuple[int, int, int]
    what: str

    @property
    def fours(self) -> int:
        """Fours of floats that each thread holds in registers."""
        return -(-self.rows * fours_of(self.columns) // THREADS)

    @property
    def end(self) -> int:
        """First float of shared memory behind it."""
        return self.at + self.rows * pitch_of(self.columns)


@dataclass(frozen=True, slots=True)
class Chip:
    """Slots of a kernel, windows, and the memory around them.

    Attributes:
        slots, matrices: what is held in slots.
        dense: what is held in windows.
        product_tiles: of products with those.
        whole_vectors: that shared memory has room for in any case, beside such products.
        registers: floats of weights and gradients in the registers of every thread.
        shared_units: the same in shared memory.
        tile: vectors whose products with the slots are summed up at a time.
        tiles: of a pass: vectors that are brought, multiplied and finished together.
        stage: floats of a vector in shared memory: the columns of the widest slot (`stage_of`).
        buffers: for the vectors of a pass, in shared memory; 2 where those of the next one come meanwhile.
        sums: floats of partial sums of a pass.
        results: floats of products that wait for the tail behind them; 0: in the block's scratch memory.
        groups: of thread blocks; each holds all of it once.
        vps: thread blocks of all groups, where the kernel is made for that number and divides by a constant; else 0.
        turns: whether rows of some matrix are dealt in turns.
        last: whether there is no smaller arrangement: then it is compiled even if it is expected to spill.
        gradient_vertices: that are brought together to add up gradients.
    """

    slots: tuple[KernelSlot, ...] = ()
    matrices: tuple[KernelMatrix, ...] = ()
    dense: tuple[DenseMatrix, ...] = ()
    product_tiles: tuple[ProductTile, ...] = ()
    whole_vectors: int = 0
    registers: int = 0
    shared_units: int = 0
    tile: int = 8
    tiles: int = 1
    stage: int = 0
    buffers: int = 1
    sums: int = 0
    results: int = 0
    groups: int = 1
    vps: int = 0
    turns: bool = False
    last: bool = False
    gradient_vertices: int = FEWEST_GRADIENT_VERTICES

    @property
    def leaves_registers(self) -> bool:
        """Whether so many registers are left beside those of weights that more may be on its way at once."""
        return self.registers <= AMPLE_REGISTERS

    @property
    def most(self) -> int:
        """Floats of each thread that a slot's weights or gradients take in the staging buffer, at most."""
        return max((s.passed for s in self.slots), default=1)

    @property
    def has_fragments(self) -> bool:
        """Whether some slots are for tensor cores."""
        return any(s.element != FLOAT32 for s in self.slots)

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients of some matrices stay there until the update."""
        return any(s.keeps_gradient for s in self.slots)

    @property
    def staged(self) -> int:
        """Floats of shared memory for vectors; room, too, for the weights or gradients of a slot."""
        of_slots = max(self.buffers * self.tiles * self.tile * self.stage, self.most * THREADS) if self.slots else 0
        return max(of_slots, self.chunk_floats + 2 * PLACES if self.dense else 0)

    @property
    def chunk_floats(self) -> int:
        """Floats of shared memory for vectors that are multiplied by a matrix in a window, in chunks or whole."""
        whole = self.whole_vectors * max((pitch_of(m.columns) for m in self.dense), default=0)
        return max(2 * self.most_vectors * pitch_of(self.chunk_columns), whole)

    def is_for(self, tile: ProductTile, few: bool) -> bool:
        """Whether some products of few vectors, or of many, are made by that tile."""
        number = self.product_tiles.index(tile)
        return any(number in (m.tiles[:2] if few else m.tiles[2:]) for m in self.dense)

    @property
    def by_number(self) -> list[KernelMatrix | DenseMatrix]:
        """All matrices that are held."""
        return sorted((*self.matrices, *self.dense), key=lambda m: m.number)

    @property
    def homes(self) -> list[DenseMatrix]:
        """Matrices in windows that registers hold first."""
        return [m for m in self.dense if m.home >= 0]

    @property
    def most_vectors(self) -> int:
        """Of a pass of a product with a matrix in a window."""
        return max((t.all_vectors for t in self.product_tiles), default=0)

    @property
    def chunk_columns(self) -> int:
        """Columns of them that are brought at a time."""
        return min(CHUNK_COLUMNS, max((4 * fours_of(m.columns) for m in self.dense), default=0))

    @property
    def windows_at(self) -> int:
        """Floats of shared memory of slots and products in front of the windows."""
        return self.staged + self.sums + self.results + self.shared_units * THREADS

    @property
    def window_floats(self) -> int:
        """Of all windows."""
        return max((m.end for m in self.dense), default=0)

    @property
    def window_kib(self) -> int:
        """KiB of all windows, the last begun one counted."""
        return -(-WORD_BYTES * self.window_floats // 1024)

    @property
    def held_floats(self) -> int:
        """Of slots, windows and products: behind the windows is a word for each, which matrix it has."""
        return self.windows_at + self.window_floats + len({m.window for m in self.dense})

    @property
    def gradients_at(self) -> int:
        """Floats behind which gradients are added up in shared memory: none, over weights that nothing is
        multiplied by any more, unless gradients stay among them."""
        return self.windows_at if self.keeps_gradients else 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return KERNEL_SHARED + WORD_BYTES * max(
            self.held_floats, self.gradients_at + self.gradient_vertices * GRADIENT_FLOATS
        )

    def describe(self) -> str:
        """One line for the head of the source."""
        held = [f"{len(self.matrices)} matrices in {len(self.slots)} slots"] if self.slots else []
        held += [f"{len(self.dense)} in windows"] if self.dense else []
        groups = f"{self.groups} groups, " if self.groups > 1 else ""
        what = ", ".join(held) or "weights in memory"
        return f"{groups}{what}"


MEMORY_ONLY = Chip()
