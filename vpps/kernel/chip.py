"""The weights that a kernel keeps on the chip, in windows or slots, and its registers and shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from vpps.ops.element import BFLOAT16, FLOAT32, TF32, TF32_PAIR, WORD_BYTES, ElementType

THREADS = 256  # threads per block: with fewer, 255 registers per thread do not reach the whole register file
WARPS = THREADS // 32
SCRIPT_WORDS = 2048  # number of script words in shared memory at a time; no instruction may be longer
SCRATCH_FLOATS = 516  # for block sums, and for the outcome of a wait
KERNEL_SHARED = WORD_BYTES * (SCRIPT_WORDS + SCRATCH_FLOATS)  # bytes of shared memory that every kernel needs
RESULT_FLOATS = 5 * THREADS  # for the results of products with a chained tail
MOST_CHAINED_ROWS = 64  # maximum rows per block of such a product: there is room for the results of 20 vectors
FEWEST_GRADIENT_VERTICES = 8  # minimum number of vertices per step of a gradient sum: one vertex per warp
GRADIENT_FLOATS = 2 * 192  # floats of shared memory per vertex: 128 of dy and 64 of x, in two buffers (cuda/tiles.cuh)
CHUNK_COLUMNS = 256  # columns of a vector that are copied to shared memory at a time
PLACES = 512  # maximum number of segment addresses that are looked up together
KINDS = (
    FLOAT32,
    BFLOAT16,
    TF32,
    TF32_PAIR,
)  # element types of matrices in windows, by number; tensor cores multiply all but the first
MMA_ROWS, MMA_VECTORS = 16, 8  # shape of mma.sync m16n8
FRAGMENT_COLUMNS = 32  # columns that a warp multiplies at a time on tensor cores


@dataclass(frozen=True, slots=True)
class KernelSlot:
    """A slot of the published scheme: whole rows of a matrix in registers.

    Attributes:
        rows: rows per warp.
        columns: columns of a row per lane.
        at: its first register.
    """

    rows: int
    columns: int
    at: int

    @property
    def size(self) -> int:
        """Registers per thread."""
        return self.rows * self.columns

    @property
    def end(self) -> int:
        """First register after the slot."""
        return self.at + self.size

    @property
    def width(self) -> int:
        """Number of columns in a row."""
        return 32 * self.columns

    def __str__(self) -> str:
        """Members of an enum in the kernel's source."""
        return f"R = {self.rows}, C = {self.columns}, AT = {self.at}"


@dataclass(frozen=True, slots=True)
class KernelMatrix:
    """A matrix in slots.

    Attributes:
        first, last: range of its slots.
        what: its name, for a comment in the source.
    """

    first: int
    last: int
    what: str


def step_of(element: ElementType) -> int:
    """Number of columns that a warp multiplies at a time."""
    return 8 if element == FLOAT32 else FRAGMENT_COLUMNS


