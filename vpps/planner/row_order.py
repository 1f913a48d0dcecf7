"""Layouts: in which order the vertices of a step get their rows. Any order is right; some leave arguments in a row.

`recorded`: the user's order.
`readers`: what a step reads as one argument, where that is vertices of one step and each of them once, is a
*constraint* on that step: these vertices side by side, in the order of their readers. From the last stage to the first,
each step's vertices are put in the order of the constraints on it, the largest first; a vertex follows the first one
that it is in. So sequences of one batch get their rows by length, and every step reads the first rows of the one
before. Vertices of a cell that no recurrence waits for get the order of what they read first.
`pq`: all constraints that can be had at once, by a PQ tree (`pq_order.py`). On sequences that is what `readers` has,
and on lattices more, but it takes seconds for a batch: it is there to compare with.
"""

from __future__ import annotations

from vpps.errors import GraphError

RECORDED, READERS, PQ = LAYOUTS = ("recorded", "readers", "pq")


def known_layout(layout: str) -> str:
    """The name of a layout. Raises GraphError for an unknown one."""
    if layout not in LAYOUTS:
        raise GraphError(f"unknown layout {layout!r}; known are {', '.join(LAYOUTS)}")
    return layout
