"""Matrix-vector products from register slots, by slot (rows, columns per lane, warps per row) and number of
vectors.

The slots of the Tree-LSTM with 256 hidden units on 128 blocks, the same product with a row per warp as in the VPPS
paper, and slots that take all registers. Vectors come from L2 and results go there, as between levels; no grid
barrier. `floor` is the larger of the arithmetic on the blocks used and of the vectors that all blocks read from L2.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from device import Build, Device, Report, relative_error, require, run
from slots import Slot

BENCH = "gpu_matvec"
SETS = 4  # of vectors, in turn: no repetition finds its own in L1
# Name, slot, tile for n > 1, rows of the matrix (None: what all multiprocessors hold).
CASES: list[tuple[str, Slot, int, int | None]] = [
    ("U", Slot(5, 4, 4), 8, 1280),
    ("U, a row per warp", Slot(2, 16, 1), 8, 1280),
    ("U transposed", Slot(4, 5, 8), 8, 512),
    ("W", Slot(3, 2, 4), 8, 768),
    ("W transposed", Slot(2, 3, 8), 8, 256),
    ("1024 columns, a row per warp", Slot(6, 32, 1), 1, None),
    ("1024 columns", Slot(24, 8, 4), 1, None),
    ("2048 columns", Slot(24, 8, 8), 1, None),
    ("512 columns, a row per warp", Slot(12, 16, 1), 2, None),
]


def variants(quick: bool) -> list[tuple[str, Slot, int | None]]:
    """Every slot with tiles of one vector, and with the larger tile where it has one."""
    chosen = CASES[:2] if quick else CASES
    return [
        (name, replace(slot, tile=tile), rows) for name, slot, largest, rows in chosen for tile in sorted({1, largest})
    ]


def builds(quick: bool) -> list[Build]:
    """A kernel per slot and tile."""
    return [slot.build("matvec.cu", "matvec") for _, slot, _ in variants(quick)]


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check the products, then time them."""
    random = np.random.default_rng(1)
    for name, slot, rows in variants(options.quick):
        kernel = device.load(slot.build("matvec.cu", "matvec"))
        rows = 40 if options.smallest else rows or device.sms * slot.block_rows
        blocks = -(-rows // slot.block_rows)
        host_matrix = random.standard_normal((rows, slot.width), np.float32)
        matrix = device.array(host_matrix)
        for n in (1, 8) if options.quick else (1, 8, 64):
            if slot.tile > n:
                continue
            host_x = random.standard_normal((SETS, n, slot.width), np.float32)
            x, y = device.array(host_x), device.unwritten((SETS, n, rows))
            staged = slot.staged(device, n)
            shared = slot.partial_bytes + 4 * slot.width * staged

            def launch(repeats: int) -> None:
                kernel(blocks, shared, matrix, x, y, rows, n, staged, SETS, repeats)  # noqa: B023

            launch(SETS)
            exact = host_x.astype(np.float64) @ host_matrix.T.astype(np.float64)
            require(relative_error(device.numpy(y), exact), 1e-5, f"{name} {slot} n={n}")
            values = device.per_repetition(launch, 200 if n < 64 else 40, options.rounds)
            flops = 2 * n * rows * slot.width
            busy = min(blocks, device.sms) / device.sms
            floor = device.floor(flops=flops / busy, l2_bytes=4 * n * (blocks * slot.width + rows))
            report(
                f"{name} {rows}x{slot.width} slot={slot.shape} tile={slot.tile} n={n}", values, floor=floor,
                tflops=[float(f"{flops / (1e6 * v):.4g}") for v in (max(values), min(values))],
                blocks=blocks, machine_registers=kernel.binary.registers,
            )  # fmt: skip


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
