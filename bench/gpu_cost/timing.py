"""Timing model: computes when the eight warps of a thread block issue executed instructions, on one multiprocessor.

Each of four schedulers issues one instruction per cycle, for the warp (of its two) that is ready first. A warp's
instructions issue in program order. The code itself states what a warp waits for: the compiler writes a stall in cycles
and the awaited scoreboards into every instruction. The latencies of arithmetic therefore come from the compiler. Only
operations with other latencies (memory, shuffles, special functions, barriers) are in `Constants`.

Not modelled: instruction-cache misses (counted separately), other programs, and late thread blocks; all blocks are
assumed to reach a barrier at the same time. calibration.py corrects all of this with measured factors.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_cost.machine import LANES, WARPS
from gpu_cost.machine_code import Code, Instruction

GUIDE = "CUDA C++ Programming Guide, arithmetic instructions, compute capability 9.0"
LUO = "Luo et al. 2024, Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking"


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants for an H200, in cycles unless noted. `sources` gives the source of each constant."""

    clock_ghz: float = 1.98
    schedulers: int = 4
    l2: int = 300
    l1: int = 40
    shared: int = 29
    shuffle: int = 24
    special: int = 24
    constant: int = 30
    block_barrier: int = 20
    taken_branch: int = 8
    fence: int = 300
    same_address: float = 1.0
    fill: float = 0.8  # sectors per cycle
    # Cycles for which a warp's instruction occupies one of its scheduler's pipes.
    fma: int = 1
    alu: int = 2
    conversion: int = 2
    mufu: int = 8
    mma: float = 6.4

    sources: dict[str, str] = field(
        default_factory=lambda: {
            "clock_ghz": "data sheet of the H200 SXM, boost",
            "schedulers": "Hopper whitepaper: four partitions per multiprocessor",
            "l2": f"review of the kernel's machine code: about 300; {LUO}: 263 in an H100 PCIe at 1.76 GHz",
            "l1": f"{LUO}: 40.7",
            "shared": f"{LUO}: 29.0",
            "shuffle": "Volta to Ampere measure 22 to 25; not known of Hopper",
            "special": "assumption: as long as a shuffle, with the queue before it",
            "constant": "assumption: LDC, S2R and conversions as long as shared memory",
            "block_barrier": "assumption, from the last arrival",
            "taken_branch": "assumption, beyond the stall in the code",
            "fence": "assumption: a round trip to L2 behind the last store's",
            "same_address": "assumption: L2 adds to one address once a cycle",
            "fill": "25.5 bytes a cycle and multiprocessor, as if always all 132 read: 16.8 MB came in 2.53 us "
            "(gpu_registers in results/h100/2026-11-25-gpu_check.jsonl). One alone could have 64 (A100 whitepaper)",
            "fma": f"{GUIDE}: 128 a cycle and multiprocessor; whole-number multiply-adds 64, counted as `alu`",
            "alu": f"{GUIDE}: 64 a cycle and multiprocessor (additions, shifts, logic, comparisons, selects)",
            "conversion": f"{GUIDE}: 64",
            "mufu": f"{GUIDE}: 16",
            "mma": "m16n8k16 of BF16 is 2048 multiply-adds, of which a partition does 512 a cycle (Hopper whitepaper: "
            f"989 TFLOPS); mma.sync comes to 62.9 % of that ({LUO}). TF32: half as many in the same time",
        }
    )


# Families by the pipe that executes them; the remaining families are integer operations, comparisons and the like.
FMA = frozenset({"FFMA", "FADD", "FMUL"})
MEMORY = frozenset({"LDG", "LD", "LDGSTS", "STG", "ST", "RED", "REDG", "ATOMG", "LDS", "STS", "LDSM", "SHFL", "MOVM"})
CONVERSIONS = frozenset({"I2F", "F2I", "F2F"})
CONTROL = frozenset(
    {
        "BRA",
        "BRX",
        "CALL",
        "RET",
        "EXIT",
        "BSSY",
        "BSYNC",
        "BREAK",
        "BAR",
        "NOP",
        "YIELD",
        "WARPSYNC",
        "DEPBAR",
        "LDGDEPBAR",
    }
)

