"""Records that kernels write for a timeline, and their memory on the cpu target. Mirrors templates/host/timeline.h."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# One executed instruction: start and end (nanoseconds of `time.perf_counter_ns`); bytes of weights, of their gradients
# and of moments that it read and wrote; its position in the script; its virtual processor. Weights that products read
# are counted once per panel and instruction on cpu. On a GPU, they are counted once per row and four vectors, or not at
# all if the chip holds them.
RECORD = np.dtype([("start", "i8"), ("end", "i8"), ("bytes", "u8"), ("position", "u4"), ("vp", "u4")])

# Log of one virtual processor: address and capacity of its records, in its own cache lines.
_LINE = 128
_LOG = np.dtype({"names": ["records", "capacity", "executed", "bytes"], "formats": ["u8"] * 4, "itemsize": _LINE})

Records = NDArray[Any]  # elements have type RECORD


class Recording(Protocol):
    """The records of one finished launch. A recording has room for a fixed number of records (the capacity) per virtual
    processor."""

    @property
    def lost(self) -> list[int]:
        """Number of instructions, per virtual processor, whose records did not fit."""
        ...

    def records(self) -> Records:
        """Return all records, by virtual processor, in the order of execution."""
        ...


class HostRecording(Recording):
    """The records of one launch on the cpu target."""

    def __init__(self, n_vps: int, capacity: int) -> None:
        self.capacity = capacity
        self._records = np.empty((n_vps, capacity), RECORD)  # the system commits memory when it is touched
        raw = np.zeros((n_vps + 1) * _LINE, np.uint8)
        shift = -raw.ctypes.data % _LINE
        self._logs = raw[shift : shift + n_vps * _LINE].view(_LOG)
        self._logs["records"] = self._records.ctypes.data + np.arange(n_vps) * (capacity * RECORD.itemsize)
        self._logs["capacity"] = capacity

    @property
    def address(self) -> int:
        """Address of the logs, for the kernel."""
        return self._logs.ctypes.data

    @property
    def lost(self) -> list[int]:
        return [max(0, int(n) - self.capacity) for n in self._logs["executed"]]

    def records(self) -> Records:
        kept = np.minimum(self._logs["executed"], self.capacity)
        return np.concatenate([row[:n] for row, n in zip(self._records, kept.tolist(), strict=True)])
