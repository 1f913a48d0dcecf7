"""The stages of a graph by a policy, from compiled code: for whoever asks without planning the graph."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vpps.compiler.cell_descriptor import argument_counts
from vpps.compiler.linear import linear_kind
from vpps.errors import ScriptError
from vpps.planner.native import library
from vpps.planner.native.inputs import BatchInputs
from vpps.planner.native.interface import Call, GivenCell, Status
from vpps.record.arrays import Ints
from vpps.record.topology import Topology
from vpps.record.trace import TracedCell

if TYPE_CHECKING:
    from vpps.planner.policies.policy import LoadOf, Policy, RecurrenceChoice


def add_cell(lib: ctypes.CDLL, batcher: int, cell: TracedCell) -> int:
    """Tell a planner, or what else finds stages, of a cell; returns its number there."""
    number: int = lib.vpps_batcher_cell(batcher, ctypes.byref(GivenCell(*argument_counts(cell), linear_kind(cell))))
    return number


def tell_choice(
    lib: ctypes.CDLL, batcher: int, policy: Policy, topology: Topology, block: int, load_of: LoadOf
) -> RecurrenceChoice:
    """Tell it how the recurrence of a block runs that it has asked about; returns that.

    Args:
        load_of: see Policy.choice.
    """
    found = topology.recurrence
    choice = policy.choice(topology, found.members(found.component[block]), load_of)
    numbers = choice.numbers()
    if not lib.vpps_batcher_choice(batcher, choice.policy.encode(), numbers.ctypes.data, len(numbers)):
        raise ScriptError(f"the compiled planner cannot read an automaton of {choice.policy}; please report this")
    return choice


def note_unseen(
    lib: ctypes.CDLL, batcher: int, policy: Policy, choices: Sequence[RecurrenceChoice], counts: bool = True
) -> None:
    """Have a policy count the steps that began in states which its automata do not know.

    Args:
        choices: that were told, in that order.
        counts: it has not counted them when the same was planned before.
    """
    for number, choice in enumerate(choices):
        steps = lib.vpps_batcher_unseen(batcher, number)
        if counts and (steps or choice.automaton is not None):
            policy.knowledge.note_unseen(choice.recurrence, steps)


def stages(topology: Topology, policy: Policy, load_of: LoadOf) -> list[Ints]:
    """The stage of every vertex, by block: later than those of all that it reads.

    Args:
        load_of: see Policy.choice.

    Raises:
        CompileError: there is no compiler.
    """
    lib = library.library()
    batcher = lib.vpps_batcher(policy.name.encode())
    try:
        cells = [add_cell(lib, batcher, b.cell) for b in topology.blocks]
        batch = BatchInputs.of_blocks(topology.blocks, cells, topology)
        call = Call(n_blocks=batch.n_blocks, n_calls=batch.n_calls, n_values=batch.n_values, blocks=batch.at)
        sizes = [len(b.calls) for b in topology.blocks]
        found = np.zeros(sum(sizes), np.int64)
        choices: list[RecurrenceChoice] = []
        while (status := lib.vpps_stages(batcher, ctypes.byref(call), found.ctypes.data)) == Status.NEW_RECURRENCE:
            choices.append(tell_choice(lib, batcher, policy, topology, call.new_block, load_of))
        batch.release()
        if status != Status.DONE:
            raise ScriptError("the compiled planner cannot read a graph; please report this")
        note_unseen(lib, batcher, policy, choices)
    finally:
        lib.vpps_batcher_free(batcher)
    return np.split(found, np.cumsum(sizes)[:-1])