FMA_PIPE, ALU_PIPE, SPECIAL_PIPE, TENSOR_PIPE, MEMORY_PIPE = range(5)  # all schedulers share the last pipe
HALF_DEPTH = "HMMA.1684", "HMMA.1688.F32.BF16"
SECTORS = 4  # sectors of 32 bytes that L1 delivers per cycle

# Reasons why time is spent.
ISSUE, LATENCY, PIPE, L2, L1, SHARED, SPECIAL, FENCE, REMOTE, BRANCH, BARRIER = (
    "issue", "arithmetic latency", "pipe or scheduler taken", "L2", "L1", "shared memory or shuffle",
    "special functions, constants", "fence", "waiting for others' signals", "taken branches", "block barrier",
)  # fmt: skip


@dataclass(slots=True)
class Spent:
    """Cost of a script instruction.

    Attributes:
        cycles: the block's cycles.
        by: cycles by (number of the machine instruction, reason), for the warp that reached a barrier last.
        issued: machine instructions by family, over all warps.
        by_pc: executions of each machine instruction, over all warps.
        tensor: tensor-core cycles, over all warps.
        block_barriers: number of block barriers.
        trips: number of times that the last warp waited for L2.
    """

    cycles: float = 0.0
    by: Counter[tuple[int, str]] = field(default_factory=Counter)
    issued: Counter[str] = field(default_factory=Counter)
    by_pc: Counter[int] = field(default_factory=Counter)
    tensor: float = 0.0
    block_barriers: int = 0
    trips: int = 0


