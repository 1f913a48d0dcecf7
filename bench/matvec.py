"""The cpu target's matrix instructions on one core, compared with the machine's peak and other libraries' products.

    python bench/matvec.py [--shapes 1024x256,1280x512] [--vectors 1,2,4,8,16,32,64,128] [--mkl-avx512]
                           [--precision bf16]

Measures, for each shape and number n of vectors, GFLOP/s of `matvec` (W x for n vectors), `transposed` (W^T x) and
`outer` (the sum of n outer products), as scripts of one virtual processor. The peers, on the same shapes and one
thread, are NumPy's sgemm (OpenBLAS), PyTorch's sgemm (MKL), and oneDNN through PyTorch; the best one counts. `peak` is
the speed of fused multiply-adds on registers (peaks.cpp). With --precision bf16, the peer is vpps in float32.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy reads it at import, before its threads could be confined

import harness
import numpy as np
from peaks import flops as peak_flops

from vpps.ops.precision import PRECISIONS
from vpps.placement.distribution import pairs
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import direct, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC, NO_FLAGS, Flag

WORK = 2e9  # floating-point operations per measurement; a launch costs 10 to 30 us
X, Y, MATRIX, PAIRS = 1 << 22, 1 << 23, 64, 3 << 22  # offsets in the pool; element 0 is the constant zero


def script_rate(
    machine: CpuMachine, name: str, n: int, width: int, flops: float, flags: Flag = NO_FLAGS, **fields: Any
) -> Callable[[], float]:
    """Return the GFLOP/s of an instruction, repeated in one script."""
    repeats = max(1, int(WORK / flops))
    words = [MAGIC, 1, 1, 0, HEADER_WORDS + 1, *encode(name, n, width, 1, flags, **fields) * repeats]
    script = plain([*words, *encode("end", 0, 0)])
    script[3] = len(script)

    def run() -> float:
        start = time.perf_counter()
        machine.launch(script)
        machine.wait()
        return flops * repeats / (time.perf_counter() - start) / 1e9

    return run


def call_rate(call: Callable[[], object], flops: float) -> float:
    """Return the GFLOP/s of a repeated Python call."""
    repeats = max(1, int(WORK / flops))
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return flops * repeats / (time.perf_counter() - start) / 1e9


def scripts(machine: CpuMachine, rows: int, columns: int, n: int, precision: str) -> dict[str, Callable[[], float]]:
    """Return functions that measure the three instructions' GFLOP/s."""
    flops = 2.0 * rows * columns * n
    factors, weights = (NO_FLAGS, MATRIX) if precision == "float32" else (Flag.BF16, PAIRS)
    stored = factors and factors | Flag.PAIRS
    x, y, product = direct(X, columns), direct(Y, rows), {"bias": direct(0, 0, True), "weights": weights, "matrix": 0}
    rate = partial(script_rate, machine)
    return {
        "matvec": rate("matvec", n, rows, flops, stored, **product, dst=y, columns=columns, x=[(x, columns)]),
        "transposed": rate("matvec", n, columns, flops, stored, **product, dst=x, columns=rows, x=[(y, rows)]),
        "outer": rate("outer", n, rows, flops, factors, gradient=MATRIX, columns=columns, dy=y, x=[(x, columns)]),
    }


def peers(rows: int, columns: int, n: int) -> dict[str, list[Callable[[], object]]]:
    """Return the peers' calls for the three operations."""
    import torch

    rng = np.random.default_rng(0)
    W, A, B = (rng.random(s, np.float32) for s in ((rows, columns), (columns, n), (rows, n)))
    TW, TA, TB = map(torch.from_numpy, (W, A, B))
    # oneDNN's own layout, with weights converted in advance: rows of inputs times rows of weights.
    DW, DWT, DA, DAT, DB, DBT = (m.contiguous().to_mkldnn() for m in (TW, TW.T, TA, TA.T, TB, TB.T))
    linear = torch._C._nn.mkldnn_linear
    return {
        "matvec": [partial(np.matmul, W, A), partial(torch.mm, TW, TA), partial(linear, DAT, DW)],
        "transposed": [partial(np.matmul, W.T, B), partial(torch.mm, TW.T, TB), partial(linear, DBT, DWT)],
        "outer": [partial(np.matmul, B, A.T), partial(torch.mm, TB, TA.T), partial(linear, DB, DA)],
    }


def filled(rounds: bool) -> CpuMachine:
    """Return a virtual processor with finite numbers in its pool."""
    machine = CpuMachine(1, rounds=rounds)
    machine.reserve(1 << 24, 0)
    machine.pool[:] = np.random.default_rng(0).normal(size=1 << 24).astype(np.float32) * 0.01
    machine.pool[PAIRS:] = pairs(machine.pool[: 2 * (machine.pool.size - PAIRS)][None], PRECISIONS["bf16"])[0]
    machine.pool[0] = 0
    return machine


def main() -> None:
    """Measure and print lines."""
    parser = harness.parser(__doc__, rounds=5, mkl_avx512=False, precision="float32")
    parser.add_argument("--shapes", default="256x256,1024x256,1280x512,512x1280")
    parser.add_argument("--vectors", default="1,2,4,8,16,32,64,128")
    args = parser.parse_args()
    if args.mkl_avx512:
        harness.mkl_avx512()
    harness.confine(1)
    reduced = args.precision != "float32"
    machines = [filled(rounds=True), filled(rounds=False)] if reduced else [filled(rounds=False)]
    machine = machines[0]
    top = peak_flops(1) / 1e9
    harness.report("matvec", "peak of one core", [top], "GFLOP/s", isa=machine.arch)
    if not reduced:
        import torch

        torch.set_num_threads(1)
    for shape in args.shapes.split(","):
        rows, columns = map(int, shape.split("x"))
        for n in map(int, args.vectors.split(",")):
            flops = 2.0 * rows * columns * n
            mine = scripts(machine, rows, columns, n, args.precision)
            others = scripts(machines[1], rows, columns, n, "float32") if reduced else peers(rows, columns, n)
            for name, rate in mine.items():
                own, best = [], []
                for _ in range(args.rounds):
                    own.append(rate())
                    other = others[name]
                    best.append(other() if callable(other) else max(call_rate(call, flops) for call in other))
                    for each in machines:  # results are inputs of the next case and must be finite
                        each.pool[X : X + columns * n] = 0.01
                        each.pool[Y : Y + rows * n] = 0.01
                harness.report(
                    "matvec", f"{name} {shape} n={n}", own, "GFLOP/s",
                    ("vpps in float32" if reduced else "best of NumPy, MKL and oneDNN", best),
                    precision=args.precision, of_peak=round(statistics.median(own) / top, 3), isa=machine.arch,
                )  # fmt: skip
    for each in machines:
        each.close()


if __name__ == "__main__":
    main()
