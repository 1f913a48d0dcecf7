"""Registers that stay live in a compiled CUDA kernel, from its machine code as nvdisasm prints it.

The interpreter is the loop that has most instructions, so it is found as the largest strongly connected component of
the control flow, whatever the compiler makes of the switch (jump tables, a tree of comparisons, both). Its entries are
the instructions of it that control also reaches from outside. Between two instructions of the script every thread
passes one; what is live there is what the kernel keeps in registers. A weight that the compiler spilled, keeps in local
memory or loads again is not.

nvdisasm prints which registers an instruction reads and writes, and how many are live. The latter is not used: its
analysis stops at calls, and the compiler leaves loops with calls that never return (seen on sm_80, where it counts 116
of 213). Here every call has a copy of the called function of its own.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from vpps.kernel.nvrtc import Cubin
from vpps.kernel.programs import environment
from vpps.report.listing import nvdisasm

LINE = re.compile(r"\s+/\*(?P<address>[0-9a-f]+)\*/\s+(?P<text>[^;]*);(?P<rest>.*?)// \|(?P<registers>[^|]*)\|")
_TEXT = re.compile(r"(?:(?P<guard>@!?U?P\w+)\s+)?(?P<opcode>\S+)\s*(?P<operands>.*)")
_LABEL = re.compile(r"(\S+):")
_TARGET = re.compile(r"`\(([^)]+)\)")
_TABLE = re.compile(r'BRANCH_TARGETS ([^"]+)"')
_COLUMNS = re.compile(r"\s+// \|( *# )0")  # the last line of a table's head numbers the registers
_NONCOHERENT = re.compile(r"LDG\S*\.(CONSTANT|NC|CI)\b")

# Branches that some threads of a warp take and some do not, although no predicate guards them.
_DIVERGENT = re.compile(r"BRA\.(DIV|CONV|U\.ANY)\b")

# Where control is: the instructions that the functions it is in return to, the innermost last; the instruction itself.
Place = tuple[tuple[int, ...], int]


class MachineInstruction(NamedTuple):
    """A machine instruction.

    Attributes:
        text: as the disassembler writes it, guard included.
        guard: "@P0", "@!UP3", or "" where it is always executed.
        opcode: with its modifiers, such as "LDG.E.128.CONSTANT".
        operands: the rest of the text.
        reads, writes: bit r for general-purpose register r.
        targets: labels that it names: where a branch leads, the function that a call calls, all of a jump table.
    """

    text: str
    guard: str
    opcode: str
    operands: str
    reads: int
    writes: int
    targets: tuple[str, ...]

    @property
    def family(self) -> str:
        """Opcode without modifiers."""
        return self.opcode.partition(".")[0]


class MachineCode(NamedTuple):
    """Instructions of a cubin in the order of addresses, and where its labels (functions too) point."""

    instructions: list[MachineInstruction]
    labels: dict[str, int]


def listing_of(cubin: Cubin) -> str:
    """What nvdisasm prints of a cubin.

    Every line ends in a table of a character per register: ^ written, v read, x both, : alive, blank.
    """
    tool = nvdisasm()
    assert tool is not None, "pip install nvidia-cuda-nvdisasm"
    command = [str(tool), "--print-code", "--print-life-ranges", "--life-range-mode", "narrow", str(cubin.path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment())
    assert run.returncode == 0, run.stderr
    return run.stdout


def parse(listing: str) -> MachineCode:
    """Reads what nvdisasm prints."""
    instructions: list[MachineInstruction] = []
    labels: dict[str, int] = {}
    first = 0  # column of register 0, counted from the table's bar
    for line in listing.splitlines():
        if found := _COLUMNS.match(line):
            first = len(found[1])
        elif found := LINE.match(line):
            instructions.append(_instruction(found, first))
        elif found := _LABEL.match(line):
            labels[found[1]] = len(instructions)
    assert any(i.writes for i in instructions), f"a listing of another form: {listing[:1000]}"
    return MachineCode(instructions, labels)


def code_of(cubin: Cubin) -> MachineCode:
    """The machine code of a cubin."""
    return parse(listing_of(cubin))


def _instruction(line: re.Match[str], first: int) -> MachineInstruction:
    text = " ".join(line["text"].split())
    parts = _TEXT.fullmatch(text)
    assert parts is not None, line[0]
    marks = list(enumerate(line["registers"][first:]))
    table = _TABLE.search(line["text"] + line["rest"])
    return MachineInstruction(
        text,
        parts["guard"] or "",
        parts["opcode"],
        parts["operands"],
        reads=sum(1 << r for r, mark in marks if mark in "vx"),
        writes=sum(1 << r for r, mark in marks if mark in "^x"),
        targets=tuple(table[1].split(",") if table else _TARGET.findall(parts["operands"])),
    )


def noncoherent_loads(code: MachineCode) -> list[str]:
    """Global loads that go through the read-only path: right only for what nothing writes during the launch."""
    return [i.text for i in code.instructions if _NONCOHERENT.match(i.opcode)]


def live_registers(code: MachineCode, name: str) -> int:
    """Registers (general-purpose, per thread) that are live where the interpreter begins its next instruction."""
    flow = ControlFlow(code, name)
    loop = max(flow.loops(), key=len)
    assert len(loop) > 1, f"kernel {name} has no loop, so it is no interpreter"
    live = flow.live()
    entries = [n for n in loop if n == 0 or any(p not in loop for p in flow.predecessors[n])]
    return min(live[n].bit_count() for n in entries)


class ControlFlow:
    """Control flow graph of a kernel, an instruction a node, a copy of a function per call; node 0 is the entry.

    Attributes:
        instructions: of each node.
        successors, predecessors: of each node.
    """

    def __init__(self, code: MachineCode, name: str) -> None:
        """Walk from the kernel's first instruction."""
        start: Place = ((), code.labels[name])
        numbers = {start: 0}
        self.instructions: list[MachineInstruction] = []
        self.successors: list[list[int]] = []
        waiting = [start]
        for calls, index in waiting:  # grows
            self.instructions.append(code.instructions[index])
            reached = []
            for place in _next(code, (calls, index)):
                if place not in numbers:
                    numbers[place] = len(waiting)
                    waiting.append(place)
                reached.append(numbers[place])
            self.successors.append(reached)
        self.predecessors: list[list[int]] = [[] for _ in self.successors]
        for node, successors in enumerate(self.successors):
            for successor in successors:
                self.predecessors[successor].append(node)

    def live(self) -> list[int]:
        """Registers (bit r for register r) live before each node: read later, not written before on the way.

        A guarded write may not happen, so it does not end what was live before.
        """
        live = [0] * len(self.instructions)
        waiting = dict.fromkeys(range(len(live)))  # taken from the end: backward through straight code
        while waiting:
            node, _ = waiting.popitem()
            instruction = self.instructions[node]
            after = 0
            for successor in self.successors[node]:
                after |= live[successor]
            ended = 0 if instruction.guard else instruction.writes
            before = (after & ~ended) | instruction.reads
            if before != live[node]:
                live[node] = before
                waiting.update(dict.fromkeys(self.predecessors[node]))
        return live

    def loops(self) -> Iterator[set[int]]:
        """Strongly connected components: first in order of finishing, then backward (Kosaraju and Sharir)."""
        finished: list[int] = []
        seen: set[int] = set()
        path = [(0, False)]  # and whether what it leads to is done
        while path:
            node, done = path.pop()
            if done:
                finished.append(node)
            elif node not in seen:
                seen.add(node)
                path.append((node, True))
                path.extend((successor, False) for successor in self.successors[node])
        left = set(finished)
        for root in reversed(finished):
            component, waiting = set[int](), [root]
            while waiting:
                node = waiting.pop()
                if node in left:
                    left.remove(node)
                    component.add(node)
                    waiting += self.predecessors[node]
            if component:
                yield component


