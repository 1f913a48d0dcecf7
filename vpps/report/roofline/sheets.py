"""GPUs by their data sheets: floors on a machine that is not here. Nothing in this file was measured by us."""

from __future__ import annotations

from typing import NamedTuple

from vpps.errors import HandleError
from vpps.placement.onchip import Device, known_device
from vpps.report.roofline.peaks import Bandwidth, Peaks

SOURCE = "by its data sheet, barriers and launches assumed"

BARRIER = 1.2e-6  # seconds, assumed: an atomic addition and a poll through L2, one behind the other
LAUNCH = 3e-6  # seconds, assumed: of a kernel that follows another one on its stream
BYTES_PER_CLOCK = 64  # that a multiprocessor gets from L2 at most (CUDA tuning guides)
LANES = {75: 64, 80: 64}  # single-precision units of a multiprocessor; 128 of all others


class Sheet(NamedTuple):
    """Of a data sheet: operations per second in single precision, tensor cores left out; bytes per second of memory."""

    flops: float
    memory: float


# NVIDIA's data sheets and white papers; of an A100 and an H100 the SXM forms, of the A100 that with 80 GB.
SHEETS = {
    "T4": Sheet(8.1e12, 320e9),
    "A100": Sheet(19.5e12, 2039e9),
    "RTX 3090": Sheet(35.6e12, 936e9),
    "RTX 4090": Sheet(82.6e12, 1008e9),
    "H100": Sheet(66.9e12, 3350e9),
    "H200": Sheet(66.9e12, 4800e9),
    "B200": Sheet(75e12, 8000e9),
    "RTX 5090": Sheet(104.8e12, 1792e9),
}


def device_named(name: str) -> Device:
    """A device whose data sheet is known; capitals do not matter. Raises HandleError: there is none of that name."""
    found = next((known for known in SHEETS if known.lower() == name.lower()), None)
    if found is None:
        raise HandleError(f"--device {name}: expected one of {', '.join(SHEETS)}")
    return known_device(found)


def sheet_peaks(device: Device) -> Peaks:
    """What a GPU gives by its data sheet, to one virtual processor per multiprocessor."""
    sheet = SHEETS[device.name]
    clock = sheet.flops / (2 * LANES.get(device.sm, 128) * device.sms)
    near = BYTES_PER_CLOCK * device.sms * clock
    curve = Bandwidth((device.l2_bytes, 2.0 * device.l2_bytes), (near, sheet.memory))
    one = sheet.flops / device.sms
    return Peaks(
        device.name, f"sm_{device.sm}", device.sms, sheet.flops, one, curve, curve, BARRIER, LAUNCH, source=SOURCE
    )
