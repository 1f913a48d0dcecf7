"""Where the compiled planner leaves its plans."""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from vpps.planner.native.inputs import WORD
from vpps.planner.native.interface import GroupingResult, UsedTable
from vpps.record.arrays import Ints

OF_GROUPING = ctypes.sizeof(GroupingResult) // WORD  # numbers before what is behind it


class PlanBuffers:
    """Where the compiled planner leaves a plan. Plans hold views of its arrays; when there are none it is used again.

    Attributes:
        script, addresses: the words, and the address of each value.
        touched: of each of the kernel's parameters flags (native/launch_end.h); then which of the user's the loss
            depends on.
        tables: what it says of tables.
        at: addresses of the four.
    """

    def __init__(self, words: int, values: int, parameters: int, users: int, groups: int) -> None:
        self.script = np.empty(words, np.uint32)
        self.addresses = np.empty(values, np.uint32)
        self.touched = np.zeros(parameters + users, np.uint8)
        self.tables = (UsedTable * (parameters + 1))()
        arrays = [a.ctypes.data for a in (self.script, self.addresses, self.touched)]
        self.at = [*arrays, ctypes.addressof(self.tables)]
        self.grouping = np.zeros(OF_GROUPING + groups if groups > 1 else 0, np.int64)
        self._unused = self._references()

    def _references(self) -> tuple[int, int, int]:
        return sys.getrefcount(self.script), sys.getrefcount(self.addresses), sys.getrefcount(self.touched)

    @property
    def is_free(self) -> bool:
        """Whether nobody looks at it."""
        return self._references() == self._unused


def numbers_at(address: int, *shape: int) -> Ints:
    """A copy of numbers of the compiled planner's, which will be others soon."""
    n = int(np.prod(shape))
    return np.array((ctypes.c_int64 * n).from_address(address) if n else (), np.int64).reshape(shape)
