"""Types of `graph.map` for type checkers: its cells' results determine the rows that it returns.

The other arguments are `Any`: if their types differed, `**batch.structure` would make the overload ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from vpps.ops.operand import Expression
from vpps.record.rows import Rows

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

Vertex = Callable[..., R_co]
Cells = Vertex[R_co] | Sequence[Vertex[R_co]] | Mapping[Any, Vertex[R_co]]
Pair = tuple[Expression, Expression]


class _Map(Protocol[P]):
    """A map method bound to a graph."""

    @overload
    def __call__(self, cells: Cells[Expression], *args: P.args, **named: P.kwargs) -> Rows: ...
    @overload
    def __call__(self, cells: Cells[Pair], *args: P.args, **named: P.kwargs) -> tuple[Rows, Rows]: ...
    @overload
    def __call__(self, cells: Cells[tuple[Expression, ...]], *args: P.args, **named: P.kwargs) -> tuple[Rows, ...]: ...
    @overload
    def __call__(self, cells: Any, *args: P.args, **named: P.kwargs) -> Any: ...


class _Method(Protocol[P]):
    def __get__(self, graph: Any, kind: Any) -> _Map[P]: ...


def typed_map(method: Callable[Concatenate[Any, Any, P], Any]) -> _Method[P]:
    """Return the method itself, with these types."""
    return cast(_Method[P], method)
