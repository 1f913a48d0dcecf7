"""The emulator's race detection, compared with the definition: random programs, one vector clock per thread.

A program is generated in one global order. In that order, every wait follows all signals that it waits for, and no
signal comes later. So the happens-before relation is the same for every schedule. The kernel interprets the program;
the model walks through it in generated order and compares all pairs of accesses to a word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.test_emulator import LAUNCH
from vpps.kernel.simt_compiler import build_simt
from vpps.runtime.emulator import Emulator

pytestmark = pytest.mark.simt

BLOCKS, THREADS, WARP = 3, 64, 32
COUNTERS, WORDS = 4, 12
READ, WRITE, UPDATE, BARRIER, WARP_BARRIER, SIGNAL, RELAXED_SIGNAL, WAIT, SHARED_READ, SHARED_WRITE = range(1, 11)
FIELDS = 5  # per instruction: op, argument, first thread, last thread, target of a wait or mask

KERNEL = """
extern "C" __global__ void vpps_kernel(const Launch launch)
{
    const unsigned t = threadIdx.x;
    const Word* ip = launch.script + load_script(launch.script + blockIdx.x);
    float* shared = shared_memory();
    float sum = 0;
    for (;; ip += 5) {
        at(ip - launch.script);
        const unsigned op = load_script(ip), argument = load_script(ip + 1), target = load_script(ip + 4);
        if (op == 0) break;
        const bool mine = t >= load_script(ip + 2) && t <= load_script(ip + 3);
        unsigned* counter = launch.counters + argument % 4 * 32;
        if (op == 4) __syncthreads();
        else if (!mine) continue;
        else if (op == 1) sum += launch.pool[argument];
        else if (op == 2) launch.pool[argument] = (float)t;
        else if (op == 3) add_float(launch.pool + argument, 1.f);
        else if (op == 5) { if (target >> t % 32 & 1) __syncwarp(target); }
        else if (op == 6) add_release(counter, 1);
        else if (op == 7) add_relaxed(counter, 1);
        else if (op == 8) { while (load_relaxed(counter) < target) nap(1); load_acquire(counter); }
        else if (op == 9) sum += shared[argument];
        else if (op == 10) shared[argument] = (float)t;
    }
    if (sum == -1.f) launch.report[0] = 1;
}
"""


@lru_cache(maxsize=1)
def emulator() -> Emulator:
    return Emulator(build_simt(LAUNCH + KERNEL, races=True))


@dataclass
class Program:
    """A script, and the words of pool and shared memory on which it races by definition."""

    streams: list[list[tuple[int, ...]]] = field(default_factory=lambda: [[] for _ in range(BLOCKS)])
    racy: set[str] = field(default_factory=set)

    def script(self) -> NDArray[np.uint32]:
        words, starts = [], []
        for stream in self.streams:
            starts.append(BLOCKS + len(words))
            words += [w for instruction in stream for w in instruction] + [0] * FIELDS
        return np.array(starts + words, np.uint32)


class Model:
    """Exact happens-before: a vector clock per thread."""

    def __init__(self) -> None:
        count = BLOCKS * THREADS
        self.clocks = np.zeros((count, count), np.int64)
        np.fill_diagonal(self.clocks, 1)
        self.released = np.zeros((COUNTERS, count), np.int64)
        self.accesses: dict[str, list[tuple[int, int, int]]] = {}
        self.racy: set[str] = set()

    def meet(self, threads: list[int]) -> None:
        self.clocks[threads] = self.clocks[threads].max(axis=0)
        self.clocks[threads, threads] += 1

    def signal(self, thread: int, counter: int) -> None:
        self.released[counter] = np.maximum(self.released[counter], self.clocks[thread])
        self.clocks[thread, thread] += 1

    def wait(self, thread: int, counter: int) -> None:
        self.clocks[thread] = np.maximum(self.clocks[thread], self.released[counter])

    def access(self, thread: int, word: str, op: int) -> None:
        """op: READ, WRITE or UPDATE."""
        before = self.accesses.setdefault(word, [])
        for other, clock, did in before:
            if not (did == op and op in (READ, UPDATE)) and clock > self.clocks[thread, other]:
                self.racy.add(word)
        before.append((thread, int(self.clocks[thread, thread]), op))


def threads_of(random: Random) -> tuple[int, int]:
    """Draw one thread, a warp, part of a warp, or the block."""
    first = random.randrange(THREADS)
    warp = first // WARP * WARP
    return random.choice(
        [(first, first), (first, first), (warp, warp + WARP - 1), (first, warp + 31), (0, THREADS - 1)]
    )


def random_program(seed: int) -> Program:
    random = Random(seed)
    program, model = Program(), Model()
    signals = [0] * COUNTERS
    closed = [False] * COUNTERS  # after a wait on a counter: no more signals
    ordering = random.choice([0.2, 0.5, 0.8])
    for _ in range(random.randrange(6, 40)):
        block = random.randrange(BLOCKS)
        first, last = threads_of(random)
        argument = target = 0
        if random.random() < ordering:
            op = random.choice([BARRIER, BARRIER, WARP_BARRIER, SIGNAL, SIGNAL, RELAXED_SIGNAL, WAIT, WAIT])
        else:
            op = random.choice([READ, READ, WRITE, UPDATE, SHARED_READ, SHARED_WRITE])
        ids = [block * THREADS + t for t in range(first, last + 1)]
        if op == BARRIER:
            first, last = 0, THREADS - 1
            model.meet([block * THREADS + t for t in range(THREADS)])
        elif op == WARP_BARRIER:
            first = first // WARP * WARP
            last = first + WARP - 1
            target = random.choice([0xFFFFFFFF, 0xFFFFFFFF, random.getrandbits(32) | 1])
            model.meet([block * THREADS + first + lane for lane in range(WARP) if target >> lane & 1])
        elif op in (SIGNAL, RELAXED_SIGNAL):
            last = first
            argument = random.randrange(COUNTERS)
            if closed[argument]:
                continue
            signals[argument] += 1
            if op == SIGNAL:
                model.signal(block * THREADS + first, argument)
        elif op == WAIT:
            last = first
            argument = random.randrange(COUNTERS)
            closed[argument] = True
            target = signals[argument]
            model.wait(block * THREADS + first, argument)
        else:
            shared = op in (SHARED_READ, SHARED_WRITE)
            argument = random.randrange(3 if shared else WORDS)
            word = f"block {block} shared memory[{argument}]" if shared else f"pool[{argument}]"
            for thread in ids:
                model.access(thread, word, {SHARED_READ: READ, SHARED_WRITE: WRITE}.get(op, op))
        program.streams[block].append((op, argument, first, last, target))
    program.racy = model.racy
    return program


def found(program: Program, seed: int) -> set[str] | None:
    """Return the words on which the emulator finds races; None if there are too many."""
    script = program.script()
    counters, cleared, report = (np.zeros(128, np.uint32) for _ in range(3))
    pool = np.zeros(WORDS, np.float32)
    findings = emulator().run(
        pool, script, counters, cleared, report, blocks=BLOCKS, threads=THREADS, shared_bytes=64, seed=seed
    )
    assert {f.kind for f in findings} <= {"race", "unwritten fence"}
    if len(findings) == 20:
        return None
    words = set()
    for f in findings:
        op, argument = (int(w) for w in script[f.positions[0] : f.positions[0] + 2])
        block = max(b for b in range(BLOCKS) if script[b] <= f.positions[0])
        shared = op in (SHARED_READ, SHARED_WRITE)
        words.add(f"block {block} shared memory[{argument}]" if shared else f"pool[{argument}]")
    return words


@pytest.mark.parametrize("part", range(4))
def test_finds_races_on_the_words_that_have_one_and_no_others(part: int) -> None:
    racy = compared = 0
    for seed in range(100 * part, 100 * part + 100):
        program = random_program(seed)
        for order in (0, seed + 1):
            words = found(program, order)
            if words is None:
                continue
            assert words == program.racy, f"program {seed}, order {order}: {program.streams}"
            compared += 1
            racy += bool(words)
    assert compared > 150
    assert 20 < racy < compared - 20  # both programs with races and programs without
