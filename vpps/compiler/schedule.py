"""Schedules: how the steps of all stages become instructions of the virtual processors."""

VECTOR = "vector"
"""An instruction covers all vertices of a step; all execute the same stream and own a slice of each result."""

PAPER = "paper"
"""The published VPPS scheme (section III-B1), to compare with: an instruction per vertex and op, each in the script of
one virtual processor, the least loaded one; products run where rows of the matrix are held."""

SCHEDULES = VECTOR, PAPER
