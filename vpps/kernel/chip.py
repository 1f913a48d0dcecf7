"""What of the chip a kernel uses: slots of weights, registers, shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from vpps.ops.element import FLOAT32, WORD_BYTES, ElementType

THREADS = 256  # of a thread block: with fewer, 255 registers per thread do not reach the whole register file
WARPS = THREADS // 32
SCRIPT_WORDS = 2048  # of a script that a thread block has in shared memory at a time; no instruction may be longer
SUM_FLOATS = 512  # for sums of the block, or for results of products that wait for the tail behind them
SCRATCH_FLOATS = SUM_FLOATS + 4  # and for the verdict of a wait
KERNEL_SHARED = WORD_BYTES * (SCRIPT_WORDS + SCRATCH_FLOATS)  # bytes of shared memory that every kernel takes
AMPLE_REGISTERS = 128  # that weights take of a thread, at most, where some are left: with more, kernels spilled
RESULT_FLOATS = 5 * THREADS  # for such results where there is room: five gates for as many units as there are threads


@dataclass(frozen=True, slots=True)
class KernelSlot:
    """A slot: `rows` rows for each of the groups of `warps` warps that lie along a row, `columns` columns a lane.

    Attributes:
        at: its first register, or its first unit of shared memory (a float of every thread, 1 KiB of a block).
        in_registers: which of the two.
        gradient: first register (or unit) of its gradient, where the chip keeps that; else -1.
        trained: whether its matrix has a gradient at all (a transpose has none).
        element: of the weights in it.
    """

    rows: int
    columns: int
    warps: int
    at: int
    in_registers: bool = True
    gradient: int = -1
    trained: bool = True
    element: ElementType = FLOAT32

    @property
    def size(self) -> int:
        """Registers of every thread, or units of shared memory."""
        return self.element.words(self.rows * self.columns)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return 32 * self.columns * self.warps

    def __str__(self) -> str:
        """As members of an enum of the kernel."""
        return (
            f"R = {self.rows}, C = {self.columns}, W = {self.warps}, AT = {self.at}, "
            f"IN_REGISTERS = {int(self.in_registers)}, GRADIENT = {self.gradient}, TRAINED = {int(self.trained)}"
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


@dataclass(frozen=True, slots=True)
class Chip:
    """Slots of a kernel and the memory around them.

    Attributes:
        slots, matrices: what is held.
        registers: floats of weights and gradients in the registers of every thread.
        shared_units: the same in shared memory.
        tile: vectors whose products with the slots are summed up at a time.
        tiles: of a pass: vectors that are brought, multiplied and finished together.
        stage: floats of a vector in shared memory: the columns of the widest slot.
        buffers: for the vectors of a pass, in shared memory; 2 where those of the next one come meanwhile.
        sums: floats of partial sums of a pass.
        results: floats of products that wait for the tail behind them; 0: in the block's scratch memory.
        blocks_per_sm: thread blocks on a multiprocessor.
        groups: of thread blocks; each holds all of it once.
        vps: thread blocks of all groups, where the kernel is made for that number and divides by a constant; else 0.
        turns: whether rows of some matrix are dealt in turns.
        last: whether there is no smaller arrangement: then it is compiled even if it is expected to spill.
    """

    slots: tuple[KernelSlot, ...] = ()
    matrices: tuple[KernelMatrix, ...] = ()
    registers: int = 0
    shared_units: int = 0
    tile: int = 8
    tiles: int = 1
    stage: int = 0
    buffers: int = 1
    sums: int = 0
    results: int = 0
    blocks_per_sm: int = 1
    groups: int = 1
    vps: int = 0
    turns: bool = False
    last: bool = False

    @property
    def leaves_registers(self) -> bool:
        """Whether so many registers are left beside those of weights that more may be on its way at once."""
        return self.registers <= AMPLE_REGISTERS

    @property
    def keeps_gradients(self) -> bool:
        """Whether some gradients stay on the chip from the first outer product to the update."""
        return any(s.gradient >= 0 for s in self.slots)

    @property
    def makes_passes(self) -> bool:
        """Whether some gradients are made slot after slot, and kept in memory."""
        return any(s.trained and s.gradient < 0 for s in self.slots)

    @property
    def most(self) -> int:
        """Words that a slot takes of each thread, at most."""
        return max((s.size for s in self.slots), default=1)

    @property
    def staged(self) -> int:
        """Floats of shared memory for vectors; room, too, for the weights or gradients of a slot."""
        return max(self.buffers * self.tiles * self.tile * self.stage, self.most * THREADS) if self.slots else 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return KERNEL_SHARED + WORD_BYTES * (self.staged + self.sums + self.results + self.shared_units * THREADS)

    def describe(self) -> str:
        """One line for the head of the source."""
        held = f"{len(self.matrices)} matrices in {len(self.slots)} slots" if self.slots else "weights in memory"
        groups = f"{self.groups} groups, " if self.groups > 1 else ""
        return f"{groups}{held}, {self.blocks_per_sm} block{'s' if self.blocks_per_sm > 1 else ''} per multiprocessor"


MEMORY_ONLY = Chip()
