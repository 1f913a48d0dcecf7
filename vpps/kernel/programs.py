"""The text of tails: each value of a program is a constant of a C++ function, each step a call of device code."""

from __future__ import annotations

from collections.abc import Iterator

from vpps.script.tails import NONE, Load, Step, Tail

_LOADS = {  # members of Unit
    Load.UNIT: "load",
    Load.ROW: "one",
    Load.RESULT: "result",
    Load.LISTED_UNIT: "load_listed",
    Load.LISTED_ROW: "one_listed",
}


def lines_of(tail: Tail, loads_first: bool) -> Iterator[str]:
    """Body of `unit` (templates/tails.j2): what is stored is stored as soon as it is known, and need not stay in a
    register.

    Args:
        loads_first: everything is loaded at the beginning, in flight together; else each value just before its first
            use, which takes fewer registers.
    """
    known: set[int] = set()
    waiting = [(tail.first_store + k, v) for k, v in enumerate(tail.stores)]

    def load(values: tuple[int, ...]) -> Iterator[str]:
        for value in values:
            if value not in known and value != NONE:
                known.add(value)
                yield f"const float v{value} = at.{_source(tail, value)};"

    def store() -> Iterator[str]:
        for view, value in list(waiting):
            if value in known or value == NONE:
                waiting.remove((view, value))
                yield f"at.store({view}, {_shown(value)});"

    if loads_first:
        yield from load(tuple(range(tail.first_step)))
    for value, step in enumerate(tail.steps, tail.first_step):
        yield from load(step.inputs)
        known.add(value)
        yield f"const float v{value} = {_call(step)};"
        yield from store()
    yield from load(tail.stores)
    yield from store()


def _source(tail: Tail, value: int) -> str:
    if value < tail.sums:
        return f"sum({value})"
    return f"{_LOADS[tail.loads[value - tail.sums]]}({value})"


def _call(step: Step) -> str:
    constant = "0.f" if step.constant == NONE else f"at.constant({step.constant})"
    return f"{step.code}({', '.join(map(_shown, step.inputs))}, {constant})"


def _shown(value: int) -> str:
    return "0.f" if value == NONE else f"v{value}"
