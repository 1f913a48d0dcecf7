"""1, 2, 4, 6 groups for a model of a million weights at batch 64.

Every group of multiprocessors keeps all weights (1024 x 1024) and takes its share of the vertices. More groups: more
registers per thread, narrower barriers, fewer copies of every vector through L2; fewer vectors share what a block
does once per level. A step goes through the levels of a mini-batch of 64 sentiment trees, forward only;
`us_per_level` has the barrier in it. `floor`: arithmetic of all products, or the vectors that the blocks of each
group read from L2.
"""

from __future__ import annotations

import argparse

import numpy as np
from device import Build, Device, Report, relative_error, require, run
from numpy.typing import NDArray
from slots import Slot

BENCH = "gpu_groups"
HIDDEN = 1024
GROUPS = (1, 2, 4, 6)
# Inner vertices by height, medians over the mini-batches of 64 of the first 512 training trees of SST.
LEVELS = (298, 196, 142, 110, 89, 75, 63, 52, 44, 34, 27, 20, 13, 10, 8, 5, 4, 2, 1, 1)
LINE = 32  # words between counters, as in groups.cu
SMALLEST = 128, (1, 2), LEVELS[10:]  # hidden units, groups, levels
_TILES = {4: 8, 8: 4, 16: 2}  # by rows of a team: sums and weights together stay in registers


def slot_for(sms: int, groups: int, hidden: int = HIDDEN) -> Slot | None:
    """Two teams of four warps; None where a group's registers do not hold the matrix."""
    rows_per_block = -(-hidden // (sms // groups))
    for rows in (4, 8, 16, 24):
        if 2 * rows >= rows_per_block:
            return Slot(rows, hidden // 128, 4, _TILES.get(rows, 1))
    return None


def builds(quick: bool) -> list[Build]:
    """For 132 multiprocessors."""
    slots = (slot_for(132, groups) for groups in ((1, 4) if quick else GROUPS))
    return [slot.build("groups.cu", "levels") for slot in slots if slot]


def expected(matrix: NDArray[np.float32], h: NDArray[np.float32], sizes: list[int]) -> list[NDArray[np.float64]]:
    """The vertices of every level, by group, from level 0 on, in float64."""
    found = []
    current = h.astype(np.float64)
    for size in sizes:
        products = current[:, :size] @ matrix.T.astype(np.float64)
        current = products / (1.0 + np.abs(products))
        found.append(current)
    return found


def measure(device: Device, report: Report, options: argparse.Namespace) -> None:
    """Check all levels, then time steps."""
    hidden, every, levels = HIDDEN, (1, 4) if options.quick else GROUPS, LEVELS
    if options.smallest:
        hidden, every, levels = SMALLEST
    random = np.random.default_rng(1)
    bound = (6.0 / (2 * hidden)) ** 0.5
    host_matrix = random.uniform(-bound, bound, (hidden, hidden)).astype(np.float32)
    matrix = device.array(host_matrix)
    for groups in every:
        slot = slot_for(device.sms, groups, hidden)
        if slot is None:
            continue
        kernel = device.load(slot.build("groups.cu", "levels"))
        width = -(-hidden // slot.block_rows)  # blocks that hold the matrix
        sizes = [-(-size // groups) for size in levels]
        most = max(sizes)
        host_h = random.uniform(-1, 1, (groups, most, hidden)).astype(np.float32)
        h = device.unwritten((len(sizes) + 1, groups, most, hidden))
        h[0] = device.array(host_h)
        counters = device.zeros(groups * LINE, np.uint32)
        device_sizes = device.array(np.array(sizes, np.uint32))
        staged = slot.staged(device, most)
        shared = slot.partial_bytes + 4 * hidden * staged

        def launch(repeats: int) -> None:
            counters.fill(0)  # noqa: B023
            kernel(  # noqa: B023
                groups * width, shared, matrix, h, counters, device_sizes, len(sizes), most, groups, width,  # noqa: B023
                staged, repeats, cooperative=True,  # noqa: B023
            )  # fmt: skip

        launch(1)
        for level, exact in enumerate(expected(host_matrix, host_h, sizes), start=1):
            found = device.numpy(h[level])[:, : sizes[level - 1]]
            require(relative_error(found, exact), 1e-4, f"groups={groups} level {level}")
        values = device.per_repetition(launch, 5, options.rounds)
        vertices = groups * sum(sizes)
        floor = device.floor(
            flops=2 * vertices * hidden**2 * device.sms / (groups * width),
            l2_bytes=4 * hidden * vertices * (width + 1),
        )
        report(
            f"groups={groups} blocks={groups * width} slot={slot.shape} tile={slot.tile}", values, floor=floor,
            us_per_level=float(f"{np.median(values) / len(sizes):.4g}"), barriers=len(sizes), vertices=vertices,
            machine_registers=kernel.binary.registers,
        )  # fmt: skip


if __name__ == "__main__":
    run(BENCH, __doc__, builds, measure)
