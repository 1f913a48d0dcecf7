"""The weights that a kernel holds, in windows or slots, and the registers and shared memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from vpps.ops.element import BFLOAT16, FLOAT32, TF32, TF32_PAIR, WORD_BYTES, ElementType

THREADS = 256  # of a thread block: with fewer, 255 registers per thread do not reach the whole register file
WARPS = THREADS // 32
SCRIPT_WORDS = 2048  # of a script that a thread block has in shared memory at a time; no instruction may be longer
SCRATCH_FLOATS = 516  # for sums of the block, and for the verdict of a wait
KERNEL_SHARED = WORD_BYTES * (SCRIPT_WORDS + SCRATCH_FLOATS)  # bytes of shared memory that every kernel takes
RESULT_FLOATS = 5 * THREADS  # for results of products that wait for the tail behind them
MOST_CHAINED_ROWS = 64  # that a block has of such a product: there is room for the results of 20 vectors
FEWEST_GRADIENT_VERTICES = 8  # that are brought together to add up gradients: one for each warp
GRADIENT_FLOATS = 2 * 192  # of shared memory, a vertex: 128 of dy and 64 of x, in two buffers (cuda/tiles.cuh)
CHUNK_COLUMNS = 256  # of a vector that are brought to shared memory at a time
PLACES = 512  # of segments of vectors that are looked up together, at most
KINDS = (
    FLOAT32,
    BFLOAT16,
    TF32,
    TF32_PAIR,
)  # of matrices in windows, by number; tensor cores multiply all but the first
MMA_ROWS, MMA_VECTORS = 16, 8  # of an mma.sync m16n8
FRAGMENT_COLUMNS = 32  # of vectors, that a warp multiplies at a time on tensor cores


@dataclass(frozen=True, slots=True)
class KernelSlot:
    """A slot of the published scheme: whole rows of a matrix in registers.

    Attributes:
        rows: of each warp.
        columns: of a row that a lane has.
        at: its first register.
    """

    rows: int
    columns: int
    at: int

    @property
    def size(self) -> int:
        """Registers of every thread."""
        return self.rows * self.columns

    @property
    def end(self) -> int:
        """First register behind it."""
        return self.at + self.size

    @property
    def width(self) -> int:
        """Columns of a row."""
        return 32 * self.columns

    def __str__(self) -> str:
        """As members of an enum of the kernel."""
        return f"R = {self.rows}, C = {self.columns}, AT = {self.at}"


@dataclass(frozen=True, slots=True)
class KernelMatrix:
    """A matrix in slots.

    Attributes:
        first, last: its slots, as a range.
        what: its name, for whoever reads the kernel.
    """

    first: int
    last: int
    what: str


def step_of(element: ElementType) -> int:
    """Columns that a warp multiplies at a time."""
    return 8 if element == FLOAT32 else FRAGMENT_COLUMNS


def padded(columns: int, element: ElementType = FLOAT32) -> int:
    """Columns with the zeros behind them, up to a whole number of steps."""
    return -(-columns // step_of(element)) * step_of(element)


def pitch_of(columns: int, element: ElementType = FLOAT32) -> int:
    """Floats from a vector in shared memory to the next one: eight vectors begin in different banks."""
    return padded(columns, element) + 4


class ProductTile(NamedTuple):
    """Results that a warp makes at a time.

    Attributes:
        lanes: vectors side by side, a power of two: different lanes have them. Of an mma.sync 8.
        rows, vectors: of a lane, or products (mma.sync) of 16 rows and of 8 vectors.
        element: of the matrix.
    """

    lanes: int
    rows: int
    vectors: int
    element: ElementType = FLOAT32

    @property
    def rows_beside(self) -> int:
        """Rows side by side."""
        return 32 // self.lanes if self.element == FLOAT32 else MMA_ROWS

    @property
    def all_vectors(self) -> int:
        """Vectors of a warp. All warps have the same vectors, and other columns."""
        return self.lanes * self.vectors

    @property
    def all_rows(self) -> int:
        """Rows of a warp."""
        return self.rows_beside * self.rows

    @property
    def pitch(self) -> int:
        """Floats from the partial sums of a vector to those of the next one: lanes write to different banks."""
        return self.all_rows | 1 if self.element == FLOAT32 else self.all_rows + 4

    @property
    def sums(self) -> int:
        """Floats of partial sums of all warps."""
        return WARPS * self.all_vectors * self.pitch

    def __str__(self) -> str:
        """As members of an enum of the kernel."""
        return (
            f"LV = {self.lanes}, LR = {self.rows_beside}, RT = {self.rows}, VT = {self.vectors}, "
            f"VECTORS = {self.all_vectors}, PITCH = {self.pitch}, KIND = {KINDS.index(self.element)}"
        )


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """A matrix whose rows lie one after the other in a window, a part of shared memory.

    Attributes:
        number: that instructions call it by.
        rows: of the block that owns most.
        columns: of a row.
        element: that products take; the window has bf16 in pairs, all else as float32.
        chunk: columns for which the window has room at a time; 0: all.
        window: number of its window, which it may share with other matrices.
        at: the window's first float.
        home: where it is while the window has another matrix: the first of the registers that hold it; IN_MEMORY;
            IN_WINDOW: in memory, too, but it is in the window from the beginning of a launch.
        tiles: numbers of the product tiles for few, some and many vectors.
        what: its name, for whoever reads the kernel.
    """

    number: int
    rows: int
    columns: int
    element: ElementType
    chunk: int
    window: int
    at: int
    home: int
    tiles: tuple[int, int, int]
    what: str

    IN_WINDOW: ClassVar = -1
    IN_MEMORY: ClassVar = -2

    @property
    def is_at_home(self) -> bool:
        """True if registers hold it while its window has another matrix."""
        return self.home >= 0

    @property
    def kind(self) -> int:
        """Number of its element."""
        return KINDS.index(self.element)

    @property
    def steps(self) -> int:
        """Steps along a row, which warps divide."""
        return padded(self.columns, self.element) // step_of(self.element)

    @property
    def quads(self) -> int:
        """Quads of words in a row."""
        return padded(self.columns, self.element) // self._columns_of_quad

    @property
    def window_quads(self) -> int:
        """Quads of a row that the window has room for."""
        return self.chunk // self._columns_of_quad if self.chunk else self.quads

    @property
    def _columns_of_quad(self) -> int:
        return 8 if self.element == BFLOAT16 else 4

    @property
    def pitch(self) -> int:
        """Words from a row to the next one: rows that are read at once begin in different banks."""
        quads = self.window_quads
        return 16 * (quads // 4 | 1) if self.element == BFLOAT16 else 4 * (quads + 1)

    @property
    def size(self) -> int:
        """Words in the window."""
        return self.rows * self.pitch

    @property
    def registers(self) -> int:
        """Registers of each thread that it takes if it is at home."""
        return 4 * -(-self.rows * self.quads // THREADS)

    @property
    def end(self) -> int:
        """First float of shared memory behind it."""
        return self.at + self.size


@dataclass(frozen=True, slots=True)
class Chip:
    """The matrices that a kernel holds, in windows or in slots, and the memory around them.

    Attributes:
        slots, matrices: what is held in slots, by the published scheme.
        dense: what is held in windows.
        product_tiles: of products with those.
        whole_vectors: that shared memory has room for in any case, beside such products.
        registers: words of weights in the registers of every thread.
        tile: vectors that a thread multiplies by a slot at a time.
        groups: of thread blocks; each holds all of it once.
        vps: thread blocks of all groups, where the kernel is made for that number and divides by a constant; else 0.
        gradient_vertices: that are brought together to add up gradients.
    """

    slots: tuple[KernelSlot, ...] = ()
    matrices: tuple[KernelMatrix, ...] = ()
    dense: tuple[DenseMatrix, ...] = ()
    product_tiles: tuple[ProductTile, ...] = ()
    whole_vectors: int = 0
    registers: int = 0
    tile: int = 8
    groups: int = 1
    vps: int = 0
    gradient_vertices: int = FEWEST_GRADIENT_VERTICES

    @property
    def has_fragments(self) -> bool:
        """Whether tensor cores multiply by some matrices."""
        return any(m.element != FLOAT32 for m in self.dense)

    @property
    def stage(self) -> int:
        """Floats of a vector that is multiplied by slots."""
        return max((s.width for s in self.slots), default=0)

    @property
    def staged(self) -> int:
        """Floats of shared memory for vectors."""
        if self.dense:
            return self.chunk_floats + 2 * PLACES
        rows = max((sum(s.rows for s in self.slots[m.first : m.last]) for m in self.matrices), default=0)
        return self.tile * max(self.stage, WARPS * rows)

    @property
    def sums(self) -> int:
        """Floats of partial sums."""
        return max((t.sums for t in self.product_tiles), default=0)

    @property
    def results(self) -> int:
        """Floats of products that wait for the tail behind them."""
        return RESULT_FLOATS if self.dense else 0

    @property
    def chunk_floats(self) -> int:
        """Floats of shared memory for vectors that are multiplied by a matrix in a window, in chunks or whole."""
        whole = self.whole_vectors * max((pitch_of(m.columns, m.element) for m in self.dense), default=0)
        return max(2 * self.most_vectors * pitch_of(self.chunk_columns), whole)

    def is_for(self, tile: ProductTile, few: bool) -> bool:
        """Whether some products of few vectors, or of many, are made by that tile."""
        number = self.product_tiles.index(tile)
        return any(number in (m.tiles[:2] if few else m.tiles[2:]) for m in self.dense)

    @property
    def homes(self) -> list[DenseMatrix]:
        """Matrices in windows that registers hold first."""
        return [m for m in self.dense if m.is_at_home]

    @property
    def has_chunks(self) -> bool:
        """Whether some windows have room for a chunk of their matrix."""
        return any(m.chunk for m in self.dense)

    @property
    def changes_windows(self) -> bool:
        """Whether windows have one thing after the other."""
        return self.has_chunks or len({m.window for m in self.dense}) < len(self.dense)

    @property
    def most_vectors(self) -> int:
        """Of a pass of a product with a matrix in a window."""
        return max((t.all_vectors for t in self.product_tiles), default=0)

    @property
    def chunk_columns(self) -> int:
        """Columns of them that are brought at a time."""
        chunk = next((m.chunk for m in self.dense if m.chunk), CHUNK_COLUMNS)
        return min(chunk, max((padded(m.columns, m.element) for m in self.dense), default=0))

    @property
    def windows_at(self) -> int:
        """Floats of shared memory in front of the windows."""
        return self.staged + self.sums + self.results

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
        """Of windows and products: behind the windows is a word for each, which matrix it has."""
        return self.windows_at + self.window_floats + len({m.window for m in self.dense})

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: gradients are added up where products were."""
        return KERNEL_SHARED + WORD_BYTES * max(self.held_floats, self.gradient_vertices * GRADIENT_FLOATS)

    def describe(self) -> str:
        """One line for the head of the source."""
        held = [f"{len(self.matrices)} matrices in {len(self.slots)} slots"] if self.slots else []
        held += [f"{len(self.dense)} in windows"] if self.dense else []
        groups = f"{self.groups} groups, " if self.groups > 1 else ""
        what = ", ".join(held) or "weights in memory"
        return f"{groups}{what}"


MEMORY_ONLY = Chip()
