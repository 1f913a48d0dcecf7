"""What is wrong with a graph that cannot be planned, in the user's words."""

from __future__ import annotations

from vpps.errors import GraphError, ScriptError
from vpps.graph.graph import Graph
from vpps.planner.native.interface import Status


def wrong(status: int, graph: Graph, cell: str) -> Exception:
    """The error to be raised.

    Args:
        status: with which planning has ended.
        cell: name of the one that reads what there is not; empty for none.
    """
    if status == Status.NO_GRADIENT:
        return GraphError(
            "the loss depends on no trainable parameter, so there is nothing to learn; "
            "use handle.forward to evaluate it"
        )
    if status == Status.NO_MEMORY:
        return MemoryError(f"{graph.describe()}: the host has no memory to plan it; use smaller batches")
    what = f"a vertex of cell {cell!r} reads" if cell else "what is asked for is"
    return ScriptError(f"{graph.describe()}: {what} a value that the graph does not have; please report this")
