"""Which kernels the compiler is expected to spill: nobody should wait seconds for each of several that cannot fit.

A thread has 255 registers, for weights and for everything else. What else there is depends on the compiler; LEAST has
it for some. Nothing is learned from other kernels: of two Tree-LSTMs of 512 units NVRTC 13.5 fitted 172 registers
of weights with tiles of 4 in one and spilled 172 with tiles of 2 in the other, and what a kernel ends with, down to the
last bit of its sums, must not depend on what was compiled before. That a kernel itself spilled, the cache knows.
"""

from __future__ import annotations

from vpps.kernel.chip import sums_of
from vpps.kernel.spec import KernelSpec

REGISTERS = 255  # of a thread, where a multiprocessor has one block

PRODUCT = 19
"""Registers that a product needs beside those of slots and its sums."""

SHARED = 83
"""Registers that everything needs at least beside those of slots, however small a product's tile is, if other slots are
in shared memory."""

LEAST = {(13, 0): 83, (13, 5): 71}
"""The same if none are: by the first version of NVRTC that it is true of, oldest first; older ones are taken to be like
the first. Measured on sm_90 with 13.0.88 and 13.5.37, Tree-LSTMs, BiLSTMs and recursive networks of 256 to 1280 units:
between the most registers of weights that fit and the fewest that spill (python -m tests.kernel.spills)."""


def least_of(version: str) -> int:
    """`LEAST` of a version, such as "13.0"."""
    number = tuple(map(int, version.split(".")))
    known = [least for since, least in LEAST.items() if since <= number]
    return known[-1] if known else next(iter(LEAST.values()))


def expects_spills(spec: KernelSpec, version: str) -> bool:
    """Whether a kernel is expected to spill. Never of one that must be tried, nor of one without tails: what was
    measured has fused cells, and 13.5 fits 172 registers beside 64 sums where there are none. The version is NVRTC's,
    such as "13.0"."""
    chip = spec.chip
    if chip.last or not spec.tails:
        return False
    in_registers = (slot for slot in chip.slots if slot.in_registers)
    sums = max((sums_of(slot.rows, chip.tile, slot.element) for slot in in_registers), default=0)
    least = SHARED if chip.shared_units else least_of(version)
    return chip.registers > 0 and chip.registers + max(PRODUCT + sums, least) > REGISTERS
