"""Names of the schedules that turn the steps of all stages into instructions for the virtual processors."""

VECTOR = "vector"
"""An instruction covers all vertices of a step; all execute the same stream and own a slice of each result."""

PAPER = "paper"
"""The published VPPS scheme (section III-B1), for comparison: an instruction per vertex and op, in the script of the
least loaded virtual processor. The owners of a matrix's rows execute its products."""

SCHEDULES = VECTOR, PAPER
