"""The cuda target: thread blocks of a GPU as virtual processors; one cooperative launch per script.

A launch is a few calls of the driver that return at once: the script goes from page-locked memory to the GPU in a
stream of its own, the kernel waits for it and writes what the host wants to know to its memory (runtime/results.py).
Between two launches there is nothing but an event.

A launch can be put behind one that runs, so that the GPU does not idle while the host waits and comes back. Whatever a
launch has of its own therefore exists twice, for even and for odd numbers: memory for the script, which travels
(`stage`) while the launch before runs, counters, and the report. A launch that was stopped leaves a mark on the GPU;
the one behind it sees that and does nothing (templates/cuda/sync.cuh).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.config import PATIENCE, is_watched
from vpps.errors import HandleError
from vpps.kernel.render import render_cuda
from vpps.kernel.resources import Kernel, check_resources
from vpps.kernel.spec import KernelSpec
from vpps.ops.element import WORD_BYTES
from vpps.placement.distribution import FIRST_FREE
from vpps.placement.onchip import Device
from vpps.runtime.device_pool import DevicePool
from vpps.runtime.driver import NO_MEMORY, Call, Driver, DriverError, LoadedKernel, PinnedMemory, usable_gpus
from vpps.runtime.machine import MAX_POOL_FLOATS, Failure, Machine, Wanted, freed_with, is_ending
from vpps.runtime.results import LaunchParameters, Results
from vpps.runtime.stamps import STAMP, SharedClock, StampedRecording
from vpps.script.instructions import COUNTERS
from vpps.targets import CUDA
from vpps.text import counted
from vpps.values import as_index

THREADS = 256  # of a block
_LINE_BYTES = 128  # of a counter
_COUNTER_BYTES = 2 * COUNTERS * _LINE_BYTES

_SLOWED = 60  # times, that patience is longer where a tool slows kernels down

_SPIN_NS = 1_000_000  # launches of small batches are shorter, and a sleep is never shorter than 50 us
_LONGEST_SLEEP_NS = 5_000_000
_SMALLEST_BUFFER = 1 << 16  # words; scripts of small batches never make it grow
_MOST_RECORDED = 1 << 28  # bytes of a launch; no launch of some seconds fills them

_TOO_LARGE = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"


def patience_ns() -> int:
    """What the environment says of patience, in nanoseconds. Raises HandleError.

    Barriers take microseconds; the default of ten seconds allows for other programs on the GPU. compute-sanitizer makes
    every access some hundred times slower, so that then the default is longer.
    """
    text = PATIENCE.get()
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e9:
        raise HandleError(f"{PATIENCE.name}={text}: expected a number of seconds, or 0 for no limit")
    if is_watched() and not PATIENCE.is_set:
        seconds *= _SLOWED
    return int(seconds * 1e9)


def compiled(spec: KernelSpec, arch: str) -> Kernel:
    """The kernel that `spec` describes, for an architecture such as "sm_90".

    Raises:
        CompileError: it cannot be compiled; SpillError: it spills.
    """
    from vpps.kernel.nvrtc import compile_cubin

    source = render_cuda(spec)
    cubin = compile_cubin(source, arch, spec.chip.registers)
    check_resources(cubin.resources)
    return Kernel(source, cubin.path, spec.chip.shared_bytes, cubin.resources)


class _ScriptBuffer:
    """One of the two places that scripts go through: page-locked memory of the host, and memory of the GPU."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pinned: PinnedMemory | None = None
        self._memory = NO_MEMORY
        self.copied = driver.event()

    @property
    def address(self) -> int:
        """Of the script on the GPU."""
        return self._memory.address

    def load(self, script: NDArray[np.uint32], stream: Any) -> None:
        """Begin to copy a script. The launch that used the one before must have ended."""
        driver, nbytes = self._driver, WORD_BYTES * len(script)
        if not driver.has_passed(self.copied):  # two launches ago: rarely, after an interrupted one
            driver.finish(stream)
        if self._pinned is None or self._memory.nbytes < nbytes:
            room = WORD_BYTES * max(_SMALLEST_BUFFER, len(script) + len(script) // 2)
            self._pinned, self._memory = None, NO_MEMORY
            memory = driver.allocate(room, "a script")
            self._pinned, self._memory = driver.pinned(room, "a script"), memory
        self._pinned.words[: len(script)] = script
        driver.run(
            driver.copying_in(self.address, self._pinned.address, nbytes, stream),
            driver.recording(self.copied, stream),
        )


class _RecordBuffer:
    """One of the two places that timelines come from: memory of the GPU."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memory = NO_MEMORY
        self.recording: StampedRecording | None = None  # of the launch that writes there
        self.asked = 0  # when the host began it

    def ready(self, recording: StampedRecording, stream: Any) -> int:
        """Have room for what a launch will record: its address. The launch that was here before must have ended."""
        driver, nbytes = self._driver, WORD_BYTES * recording.words
        if self._memory.nbytes < nbytes:
            self._memory = NO_MEMORY
            self._memory = driver.allocate(nbytes + nbytes // 2, "a timeline")
        self.recording = recording
        driver.run(driver.filling(self._memory.address, 0, recording.track_bytes // WORD_BYTES, stream))
        return self._memory.address

    def fetch(self, clock: SharedClock, seen: int, stream: Any) -> None:
        """Copy what the launch has left, and find out when that was.

        Args:
            seen: when the host saw that it had ended.
            stream: one that does not wait for the next launch.
        """
        recording = self.recording
        if recording is None:
            return
        words = self._copied(recording.track_bytes, stream)
        recording.fill(words)
        if recording.span is not None:
            recording.fill(self._copied(recording.used_bytes(words), stream))
            recording.align(clock.offset(*recording.span, self.asked, seen))
        self.recording = None

    def _copied(self, nbytes: int, stream: Any) -> NDArray[np.uint32]:
        """The beginning of it."""
        words = np.empty(nbytes // WORD_BYTES, np.uint32)
        copying = self._driver.copying_out(words.ctypes.data, self._memory.address, nbytes, stream)
        self._driver.finish(stream, copying)
        return words


class _State:
    """What the finalizer needs; holds no reference to the CudaMachine."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        with driver:
            self.compute, self.copy = driver.stream(), driver.stream()
            self.scripts: tuple[_ScriptBuffer, ...] = (_ScriptBuffer(driver), _ScriptBuffer(driver))
            self.events = driver.event(), driver.event()  # that a launch has ended, of even and of odd number
        self.kernel: LoadedKernel | None = None
        self.launches = 0  # begun
        self.ended = 0

    def shutdown(self) -> None:
        """Wait for the launches in flight, which clock limits end if nothing else, and give everything back. No call
        may fail: of a GPU that is lost nothing is left to free."""
        events = [*self.events, *(s.copied for s in self.scripts)]
        for call in self.driver.freeing(self.kernel, [self.compute, self.copy], events):
            call()


class CudaMachine(Machine):
    """Virtual processors on a GPU and the pool they work on; see `Machine` in vpps/runtime/machine.py.

    Args:
        vps: number of virtual processors; None for one on each multiprocessor.
        groups: the default of `vps` is a multiple of their number.
        device: number of the GPU, among those that CUDA_VISIBLE_DEVICES shows.
        patience: nanoseconds that a virtual processor waits for others before it ends the launch; 0 for no limit. None
            for what VPPS_PATIENCE says.
        timeline: whether kernels record what every virtual processor does when.
        build: makes the kernel for a spec and an architecture.

    Raises:
        HandleError: there is no GPU that can be used, `vps` is no number of virtual processors, or VPPS_PATIENCE is no
            number of seconds.
    """

    target = CUDA.name
    queues = True
    pool: DevicePool

    def __init__(
        self,
        vps: int | None = None,
        *,
        groups: int = 1,
        device: int = 0,
        patience: int | None = None,
        timeline: bool = False,
        build: Callable[[KernelSpec, str], Kernel] = compiled,
    ) -> None:
        patience = patience_ns() if patience is None else patience
        self._driver = Driver(device)
        gpu = self._driver.gpu
        default = gpu.sms // groups * groups
        count = as_index(default if vps is None else vps)
        if count is None or count < 1:
            raise HandleError(f"vps={vps!r}: expected a positive int; the {gpu.name} has {default} by default")
        self.vps = count
        self.arch = gpu.arch
        self.gpu = self._driver.uuid
        self._build = build
        self._staged: NDArray[np.uint32] | None = None  # what `stage` copies for the next launch
        self._timeline = timeline
        self._clock = SharedClock()
        self._state = _State(self._driver)
        self._recording = StampedRecording(count, 0)  # of the next launch
        buffers = _RecordBuffer(self._driver), _RecordBuffer(self._driver)
        self._recorded: tuple[_RecordBuffer, ...] = buffers  # of launches of even and of odd number
        self._finalizer = freed_with(self, self._state)
        with self._driver as driver:
            self._results = Results(driver, count, patience)
            self._counters = driver.allocate(_COUNTER_BYTES + _LINE_BYTES, "counters")  # then whether one was stopped
            self.pool = self._new_pool(0)
            self._clear(self._counters.nbytes)
        counters = [self._counters.address + k * COUNTERS * _LINE_BYTES for k in (0, 1)]
        self._parameters = [  # for launches of even and of odd number; one clears the counters of the other
            LaunchParameters(
                counters=counters[k],
                cleared=counters[k ^ 1],
                patience=patience,
                stopped=self._counters.address + _COUNTER_BYTES,
                losses=self._results.losses_address,
            )
            for k in (0, 1)
        ]
        self._parameter_lists = [(ctypes.c_void_p * 1)(ctypes.addressof(p)) for p in self._parameters]

    @classmethod
    def for_handle(cls, w: Wanted) -> CudaMachine:
        """The machine of this computer."""
        device = w.local_rank % usable_gpus() if w.local_rank else 0
        return cls(w.vps, groups=w.onchip.groups or 1, device=device, timeline=w.timeline)

    # ---- memory

    def _new_pool(self, floats: int) -> DevicePool:
        """A pool of zeros."""
        nbytes = WORD_BYTES * max(floats, FIRST_FREE)
        memory = self._driver.allocate(nbytes, f"a pool of {floats * WORD_BYTES / 2**20:.1f} MiB")
        stream = self._state.compute
        filling = self._driver.filling(memory.address, 0, nbytes // WORD_BYTES, stream)
        self._driver.finish(stream, filling)  # nothing is on its way to the former pool, which may go
        return DevicePool(self._driver, stream, memory, floats)

    def _clear(self, nbytes: int) -> None:
        """Counters, or the mark of a launch that was stopped as well."""
        self._driver.run(self._driver.filling(self._counters.address, 0, nbytes // WORD_BYTES, self._state.compute))

    @property
    def default_pool_limit(self) -> int:
        with self._driver as driver:
            return min(driver.memory()[1] // 2, WORD_BYTES * MAX_POOL_FLOATS)

    def reserve(self, floats: int, keep: int) -> None:
        """As `Machine.reserve`. Without memory the pool is as it was if anything had to be kept, else empty."""
        if floats <= len(self.pool):
            return
        with self._driver as driver:
            if not keep and len(self.pool):
                self.pool = self._new_pool(0)  # two large ones may not fit
            larger = self._new_pool(floats)
            if keep:
                stream = self._state.compute
                copying = driver.copying(larger.address, self.pool.address, WORD_BYTES * keep, stream)
                driver.finish(stream, copying)  # then the old one may go
            self.pool = larger

    @property
    def in_order(self) -> AbstractContextManager[None]:
        return self._in_order()

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        with self._driver as driver, driver.following(self._state.compute):
            yield
            driver.finish(self._state.compute)

    # ---- kernels

    @property
    def device(self) -> Device:
        return self._driver.gpu.device

    @property
    def driver(self) -> str:
        return self._driver.gpu.driver

    def _specialise(self, spec: KernelSpec) -> None:
        gpu, state = self._driver.gpu, self._state
        kernel = self._build(spec.of(self.vps).recording(self._timeline), gpu.arch)
        with self._driver as driver:
            loaded = driver.load(kernel.binary, kernel.shared_bytes)
            each = driver.blocks_per_sm(loaded, THREADS)
            if each * gpu.sms < self.vps:
                driver.unload(loaded)
                raise HandleError(self._too_many(each))
            former, state.kernel = state.kernel, loaded
            self.spec, self.resources, self.source = spec, kernel.resources, kernel.source
            if former is not None:
                driver.unload(former)

    def _too_many(self, each: int) -> str:
        gpu = self._driver.gpu
        if not each:
            return f"a block of this model's kernel needs more than a multiprocessor of the {gpu.name} has"
        fit = each * gpu.sms
        return (
            f"vps={self.vps}: the {gpu.name} runs {counted(fit, 'virtual processor')} of this model at the same time "
            f"({each} on each of {gpu.sms} multiprocessors), and all must run at once; use vps={fit} or less, or a "
            "larger slice of the GPU where it is partitioned (MIG) or shared (MPS)"
        )

    def record(self, capacity: int) -> StampedRecording:
        """As `Machine.record`, for no more records than fit into 256 MiB."""
        most = _MOST_RECORDED // (self.vps * STAMP.itemsize)
        self._recording = StampedRecording(self.vps, min(capacity, most))
        return self._recording

    # ---- launches

    @property
    def launches(self) -> int:
        return self._state.launches

    @property
    def is_open(self) -> bool:
        return self._finalizer.alive and not self._driver.lost and not is_ending()

    def stage(self, script: NDArray[np.uint32]) -> None:
        """Begin to copy the script of the next launch; may be called while a launch is running.

        `launch` does it by itself. The script must not change in between, and the launch before the one that may be
        running must have been waited for.
        """
        if self._staged is script:
            return
        state = self._state
        with self._driver:
            state.scripts[(state.launches + 1) & 1].load(script, state.copy)
        self._staged = script

    def _running(self, kernel: LoadedKernel, script: int, recording: int, number: int) -> Call:
        """A launch, with the counters that the one before has cleared.

        Args:
            script, recording: their addresses on the GPU; 0 for no recording.
        """
        k = number & 1
        p = self._parameters[k]
        p.pool, p.script, p.report = self.pool.address, script, self._results.report_address(number)
        p.recording, p.room = recording, self._recording.room
        parameters = ctypes.addressof(self._parameter_lists[k])
        return self._driver.launching(kernel, self.vps, THREADS, self._state.compute, parameters)

    def launch(self, script: NDArray[np.uint32]) -> None:
        """As `Machine.launch`; two at most may be in flight."""
        state = self._state
        if state.launches - state.ended > 1:
            raise HandleError("a launch was begun while two others are in flight; call wait first")
        if state.kernel is None:
            raise HandleError("a launch was begun without a kernel; call specialise first")
        number = state.launches + 1
        self.stage(script)
        self._staged = None
        buffer = state.scripts[number & 1]
        self._results.begin(number)
        with self._driver as driver:
            stream = state.compute
            recorded = self._recorded[number & 1]
            recording = recorded.ready(self._recording, stream) if self._timeline else 0
            running = self._running(state.kernel, buffer.address, recording, number)
            recorded.asked = time.perf_counter_ns()
            try:
                # In one go, so that Ctrl-C finds a launch that has not begun, or one that can be waited for.
                driver.run(
                    driver.awaiting(buffer.copied, stream),
                    running,
                    partial(setattr, state, "launches", number),
                    driver.recording(state.events[number & 1], stream),
                )
            except DriverError as error:
                if error.index <= 1:
                    state.launches = number - 1
                if error.name == _TOO_LARGE:
                    raise HandleError(
                        f"vps={self.vps}: the {self._driver.gpu.name} does not run that many virtual processors at "
                        "once for this process, which has a share of it only (MPS); use a smaller vps="
                    ) from error
                raise

    def wait(self, number: int | None = None) -> Failure | None:
        """As `Machine.wait`. Ctrl-C leaves the launch running, to be waited for again. If it was stopped, the launch
        behind it, which did nothing, is taken back: it never began.
        """
        state = self._state
        oldest = state.ended + 1
        if oldest > state.launches or (number is not None and number < oldest):
            return None
        with self._driver:
            self._await(oldest)
            if self._timeline:
                self._recorded[oldest & 1].fetch(self._clock, time.perf_counter_ns(), state.copy)
            failure = self._results.failure(oldest)
            if failure is not None:
                self._await(state.launches)
                self._clear(self._counters.nbytes)
                state.launches = oldest
        state.ended = oldest
        return failure

    def _await(self, number: int) -> None:
        """Let time pass until a launch has ended."""
        ended = self._state.events[number & 1]
        begun = time.perf_counter_ns()
        while not self._driver.has_passed(ended):
            waited = time.perf_counter_ns() - begun
            if waited > _SPIN_NS:  # the host notices the end by 3 % too late at most
                time.sleep(min(waited // 32, _LONGEST_SLEEP_NS) * 1e-9)

    def loss(self, slot: int) -> float:
        return float(self._results.losses[slot])

    def close(self) -> None:
        self._finalizer()
        self._state.ended = self._state.launches
        self._state.kernel = self.spec = self.resources = self._staged = None
        self._state.scripts = ()
        self.pool = DevicePool(self._driver, None, NO_MEMORY, 0)
        self._counters = NO_MEMORY
        self._recorded = ()
