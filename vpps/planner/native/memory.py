"""Buffers in which the compiled planner writes its plans."""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from vpps.planner.native.inputs import WORD
from vpps.planner.native.interface import GroupingResult, UsedTable
from vpps.record.arrays import Ints

OF_GROUPING = ctypes.sizeof(GroupingResult) // WORD  # ints of the struct, before the loads of the groups


class PlanBuffers:
    """Buffers of one plan. Plans hold views of the arrays; when no view is left, the buffers are reused.

    Attributes:
        script, addresses: words of the script, and the address of each value.
        touched: flags of each physical parameter (native/launch_end.h), then one flag per user's parameter, set if the
            loss depends on it.
        tables: a UsedTable for each used lookup table.
        at: addresses of these four arrays.
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
        """True if no plan holds a view."""
        return self._references() == self._unused


def numbers_at(address: int, *shape: int) -> Ints:
    """Return a copy of one of the compiled planner's arrays, which the next plan overwrites."""
    n = int(np.prod(shape))
    return np.array((ctypes.c_int64 * n).from_address(address) if n else (), np.int64).reshape(shape)
