"""The call cache: functions that record a call of a cell like earlier ones, the hot path, as generated source.

Nearly every call of a batch fits the block of the call before it: expressions of one graph, shaped as theirs, and ints
in range. `Block.record(graph, args)` checks just that, appends the vertex and returns its results; where anything
differs it returns None, appends nothing, and `Graph` finds out what the call means. Without loops over arguments and
results it takes half the time, hence the generated source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from vpps.ops import Shape
from vpps.ops.operand import Expression

if TYPE_CHECKING:
    from vpps.graph.graph import Graph
    from vpps.record.vertices import Tape

ArgumentKind = IntEnum("ArgumentKind", "VECTOR INT LIST", start=0)

Argument = tuple[ArgumentKind, Shape | None, int, Sequence[Any]]
"""What an argument must be: its kind; the shape of a vector, or of a list's elements; an int's bound, or the number of
a list's domain; and where the length of a list goes and the value ids of its elements."""

Record = Callable[["Graph", Sequence[Any]], Any]

Kind = tuple[ArgumentKind, int]
"""What the source of a recorder depends on: the kind of an argument, and the domain of a list."""


def call_recorder(
    tape: Tape,
    rows: list[int],
    arguments: tuple[Argument, ...],
    results: tuple[Shape, ...],
    single: bool,
    takes_empty: bool,
) -> Record:
    """What records calls into one block of a graph.

    Args:
        rows: of the block.
        arguments: what a call's arguments must be, and where list arguments go.
        results: shapes.
        single: the one result is returned without a tuple around it.
        takes_empty: whether calls belong to the block whose list arguments are empty.
    """
    kinds = tuple((kind, number if kind == ArgumentKind.LIST else -1) for kind, _, number, _ in arguments)
    factory = _factory(kinds, len(results), single, takes_empty)
    expected = [number if kind == ArgumentKind.INT else shape for kind, shape, number, _ in arguments]
    record: Record = factory(tape, rows, expected, results, [into for *_, into in arguments if into])
    return record


@lru_cache(maxsize=1024)
def _factory(kinds: tuple[Kind, ...], n_results: int, single: bool, takes_empty: bool) -> Any:
    """Compiled once for all blocks whose cells take arguments of these kinds."""
    namespace: dict[str, Any] = {"Expression": Expression, "new": object.__new__}
    exec("\n".join(_source(kinds, n_results, single, takes_empty)), namespace)
    return namespace["make"]


def _source(kinds: Sequence[Kind], n_results: int, single: bool, takes_empty: bool) -> list[str]:
    """The lines of a factory."""
    arguments, results = range(len(kinds)), range(n_results)
    vectors = [k for k in arguments if kinds[k][0] == ArgumentKind.VECTOR]
    ints = [k for k in arguments if kinds[k][0] == ArgumentKind.INT]
    lists = [k for k in arguments if kinds[k][0] == ArgumentKind.LIST]
    return [
        "def make(tape, rows, expected, results, lists):",
        f"    {_names('want', arguments)} = expected",
        f"    {_names('shape', results)} = results",
        "    levels, grow, rows = tape.levels, tape.levels.extend, rows.extend",
        *(f"    lengths{k}, elements{k} = lists[{i}][0].append, lists[{i}][1].extend" for i, k in enumerate(lists)),
        "    def record(graph, args):",
        "        try:",
        f"            {_names('a', arguments)} = args",
        *(f"            {line}" for k in vectors for line in _read_vector(k)),
        *(f"            {line}" for k in lists for line in _read_list(k)),
        # Another number of arguments; one that lacks what an expression has. Cheaper than asking for lengths and types.
        "        except (ValueError, AttributeError):",
        "            return None",
        *(f"        if type(a{k}) is not int or not 0 <= a{k} < want{k}: return None" for k in ints),
        *(f"        {line}" for line in _lengths_fit({k: kinds[k][1] for k in lists}, takes_empty)),
        *(f"        {line}" for line in _level(vectors, lists)),
        "        first = len(levels)",
        "        call = tape.n_calls",
        "        tape.n_calls = call + 1",
        f"        rows((call, first, level, {_list('r', vectors)}{_list('a', ints)}))",
        *(f"        lengths{k}(len(l{k})); elements{k}(l{k})" for k in lists),
        f"        grow(({'level, ' * n_results}))",
        *(f"        {line}" for k in results for line in _expression(k)),
        "        return e0" if single else f"        return {_names('e', results)}",
        "    return record",
    ]


def _list(prefix: str, numbers: Sequence[int]) -> str:
    return "".join(f"{prefix}{k}, " for k in numbers)


def _names(prefix: str, numbers: Sequence[int]) -> str:
    return f"({_list(prefix, numbers)})"


def _read_vector(k: int) -> list[str]:
    return [
        f"if a{k}.owner is not graph or (a{k}._shape is not want{k} and a{k}._shape != want{k}): return None",
        f"r{k} = a{k}.ref",
    ]


def _read_list(k: int) -> list[str]:
    return [
        f"if type(a{k}) is not list and type(a{k}) is not tuple: return None",
        f"l{k} = [e.ref for e in a{k} if e.owner is graph and (e._shape is want{k} or e._shape == want{k})]",
        f"if len(l{k}) != len(a{k}): return None",
    ]


def _lengths_fit(domains: dict[int, int], takes_empty: bool) -> list[str]:
    """Lists of one domain have one length; lists that are empty are so all at once, or the call is a strange one."""
    first_of: dict[int, int] = {}
    lines = [
        f"if len(l{first_of[domain]}) != len(l{k}): return None"
        for k, domain in domains.items()
        if first_of.setdefault(domain, k) != k
    ]
    if first_of:
        filled = " and ".join(f"l{k}" for k in first_of.values())
        empty = " and ".join(f"not l{k}" for k in first_of.values())
        lines.append(f"if not ({filled}){f' and not ({empty})' if takes_empty else ''}: return None")
    return lines


def _level(vectors: Sequence[int], lists: Sequence[int]) -> list[str]:
    lines = [f"level = levels[r{vectors[0]}]" if vectors else "level = -1"]
    for k in vectors[1:]:
        lines += [f"other = levels[r{k}]", "if other > level: level = other"]
    for k in lists:
        lines += [f"for r in l{k}:", "    if levels[r] > level: level = levels[r]"]
    return [*lines, "level += 1"]


def _expression(k: int) -> list[str]:
    """With the attributes set one by one, half the time of Expression(...)."""
    return [
        f"e{k} = new(Expression)",
        f"e{k}.owner = graph",
        f"e{k}.ref = first + {k}" if k else "e0.ref = first",
        f"e{k}._shape = shape{k}",
    ]
