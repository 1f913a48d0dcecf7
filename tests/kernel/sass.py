"""Live-register analysis of a compiled CUDA kernel, from nvdisasm's listing of its machine code.

The interpreter is the loop with the most instructions. It is found as the largest strongly connected component of the
control flow, which works however the switch is compiled (jump tables, a tree of comparisons, both). Its entries are the
instructions that control also reaches from outside. Between two instructions of the script, every thread executes an
entry, so the registers that are live there are those that the kernel keeps. Weights that the compiler spills, keeps in
local memory or reloads are not live there.

nvdisasm prints the registers that an instruction reads and writes, and the number of live registers. This number is not
used: nvdisasm's analysis stops at calls, and the compiler leaves loops with calls that never return (on sm_80 it
counted 116 of 213 registers). This analysis gives every call its own copy of the called function.
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
_COLUMNS = re.compile(r"\s+// \|( *# )0")  # the last line of a table's header numbers the registers
_NONCOHERENT = re.compile(r"LDG\S*\.(CONSTANT|NC|CI)\b")

# Branches that may diverge although they have no predicate.
_DIVERGENT = re.compile(r"BRA\.(DIV|CONV|U\.ANY)\b")

# A place in the code: return addresses of the active calls, innermost last; and the instruction itself.
Place = tuple[tuple[int, ...], int]


class MachineInstruction(NamedTuple):
    """A machine instruction.

    Attributes:
        text: the disassembler's text, including the guard.
        guard: "@P0", "@!UP3", or "" if it is always executed.
        opcode: opcode with modifiers, such as "LDG.E.128.CONSTANT".
        operands: the rest of the text.
        reads, writes: bit r for general-purpose register r.
        targets: labels that the instruction names: a branch's target, a call's callee, or all entries of a jump table.
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
    """A cubin's instructions by address, and the targets of its labels, including functions."""

    instructions: list[MachineInstruction]
    labels: dict[str, int]


def listing_of(cubin: Cubin) -> str:
    """nvdisasm's listing of a cubin.

    Every line ends with a table of one character per register: ^ written, v read, x both, : alive, blank.
    """
    tool = nvdisasm()
    assert tool is not None, "pip install nvidia-cuda-nvdisasm"
    command = [str(tool), "--print-code", "--print-life-ranges", "--life-range-mode", "narrow", str(cubin.path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment())
    assert run.returncode == 0, run.stderr
    return run.stdout


def parse(listing: str) -> MachineCode:
    """Parse a listing from nvdisasm."""
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
    """Global loads through the read-only path, which are correct only for data that the launch does not write."""
    return [i.text for i in code.instructions if _NONCOHERENT.match(i.opcode)]


def live_registers(code: MachineCode, name: str) -> int:
    """Number of general-purpose registers per thread that are live when the interpreter starts its next instruction."""
    flow = ControlFlow(code, name)
    loop = max(flow.loops(), key=len)
    assert len(loop) > 1, f"kernel {name} has no loop, so it is no interpreter"
    live = flow.live()
    entries = [n for n in loop if n == 0 or any(p not in loop for p in flow.predecessors[n])]
    return min(live[n].bit_count() for n in entries)


class ControlFlow:
    """Control flow graph of a kernel: a node per instruction, with functions copied for each call; node 0 is the entry.

    Attributes:
        instructions: instruction of each node.
        successors, predecessors: neighbours of each node.
    """

    def __init__(self, code: MachineCode, name: str) -> None:
        """Build the graph, starting at the kernel's first instruction."""
        start: Place = ((), code.labels[name])
        numbers = {start: 0}
        self.instructions: list[MachineInstruction] = []
        self.successors: list[list[int]] = []
        waiting = [start]
        for calls, index in waiting:  # the loop appends to it
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
        """Registers (bit r for register r) live before each node: read later, without a write in between.

        A guarded write may not happen, so it does not end a live range.
        """
        live = [0] * len(self.instructions)
        waiting = dict.fromkeys(range(len(live)))  # popped from the end: backward through straight code
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
        """Strongly connected components: forward for the finishing order, then backward (Kosaraju and Sharir)."""
        finished: list[int] = []
        seen: set[int] = set()
        path = [(0, False)]  # (node, True if its successors are done)
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
    """Possible successors of a place in the code."""
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
            # A jump to a function's name. The compiler leaves loops this way on sm_80.
            return [*((calls, target) for target in targets), *conditional]
        case "CALL":
            # A call through a register (printf, assert) leaves the cubin; recursion is not followed.
            if not targets or index + 1 in calls:
                return following
            return [*(((*calls, index + 1), target) for target in targets), *conditional]
        case "BSSY":
            return following  # names the target of BSYNC, which the compiler places right before it
        case "BRA" | "JMP" | "BRX" | "BRXU" | "JMX" | "JMXU":
            assert targets, f"no targets of {instruction.text}"
            # Some branches have their condition as an operand: BRA.U UP0, `(.L_x_1).
            always = (
                not instruction.guard
                and not _DIVERGENT.match(instruction.opcode)
                and (instruction.family[:3] in ("BRX", "JMX") or instruction.operands.startswith("`"))
            )
            return [(calls, target) for target in targets] + ([] if always else following)
        case _:
            return [*following, *((calls, target) for target in targets)]  # WARPSYNC.COLLECTIVE names a label
