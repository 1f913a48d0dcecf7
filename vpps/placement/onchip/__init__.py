"""Which weights live where on a GPU: registers first, then shared memory, then L2.

device: what a GPU offers; slots: shapes and the rows in them; holding: what is asked and answered; place: who gets
slots; gradients: where weight gradients are gathered; planner: the whole, and smaller ones where a kernel spills;
report: the table for the user.
"""

from vpps.placement.onchip.device import DEVICES, Device, capacity, known_device
from vpps.placement.onchip.holding import ChipOptions, Gradients, Held, MatrixSpec, OnChip, Slot, Tier, owned_rows
from vpps.placement.onchip.planner import nothing_left, plan_onchip, step_down
from vpps.placement.onchip.report import explain
from vpps.placement.onchip.slots import Shape, valid_rpw

__all__ = [
    "DEVICES",
    "ChipOptions",
    "Device",
    "Gradients",
    "Held",
    "MatrixSpec",
    "OnChip",
    "Shape",
    "Slot",
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
