"""Shapes of register slots: what slot.cuh is compiled for, in Python."""

from __future__ import annotations

from dataclasses import dataclass

from device import Build, Device

_WARPS, _LANES = 8, 32


@dataclass(frozen=True)
class Slot:
    """A slot (rows, columns, warps per row) and how many vectors are multiplied at a time; see slot.cuh."""

    rows: int
    columns: int
    warps_per_row: int
    tile: int = 1

    @property
    def shape(self) -> str:
        """As kernel.md and the results write it."""
        return f"({self.rows},{self.columns},{self.warps_per_row})"

    @property
    def registers(self) -> int:
        """Per thread, for weights."""
        return self.rows * self.columns

    @property
    def block_rows(self) -> int:
        """Rows of the matrix that a block holds."""
        return self.rows * _WARPS // self.warps_per_row

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return self.columns * _LANES * self.warps_per_row

    @property
    def partial_bytes(self) -> int:
        """Shared memory for partial sums, two areas."""
        return 2 * 4 * _WARPS * self.rows * self.tile

    def build(self, file: str, kernel: str, **macros: int) -> Build:
        """The kernel compiled for this slot."""
        shape = {
            "ROWS": self.rows, "COLUMNS": self.columns, "WARPS_PER_ROW": self.warps_per_row, "TILE": self.tile,
        }  # fmt: skip
        return Build(file, kernel, shape | macros)

    def staged(self, device: Device, n: int) -> int:
        """Vectors that shared memory holds besides the partial sums."""
        return device.staged_vectors(self.width, n, self.tile, self.partial_bytes)
