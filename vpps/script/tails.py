"""Tails: instructions with generated code for the elementwise operators between a cell's products.

A tail is a straight-line program over the views of its instruction. For every unit of every row that a virtual
processor owns, it loads a float from some views, computes, and stores a float to others. The instruction holds the
addresses and widths of the rows, and the constants, so cells with equal structure share a tail, whatever their sizes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

NONE = -1  # stands for the value 0.f, for operands that are zero or are not read


class ViewUse(IntEnum):
    """Use of a view by a tail; the last word of the view in a script."""

    READ = 0  # reads the unit; with mode bit SCALAR, the row's only float
    WRITE = 1
    SUM = 2  # like gather_sum: the address is the position of CSR offsets, the mode an offset into the listed rows
    MEAN = 3
    CONSTANT = 4  # the address is the bits of a float
    RESULT = 5  # reads a unit in one part of the result that the previous product left on the chip; address: the part


class Load(IntEnum):
    """Source of a value that a tail loads."""

    UNIT = 0  # a row has one float for each unit
    ROW = 1  # a row has one float for all units
    RESULT = 2  # the previous product left it on the chip
    LISTED_UNIT = 3  # like UNIT and ROW, but an index list may name the rows
    LISTED_ROW = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One call of device code.

    Attributes:
        code: function of templates/ops/elementwise.cuh, such as "Tanh::forward".
        inputs: number of each operand's value, or NONE.
        constant: number of its constant's view, or NONE.
    """

    code: str
    inputs: tuple[int, ...]
    constant: int = NONE


@dataclass(frozen=True)
class Tail:
    """The program of a tail; equal programs are the same tail. Values are numbered: sums, loads, results of the steps.

    Attributes:
        sums: number of sums of listed rows; their views come first.
        loads: source of the value of each of the next views.
        constants: number of constants, which are the next views.
        steps: calls of device code, in order.
        stores: number of the value that is stored to each of the last views.
    """

    sums: int
    loads: tuple[Load, ...]
    constants: int
    steps: tuple[Step, ...]
    stores: tuple[int, ...]

    @property
    def is_chained(self) -> bool:
        """True if it reads the previous product's result on the chip (compiler/passes/chaining.py)."""
        return Load.RESULT in self.loads

    @property
    def views(self) -> int:
        """Number of views that its instruction has."""
        return self.first_store + len(self.stores)

    @property
    def first_step(self) -> int:
        """Number of the first step's value."""
        return self.sums + len(self.loads)

    @property
    def first_store(self) -> int:
        """Number of the first view that is written."""
        return self.sums + len(self.loads) + self.constants

    @cached_property
    def number(self) -> int:
        """Number of the tail in scripts: a hash of the program, so that processes, handles and caches agree on it."""
        text = repr((self.sums, tuple(map(int, self.loads)), self.constants, self.steps, self.stores))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")

    @property
    def name(self) -> str:
        """Name of its struct in a kernel."""
        return f"Tail_{self.number:08x}"
