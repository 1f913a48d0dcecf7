"""The cuda target: virtual processors are thread blocks of a GPU; one cooperative launch per script.

A launch is a few driver calls that return at once. The script is copied from page-locked memory to the GPU in a
separate stream. The kernel waits for the copy and writes its results to host memory (runtime/results.py). Between two
launches the stream contains only an event.

A launch can be queued behind a running one, so that the GPU does not idle while the host waits. So some resources exist
twice, for launches with even and odd numbers: the script, which is copied (`stage`) during the previous launch, the
counters, and the report. A stopped launch leaves a mark on the GPU; the next launch sees the mark and does nothing
(templates/cuda/sync.h).
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
from vpps.runtime.machine import MAX_POOL_FLOATS, Failure, Machine, MachineRequest, freed_with, is_ending
from vpps.runtime.results import LaunchParameters, Results
from vpps.runtime.stamps import STAMP, SharedClock, StampedRecording
from vpps.script.instructions import COUNTERS, HEADER_WORDS
from vpps.targets import CUDA
from vpps.text import counted
from vpps.values import as_index

THREADS = 256  # threads per block
_LINE_BYTES = 128  # size of a counter
_COUNTER_BYTES = 2 * COUNTERS * _LINE_BYTES

_SLOWED = 60  # multiplies the default patience if a tool slows kernels down

_SPIN_NS = 1_000_000  # launches of small batches are shorter, and a sleep takes at least 50 us
_LONGEST_SLEEP_NS = 5_000_000
_SMALLEST_BUFFER = 1 << 16  # words; enough for scripts of small batches
_MOST_RECORDED = 1 << 28  # bytes per launch; a launch that takes some seconds needs less

_TOO_LARGE = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"


def patience_ns() -> int:
    """Return the patience from the environment, in nanoseconds. Raises HandleError.

    Barriers take microseconds; the default of ten seconds allows for other programs on the GPU. The default is longer
    under compute-sanitizer, which makes every access some hundred times slower.
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
    """Compile the kernel for `spec` and an architecture such as "sm_90".

    Raises:
        CompileError: the compiler fails; SpillError: the kernel spills registers.
    """
    from vpps.kernel.nvrtc import compile_cubin

    source = render_cuda(spec)
    cubin = compile_cubin(source, arch, spec.chip.registers)
    check_resources(cubin.resources)
    return Kernel(source, cubin.path, spec.chip.shared_bytes, cubin.resources)


class _ScriptBuffer:
    """One of the two buffers for scripts: page-locked memory of the host, and memory of the GPU."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._pinned: PinnedMemory | None = None
        self._memory = NO_MEMORY
        self.copied = driver.event()

    @property
    def address(self) -> int:
        """Address of the script on the GPU."""
        return self._memory.address

    def load(self, script: NDArray[np.uint32], stream: Any) -> None:
        """Begin to copy a script. The launch that used the buffer's previous script must have ended."""
        driver, nbytes = self._driver, WORD_BYTES * len(script)
        if not driver.has_passed(self.copied):  # the previous copy is still running: rare, after an interrupted launch
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


class ResidentScript:
    """A script that stays on the GPU for many launches. In between, copies may change its words.

    Args:
        script: the words; the copy of them has finished when the constructor returns.
        stream: stream of the launches.

    Attributes:
        memory: the words on the GPU, followed by a copy of the entry points.
        words: number of words in the script.
    """

    def __init__(self, driver: Driver, script: NDArray[np.uint32], stream: Any) -> None:
        self.words, self._vps = len(script), int(script[1])
        source = np.concatenate([script, script[HEADER_WORDS : HEADER_WORDS + self._vps]])
        self.memory = driver.allocate(source.nbytes, "a script")
        driver.finish(stream, driver.copying_in(self.memory.address, source.ctypes.data, source.nbytes, stream))

    def entering(self, driver: Driver, entries: int, stream: Any) -> Call:
        """Make the next launch begin at other entry points.

        Args:
            entries: their position in the script, from `Plan.divisions`; 0 for the script's own.
        """
        start, nbytes = self.memory.address, WORD_BYTES * self._vps
        source = start + WORD_BYTES * (entries or self.words)
        return driver.copying(start + WORD_BYTES * HEADER_WORDS, source, nbytes, stream)