class Clock:
    """The clock of a thread block."""

    def __init__(self, code: Code, constants: Constants, blocks: int) -> None:
        self.c = constants
        self.blocks = blocks
        self.static = [_static(i, constants) for i in code.instructions]
        self.families = [i.family for i in code.instructions]
        self.strong = [".STRONG" in i.opcode for i in code.instructions]
        self.now = 0.0  # time of the last block barrier
        self.ready = [0.0] * WARPS
        self.why = [LATENCY] * WARPS  # reason for `ready`
        self.boards = [[(0.0, LATENCY)] * 6 for _ in range(WARPS)]
        self.copied = [(0.0, L2)] * WARPS  # end of all asynchronous copies so far
        self.groups: list[list[tuple[float, str]]] = [[] for _ in range(WARPS)]  # end of each committed group
        self.newest = [int(i.operands[1], 16) if i.opcode == "DEPBAR.LE" else 0 for i in code.instructions]
        self.scheduler = [0.0] * constants.schedulers
        self.pipes = [0.0] * (MEMORY_PIPE * constants.schedulers + 1)
        self.filled = 0.0  # arrival of the last sector from L2
        self.stored = 0.0  # arrival of the last store in L2
        self.signalled = 0.0

    def spend(self, trace: Iterable[tuple[int, int, list[tuple[int, int, int]] | None]]) -> Spent:
        """Compute the cost of a trace, from one of the machine's stops to the next."""
        spent = Spent()
        queues: list[list[tuple[int, int, int]]] = [[] for _ in range(WARPS)]
        for pc, bits, said in trace:
            told = {warp: (a, b) for warp, a, b in said} if said else {}
            spent.issued[self.families[pc]] += bits.bit_count()
            spent.by_pc[pc] += bits.bit_count()
            for warp in range(WARPS):
                if bits >> warp & 1:
                    queues[warp].append((pc, *told.get(warp, (0, 0))))
        start = self.now
        at = [0] * WARPS
        mine: list[Counter[tuple[int, str]]] = [Counter() for _ in range(WARPS)]
        arrived: dict[int, float] = {}
        heap = []
        last = [start] * WARPS  # time of each warp's last issue
        for warp in range(WARPS):
            self._push(heap, warp, queues[warp], at[warp])
        while heap:
            time, warp, reason = heapq.heappop(heap)
            pc, first, second = queues[warp][at[warp]]
            _, _, _, pipe, cycles, _ = self.static[pc]
            unit = warp % self.c.schedulers
            place = MEMORY_PIPE * self.c.schedulers if pipe == MEMORY_PIPE else MEMORY_PIPE * unit + pipe
            busy = max(cycles, first if self.families[pc] in ("LDS", "STS", "LDSM") else first / SECTORS)
            spent.tensor += cycles if pipe == TENSOR_PIPE else 0
            free = max(self.scheduler[unit], self.pipes[place] if pipe >= 0 else 0.0)
            if free > time:
                heapq.heappush(heap, (free, warp, reason if time > last[warp] + 1 else PIPE))
                continue
            self.scheduler[unit] = time + 1
            if pipe >= 0:
                self.pipes[place] = time + busy
            waited = time - last[warp]
            if waited > 0:
                mine[warp][pc, ISSUE] += min(1.0, waited)
                if waited > 1:
                    mine[warp][pc, reason] += waited - 1
                    spent.trips += reason == L2 and waited > self.c.l2 / 2
            last[warp] = time
            at[warp] += 1
            self._issue(time, warp, pc, first, second, queues[warp], at[warp])
            if self.families[pc] == "BAR":
                arrived[warp] = time
                expected = sum(at[w] < len(queues[w]) or w in arrived for w in range(WARPS))
                if len(arrived) == expected:
                    spent.block_barriers += 1
                    self._meet(arrived, mine, spent, pc, last)
                    for w in arrived:
                        self._push(heap, w, queues[w], at[w])
                    arrived = {}
            else:
                self._push(heap, warp, queues[warp], at[warp])
        if any(mine):  # the end of the launch
            self._meet({w: last[w] for w in range(WARPS)}, mine, spent, -1, last)
        spent.cycles = self.now - start
        return spent

    def _meet(
        self, arrived: dict[int, float], mine: list[Counter[tuple[int, str]]], spent: Spent, pc: int, last: list[float]
    ) -> None:
        """Let the block's warps continue together, at the time of the last warp."""
        latest = max(arrived, key=lambda w: arrived[w])
        spent.by.update(mine[latest])
        spent.by[pc, BARRIER] += self.c.block_barrier
        self.now = arrived[latest] + self.c.block_barrier
        for w in range(WARPS):
            mine[w].clear()
            last[w] = self.now
            self.ready[w] = max(self.ready[w], self.now)

    def _push(self, heap: list[tuple[float, int, str]], warp: int, queue: list[tuple[int, int, int]], at: int) -> None:
        """Queue a warp at the earliest time for its next instruction."""
        if at == len(queue):
            return
        pc = queue[at][0]
        time, reason = self.ready[warp], LATENCY
        if time > self.now:
            reason = self.why[warp]
        boards = self.boards[warp]
        for k in self.static[pc][1]:
            if boards[k][0] > time:
                time, reason = boards[k]
        if self.families[pc] == "DEPBAR" and (groups := self.groups[warp][: -self.newest[pc] or None]):
            if groups[-1][0] > time:
                time, reason = groups[-1]
            del self.groups[warp][: len(groups)]
        heapq.heappush(heap, (time, warp, reason))

    def _issue(
        self, time: float, warp: int, pc: int, first: int, second: int, queue: list[tuple[int, int, int]], at: int
    ) -> None:
        """Update the warp's state after it issued an instruction."""
        stall, _, (written, read), _, _, latency = self.static[pc]
        family, c = self.families[pc], self.c
        self.why[warp] = LATENCY
        ready = time + stall
        done, reason = time + latency, SPECIAL
        if family in ("LDG", "LD", "LDGSTS"):
            done, reason = time + c.l1 + first / SECTORS, L1
            if second:
                self.filled = max(self.filled, time + c.l2) + second / c.fill
                done, reason = self.filled, L2
            if self.strong[pc]:
                arrives = self.signalled + c.same_address * self.blocks
                polled = arrives + c.l2 / 2 + (c.l2 + c.l1) / 2  # return path, and half an iteration of the poll loop
                if polled > done:
                    done, reason = polled, REMOTE
            if family == "LDGSTS":
                self.copied[warp] = max(self.copied[warp], (done, reason))
                done = time + 10
        elif family == "LDGDEPBAR":
            self.groups[warp].append(self.copied[warp])
        elif family in ("STG", "ST", "REDG", "RED"):
            self.stored = max(self.stored, time + c.l2)
            if self.strong[pc]:
                self.signalled = time + c.l2 / 2
        elif family in ("LDS", "STS", "LDSM"):
            done, reason = time + c.shared + 2 * max(first - 1, 0), SHARED
        elif family in ("SHFL", "MOVM"):
            reason = SHARED
        elif family == "MEMBAR":
            ready = max(ready, self.stored, time) + c.fence
            self.why[warp] = FENCE
        if at < len(queue) and queue[at][0] != pc + 1 and family in CONTROL and family != "BAR":
            ready += c.taken_branch
            self.why[warp] = BRANCH
        self.ready[warp] = ready
        boards = self.boards[warp]
        if written < 6:
            boards[written] = max(boards[written], (done, reason))
        if read < 6:
            boards[read] = max(boards[read], (time + min(latency, 10), SPECIAL))


