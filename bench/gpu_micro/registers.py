"""Microseconds to load 1, 4, 16 MB of weights into registers at the start of a launch, and to store them.

A launch loads (and stores) once, so the time of an empty launch of the same size, taken in the same round, is
subtracted. "warm": the weights are in L2, as after the launch before. "cold": other data went through L2 since.
`floor`: bytes over the bandwidth of L2 or of device memory, both measured here.
"""

from __future__ import annotations

import argparse

import numpy as np
from device import THREADS, Build, Device, Report, relative_error, require, run

BENCH = "gpu_registers"
SCALE = 0.5  # of the stored weights: exact


def builds(quick: bool) -> list[Build]:
    """Floats per thread and bytes per access: on 132 multiprocessors 1.1, 4.3, 16.8 and 26 MB."""
    floats = (8, 124) if quick else (8, 32, 124, 192)
    return [
        Build("registers.cu", "weights_in_registers", {"FLOATS": n, "WIDE": wide})
        for n in floats
        for wide in ((1,) if quick else (1, 0))
    ]


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check what is stored and summed, then time."""
    random = np.random.default_rng(1)
    sums = device.zeros(device.sms * THREADS)
    other_data = device.zeros(device.l2 // 2)  # twice the size of L2
    empty = device.load(Build("ceilings.cu", "empty"))
    for build in builds(options.quick):
        kernel = device.load(build)
        floats = build.macros["FLOATS"]
        width = 4 if build.macros["WIDE"] else 1
        host = random.standard_normal((device.sms, floats // width, THREADS, width), np.float32)
        weights = device.array(host)
        kernel(device.sms, 0, weights, sums, np.float32(SCALE), 1)
        require(relative_error(device.numpy(weights), host * SCALE), 0.0, f"{build}: stored")
        by_thread = host.astype(np.float64).sum((1, 3)).ravel()
        require(relative_error(device.numpy(sums), by_thread), 1e-5, f"{build}: sums")
        mb = host.nbytes / 1e6
        for store in (0, 1):
            # Scale 1 in the timing: what is stored over and over must not fade to zeros or subnormals.
            arguments = (weights, sums, np.float32(1.0), store)
            for cold in (False, True):

                def flush(cold: bool = cold) -> None:
                    if cold:
                        other_data.fill(1.0)

                values = []
                for _ in range(options.rounds):
                    nothing = device.microseconds(lambda: empty(device.sms, 0, sums))
                    took = device.microseconds(lambda: kernel(device.sms, 0, *arguments), flush)  # noqa: B023
                    values.append(took - nothing)
                moved = host.nbytes * (1 + store)
                floor = device.floor(dram_bytes=moved) if cold else device.floor(l2_bytes=moved)
                report(
                    f"{'load and store' if store else 'load'} {mb:.1f} MB, {'cold' if cold else 'warm'}, "
                    f"{4 * width} bytes per access",
                    values, floor=floor, floats_per_thread=floats, machine_registers=kernel.binary.registers,
                )  # fmt: skip


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
