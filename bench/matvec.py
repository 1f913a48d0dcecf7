"""The matrix instructions of the cpu target on one core, beside the machine's peak and the products of other libraries.

    python bench/matvec.py [--shapes 1024x256,1280x512] [--vectors 1,2,4,8,16,32,64,128] [--mkl-avx512]

For each shape and number n of vectors: GFLOP/s of `matvec` (W x for n vectors), `transposed` (W^T x) and `outer` (the
sum of n outer products), as scripts of one virtual processor. The peers, on the same shapes and one thread: sgemm of
NumPy (OpenBLAS), of PyTorch (MKL), and oneDNN through PyTorch; the best one counts. `peak` is what fused
multiply-adds on registers reach (vpps/report/roofline/peaks.cpp).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is imported: its threads would not be confined

import harness
import numpy as np

from vpps.report.roofline.peaks import measure
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import direct, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC, NO_FLAGS

WORK = 2e9  # floating-point operations of one measurement: to launch one takes 10 to 30 us
X, Y, MATRIX = 1 << 22, 1 << 23, 64  # places in the pool; element 0 is the constant zero


def script_rate(machine: CpuMachine, name: str, n: int, width: int, flops: float, **fields: Any) -> Callable[[], float]:
    """GFLOP/s of an instruction, repeated in one script."""
    repeats = max(1, int(WORK / flops))
    words = [MAGIC, 1, 1, 0, HEADER_WORDS + 1, *encode(name, n, width, 1, NO_FLAGS, **fields) * repeats]
    script = plain([*words, *encode("end", 0, 0)])
    script[3] = len(script)

    def run() -> float:
        start = time.perf_counter()
        machine.launch(script)
        machine.wait()
        return flops * repeats / (time.perf_counter() - start) / 1e9

    return run


def call_rate(call: Callable[[], object], flops: float) -> float:
    """GFLOP/s of a Python call, repeated."""
    repeats = max(1, int(WORK / flops))
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return flops * repeats / (time.perf_counter() - start) / 1e9


def main() -> None:
    """Measure and print."""
    parser = harness.parser(__doc__, rounds=5, mkl_avx512=False)
    parser.add_argument("--shapes", default="256x256,1024x256,1280x512,512x1280")
    parser.add_argument("--vectors", default="1,2,4,8,16,32,64,128")
    args = parser.parse_args()
    if args.mkl_avx512:
        harness.mkl_avx512()
    harness.confine(1)
    import torch

    torch.set_num_threads(1)
    machine = CpuMachine(1)
    top = measure(1, machine.arch).flops_of_one / 1e9
    harness.report("matvec", "peak of one core", [top], "GFLOP/s", isa=machine.arch)
    machine.reserve(1 << 24, 0)
    rng = np.random.default_rng(0)
    machine.pool[:] = rng.normal(size=1 << 24).astype(np.float32) * 0.01
    machine.pool[0] = 0
    for shape in args.shapes.split(","):
        rows, columns = map(int, shape.split("x"))
        for n in map(int, args.vectors.split(",")):
            flops = 2.0 * rows * columns * n
            x, y, zero = direct(X, columns), direct(Y, rows), direct(0, 0, True)
            W, A, B = (rng.random(s, np.float32) for s in ((rows, columns), (columns, n), (rows, n)))
            TW, TA, TB = map(torch.from_numpy, (W, A, B))
            # oneDNN's own layout, weights converted beforehand: rows of inputs times rows of weights.
            DW, DWT, DA, DAT, DB, DBT = (m.contiguous().to_mkldnn() for m in (TW, TW.T, TA, TA.T, TB, TB.T))
            linear = torch._C._nn.mkldnn_linear
            product = {"dst": y, "bias": zero, "weights": MATRIX, "columns": columns, "matrix": 0, "x": [(x, columns)]}
            transposed = {"dst": x, "bias": zero, "weights": MATRIX, "columns": rows, "matrix": 0, "x": [(y, rows)]}
            outer = {"gradient": MATRIX, "columns": columns, "matrix": 0, "dy": y, "x": [(x, columns)]}
            cases: dict[str, tuple[Callable[[], float], list[Callable[[], object]]]] = {
                "matvec": (
                    script_rate(machine, "matvec", n, rows, flops, **product),
                    [partial(np.matmul, W, A), partial(torch.mm, TW, TA), partial(linear, DAT, DW)],
                ),
                "transposed": (
                    script_rate(machine, "matvec", n, columns, flops, **transposed),
                    [partial(np.matmul, W.T, B), partial(torch.mm, TW.T, TB), partial(linear, DBT, DWT)],
                ),
                "outer": (
                    script_rate(machine, "outer", n, rows, flops, **outer),
                    [partial(np.matmul, B, A.T), partial(torch.mm, TB, TA.T), partial(linear, DB, DA)],
                ),
            }
            for name, (mine, others) in cases.items():
                own, best = [], []
                for _ in range(args.rounds):
                    own.append(mine())
                    best.append(max(call_rate(other, flops) for other in others))
                    machine.pool[X : X + columns * n] = 0.01  # results are inputs of the next case: keep them finite
                    machine.pool[Y : Y + rows * n] = 0.01
                harness.report(
                    "matvec", f"{name} {shape} n={n}", own, "GFLOP/s", ("best of NumPy, MKL and oneDNN", best),
                    of_peak=round(statistics.median(own) / top, 3), isa=machine.arch,
                )  # fmt: skip
    machine.close()


if __name__ == "__main__":
    main()
