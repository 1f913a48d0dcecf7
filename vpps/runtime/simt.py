"""The simt target: the CUDA configuration without a GPU, every thread of a block a fiber, with a search for races."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpps.config import SIMT_RACES, SIMT_SEED, Variable
from vpps.errors import HandleError
from vpps.kernel.render import render_cuda
from vpps.kernel.resources import Kernel
from vpps.kernel.simt_compiler import build_simt
from vpps.kernel.spec import KernelSpec
from vpps.ops.element import FLOAT32, WORD_BYTES
from vpps.placement.distribution import FIRST_FREE
from vpps.placement.onchip import Device, known_device
from vpps.runtime.emulator import MAX_BLOCKS, MAX_SEED, MAX_WORDS, Emulator, Finding
from vpps.runtime.growth import half_of_memory
from vpps.runtime.machine import Failure, Wanted
from vpps.runtime.stamps import StampedRecording
from vpps.script.instructions import COUNTERS
from vpps.script.products import Continuation, entered_at, multiply
from vpps.targets import SIMT
from vpps.values import as_index

DEFAULT_VPS = 4
_COUNTER_WORDS = COUNTERS * 32


def emulated_gpu(sms: int) -> Device:
    """A GPU like an H200, but for the number of its multiprocessors."""
    return replace(known_device("H200"), name="emulated GPU", sms=sms)


def default_gpu() -> Device:
    """The one that is emulated unless another number of blocks is asked for."""
    return emulated_gpu(DEFAULT_VPS)


def compiled(spec: KernelSpec, _arch: str) -> Kernel:
    """The kernel that `spec` describes; it looks for races, or not, as the environment has it. Raises CompileError."""
    source = render_cuda(spec)
    return Kernel(source, build_simt(source, _races_by_environment()), spec.chip.shared_bytes)


class SimtMachine:
    """Emulated thread blocks and the pool they work on; see `Machine` in vpps/runtime/machine.py.

    A launch has ended when `launch` returns.

    Args:
        vps: virtual processors (thread blocks).
        races: whether to look for races, which takes a kernel of its own; default: VPPS_SIMT_RACES of the environment.
        seed: of the order in which threads run; 0 runs them in order; default: VPPS_SIMT_SEED of the environment.
        timeline: whether kernels record what every virtual processor does when. Time is the emulator's: how often one
            thread has given way to another. It shows what is done in which order, not how long it takes.

    Raises:
        HandleError: an argument or an environment variable is wrong.
    """

    target = SIMT.name
    panel = 1
    arch = ""
    queues = False

    def __init__(
        self,
        vps: int | None = None,
        *,
        races: bool | None = None,
        seed: int | None = None,
        timeline: bool = False,
    ) -> None:
        count = as_index(DEFAULT_VPS if vps is None else vps)
        if count is None or not 1 <= count <= MAX_BLOCKS:
            raise HandleError(f"vps={vps!r}: expected an int from 1 to {MAX_BLOCKS}")
        self.vps = count
        self.source = ""
        self.seed = _number(SIMT_SEED, MAX_SEED) if seed is None else seed
        self.pool: NDArray[np.float32] = np.zeros(0, FLOAT32.dtype)
        self.races = _races_by_environment() if races is None else races
        self._spec: KernelSpec | None = None
        self._emulator: Emulator | None = None
        self._counters = np.zeros((2, _COUNTER_WORDS), np.uint32)
        self._losses = np.zeros(FIRST_FREE, FLOAT32.dtype)
        self._launches = 0
        self._runs = 0  # of the kernel: second launches counted as well
        self._failure: Failure | None = None
        self._open = True
        self._timeline = timeline
        self._recording = StampedRecording(count, 0)

    @classmethod
    def for_handle(cls, w: Wanted) -> SimtMachine:
        """As many blocks as are wanted, or a few that groups share evenly."""
        vps = max(DEFAULT_VPS, w.groups) // w.groups * w.groups if w.vps is None else w.vps
        return cls(vps, timeline=w.timeline)

    @property
    def device(self) -> Device:
        """What it emulates."""
        return emulated_gpu(self.vps)

    @property
    def default_pool_limit(self) -> int:
        """Bytes."""
        return min(half_of_memory(), WORD_BYTES * (MAX_WORDS - 1))

    @property
    def spec(self) -> KernelSpec | None:
        """What its kernel can do; None if there is none yet."""
        return self._spec

    @property
    def resources(self) -> None:
        """Nobody reports any."""

    @property
    def driver(self) -> str:
        """There is none."""
        return ""

    def can_run(self, spec: KernelSpec) -> bool:
        """Whether its kernel can do what `spec` says."""
        return self._spec is not None and self._spec.covers(spec)

    def specialise(self, spec: KernelSpec) -> None:
        """Have a kernel that can do what `spec` says. Raises CompileError."""
        if self._spec is not None:
            if self._spec.covers(spec):
                return
            spec = self._spec.joined(spec)
        source = render_cuda(spec.recording(self._timeline))
        self._emulator = Emulator(build_simt(source, races=self.races))
        self._spec, self.source = spec, source

    def reserve(self, floats: int, keep: int) -> None:
        """Make the pool at least `floats` long, keeping its first `keep` floats."""
        if floats > len(self.pool):
            larger = np.zeros(floats, FLOAT32.dtype)
            larger[:keep] = self.pool[:keep]
            self.pool = larger

    def record(self, capacity: int) -> StampedRecording:
        """Memory for what the next launches record; only for a machine made with `timeline`.

        Args:
            capacity: records of each virtual processor that there is to be room for.
        """
        self._recording = StampedRecording(self.vps, capacity)
        return self._recording

    def stage(self, script: NDArray[np.uint32]) -> None:
        """Nothing to do: scripts are read where they are."""

    def launch(self, script: NDArray[np.uint32], sequel: Continuation | None = None) -> None:
        """Execute a script, and what follows it."""
        if self._spec is None or self._emulator is None:
            raise HandleError("a launch was begun without a kernel; call specialise first")
        self._launches += 1
        recording = self._recording if self._timeline else None
        memory = np.zeros(recording.words if recording is not None else 0, np.uint32)
        begun = time.perf_counter_ns()
        self._failure = self._run(self._emulator, self._spec, script, memory, 0)
        if sequel is not None and self._failure is None:
            for product in sequel.products:
                multiply(self.pool, product)
            if sequel.entries:
                entered = entered_at(script, sequel.entries)
                self._failure = self._run(self._emulator, self._spec, entered, memory, 1)
        if recording is not None:
            recording.fill(memory)
            if recording.span is not None:
                recording.align(begun - recording.span[0])

    def _run(
        self, emulator: Emulator, spec: KernelSpec, script: NDArray[np.uint32], recorded: NDArray[np.uint32], run: int
    ) -> Failure | None:
        """One launch of the kernel.

        Args:
            recorded: where its times go.
            run: 1 for the second launch of a script.
        """
        self._runs += 1
        report = np.zeros(2 + self.vps, np.uint32)
        findings = emulator.run(
            self.pool,
            script,
            self._counters[self._runs & 1],
            self._counters[~self._runs & 1],
            report,
            blocks=self.vps,
            shared_bytes=spec.chip.shared_bytes,
            seed=self.seed,
            races=self.races,
            stopped=np.zeros(1, np.uint32),
            losses=self._losses,
            recording=recorded,
            room=self._recording.room,
            run=run,
        )
        failure = _failure(findings, report)
        if failure is not None:
            self._counters[:] = 0
        return failure

    @property
    def launches(self) -> int:
        """Launches begun so far."""
        return self._launches

    def wait(self, number: int | None = None) -> Failure | None:
        """What went wrong with the launch, if anything did."""
        failure, self._failure = self._failure, None
        return failure

    def loss(self, slot: int) -> float:
        """What the latest launch that wrote there left at that place among the first of the pool."""
        return float(self._losses[slot])

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return self._open

    def close(self) -> None:
        """Free the pool; may be called twice."""
        self._open = False
        self.pool = np.zeros(0, FLOAT32.dtype)


def _number(variable: Variable, most: int) -> int:
    """Value of an environment variable. Raises HandleError."""
    value = variable.get()
    if not (value.isdecimal() and value.isascii() and int(value) <= most):
        raise HandleError(f"{variable.name}={value}: expected a whole number from 0 to {most}")
    return int(value)


def _races_by_environment() -> bool:
    return bool(_number(SIMT_RACES, 1))


def _failure(findings: list[Finding], report: NDArray[np.uint32]) -> Failure | None:
    """What the emulator found, and whether the kernel stopped itself."""
    messages: list[str] = []
    positions: list[int] = []
    for finding in findings:
        places = [f"{{{len(positions) + k}}}" for k in range(len(finding.positions))]
        messages.append(f"{finding.kind}: {finding.message.format(*places)}")
        positions.extend(finding.positions)
    if report[0]:
        messages.append(f"the kernel stopped at word {report[0] - 1} of its script: {{{len(positions)}}}")
        positions.append(int(report[0]) - 1)
    return Failure("\n".join(messages), tuple(positions)) if messages else None
