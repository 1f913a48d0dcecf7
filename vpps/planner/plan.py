"""A planned launch: a script with everything needed to run and to explain it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vpps.errors import ScriptError
from vpps.graph.graph import Graph
from vpps.model.model import Parameter
from vpps.placement.distribution import HeldGradients
from vpps.planner.sections import Ints, Section, Stream, Words
from vpps.script.footprint import MemoryMap
from vpps.script.instructions import HEADER_WORDS
from vpps.script.tails import Tail

if TYPE_CHECKING:
    from vpps.placement.update import UsedRows
    from vpps.planner.blocks import PlannedBlock
    from vpps.planner.grouping import Grouping
    from vpps.planner.native.account import Account
    from vpps.planner.native.found import Found
    from vpps.planner.native.memory_map import PlannedMemory


_LATER = ("addresses", "touched", "tables", "instructions", "tails", "grouping")  # attributes that are found then


class Plan:
    """A script with everything needed to run and to explain it. What no launch needs is found when it is asked for.

    Args:
        found: by the compiled planner.
        before: gradients that the pool holds before the launch.
        held: gradients that it holds after the launch for a later one.
        again: plans the same vertices once more, however many have been recorded since, with an account.

    Attributes:
        script: the words; index lists and input data included.
        pool_floats: floats of the pool that it uses.
        loss_slot: address of the loss after the launch, or -1.
        n_barriers: barriers of a launch.
        encoded: when its instructions began to be written, and when the script was complete (`time.perf_counter_ns`).
        sequel: what follows the script's first launch: products of matrices and a second launch; None for nothing.
        addresses: address of each value's first float, by value id; -1 where it is not computed.
        touched: dense parameters that have a gradient.
        tables: used rows of each lookup table that has one.
        instructions: names of those that it uses.
        tails: programs of those that it uses.
        grouping: which group of virtual processors runs what; None where there is one.
    """

    addresses: Ints
    touched: set[Parameter]
    tables: dict[Parameter, UsedRows]
    instructions: frozenset[str]
    tails: frozenset[Tail]
    grouping: Grouping | None

    def __init__(
        self,
        graph: Graph,
        found: Found,
        before: HeldGradients,
        held: HeldGradients,
        again: Callable[[], Found],
    ) -> None:
        self.graph = graph
        self.script: Words = found.script
        self.pool_floats = found.pool_floats
        self.loss_slot = found.loss_slot
        self.n_barriers = found.n_barriers
        self.held = held
        self._before = before
        self.sequel = found.sequel(before)
        self.encoded = found.encoded
        self._found = found
        self._again = again

    def __repr__(self) -> str:
        return f"<plan of {self.graph.describe()}: {len(self.script)} words>"

    def __getattr__(self, name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"a plan has no {name!r}")
        value = self.__dict__[name] = getattr(self._found, name)
        return value

    @property
    def launches(self) -> int:
        """Launches that a step takes."""
        return 1 + (self.sequel.launches if self.sequel is not None else 0)

    # ---- where words come from

    @cached_property
    def _explained(self) -> tuple[Account, PlannedMemory]:
        """Of the same plan once more."""
        found = self._again()
        assert found.account is not None
        assert found.map is not None
        if len(found.script) != len(self.script) or not np.array_equal(self._entries(found.script), self._entries()):
            raise ScriptError(
                f"a plan of {len(self.script):,} words has {len(found.script):,}, or other streams of instructions, "
                "when it is made again to be explained; if groups of hyper-parameters have been added to the optimizer "
                "since, ask before that; else please report this"
            )
        return found.account, found.map

    @property
    def account(self) -> Account:
        """Who made which word, and what lists there are."""
        return self._explained[0]

    def _entries(self, script: Words | None = None) -> Words:
        """Where the instructions of virtual processors begin, in a script of the same length as this plan's."""
        script = self.script if script is None else script
        n_vps = int(self.script[1])
        second = [] if self.sequel is None or not self.sequel.entries else [self.sequel.entries]
        return np.concatenate([script[at : at + n_vps] for at in (HEADER_WORDS, *second)])

    @cached_property
    def streams(self) -> list[tuple[int, Stream]]:
        """The instructions, with where each came from, by the position where they begin."""
        return self.account.streams(self.blocks)

    @property
    def lists(self) -> Ints:
        """Spans of the script that hold a list (or data) each."""
        return self.account.lists

    def origin(self, position: int) -> str:
        """The user's words for the instruction at a position of the script."""
        found = self.section_at(position)
        return "" if found is None else found[0].origin(found[1])

    def section_at(self, position: int) -> tuple[Section, int] | None:
        """The section that made the instruction at a position of the script, and the offset in it."""
        found = self._stream_at(position)
        if found is None:
            return None
        start, stream = found
        section = stream.section_at(position - start)
        return section, position - start - section.start

    def whereabouts(self, position: int) -> str:
        """The user's words for where a virtual processor is; at a barrier, also what it has just executed."""
        found = self._stream_at(position)
        return "" if found is None else found[1].whereabouts(position - found[0])

    def _stream_at(self, position: int) -> tuple[int, Stream] | None:
        """The stream that holds a position of the script, by the position where it begins."""
        return next(((start, stream) for start, stream in reversed(self.streams) if start <= position), None)

    # ---- what lies where

    @property
    def map(self) -> PlannedMemory:
        """What lies where in the pool."""
        return self._explained[1]

    @cached_property
    def blocks(self) -> list[PlannedBlock]:
        """Rows and slabs of each cell."""
        return self.map.blocks

    @cached_property
    def layout(self) -> MemoryMap:
        """What of the pool and of the script is what, and what the kernel knows; for the verifier."""
        return self.map.layout(self.account, self._before, self.pool_floats, self.instructions, self.tails)
