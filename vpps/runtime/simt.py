"""The simt target: the CUDA configuration without a GPU. Every thread of a block is a fiber; races are detected."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

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
from vpps.runtime.machine import Failure, Machine, MachineRequest, aligned_zeros, is_ending
from vpps.runtime.stamps import StampedRecording
from vpps.script.instructions import COUNTERS
from vpps.targets import SIMT
from vpps.values import as_index

DEFAULT_VPS = 4
_COUNTER_WORDS = COUNTERS * 32


def emulated_gpu(sms: int) -> Device:
    """Return an H200 with `sms` multiprocessors."""
    return replace(known_device("H200"), name="emulated GPU", sms=sms)


def default_gpu() -> Device:
    """Return the emulated GPU with the default number of blocks."""
    return emulated_gpu(DEFAULT_VPS)


def compiled(spec: KernelSpec, _arch: str) -> Kernel:
    """Compile the kernel for `spec`, with race detection if the environment requests it. Raises CompileError."""
    source = render_cuda(spec)
    return Kernel(source, build_simt(source, _races_by_environment()), spec.chip.shared_bytes)


class SimtMachine(Machine):
    """Emulated thread blocks and their pool; see `Machine` in vpps/runtime/machine.py.

    A launch has ended when `launch` returns.

    Args:
        vps: number of virtual processors (thread blocks).
        races: True to detect races, with a special kernel; default: environment variable VPPS_SIMT_RACES.
        seed: seed for the order of threads; 0 runs threads in order; default: environment variable VPPS_SIMT_SEED.
        timeline: True to record a timeline of every virtual processor. The emulator counts time in switches between
            threads, so the timeline shows the order of the work, not its duration.

    Raises:
        HandleError: an argument or an environment variable is wrong.
    """

    target = SIMT.name

    def __init__(
        self, vps: int | None = None, *, races: bool | None = None, seed: int | None = None, timeline: bool = False
    ) -> None:
        count = as_index(DEFAULT_VPS if vps is None else vps)
        if count is None or not 1 <= count <= MAX_BLOCKS:
            raise HandleError(f"vps={vps!r}: expected an int from 1 to {MAX_BLOCKS}")
        self.vps = count
        self.seed = _number(SIMT_SEED, MAX_SEED) if seed is None else seed
        self.pool: NDArray[np.float32] = aligned_zeros(0)
        self.races = _races_by_environment() if races is None else races
        self._emulator: Emulator | None = None
        self._counters = np.zeros((2, _COUNTER_WORDS), np.uint32)
        self._losses = np.zeros(FIRST_FREE, FLOAT32.dtype)
        self._launches = 0
        self._failure: Failure | None = None
        self._open = True
        self._timeline = timeline
        self._recording = StampedRecording(count, 0)

    @classmethod
    def for_handle(cls, w: MachineRequest) -> SimtMachine:
        """Create a machine with the wanted number of blocks; by default a few, a multiple of the number of groups."""
        groups = w.onchip.groups or 1
        return cls(max(DEFAULT_VPS, groups) // groups * groups if w.vps is None else w.vps, timeline=w.timeline)

    @property
    def device(self) -> Device:
        return emulated_gpu(self.vps)

    @property
    def default_pool_limit(self) -> int:
        return min(super().default_pool_limit, WORD_BYTES * (MAX_WORDS - 1))

    def _specialise(self, spec: KernelSpec) -> None:
        source = render_cuda(spec.recording(self._timeline))
        self._emulator = Emulator(build_simt(source, self.races))
        self.spec, self.source = spec, source

    def record(self, capacity: int) -> StampedRecording:
        self._recording = StampedRecording(self.vps, capacity)
        return self._recording

    def launch(self, script: NDArray[np.uint32]) -> None:
        if self._emulator is None:
            raise HandleError("a launch was begun without a kernel; call specialise first")
        recording = self._recording if self._timeline else None
        memory = np.zeros(recording.words if recording is not None else 0, np.uint32)
        begun = time.perf_counter_ns()
        self._failure = self._run(self._emulator, script, memory)
        if recording is not None:
            recording.fill(memory)
            if recording.span is not None:
                recording.align(begun - recording.span[0])

    def _run(self, emulator: Emulator, script: NDArray[np.uint32], recorded: NDArray[np.uint32]) -> Failure | None:
        """Run the kernel, which writes its times to `recorded`."""
        assert self.spec is not None
        number = self._launches + 1
        report = np.zeros(2 + self.vps, np.uint32)
        findings = emulator.run(
            self.pool,
            script,
            self._counters[number & 1],
            self._counters[~number & 1],
            report,
            blocks=self.vps,
            shared_bytes=self.spec.chip.shared_bytes,
            seed=self.seed,
            races=self.races,
            stopped=np.zeros(1, np.uint32),
            losses=self._losses,
            recording=recorded,
            room=self._recording.room,
            then=partial(setattr, self, "_launches", number),
        )
        failure = _failure(findings, report)
        if failure is not None:
            self._counters[:] = 0
        return failure

    @property
    def launches(self) -> int:
        return self._launches

    def wait(self, number: int | None = None) -> Failure | None:
        return self._failure

    def loss(self, slot: int) -> float:
        return float(self._losses[slot])

    @property
    def is_open(self) -> bool:
        return self._open and not is_ending()

    def close(self) -> None:
        self._open = False
        self.pool = np.zeros(0, FLOAT32.dtype)  # not aligned_zeros, whose globals are gone when Python exits


def _number(variable: Variable, most: int) -> int:
    """Return the value of an environment variable as a number. Raises HandleError."""
    value = variable.get()
    if not (value.isdecimal() and value.isascii() and int(value) <= most):
        raise HandleError(f"{variable.name}={value}: expected a whole number from 0 to {most}")
    return int(value)


def _races_by_environment() -> bool:
    return bool(_number(SIMT_RACES, 1))


def _failure(findings: list[Finding], report: NDArray[np.uint32]) -> Failure | None:
    """Combine the emulator's findings and the kernel's own report of a stop; None if there are neither."""
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
