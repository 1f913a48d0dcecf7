"""Tails: the elementwise rest of a cell, between its products, as one instruction that a kernel has code for.

A tail is a straight-line program over the views of its instruction: it loads a float from each of some, computes, and
stores a float to each of others, for every unit of every row that a virtual processor owns. Where the rows lie, how
wide they are and the constants come with the instruction, so that cells of equal structure share a tail, whatever
their sizes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

NONE = -1  # in place of a value: 0.f, of what is zero or is not read


class ViewUse(IntEnum):
    """What a tail does with a view; its last word in a script."""

    READ = 0  # the unit; with mode bit SCALAR the row's only one
    WRITE = 1
    SUM = 2  # the address is the position of CSR offsets, the mode floats into the rows listed: like gather_sum
    MEAN = 3
    CONSTANT = 4  # the address is the bits of a float
    RESULT = 5  # the unit of a part of what the product before has left on the chip; the address is the part's number


class Load(IntEnum):
    """Where a value that a tail loads comes from."""

    UNIT = 0  # a row has one for each unit
    ROW = 1  # a row has one for all units
    RESULT = 2  # the product before has left it on the chip
    LISTED_UNIT = 3  # as the first two, of rows that may be found through an index list
    LISTED_ROW = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One call of device code.

    Attributes:
        code: function of templates/ops/elementwise.cuh, such as "Tanh::forward".
        inputs: number of the value of each operand, or NONE.
        constant: number of the view of its constant, or NONE.
    """

    code: str
    inputs: tuple[int, ...]
    constant: int = NONE


@dataclass(frozen=True)
class Tail:
    """A program; equal ones are the same tail. Values are numbered: sums, loads, then the result of each step.

    Attributes:
        sums: the first so many views are sums of listed rows.
        loads: of the next views.
        constants: the next so many views.
        steps: in order.
        stores: the value that each of the last views gets.
    """

    sums: int
    loads: tuple[Load, ...]
    constants: int
    steps: tuple[Step, ...]
    stores: tuple[int, ...]

    @property
    def is_chained(self) -> bool:
        """Whether it runs behind a product only, whose result it takes (compiler/passes/chaining.py)."""
        return Load.RESULT in self.loads

    @property
    def views(self) -> int:
        """How many its instruction has."""
        return self.first_store + len(self.stores)

    @property
    def first_step(self) -> int:
        """Number of the value that the first step makes."""
        return self.sums + len(self.loads)

    @property
    def first_store(self) -> int:
        """Number of the first view that is written."""
        return self.sums + len(self.loads) + self.constants

    @cached_property
    def number(self) -> int:
        """What scripts call it by: made of the program alone, so that processes, handles and caches agree on it."""
        text = repr((self.sums, tuple(map(int, self.loads)), self.constants, self.steps, self.stores))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")

    @property
    def name(self) -> str:
        """Of its struct in a kernel."""
        return f"Tail_{self.number:08x}"
