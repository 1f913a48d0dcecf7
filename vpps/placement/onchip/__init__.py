"""Places weights on a GPU: in shared memory, registers or L2.

device: resources of a GPU; holding: inputs and results of the planner; windows: windows in shared memory; published:
registers for the published scheme; planner: the whole plan, and smaller plans if a kernel spills; report: the user's
table.

A virtual processor is a thread block of 256 threads, one per multiprocessor. Two blocks would make a step at most 3 to
5 % faster: running alone, a block with half of the rows takes as long (`bench/results/gpu_cost/two_blocks.md`). A block
multiplies its rows of weight matrices, which are in shared memory. It owns the same hidden units in every gate and, in
the transpose, the rows of these units for each child. Alternatively, whole rows are dealt in turns, as in VPPS
(`ownership="round-robin"`). Matrices with few rows or columns are kept in memory, and vertices are divided instead.

In scripts, a matrix on the chip has a number, and its rows have owners (flag TURNS). All products with the matrix
follow this ownership, which `compiler/barriers.py` and the verifier know. Such matrices have separate instructions
(`held_matvec`; `instruction_of` in `script/instructions.py`), so that a kernel only contains code for the places of its
own matrices. A plan lists exactly the instructions that it uses (`Plan.instructions`).

Tensor cores multiply a matrix if its products round their operands (`Precision`); in bf16, it needs half the space.

All blocks sum gradients in tiles, in memory (`templates/cuda/tiles.cuh`). No products with weights follow in the
launch, so registers and shared memory are free for these sums.

A kernel that spills is compiled again with fewer registers of weights. If the user's options leave no registers to give
up, `SpillError` names the option.
"""

from vpps.placement.onchip.device import DEVICES, Device, known_device
from vpps.placement.onchip.holding import ChipOptions, HeldMatrix, MatrixSpec, OnChip, Tier
from vpps.placement.onchip.planner import nothing_left, plan_groups, plan_onchip, step_down
from vpps.placement.onchip.published import valid_rpw
from vpps.placement.onchip.report import capacity, explain

__all__ = [
    "DEVICES",
    "ChipOptions",
    "Device",
    "HeldMatrix",
    "MatrixSpec",
    "OnChip",
    "Tier",
    "capacity",
    "explain",
    "known_device",
    "nothing_left",
    "plan_groups",
    "plan_onchip",
    "step_down",
    "valid_rpw",
]
