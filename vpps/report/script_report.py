"""Disassembles a script: the instructions of every virtual processor, with the user's name for each."""

from __future__ import annotations

from collections.abc import Iterator

from vpps.errors import ScriptError
from vpps.planner.plan import Plan
from vpps.planner.reader import executions, walk
from vpps.script.disassemble import line_of
from vpps.text import Text, counted


def script_text(plan: Plan, vp: int | None = None, most: int | None = None) -> Text:
    """Disassemble a plan's script. Virtual processors that share a stream share a listing.

    Args:
        vp: show only this virtual processor.
        most: largest number of instructions shown per stream.

    Raises:
        ScriptError: there is no such virtual processor.
    """
    n_vps = int(plan.script[1])
    if vp is not None and not 0 <= vp < n_vps:
        raise ScriptError(f"there is no virtual processor {vp}: expected 0 to {n_vps - 1}")
    return Text("".join(f"{line}\n" for line in _lines(plan, n_vps, vp, most)))


def _lines(plan: Plan, n_vps: int, vp: int | None, most: int | None) -> Iterator[str]:
    yield f"; {len(plan.script)} words, {counted(n_vps, 'virtual processor')}"
    for x in executions(plan):
        if vp in (None, *x.vps):
            yield f"; virtual processors {_ranges(x.vps if vp is None else (vp,))}, from word {x.entry}"
            found = [line_of(d, place.section.origin(place.offset)) for d, place in walk(plan, x.entry)]
            yield from found[:most]
            if more := len(found) - len(found[:most]):
                yield f"; ... and {counted(more, 'instruction')} more"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Format numbers, such as "0 to 131" or "0, 2"."""
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
