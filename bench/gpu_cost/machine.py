"""Executes sm_90 machine code: one thread block, whose 256 threads are vectorised in NumPy.

It contains no model of the kernel: branches and loop counts follow from the code, the script and memory. A changed
template is therefore measured without changes here. For an unknown instruction, modifier or operand, the program exits
and names it. The semantics were found by reading machine code with known source; a test checks the results of whole
launches (tests/bench/test_gpu_cost.py). Two simplifications: fused multiply-adds round twice (in float64, then in
float32), and special functions are NumPy's.

Each thread has a program counter. The threads with the lowest counter run together until they diverge or reach another
group. Convergence barriers (BSSY, BSYNC), warp barriers and block barriers hold threads back. Uniform registers are
stored once per thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_cost.machine_code import Code

THREADS, LANES = 256, 32
WARPS = THREADS // LANES
BASE = 0x7_0000_0000  # address of the first word in global memory: high enough that carries matter
SHARED_BASE = 0x400  # first byte of shared memory that a block may use
PARAMETERS = 0x210  # offset of the kernel's parameters in constant bank 0

Lanes = NDArray[Any]
Mask = Any  # active lanes of an instruction; True: all
Step = Callable[[Mask], Any]

_REGISTER = re.compile(r"(?P<sign>[-~|!]*)(?P<file>UR|R|UP|P)(?P<number>\d+|Z|T)(?:\.64|\.U32)?\|?")
_MEMORY = re.compile(r"(?:desc\[\w+\])?\[(?P<inside>[^\]]*)\]")
_CONSTANT = re.compile(r"(?P<sign>[-~|]*)c\[0x(?P<bank>\d)\]\[(?P<at>[^\]]*)\]")


class UnknownInstruction(Exception):
    """The code contains an unknown instruction; the message names the instruction and its address."""


class Machine:
    """A thread block in the middle of a launch.

    Attributes:
        steps: for each instruction, a function of the mask; None for jumps.
        shared: words of shared memory.
        l1: sectors of global memory in the first-level cache.
    """

    def __init__(
        self, code: Code, memory: NDArray[np.uint32], parameters: NDArray[np.uint32], block: int, shared_bytes: int
    ) -> None:
        """Set up a block before the launch.

        Args:
            memory: words of global memory, starting at BASE.
            parameters: words of the kernel's parameter.
        """
        self.code = code
        self.memory = memory
        self.shared = np.zeros((SHARED_BASE + shared_bytes + 3) // 4, np.uint32)
        bank0 = np.zeros(512, np.uint32)
        bank0[PARAMETERS // 4 : PARAMETERS // 4 + len(parameters)] = parameters
        self.banks = {**code.constants, 0: bank0}
        self.block = block
        count = 2 * 256
        self.r = np.zeros((count, THREADS), np.uint32)  # vector registers, then uniform registers
        self.f = self.r.view(np.float32)
        self.s = self.r.view(np.int32)
        self.p = np.zeros((32, THREADS), bool)  # predicates, then uniform predicates
        self.p[7] = self.p[23] = True
        self.b = np.zeros((16, THREADS), bool)  # participants of each convergence barrier
        self.l1: set[int] = set()
        self.met = False  # True if the block's threads have just met at a barrier
        self._memo: dict[bytes, int] = {}
        self._steps: list[Step | None] = [None] * len(code.instructions)

    # ---- operands

    def number(self, text: str) -> int:
        """Number of a register; uniform registers follow the others."""
        found = _REGISTER.fullmatch(text)
        if found is None or found["file"] not in ("R", "UR"):
            raise UnknownInstruction(f"operand {text}")
        number = 255 if found["number"] == "Z" else int(found["number"])
        return number + 256 * (found["file"] == "UR")

    def words(self, text: str) -> Callable[[], Any]:
        """An operand as unsigned words; negation is integer negation."""
        if text == "SRZ":
            return lambda: np.uint32(0)
        if found := _CONSTANT.fullmatch(text):
            value = self._constant(found["bank"], found["at"])
            return _signed(value, found["sign"])
        if found := _REGISTER.fullmatch(text):
            row = self.r[self.number(text.lstrip("-~|").rstrip("|").removesuffix(".64").removesuffix(".U32"))]
            return _signed(lambda: row, found["sign"])
        value = np.uint32(int(text, 16 if "0x" in text else 10) & 0xFFFFFFFF)
        return lambda: value

    def floats(self, text: str) -> Callable[[], Any]:
        """An operand as floats."""
        found = _REGISTER.fullmatch(text) or _CONSTANT.fullmatch(text)
        if found is None:
            if "0x" in text:
                value = np.uint32(int(text, 16)).view(np.float32)
            else:
                value = np.float32(text.replace("QNAN", "nan").replace("INF", "inf"))
            return lambda: value
        words = self.words(text.lstrip("-~|").rstrip("|"))
        sign = found["sign"]

        def get() -> Any:
            value = words().view(np.float32)
            if "|" in sign:
                value = np.abs(value)
            return -value if "-" in sign else value

        return get

    def _constant(self, bank: str, at: str) -> Callable[[], Any]:
        words = self.banks[int(bank)]
        if at.startswith("0x"):
            value = words[int(at, 16) // 4]
            return lambda: value
        base, _, offset = at.partition("+")
        row, more = self.r[self.number(base)], int(offset or "0", 16)
        return lambda: words[np.minimum((row + np.uint32(more)) >> 2, len(words) - 1)]

    def predicate(self, text: str) -> Callable[[], Lanes]:
        """A predicate operand or guard."""
        row = self.p[_predicate(text.lstrip("!"))]
        return (lambda: ~row) if text.startswith("!") else (lambda: row)

    def pair(self, text: str) -> Callable[[], Lanes]:
        """A pair of registers as an unsigned 64-bit number."""
        number = self.number(text)
        if number % 256 == 255:
            return lambda: np.zeros(THREADS, np.uint64)
        low, high = self.r[number], self.r[number + 1]
        return lambda: low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)

    def put(self, text: str, uniform: bool = False) -> Callable[[Any, Mask], None]:
        """A function that writes a result. A uniform register has one value for all lanes of a warp."""
        number = self.number(text)
        if number % 256 == 255:
            return lambda value, mask: None
        row = self.r[number]
        if number < 256:
            return lambda value, mask: np.copyto(row, value, where=mask, casting="unsafe")
        return lambda value, mask: np.copyto(row, value, where=of_warps(mask), casting="unsafe")

    def put_pair(self, text: str) -> Callable[[Any, Mask], None]:
        """A function that writes a 64-bit result to a pair of registers."""
        number = self.number(text)
        if number % 256 == 255:
            return lambda value, mask: None
        low, high = self.put(text), self.put(f"{'UR' if number > 255 else 'R'}{number % 256 + 1}")

        def write(value: Any, mask: Mask) -> None:
            low(value & np.uint64(0xFFFFFFFF), mask)
            high(value >> np.uint64(32), mask)

        return write

    def put_predicate(self, text: str) -> Callable[[Any, Mask], None]:
        """A function that writes a predicate."""
        number = _predicate(text)
        if number in (7, 23):
            return lambda value, mask: None
        row = self.p[number]
        return lambda value, mask: np.copyto(row, value, where=mask if number < 16 else of_warps(mask))

    def address(self, text: str, wide: bool) -> Callable[[], Lanes]:
        """Address in bytes: 64 bits in global memory, 32 bits in shared memory."""
        found = _MEMORY.fullmatch(text)
        if found is None:
            raise UnknownInstruction(f"operand {text}")
        offset, parts = 0, []
        for part in re.split(r"\+(?!-)|\+(?=-)", found["inside"]):
            if re.fullmatch(r"-?0x[0-9a-f]+", part):
                offset += int(part, 16)
            elif wide and (part.endswith(".64") or (part.startswith("UR") and not parts)):
                parts.append(self.pair(part.removesuffix(".64")))
            else:
                words = self.words(part.removesuffix(".U32"))
                parts.append(lambda words=words: words().astype(np.int64))

        def get() -> Lanes:
            total = np.full(THREADS, offset, np.int64)
            for part in parts:
                total += part().astype(np.int64)
            return total

        return get

    # ---- execution

    def step(self, pc: int) -> Step:
        """The function that executes an instruction; it is compiled when first used."""
        known = self._steps[pc]
        if known is None:
            from gpu_cost.semantics import compiled

            i = self.code.instructions[pc]
            try:
                known = compiled(self, i)
            except (UnknownInstruction, KeyError, IndexError, ValueError) as error:
                raise UnknownInstruction(f"{i.at:#x}: {i.opcode} {', '.join(i.operands)} ({error!r})") from error
            if i.guard:
                known = _guarded(known, self.predicate(i.guard))
            self._steps[pc] = known
        return known

    def run(self, stops: set[int]) -> Iterator[tuple[int, list[Any]]]:
        """Execute to the end.

        Yields:
            (number of the instruction, trace) at each of `stops`, and (-1, trace) at the end. A stop at a block barrier
            yields when all threads have met there; any other stop yields before some threads execute it. The trace
            lists the instructions since the last yield: (instruction, bits of warps, result of memory).
        """
        whole = np.ones(THREADS, bool)
        groups: dict[int, Lanes] = {0: whole}  # program counter -> threads
        held: dict[Any, dict[int, Lanes]] = {}
        alive = whole.copy()
        trace: list[Any] = []
        steps = self._steps
        jumps = [i.family in _JUMPS for i in self.code.instructions]
        pauses = [pc in stops and not jump for pc, jump in enumerate(jumps)]
        while groups:
            pc = min(groups)
            mask = groups.pop(pc)
            if not mask.any():
                continue
            limit = min(groups, default=1 << 30)
            lanes: Mask = True if mask.all() else mask
            warps = _bits(mask)
            while True:
                if jumps[pc]:
                    trace.append((pc, warps, None))
                    self.met = False
                    self._jump(pc, mask, groups, held, alive)
                    if self.met and pc in stops:
                        yield pc, trace
                        trace = []
                    break
                if pauses[pc]:
                    yield pc, trace
                    trace = []
                step = steps[pc] or self.step(pc)
                trace.append((pc, warps, step(lanes)))
                pc += 1
                if pc >= limit:
                    _join(groups, pc, mask)
                    break
        if held or alive.any():
            raise UnknownInstruction(f"threads wait for ever: {list(held)}")
        yield -1, trace

    def _jump(self, pc: int, mask: Lanes, groups: dict[int, Lanes], held: dict[Any, Any], alive: Lanes) -> None:
        i = self.code.instructions[pc]
        taken = mask & self.predicate(i.guard)() if i.guard else mask
        rest = mask & ~taken
        if rest.any():
            _join(groups, pc + 1, rest)
        if not taken.any():
            return
        family, operands = i.family, i.operands
        if family == "BRA" and i.opcode != "BRA.DIV":
            if len(operands) > 1:
                condition = taken & self.predicate(operands[0])()
                _join(groups, pc + 1, taken & ~condition)
                taken = condition
            _join(groups, int(operands[-1], 16) // 16, taken)
        elif family == "BRA":
            wanted = self.words(operands[0])() == 0xFFFFFFFF
            if not (wanted & (of_warps(taken) == taken))[taken].all():
                raise UnknownInstruction(f"{i.at:#x}: a warp that has parted comes to a shuffle")
            _join(groups, pc + 1, taken)
        elif family == "CALL":
            _join(groups, int(operands[-1], 16) // 16, taken)
        elif family == "RET":
            _spread(groups, self.r[self.number(operands[0].split(" ")[0])] // 16, taken)
        elif family == "BRX":
            register, _, offset = operands[0].partition(" ")
            target = self.s[self.number(register)] + int(offset, 16) + i.at + 16
            _spread(groups, target // 16, taken)
        elif family == "EXIT":
            alive[taken] = False
            self._release(groups, held, alive)
        elif family == "BREAK":
            self.b[int(operands[-1][1:])][taken] = False
            _join(groups, pc + 1, taken)
            self._release(groups, held, alive)
        elif family in ("BSYNC", "WARPSYNC", "BAR"):
            if family == "WARPSYNC" and i.opcode != "WARPSYNC.ALL":
                raise UnknownInstruction(f"{i.at:#x}: {i.opcode} of some lanes")
            key = (family, int(operands[0][1:])) if family == "BSYNC" else (family, pc if family == "WARPSYNC" else 0)
            _join(held.setdefault(key, {}), pc + 1, taken)
            self._release(groups, held, alive)
        else:
            raise UnknownInstruction(f"{i.at:#x}: {i.opcode}")

    def _release(self, groups: dict[int, Lanes], held: dict[Any, dict[int, Lanes]], alive: Lanes) -> None:
        """Release the threads of complete barriers."""
        for key in list(held):
            there = np.any(list(held[key].values()), axis=0)
            wanted = alive & self.b[key[1]] if key[0] == "BSYNC" else alive
            missing = wanted & ~there
            if key[0] != "BAR":
                missing = of_warps(missing)
            elif missing.any():
                continue
            else:
                self.met = True
            for pc, mask in list(held[key].items()):
                if (free := mask & ~missing).any():
                    _join(groups, pc, free)
                if (kept := mask & missing).any():
                    held[key][pc] = kept
                else:
                    del held[key][pc]
            if not held[key]:
                del held[key]

    # ---- costs of memory accesses

    def sectors(self, address: Lanes, mask: Mask, words: int, reads: bool) -> list[tuple[int, int, int]]:
        """(warp, sectors of 32 bytes, sectors missing in L1) of an access to global memory."""
        found = []
        for warp in range(WARPS):
            lanes = slice(warp * LANES, (warp + 1) * LANES)
            mine = address[lanes] if mask is True else address[lanes][mask[lanes]]
            if len(mine):
                touched = set((mine >> 5).tolist()) | (
                    set(((mine + 4 * words - 1) >> 5).tolist()) if words > 1 else set()
                )
                missed = len(touched - self.l1)
                if reads:
                    self.l1 |= touched
                found.append((warp, len(touched), missed))
        return found

    def conflicts(self, address: Lanes, mask: Mask, words: int) -> list[tuple[int, int, int]]:
        """(warp, cycles with bank conflicts, 0) of an access to shared memory."""
        found = []
        for warp in range(WARPS):
            lanes = slice(warp * LANES, (warp + 1) * LANES)
            mine = address[lanes] if mask is True else address[lanes][mask[lanes]]
            if len(mine):
                key = (mine - (mine[0] & ~127)).tobytes() + bytes((words,))
                if (turns := self._memo.get(key)) is None:
                    distinct = np.unique(np.concatenate([(mine >> 2) + k for k in range(words)]))
                    turns = self._memo[key] = int(np.bincount(distinct & 31).max())
                found.append((warp, turns, 0))
        return found


_JUMPS = frozenset({"BRA", "BRX", "CALL", "RET", "EXIT", "BREAK", "BSYNC", "WARPSYNC", "BAR"})


def of_warps(mask: Mask) -> Mask:
    """All lanes of the warps with at least one active lane."""
    return mask if mask is True else np.repeat(mask.reshape(WARPS, LANES).any(axis=1), LANES)


def _bits(mask: Lanes) -> int:
    return int(np.packbits(mask.reshape(WARPS, LANES).any(axis=1), bitorder="little")[0])


def _join(groups: dict[int, Lanes], pc: int, mask: Lanes) -> None:
    groups[pc] = groups[pc] | mask if pc in groups else mask


def _spread(groups: dict[int, Lanes], target: Lanes, mask: Lanes) -> None:
    for pc in np.unique(target[mask]).tolist():
        _join(groups, int(pc), mask & (target == pc))


def _predicate(text: str) -> int:
    found = _REGISTER.fullmatch(text)
    if found is None or "P" not in found["file"]:
        raise UnknownInstruction(f"operand {text}")
    return (7 if found["number"] == "T" else int(found["number"])) + 16 * (found["file"] == "UP")


def _guarded(step: Step, guard: Callable[[], Lanes]) -> Step:
    def run(mask: Mask) -> Any:
        lanes = guard() & mask
        return step(True if lanes.all() else lanes) if lanes.any() else None

    return run


def _signed(get: Callable[[], Any], sign: str) -> Callable[[], Any]:
    if "-" in sign:
        return lambda: np.subtract(np.uint32(0), get())
    return (lambda: ~get()) if "~" in sign else get
