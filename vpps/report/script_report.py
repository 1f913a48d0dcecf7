"""A script taken apart: the instructions of every virtual processor, with the user's words for each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vpps.errors import ScriptError
from vpps.planner.plan import Plan
from vpps.planner.reader import executions, walk
from vpps.script.disassemble import Decoded, DecodedOperand, line_of
from vpps.script.instructions import Flag, Kind
from vpps.script.tails import ViewUse
from vpps.text import Report, counted


@dataclass(frozen=True, slots=True)
class ScriptLine(Report):
    """An instruction.

    Attributes:
        position: of its first word in the script.
        words: how many it has.
        name: in the instruction table.
        flags: such as "rows", "accumulate".
        rows: vertices, or elements of their lists.
        width, parts: floats of a row of the result; in how many equal parts they are dealt.
        fields: by name: numbers; operands as dicts of address, stride or offset, indexed, scalar.
        where: the user's words.
        line: all of that, as a line of the disassembly.
    """

    position: int
    words: int
    name: str
    flags: tuple[str, ...]
    rows: int
    width: int
    parts: int
    fields: dict[str, Any]
    where: str
    line: str

    def text(self) -> str:
        """A line."""
        return self.line + "\n"


@dataclass(frozen=True, slots=True)
class ScriptStream(Report):
    """What some virtual processors execute, one instruction after the other.

    Attributes:
        vps: their numbers.
        launch: 1, or 2 for the second launch that products between two take.
        entry: word of the script where they begin.
        instructions: in order, `end` included.
        left_out: how many more there are.
    """

    vps: tuple[int, ...]
    launch: int
    entry: int
    instructions: tuple[ScriptLine, ...]
    left_out: int = 0

    def text(self) -> str:
        """A heading, then a line each."""
        lines = [f"; virtual processors {_ranges(self.vps)}, from word {self.entry}"]
        lines += [i.line for i in self.instructions]
        if self.left_out:
            lines.append(f"; ... and {counted(self.left_out, 'instruction')} more")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class ScriptReport(Report):
    """A script.

    Attributes:
        words: all of it.
        vps: how many virtual processors execute it.
        streams: instructions, once for all virtual processors that share them.
        products: of matrices, that cuBLAS makes between the first launch and the second.
    """

    words: int
    vps: int
    streams: tuple[ScriptStream, ...]
    products: tuple[str, ...] = ()

    def text(self) -> str:
        """The disassembly."""
        parts = [f"; {self.words} words, {counted(self.vps, 'virtual processor')}\n"]
        parts += [s.text() for s in self.streams if s.launch == 1]
        if self.products:
            parts += ["; then, outside the kernel\n", *(f"          {product}\n" for product in self.products)]
        second = [s.text() for s in self.streams if s.launch > 1]
        return "".join([*parts, *(["; then a second launch\n"] if second else []), *second])

    def of(self, vp: int) -> ScriptReport:
        """The part of one virtual processor. Raises ScriptError if there is no such one."""
        if not 0 <= vp < self.vps:
            raise ScriptError(f"there is no virtual processor {vp}: expected 0 to {self.vps - 1}")
        return replace(self, streams=tuple(replace(s, vps=(vp,)) for s in self.streams if vp in s.vps))

    def first(self, count: int) -> ScriptReport:
        """With so many instructions of each stream, and how many are left out."""
        parts = (
            replace(s, instructions=s.instructions[:count], left_out=max(0, len(s.instructions) - count))
            for s in self.streams
        )
        return replace(self, streams=tuple(parts))


def script_report(plan: Plan) -> ScriptReport:
    """The script of a plan, decoded."""
    products = () if plan.continuation is None else plan.continuation.products
    streams = tuple(
        ScriptStream(
            x.vps, x.launch, x.entry, tuple(_line(d, p.section.origin(p.offset)) for d, p in walk(plan, x.entry))
        )
        for x in executions(plan)
    )
    said = tuple(f"product {p}  ; gradient of {p.name!r}" for p in products)
    return ScriptReport(len(plan.script), int(plan.script[1]), streams, said)


def _line(d: Decoded, where: str) -> ScriptLine:
    flags = tuple(name.lower() for name, flag in Flag.__members__.items() if d.flags & flag)
    fields = {f.name: _value(d.fields[f.name], f.kind) for f in d.instruction.fields}
    line = line_of(d, where)
    return ScriptLine(d.position, d.words, d.instruction.name, flags, d.n, d.width, d.parts, fields, where, line)


def _value(value: object, kind: Kind) -> Any:
    """A field as JSON types."""
    if isinstance(value, list):
        last = "use" if kind is Kind.VIEWS else "width"
        return [{**_operand(x), last: ViewUse(n).name.lower() if kind is Kind.VIEWS else n} for x, n in value]
    return _operand(value) if isinstance(value, DecodedOperand) else value


def _operand(x: DecodedOperand) -> dict[str, Any]:
    what = "offset" if x.indexed else "stride"
    return {"address": x.address, what: x.stride, "indexed": x.indexed, "scalar": x.scalar}


def _ranges(numbers: tuple[int, ...]) -> str:
    """ "0 to 131", "0, 2"."""
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
