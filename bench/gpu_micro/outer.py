"""Weight gradients as outer products into registers over n vectors, against one GEMM at the end.

gradient += dy^T x, in the slots of the matrix, beside cuBLAS (through CuPy, float32 without TF32) on operands that
lie ready: the GEMM's launch is in its time, as it would be a launch of its own. `ratio` > 1: registers are faster;
the last line of a slot gives the smallest n from which they are not. `floor`: arithmetic, or what all blocks read
from L2.
"""

from __future__ import annotations

import argparse

import numpy as np
from device import Build, Device, Report, relative_error, require, run
from slots import Slot

BENCH = "gpu_outer"
SETS = 4
ROWS = 1280  # of the Tree-LSTM's U
# Slot, vectors per unrolled step, whether for U (else for as many rows as all multiprocessors hold).
CASES = [
    (Slot(5, 4, 4), 4, True),
    (Slot(2, 16, 1), 2, True),
    (Slot(12, 16, 1), 1, False),
    (Slot(24, 8, 4), 1, False),
]


def builds(quick: bool) -> list[Build]:
    """A kernel per slot."""
    return [slot.build("outer.cu", "outer", UNROLL=unroll) for slot, unroll, _ in (CASES[:1] if quick else CASES)]


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check gradients, then time both in turn."""
    random = np.random.default_rng(1)
    matmul = device.cupy.matmul
    for slot, unroll, for_u in CASES[:1] if options.quick else CASES:
        kernel = device.load(slot.build("outer.cu", "outer", UNROLL=unroll))
        rows = 25 if options.smallest else ROWS if for_u else device.sms * slot.block_rows
        blocks, stride = -(-rows // slot.block_rows), -(-slot.block_rows // 4) * 4
        gradient = device.unwritten((rows, slot.width))
        crossover = None
        for n in (1, 64, 1024) if options.quick else (1, 4, 16, 64, 256, 1024, 4096):
            host_x = random.standard_normal((SETS, n, slot.width), np.float32)
            host_dy = random.standard_normal((SETS, n, rows), np.float32)
            x, dy = device.array(host_x), device.array(host_dy)
            staged = device.staged_vectors(slot.width + stride, n, 1, 0)
            shared = 4 * (slot.width + stride) * staged

            def launch(repeats: int) -> None:
                kernel(blocks, shared, x, dy, gradient, rows, n, staged, SETS, repeats)  # noqa: B023

            launch(SETS)
            exact = np.tensordot(host_dy.astype(np.float64), host_x.astype(np.float64), ((0, 1), (0, 1)))
            require(relative_error(device.numpy(gradient), exact), 1e-4, f"{slot} n={n}")
            values = device.per_repetition(launch, max(2, 400 // n), options.rounds)
            transposed, plain = dy[0].T, x[0]
            matmul(transposed, plain)  # creates cuBLAS's handle
            gemm = [device.microseconds(lambda: matmul(transposed, plain)) for _ in values]  # noqa: B023
            flops = 2 * n * rows * slot.width
            busy = min(blocks, device.sms) / device.sms
            report(
                f"{rows}x{slot.width} slot={slot.shape} n={n}", values,
                floor=device.floor(flops=flops / busy, l2_bytes=4 * n * (blocks * slot.width + rows)),
                peer=("cuBLAS sgemm, a launch", gemm), higher_is_better=False, blocks=blocks,
            )  # fmt: skip
            if crossover is None and np.median(gemm) < np.median(values):
                crossover = n
        if crossover:
            report(f"crossover {rows}x{slot.width} slot={slot.shape}", [float(crossover)], "vectors")


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
