"""Which weights live where on a GPU.

device: what a GPU offers; holding: what is asked and answered; windows: who gets windows in shared memory; published:
who gets registers in the published scheme; planner: the whole, and smaller plans if a kernel spills; report: the table
for the user.

A virtual processor is a thread block of 256 threads, one per multiprocessor (two would bring a step 3 to 5 % at the
very most: a block with half of the rows takes as long alone, `bench/results/gpu_cost/two_blocks.md`). It multiplies
by its rows of weight matrices in shared memory. Rows are dealt so that a block owns the same hidden units of
every gate, and of the transpose those of the child that these units are; or in turns, whole rows, as VPPS does
(`ownership="round-robin"`). Matrices with few rows or columns stay in memory: vertices are divided instead.

In scripts a matrix on the chip has a number, its rows an owner (flag TURNS); whatever multiplies by it follows
that, and `compiler/barriers.py` and the verifier know. What is done to such a matrix is an instruction of its own
(`held_matvec`; `instruction_of` in `script/instructions.py`), so that a kernel has code for where its matrices are and
no other: a launch notes what it uses exactly (`Plan.instructions`).

Tensor cores multiply a matrix whose products round their factors (`Precision`); in bf16 it takes half the room.

Gradients are summed up in tiles, in memory, by all blocks (`templates/cuda/tiles.cuh`): nothing is multiplied by
weights any more, and registers and shared memory are free for that.

A kernel that spills is compiled again with fewer registers of weights; if what the user forced leaves none to give up,
`SpillError` names it.
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
