"""Schedules: how the steps of all stages become instructions of the virtual processors."""

from __future__ import annotations

from typing import NamedTuple


class Schedule(NamedTuple):
    """One of them; the compiled planner has what it does.

    Attributes:
        exclusive: every virtual processor has a script of its own.
    """

    name: str
    exclusive: bool


SCHEDULES = {
    # An instruction covers all vertices of a step; all execute the same stream and own a slice of each result.
    "vector": Schedule("vector", exclusive=False),
    # The published VPPS scheme (section III-B1), to compare with: an instruction per vertex and op, each in the script
    # of one virtual processor, the least loaded one; products run where rows of the matrix are held.
    "paper": Schedule("paper", exclusive=True),
}
