"""Which weights live where on a GPU: registers first, then shared memory, then L2.

device: what a GPU offers; slots: shapes and the rows in them; holding: what is asked and answered; place: who gets
slots; windows: who gets windows; planner: the whole, and smaller ones where a kernel spills; report: the table for the
user.

A virtual processor is a thread block of 256 threads, one per multiprocessor (two would bring a step 3 to 5 % at the
very most: a block with half of the rows takes as long alone, `bench/results/gpu_cost/two_blocks.md`). It holds rows of
weight matrices in slots from the beginning of a launch to its end. Each matrix and each transpose gets the shape with
the least modelled time, then a tier by reuse per byte. Rows are dealt so that a block owns the same hidden units of
every gate, and of the transpose those of the child that these units are; or in turns, whole rows, as the paper does
(`ownership="round-robin"`). A transpose that fits nowhere is replaced by atomic additions from the rows of the matrix
itself where that moves fewer bytes; its last bits then vary from run to run. Matrices with few rows or columns stay in
memory: vertices are divided instead.

In scripts a matrix on the chip has a number, its rows an owner (flags OWNED, TURNS); whatever multiplies by it follows
that, and `compiler/barriers.py` and the verifier know. What is done to such a matrix is an instruction of its own
(`held_matvec`, `held_outer` ...; `instruction_of` in `script/instructions.py`), so that a kernel has code for where its
matrices are and no other: a launch notes what it uses exactly (`Plan.instructions`).

A matrix whose products round what they multiply (`Precision`) has slots of fragments for tensor cores, in the type of
its precision. Beside float32 ones they have taller shapes and other costs, and are placed with them by one score.

Gradients are summed up in tiles, in memory, by all blocks (`templates/cuda/tiles.cuh`): nothing is multiplied by
weights any more, and registers and shared memory are free for that. Only the published scheme, rows in turns on one
group of blocks, keeps them on the chip, in the place of the weights. `store_gradient` and `load_gradient` move what
must outlive a launch.

A kernel that spills is compiled again with the next smaller arrangement; where what the user forced leaves none,
`SpillError` names it.
"""

from vpps.placement.onchip.device import DEVICES, Device, known_device
from vpps.placement.onchip.holding import ChipOptions, Gradients, HeldMatrix, MatrixSpec, OnChip, Tier, owned_rows
from vpps.placement.onchip.planner import nothing_left, plan_onchip, step_down
from vpps.placement.onchip.report import capacity, explain
from vpps.placement.onchip.slots import SlotShape, valid_rpw

__all__ = [
    "DEVICES",
    "ChipOptions",
    "Device",
    "Gradients",
    "HeldMatrix",
    "MatrixSpec",
    "OnChip",
    "SlotShape",
    "Tier",
    "capacity",
    "explain",
    "known_device",
    "nothing_left",
    "owned_rows",
    "plan_onchip",
    "step_down",
    "valid_rpw",
]