class _RecordBuffer:
    """One of the two buffers for timelines, in memory of the GPU."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memory = NO_MEMORY
        self.recording: StampedRecording | None = None  # recording of the launch that writes here
        self.asked = 0  # time when the host began the launch

    def ready(self, recording: StampedRecording, stream: Any) -> int:
        """Reserve memory for a launch's recording; return its address. The buffer's previous launch must have ended."""
        driver, nbytes = self._driver, WORD_BYTES * recording.words
        if self._memory.nbytes < nbytes:
            self._memory = NO_MEMORY
            self._memory = driver.allocate(nbytes + nbytes // 2, "a timeline")
        self.recording = recording
        driver.run(driver.filling(self._memory.address, 0, recording.track_bytes // WORD_BYTES, stream))
        return self._memory.address

    def fetch(self, clock: SharedClock, seen: int, stream: Any) -> None:
        """Copy the recording of the launch to the host, and align it with the host's clock.

        Args:
            seen: time when the host noticed the end of the launch.
            stream: a stream that does not wait for the next launch.
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
        """Copy the first bytes of the memory to the host."""
        words = np.empty(nbytes // WORD_BYTES, np.uint32)
        copying = self._driver.copying_out(words.ctypes.data, self._memory.address, nbytes, stream)
        self._driver.finish(stream, copying)
        return words


class _State:
    """State for the finalizer; holds no reference to the CudaMachine."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        with driver:
            self.compute, self.copy = driver.stream(), driver.stream()
            self.scripts: tuple[_ScriptBuffer, ...] = (_ScriptBuffer(driver), _ScriptBuffer(driver))
            self.events = driver.event(), driver.event()  # ends of launches with even and odd numbers
            self.lending = driver.event()  # orders the work of other streams on the pool
        self.kernel: LoadedKernel | None = None
        self.launches = 0  # number of launches begun
        self.ended = 0

    def shutdown(self) -> None:
        """Wait for the launches in flight (a clock limit ends them) and free everything. Ignores errors: a lost GPU has
        nothing left to free."""
        events = [*self.events, self.lending, *(s.copied for s in self.scripts)]
        for call in self.driver.freeing(self.kernel, [self.compute, self.copy], events):
            call()


class CudaMachine(Machine):
    """Virtual processors on a GPU and their pool; see `Machine` in vpps/runtime/machine.py.

    Args:
        vps: number of virtual processors; None for one on each multiprocessor.
        groups: number of groups; the default of `vps` is a multiple of it.
        device: number of the GPU, among those that CUDA_VISIBLE_DEVICES shows.
        patience: nanoseconds that a virtual processor waits for others before it ends the launch; 0 for no limit;
            default: environment variable VPPS_PATIENCE.
        timeline: True to record a timeline of every virtual processor.
        build: callback that compiles the kernel for a spec and an architecture.

    Raises:
        HandleError: there is no usable GPU, or `vps` or VPPS_PATIENCE is not a valid number.
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
        self._staged: NDArray[np.uint32] | None = None  # script that `stage` copies for the next launch
        self._resident: list[ResidentScript | None] = [None, None]  # those of launches with even and odd numbers
        self._timeline = timeline
        self._clock = SharedClock()
        self._state = _State(self._driver)
        self._recording = StampedRecording(count, 0)  # recording of the next launch
        buffers = _RecordBuffer(self._driver), _RecordBuffer(self._driver)
        self._recorded: tuple[_RecordBuffer, ...] = buffers  # for launches with even and odd numbers
        self._finalizer = freed_with(self, self._state)
        with self._driver as driver:
            self._results = Results(driver, count, patience)
            self._counters = driver.allocate(_COUNTER_BYTES + _LINE_BYTES, "counters")  # and the mark of a stop
            self.pool = self._new_pool(0)
            self._clear(self._counters.nbytes)
        counters = [self._counters.address + k * COUNTERS * _LINE_BYTES for k in (0, 1)]
        self._parameters = [  # for launches with even and odd numbers; each launch clears the other's counters
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
    def for_handle(cls, w: MachineRequest) -> CudaMachine:
        """Create the machine that a handle needs; the ranks on a computer divide its GPUs."""
        device = w.local_rank % usable_gpus() if w.local_rank else 0
        return cls(w.vps, groups=w.onchip.groups or 1, device=device, timeline=w.timeline)

    # ---- memory

    def _new_pool(self, floats: int) -> DevicePool:
        """Allocate a pool of zeros."""
        nbytes = WORD_BYTES * max(floats, FIRST_FREE)
        memory = self._driver.allocate(nbytes, f"a pool of {floats * WORD_BYTES / 2**20:.1f} MiB")
        stream = self._state.compute
        filling = self._driver.filling(memory.address, 0, nbytes // WORD_BYTES, stream)
        self._driver.finish(stream, filling)  # also waits for all work on the old pool, which may then be freed
        return DevicePool(self._driver, stream, memory, floats)

    def _clear(self, nbytes: int) -> None:
        """Clear the first bytes of the counters; the mark of a stopped launch follows them."""
        self._driver.run(self._driver.filling(self._counters.address, 0, nbytes // WORD_BYTES, self._state.compute))

    @property
    def default_pool_limit(self) -> int:
        with self._driver as driver:
            return min(driver.memory()[1] // 2, WORD_BYTES * MAX_POOL_FLOATS)

    def reserve(self, floats: int, keep: int) -> None:
        """Implement `Machine.reserve`. If memory runs out, the pool is unchanged if `keep` is positive, else empty."""
        if floats <= len(self.pool):
            return
        with self._driver as driver:
            if not keep and len(self.pool):
                self.pool = self._new_pool(0)  # two large pools may not fit
            larger = self._new_pool(floats)
            if keep:
                stream = self._state.compute
                copying = driver.copying(larger.address, self.pool.address, WORD_BYTES * keep, stream)
                driver.finish(stream, copying)  # from here on, the old pool may be freed
            self.pool = larger

    @property
    def in_order(self) -> AbstractContextManager[None]:
        return self._in_order()

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        with self._driver as driver, driver.following(self._state.compute):
            yield
            driver.finish(self._state.compute)

    @contextmanager
    def lent(self, stream: Any) -> Iterator[Driver]:
        """Order the work that a block gives to another stream: after all launches so far, and before all later ones.

        The host does not wait.
        """
        ours, event = self._state.compute, self._state.lending
        with self._driver as driver:
            driver.run(driver.recording(event, ours), driver.awaiting(event, stream))
            try:
                yield driver
            finally:
                driver.run(driver.recording(event, stream), driver.awaiting(event, ours))

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
        """Implement `Machine.record`, with at most 256 MiB of records."""
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

        `launch` calls this method if needed. The script must not change before that. The host must have waited for all
        launches except the latest.
        """
        if self._staged is script:
            return
        state = self._state
        with self._driver:
            state.scripts[(state.launches + 1) & 1].load(script, state.copy)
        self._staged = script

    def _running(self, kernel: LoadedKernel, script: int, recording: int, number: int) -> Call:
        """Return the driver call of a launch, using the counters that the previous launch cleared.

        Args:
            script, recording: addresses on the GPU; `recording` is 0 if there is none.
        """
        k = number & 1
        p = self._parameters[k]
        p.pool, p.script, p.report = self.pool.address, script, self._results.report_address(number)
        p.recording, p.room = recording, self._recording.room
        parameters = ctypes.addressof(self._parameter_lists[k])
        return self._driver.launching(kernel, self.vps, THREADS, self._state.compute, parameters)

    def launch(self, script: NDArray[np.uint32]) -> None:
        """Implement `Machine.launch`; at most two launches may be in flight."""
        self._check_free()
        state = self._state
        self.stage(script)
        self._staged = None
        buffer = state.scripts[(state.launches + 1) & 1]
        self._begin(buffer.address, self._driver.awaiting(buffer.copied, state.compute))

    def keep_script(self, script: NDArray[np.uint32]) -> ResidentScript:
        """Copy a script to the GPU, for any number of launches."""
        with self._driver as driver:
            return ResidentScript(driver, script, self._state.compute)

    def launch_resident(self, script: ResidentScript, entries: int = 0) -> None:
        """Begin to execute a script that is on the GPU, like `launch`.

        Args:
            entries: position of other entry points in the script; 0 for its own.
        """
        self._check_free()
        state = self._state
        self._resident[(state.launches + 1) & 1] = script  # the memory must not be freed before the launch has ended
        self._begin(script.memory.address, script.entering(self._driver, entries, state.compute))

    def _check_free(self) -> None:
        """Raise HandleError unless a launch can begin."""
        state = self._state
        if state.launches - state.ended > 1:
            raise HandleError("a launch was begun while two others are in flight; call wait first")
        if state.kernel is None:
            raise HandleError("a launch was begun without a kernel; call specialise first")

    def _begin(self, script: int, before: Call) -> None:
        """Begin the next launch.

        Args:
            script: address of the script on the GPU.
            before: driver call that comes first.
        """
        state = self._state
        number, kernel = state.launches + 1, state.kernel
        assert kernel is not None
        self._results.begin(number)
        with self._driver as driver:
            stream = state.compute
            recorded = self._recorded[number & 1]
            recording = recorded.ready(self._recording, stream) if self._timeline else 0
            running = self._running(kernel, script, recording, number)
            recorded.asked = time.perf_counter_ns()
            try:
                # A single `run`: after Ctrl-C, the launch has either not begun, or it can be waited for.
                driver.run(
                    before,
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
        """Implement `Machine.wait`. After Ctrl-C, the launch keeps running and can be waited for again. If it was
        stopped, the launch queued behind it did nothing and is treated as never begun.
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
        """Wait until a launch has ended."""
        ended = self._state.events[number & 1]
        begun = time.perf_counter_ns()
        while not self._driver.has_passed(ended):
            waited = time.perf_counter_ns() - begun
            if waited > _SPIN_NS:  # the host notices the end at most 3 % too late
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
        self._resident = [None, None]