def _static(i: Instruction, c: Constants) -> tuple[int, tuple[int, ...], tuple[int, int], int, float, int]:
    """(stall, awaited scoreboards, released scoreboards, pipe (-1: none), its cycles, latency)."""
    waits = tuple(k for k in range(6) if i.waits >> k & 1)
    boards = i.written, i.read
    stall = max(i.stall, 1)
    family = i.family
    if family in FMA:
        return stall, waits, boards, FMA_PIPE, c.fma, 4
    if family == "HMMA":
        return stall, waits, boards, TENSOR_PIPE, c.mma / (2 if i.opcode.startswith(HALF_DEPTH) else 1), 4
    if family == "MUFU":
        return stall, waits, boards, SPECIAL_PIPE, c.mufu, c.special
    if family in CONVERSIONS:
        return stall, waits, boards, SPECIAL_PIPE, c.conversion, c.special
    if family in MEMORY:
        return stall, waits, boards, MEMORY_PIPE, 1, c.shuffle if family in ("SHFL", "MOVM") else c.shared
    if family in CONTROL:
        return stall, waits, boards, -1, 0, 4
    if family in ("LDC", "S2R", "S2UR", "R2UR", "CS2R", "ULDC"):
        return stall, waits, boards, -1, 0, c.constant
    return stall, waits, boards, ALU_PIPE, c.alu, 6


def issue_bound(spent: Spent, c: Constants) -> float:
    """Lower bound in cycles for any schedule of these instructions: the busiest pipe, or the schedulers."""
    fma = sum(n for f, n in spent.issued.items() if f in FMA) * c.fma
    memory = sum(n for f, n in spent.issued.items() if f in MEMORY) * c.schedulers
    others = FMA | MEMORY | CONTROL | {"MUFU", "HMMA"} | CONVERSIONS
    rest = {f: n for f, n in spent.issued.items() if f not in others}
    alu = sum(rest.values()) * c.alu
    special = spent.issued["MUFU"] * c.mufu + sum(spent.issued[f] for f in CONVERSIONS) * c.conversion
    return max(fma, memory, alu, special, spent.tensor, sum(spent.issued.values())) / c.schedulers


__all__ = ["LANES", "Clock", "Constants", "Spent", "issue_bound"]