def _next(code: MachineCode, place: Place) -> list[Place]:
    """Where control may go from somewhere."""
    calls, index = place
    instruction = code.instructions[index]
    following: list[Place] = [(calls, index + 1)] if index + 1 < len(code.instructions) else []
    conditional = following if instruction.guard else []
    targets = [code.labels[target] for target in instruction.targets]
    match instruction.family:
        case "EXIT" | "KILL":
            return conditional
        case "RET":
            return [(calls[:-1], calls[-1]), *conditional]
        case "CALL" if instruction.operands.startswith("`(.L_"):
            # A jump: functions have names. The compiler leaves loops like this on sm_80.
            return [*((calls, target) for target in targets), *conditional]
        case "CALL":
            # A call through a register (printf, assert) leads out of the cubin; recursion is not followed.
            if not targets or index + 1 in calls:
                return following
            return [*(((*calls, index + 1), target) for target in targets), *conditional]
        case "BSSY":
            return following  # names where BSYNC goes, which the compiler places right before that
        case "BRA" | "JMP" | "BRX" | "BRXU" | "JMX" | "JMXU":
            assert targets, f"no targets of {instruction.text}"
            # Some carry their condition as an operand: BRA.U UP0, `(.L_x_1).
            always = (
                not instruction.guard
                and not _DIVERGENT.match(instruction.opcode)
                and (instruction.family[:3] in ("BRX", "JMX") or instruction.operands.startswith("`"))
            )
            return [(calls, target) for target in targets] + ([] if always else following)
        case _:
            return [*following, *((calls, target) for target in targets)]  # WARPSYNC.COLLECTIVE names a label
