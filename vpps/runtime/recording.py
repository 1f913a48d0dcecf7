"""What a kernel with a timeline records, and memory for it on the cpu target. Mirrors templates/host/timeline.h."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# One executed instruction: when it began and ended (nanoseconds of `time.perf_counter_ns`), bytes of weights, their
# gradients and moments that it read and wrote, where it stands in the script, which virtual processor executed it.
# Weights that products read count on cpu once per panel and instruction, on a GPU once per row and four vectors, and
# not at all if the chip holds them.
RECORD = np.dtype([("start", "i8"), ("end", "i8"), ("bytes", "u8"), ("position", "u4"), ("vp", "u4")])

# Where one virtual processor puts its records, in cache lines of its own.
_LINE = 128
_LOG = np.dtype({"names": ["records", "capacity", "executed", "bytes"], "formats": ["u8"] * 4, "itemsize": _LINE})

Records = NDArray[Any]  # of RECORD


class Recording(Protocol):
    """The records of one launch, which has ended. It is made for a number of virtual processors, and for a capacity:
    records of each that there is room for."""

    @property
    def lost(self) -> list[int]:
        """For each virtual processor, the instructions for whose records there was no room."""
        ...

    def records(self) -> Records:
        """All records, by virtual processor, each in the order of execution."""
        ...


class HostRecording(Recording):
    """The records of one launch of the cpu target."""

    def __init__(self, n_vps: int, capacity: int) -> None:
        self.capacity = capacity
        self._records = np.empty((n_vps, capacity), RECORD)  # the system gives the memory as it is touched
        raw = np.zeros((n_vps + 1) * _LINE, np.uint8)
        shift = -raw.ctypes.data % _LINE
        self._logs = raw[shift : shift + n_vps * _LINE].view(_LOG)
        self._logs["records"] = self._records.ctypes.data + np.arange(n_vps) * (capacity * RECORD.itemsize)
        self._logs["capacity"] = capacity

    @property
    def address(self) -> int:
        """Where the kernel finds it."""
        return self._logs.ctypes.data

    @property
    def lost(self) -> list[int]:
        return [max(0, int(n) - self.capacity) for n in self._logs["executed"]]

    def records(self) -> Records:
        kept = np.minimum(self._logs["executed"], self.capacity)
        return np.concatenate([row[:n] for row, n in zip(self._records, kept.tolist(), strict=True)])