def padded(columns: int, element: ElementType = FLOAT32) -> int:
    """Number of columns, rounded up to a whole number of steps; the padding is zero."""
    return -(-columns // step_of(element)) * step_of(element)


def pitch_of(columns: int, element: ElementType = FLOAT32) -> int:
    """Stride between vectors in shared memory, in floats: eight vectors start in different banks."""
    return padded(columns, element) + 4


class ProductTile(NamedTuple):
    """A tile of results that a warp computes together.

    Attributes:
        lanes: number of lanes with different vectors, a power of two; 8 for mma.sync.
        rows, vectors: rows and vectors per lane; for mma.sync, number of products along rows and vectors.
        element: element type of the matrix.
    """

    lanes: int
    rows: int
    vectors: int
    element: ElementType = FLOAT32

    @property
    def rows_beside(self) -> int:
        """Number of lanes with different rows; for mma.sync, rows of a product."""
        return 32 // self.lanes if self.element == FLOAT32 else MMA_ROWS

    @property
    def all_vectors(self) -> int:
        """Vectors per warp. All warps multiply the same vectors, but different columns."""
        return self.lanes * self.vectors

    @property
    def all_rows(self) -> int:
        """Number of rows per warp."""
        return self.rows_beside * self.rows

    @property
    def pitch(self) -> int:
        """Stride between the partial sums of vectors, in floats: lanes write to different banks."""
        return self.all_rows | 1 if self.element == FLOAT32 else self.all_rows + 4

    @property
    def sums(self) -> int:
        """Number of floats for the partial sums of all warps."""
        return WARPS * self.all_vectors * self.pitch

    def __str__(self) -> str:
        """Members of an enum in the kernel's source."""
        return (
            f"LV = {self.lanes}, LR = {self.rows_beside}, RT = {self.rows}, VT = {self.vectors}, "
            f"VECTORS = {self.all_vectors}, PITCH = {self.pitch}, KIND = {KINDS.index(self.element)}"
        )


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """A matrix in a window, a part of shared memory that holds its rows one after the other.

    Attributes:
        number: its number in instructions.
        rows: maximum number of rows per block.
        columns: columns of a row.
        element: element type of products; the window holds bf16 in pairs, other types as float32.
        chunk: columns that fit into the window at a time; 0: all columns.
        window: number of its window, which other matrices may share.
        at: the window's first float.
        home: place while the window holds another matrix: its first register, or IN_MEMORY. IN_WINDOW: it is in memory,
            but a launch starts with the matrix in the window.
        tiles: numbers of the product tiles for few, some and many vectors.
        what: its name, for a comment in the source.
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
        """True if registers hold the matrix while its window holds another one."""
        return self.home >= 0

    @property
    def kind(self) -> int:
        """Number of its element type, an index into KINDS."""
        return KINDS.index(self.element)

    @property
    def steps(self) -> int:
        """Number of steps along a row; the warps divide them."""
        return padded(self.columns, self.element) // step_of(self.element)

    @property
    def quads(self) -> int:
        """Number of quads (four words) in a row."""
        return padded(self.columns, self.element) // self._columns_of_quad

    @property
    def window_quads(self) -> int:
        """Number of a row's quads that fit into the window."""
        return self.chunk // self._columns_of_quad if self.chunk else self.quads

    @property
    def _columns_of_quad(self) -> int:
        return 8 if self.element == BFLOAT16 else 4

    @property
    def pitch(self) -> int:
        """Stride between rows, in words: rows that are read together start in different banks."""
        quads = self.window_quads
        return 16 * (quads // 4 | 1) if self.element == BFLOAT16 else 4 * (quads + 1)

    @property
    def size(self) -> int:
        """Number of words in the window."""
        return self.rows * self.pitch

    @property
    def registers(self) -> int:
        """Registers per thread, if registers hold the matrix."""
        return 4 * -(-self.rows * self.quads // THREADS)

    @property
    def end(self) -> int:
        """First float of shared memory after the matrix."""
        return self.at + self.size


@dataclass(frozen=True, slots=True)
class Chip:
    """The matrices that a kernel keeps on the chip, in windows or slots, and its buffers.

    Attributes:
        slots, matrices: slots of the published scheme, and the matrices in them.
        dense: matrices in windows.
        product_tiles: tiles of products with matrices in windows.
        whole_vectors: for such products, the minimum number of whole vectors that fit into shared memory.
        registers: number of registers that hold weights in every thread.
        tile: vectors that a thread multiplies by a slot at a time.
        groups: number of groups of thread blocks; each group holds all matrices once.
        vps: thread blocks of all groups, if the kernel is compiled for this number (a constant divisor); else 0.
        gradient_vertices: vertices per step of a gradient sum.
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
        """True if tensor cores multiply some matrices."""
        return any(m.element != FLOAT32 for m in self.dense)

    @property
    def stage(self) -> int:
        """Maximum floats of a vector that slots multiply."""
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
        """Number of floats for partial sums."""
        return max((t.sums for t in self.product_tiles), default=0)

    @property
    def results(self) -> int:
        """Floats for results of products with a chained tail."""
        return RESULT_FLOATS if self.dense else 0

    @property
    def chunk_floats(self) -> int:
        """Floats of shared memory for the vectors of products with windows, in chunks or whole."""
        whole = self.whole_vectors * max((pitch_of(m.columns, m.element) for m in self.dense), default=0)
        return max(2 * self.most_vectors * pitch_of(self.chunk_columns), whole)

    def is_for(self, tile: ProductTile, few: bool) -> bool:
        """True if products of few (or many) vectors use this tile."""
        number = self.product_tiles.index(tile)
        return any(number in (m.tiles[:2] if few else m.tiles[2:]) for m in self.dense)

    @property
    def homes(self) -> list[DenseMatrix]:
        """Matrices in windows whose home is in registers."""
        return [m for m in self.dense if m.is_at_home]

    @property
    def has_chunks(self) -> bool:
        """True if some windows hold only a chunk of their matrix."""
        return any(m.chunk for m in self.dense)

    @property
    def changes_windows(self) -> bool:
        """True if the content of windows changes during a launch."""
        return self.has_chunks or len({m.window for m in self.dense}) < len(self.dense)

    @property
    def most_vectors(self) -> int:
        """Maximum vectors per pass of a product with a window."""
        return max((t.all_vectors for t in self.product_tiles), default=0)

    @property
    def chunk_columns(self) -> int:
        """Columns of vectors that are copied at a time."""
        chunk = next((m.chunk for m in self.dense if m.chunk), CHUNK_COLUMNS)
        return min(chunk, max((padded(m.columns, m.element) for m in self.dense), default=0))

    @property
    def windows_at(self) -> int:
        """Floats of shared memory before the windows."""
        return self.staged + self.sums + self.results

    @property
    def window_floats(self) -> int:
        """Floats of all windows."""
        return max((m.end for m in self.dense), default=0)

    @property
    def window_kib(self) -> int:
        """Size of all windows in KiB, rounded up."""
        return -(-WORD_BYTES * self.window_floats // 1024)

    @property
    def held_floats(self) -> int:
        """Floats for windows and products, and a word per window for its current matrix."""
        return self.windows_at + self.window_floats + len({m.window for m in self.dense})

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes. Gradient sums reuse the memory of products."""
        return KERNEL_SHARED + WORD_BYTES * max(self.held_floats, self.gradient_vertices * GRADIENT_FLOATS)

    def describe(self) -> str:
        """Return a one-line description for the head of the source."""
        held = [f"{len(self.matrices)} matrices in {len(self.slots)} slots"] if self.slots else []
        held += [f"{len(self.dense)} in windows"] if self.dense else []
        groups = f"{self.groups} groups, " if self.groups > 1 else ""
        what = ", ".join(held) or "weights in memory"
        return f"{groups}{what}"


MEMORY_ONLY = Chip()
