"""The transposed product from a second copy of the matrix, against adding up partial sums of all blocks.

dx = U^T dy of the Tree-LSTM with 256 hidden units (U: 1280 x 512). "second copy": the slots of U^T, every block owns
columns of U and writes their sums. "red" and "red.v4": the slots of U itself, every block adds what its rows
contribute to all of dx, one or four floats per instruction. The latter need dx zeroed before, which is not in their
times. `floor`: arithmetic, or what all blocks read from and add to L2.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from device import Build, Device, Report, relative_error, require, run
from slots import Slot

BENCH = "gpu_transposed"
ROWS, WIDTH = 1280, 512
SETS = 4
COPY = Slot(4, 5, 8)  # of U^T
# Slot of U and its tile for n > 1.
SUMS = [(Slot(5, 4, 4), 8), (Slot(2, 16, 1), 2)]


def sum_variants(quick: bool) -> list[tuple[Slot, int]]:
    """Slots, tiles and whether four floats are added at a time."""
    chosen = SUMS[:1] if quick else SUMS
    return [(replace(slot, tile=tile), four) for slot, largest in chosen for tile in (1, largest) for four in (0, 1)]


def copy_variants() -> list[Slot]:
    """The second copy, by tile."""
    return [replace(COPY, tile=tile) for tile in (1, 8)]


def builds(quick: bool) -> list[Build]:
    """All kernels."""
    sums = [slot.build("transposed.cu", "transposed", FOUR=four) for slot, four in sum_variants(quick)]
    return sums + [slot.build("matvec.cu", "matvec") for slot in copy_variants()]


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check all ways against each other and NumPy, then time them."""
    random, sets = np.random.default_rng(1), 1 if options.smallest else SETS
    host_matrix = random.standard_normal((ROWS, WIDTH), np.float32)
    matrix, copy = device.array(host_matrix), device.array(np.ascontiguousarray(host_matrix.T))
    for n in (8,) if options.smallest else (1, 8) if options.quick else (1, 8, 64):
        host_dy = random.standard_normal((sets, n, ROWS), np.float32)
        exact = host_dy.astype(np.float64) @ host_matrix.astype(np.float64)
        dy, dx = device.array(host_dy), device.zeros((sets, n, WIDTH))
        flops, repeats = 2 * n * ROWS * WIDTH, 200 if n < 64 else 40
        for slot in copy_variants():
            if slot.tile > n:
                continue
            kernel, blocks = device.load(slot.build("matvec.cu", "matvec")), WIDTH // slot.block_rows
            staged = slot.staged(device, n)
            shared = slot.partial_bytes + 4 * slot.width * staged

            def launch(repeats: int) -> None:
                kernel(blocks, shared, copy, dy, dx, WIDTH, n, staged, sets, repeats)  # noqa: B023

            dx.fill(np.nan)
            launch(sets)
            require(relative_error(device.numpy(dx), exact), 1e-5, f"second copy {slot} n={n}")
            values = device.per_repetition(launch, repeats, options.rounds)
            floor = device.floor(flops=flops * device.sms / blocks, l2_bytes=4 * n * (blocks * ROWS + WIDTH))
            report(f"second copy slot={slot.shape} tile={slot.tile} n={n}", values, floor=floor, blocks=blocks)
        for slot, four in sum_variants(options.quick):
            if slot.tile > n:
                continue
            kernel = device.load(slot.build("transposed.cu", "transposed", FOUR=four))
            blocks = ROWS // slot.block_rows
            teams = slot.block_rows // slot.rows
            shared = 4 * slot.tile * (teams * WIDTH + slot.block_rows)

            def launch(repeats: int) -> None:
                kernel(blocks, shared, matrix, dy, dx, ROWS, n, sets, repeats)  # noqa: B023

            dx.fill(0)
            launch(sets)
            require(relative_error(device.numpy(dx), exact), 1e-5, f"sums {slot} four={four} n={n}")
            values = device.per_repetition(launch, repeats, options.rounds)
            floor = device.floor(flops=flops * device.sms / blocks, l2_bytes=4 * n * (ROWS + blocks * WIDTH))
            name = "red.v4" if four else "red"
            report(f"{name} slot={slot.shape} tile={slot.tile} n={n}", values, floor=floor, blocks=blocks)


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
