"""Products on tensor cores from bf16 and tf32 fragments in registers: microseconds, and the error.

The matrix is rounded once, vectors when they are staged; sums are float32. A result is checked against the float64
product of the rounded operands, and `error` is its distance from that of the unrounded ones (norm over norm). 8
vectors per pass: n = 1 costs as much as 8. `floor`: what all blocks read from L2; the arithmetic is far below it.
"""

from __future__ import annotations

import argparse

import numpy as np
from device import Build, Device, Report, relative_error, require, run
from numpy.typing import NDArray

BENCH = "gpu_tensor_cores"
SETS, PASS, WARPS = 4, 8, 8
# Warps along the rows, tiles of 16 rows per warp, columns per warp; rows of the matrix (None: all multiprocessors).
# The Tree-LSTM's U with 16 rows per block; the same with 32; slots of 64 and 192 registers (bf16).
CASES: list[tuple[int, int, int, int | None]] = [
    (1, 1, 64, 1280),
    (2, 1, 128, 1280),
    (2, 2, 128, None),
    (2, 3, 128, None),
]


def build(bf16: bool, row_warps: int, row_tiles: int, columns: int) -> Build:
    """The kernel for one shape."""
    macros = {
        "BF16": int(bf16), "ROW_WARPS": row_warps, "ROW_TILES": row_tiles, "DEPTH": columns // (16 if bf16 else 8),
    }  # fmt: skip
    return Build("tensor_cores.cu", "tensor_cores", macros)


def builds(quick: bool) -> list[Build]:
    """Both kinds of all shapes, and the largest bf16 one."""
    found = [build(bf16, *case[:3]) for case in (CASES[:1] if quick else CASES) for bf16 in (True, False)]
    return found if quick else found + [build(True, 2, 6, 128)]


def rounded(values: NDArray[np.float32], bits: int, ties_away: bool) -> NDArray[np.float32]:
    """With `bits` fewer bits of mantissa, to nearest; ties to even or away from zero (cvt.rn and cvt.rna)."""
    words = values.view(np.uint32)
    half = np.uint32((1 << (bits - 1)) - (0 if ties_away else 1))
    tie = np.uint32(0) if ties_away else (words >> np.uint32(bits)) & np.uint32(1)
    kept = (words + half + tie) & np.uint32(-(1 << bits) & 0xFFFFFFFF)
    return kept.view(np.float32)


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check the products, then time them."""
    random = np.random.default_rng(1)
    cases = [(bf16, case) for case in (CASES[:1] if options.quick else CASES) for bf16 in (True, False)]
    if not options.quick:
        cases.append((True, (2, 6, 128, None)))
    for bf16, (row_warps, row_tiles, columns, rows) in cases:
        kernel = device.load(build(bf16, row_warps, row_tiles, columns))
        block_rows, column_warps = 16 * row_warps * row_tiles, WARPS // row_warps
        width = column_warps * columns
        rows = 40 if options.smallest else rows or device.sms * block_rows
        blocks = -(-rows // block_rows)
        exact_matrix = random.standard_normal((rows, width), np.float32)
        bits, away = (16, False) if bf16 else (13, True)
        matrix = np.zeros((blocks * block_rows, width), np.float32)
        matrix[:rows] = rounded(exact_matrix, bits, away)
        words = matrix.view(np.uint32)
        if bf16:  # two columns in a word, the even one in the lower half
            words = (words[:, 0::2] >> np.uint32(16)) | words[:, 1::2]
        device_words = device.array(np.ascontiguousarray(words))
        partials = 2 * 4 * column_warps * block_rows * PASS
        stride = words.shape[1] + 4
        for n in (8,) if options.quick else (1, 8, 64):
            host_x = random.standard_normal((SETS, n, width), np.float32)
            x, y = device.array(host_x), device.unwritten((SETS, n, rows))
            staged = device.staged_vectors(stride, n, PASS, partials)
            shared = partials + 4 * stride * staged

            def launch(repeats: int) -> None:
                kernel(blocks, shared, device_words, x, y, rows, n, staged, SETS, repeats)  # noqa: B023

            launch(SETS)
            found = device.numpy(y)
            of_rounded = rounded(host_x, bits, away).astype(np.float64) @ matrix[:rows].T.astype(np.float64)
            kind = "bf16" if bf16 else "tf32"
            case = f"{kind} {rows}x{width} rows_per_block={block_rows} column_warps={column_warps} n={n}"
            require(relative_error(found, of_rounded), 1e-5, case)
            error = relative_error(found, host_x.astype(np.float64) @ exact_matrix.T.astype(np.float64))
            values = device.per_repetition(launch, 200 if n < 64 else 40, options.rounds)
            flops = 2 * n * rows * width
            report(
                case, values, floor=device.floor(l2_bytes=4 * n * (blocks * width + rows)), error=float(f"{error:.3g}"),
                tflops=[float(f"{flops / (1e6 * v):.4g}") for v in (max(values), min(values))],
                blocks=blocks, machine_registers=kernel.binary.registers,
            )  # fmt: skip


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
