"""Resources of a GPU for the planner: multiprocessors, registers, shared memory, L2."""

from __future__ import annotations

from dataclasses import dataclass

from vpps.errors import HandleError
from vpps.kernel.chip import KERNEL_SHARED, THREADS
from vpps.text import KIB

TENSOR_CORES = 80
"""Lowest compute capability, times ten, whose tensor cores multiply bf16 and tf32 (`mma.sync`, PTX ISA)."""

# Registers per thread without weights: for the interpreter and one vector, as in VPPS (section III-A, footnote 6).
OTHER_REGISTERS = 64


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU properties that determine the placement of weights.

    Attributes:
        name: the user's name for the GPU.
        sm: compute capability times ten: 90 for sm_90.
        sms: number of multiprocessors.
        shared_per_block: maximum shared memory that a block may opt in to, in bytes.
        l2_bytes: size of the second-level cache.
        registers_per_sm: 32-bit registers per multiprocessor.
    """

    name: str
    sm: int
    sms: int
    shared_per_block: int
    l2_bytes: int
    registers_per_sm: int = 65536

    @property
    def registers(self) -> int:
        """Registers per thread available for weights, with one block per multiprocessor."""
        return max(0, self.registers_per_sm // THREADS - OTHER_REGISTERS)

    @property
    def shared(self) -> int:
        """Bytes of shared memory per block for vectors, partial sums, results and windows."""
        return max(0, self.shared_per_block - KERNEL_SHARED)


def _device(name: str, sm: int, sms: int, shared_per_sm: int, l2_mib: float) -> Device:
    """A Device. From sm_80 on, a block has 1 KiB less (CUDA C++ Programming Guide, compute capabilities)."""
    per_block = shared_per_sm - (1 if sm >= 80 else 0)
    return Device(name, sm, sms, per_block * KIB, int(l2_mib * KIB * KIB))


# For plans on a machine without the GPU; if there is a GPU, the driver is asked. Sources: NVIDIA's architecture white
# papers, the tuning guides (shared memory) and the driver's reports (enabled multiprocessors, L2).
DEVICES = {
    device.name: device
    for device in (
        _device("T4", 75, 40, 64, 4),
        _device("A100", 80, 108, 164, 40),
        _device("RTX 3090", 86, 82, 100, 6),
        _device("RTX 4090", 89, 128, 100, 72),
        _device("H100", 90, 132, 228, 50),  # SXM5
        _device("H200", 90, 132, 228, 60),
        _device("B200", 100, 148, 228, 126.5),
        _device("RTX 5090", 120, 170, 100, 96),
    )
}


def known_device(name: str) -> Device:
    """Return the device with this name in the table.

    Raises:
        HandleError: there is no such device.
    """
    if name not in DEVICES:
        raise HandleError(f"device {name!r} is not known; expected one of {', '.join(DEVICES)}, or describe a Device")
    return DEVICES[name]
