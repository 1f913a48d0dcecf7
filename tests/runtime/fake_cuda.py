"""A simulated GPU: the parts of `cuda.bindings` and `cupy` that vpps calls, with streams that lag behind.

Queued operations run only when the host waits or queries: each event query lets every stream run one more operation,
the last stream first. Copies read their source when they run, so that premature reuse of memory shows.

The emulator of the simt target runs kernels; its findings are kept. With `install_with_kernels`, kernels are compiled
for the emulator instead of with NVRTC, and whole handles work. In a forked child, every call fails, as in CUDA.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vpps.kernel import nvrtc
from vpps.kernel.resources import Resources
from vpps.kernel.simt_compiler import build_simt
from vpps.placement.distribution import FIRST_FREE
from vpps.runtime import cuda, driver
from vpps.runtime.emulator import Emulator, Finding
from vpps.runtime.results import LaunchParameters
from vpps.script.instructions import HEADER_WORDS

VERSION = 13000
RELEASE = "580.65.06"  # driver release
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "CLOCK_RATE": 1_000_000, "COOPERATIVE_LAUNCH": 1,
    "MULTIPROCESSOR_COUNT": 4, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * 1024, "L2_CACHE_SIZE": 50 << 20,
    "CLUSTER_LAUNCH": 0,
}  # fmt: skip


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_ECC_UNCORRECTABLE = 214
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720
    CUDA_ERROR_UNKNOWN = 999


OK = CUresult.CUDA_SUCCESS
COUNTER_WORDS = 32 * cuda.COUNTERS  # per launch
Operation = Callable[[], bool]  # False: not yet


def _words(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))


class Memory:
    """Memory from CuPy's allocators."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = (ctypes.c_uint8 * (nbytes + 512))()
        self.nbytes = nbytes
        self.mem = self
        self.ptr = ctypes.addressof(self._bytes) + -ctypes.addressof(self._bytes) % 512

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Return an array that keeps the memory alive."""
        begin = self.ptr - ctypes.addressof(self._bytes)
        return np.ctypeslib.as_array(self._bytes)[begin : begin + self.nbytes]


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class DeviceArray(np.ndarray[Any, Any]):
    """A CuPy array: its address, and NumPy's functions on it, whose results are on the same device."""

    def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
        return 2, 0  # kDLCUDA

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        found = super().__array_function__(function, types, arguments, options)
        return found.view(DeviceArray) if type(found) is np.ndarray else found

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


class Stream:
    """The stream of CuPy's calls; it runs them at once."""

    def __init__(self, gpu: FakeCuda, ptr: int | None) -> None:
        self._gpu, self.ptr = gpu, ptr

    @property
    def done(self) -> bool:
        if self.ptr is not None and self._gpu.streams[self.ptr]:
            self._gpu.step()
        return self.ptr is None or not self._gpu.streams[self.ptr]

    def synchronize(self) -> None:
        while not self.done:
            continue

    def __enter__(self) -> None:
        self._before, self._gpu.current = self._gpu.current, self.ptr

    def __exit__(self, *what: object) -> None:
        self._gpu.current = self._before


class OutOfMemoryError(MemoryError):
    pass


class CUDARuntimeError(RuntimeError):
    pass


class FakeCuda:
    """The module `cuda.bindings.driver`, with one GPU or none.

    Attributes:
        calls: names and arguments of the calls so far.
        failing: status to return, by name of the call.
        blocks_per_sm: answer of the occupancy query.
        free: bytes that can still be allocated.
        findings: the emulator's findings in real kernels.
        management: status of the driver's management library; 0 if it works.
        uuid: UUID of the GPU.
        current: the stream of CuPy's calls; None for CuPy's own stream.
    """

    CUresult = CUresult
    CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{name}": name for name in ATTRIBUTES})
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, CUresult] = {}
        self.attributes = dict(ATTRIBUTES)
        self.devices = 1
        self.blocks_per_sm = 1
        self.free = 2**30
        self.streams: list[deque[Operation]] = []
        self.events: dict[int, int] = {}  # number -> recordings that have not yet run
        self.recorded: dict[int, int] = {}  # number -> recordings
        self.broken: CUresult | None = None  # error of a kernel, which every later call returns
        self.depth = 0  # contexts pushed
        self.pid = os.getpid()
        self.memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self.findings: list[Finding] = []
        self.management = 0
        self.uuid = b"imaginary GPU 01"
        self.current: int | None = None
        self._time = threading.RLock()  # serializes the threads

    def _done(self, name: str, *about: Any) -> tuple[CUresult]:
        self.calls.append((name, *about))
        if os.getpid() != self.pid:
            return (CUresult.CUDA_ERROR_NOT_INITIALIZED,)
        return (self.broken or self.failing.get(name, OK),)

    def names(self) -> list[str]:
        """Return the names of the calls so far."""
        return [name for name, *_ in self.calls]

    # ---- simulated time

    def step(self) -> bool:
        """Let every stream run one more operation, if it can. Returns True if any did."""
        moved = False
        with self._time, undisturbed():
            for stream in reversed(self.streams):
                if stream and not self.broken and stream[0]():
                    stream.popleft()
                    moved = True
        return moved

    def _pass(self, event: int) -> bool:
        self.events[event] -= 1
        return True

    # ---- calls

    def cuInit(self, flags: int) -> tuple[CUresult]:
        return self._done("init")

    def cuDeviceGetCount(self) -> tuple[CUresult, int]:
        return OK, self.devices

    def cuDeviceGetName(self, length: int, device: int) -> tuple[CUresult, bytes]:
        return OK, b"Imaginary 1".ljust(length, b"\0")

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[CUresult, int]:
        return OK, self.attributes[attribute]

    def cuDeviceGetUuid(self, device: int) -> tuple[CUresult, Any]:
        return OK, SimpleNamespace(bytes=self.uuid)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, str]:
        return OK, "context"

    def cuCtxPushCurrent(self, context: str) -> tuple[CUresult]:
        assert context == "context"
        self.depth += 1
        return (OK,)

    def cuCtxPopCurrent(self) -> tuple[CUresult, str]:
        self.depth -= 1
        assert self.depth >= 0
        return OK, "context"

    def cuGetErrorName(self, status: CUresult) -> tuple[CUresult, bytes]:
        return OK, status.name.encode()

    def cuGetErrorString(self, status: CUresult) -> tuple[CUresult, bytes]:
        return OK, b"in words"

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[CUresult, int]:
        return OK, address

    def cuMemGetInfo(self) -> tuple[CUresult, int, int]:
        return OK, self.free, 2**31

    def cuStreamCreate(self, flags: int) -> tuple[CUresult, int]:
        self.streams.append(deque())
        return OK, len(self.streams) - 1

    def cuEventCreate(self, flags: int) -> tuple[CUresult, int]:
        self.events[len(self.events)] = 0
        return OK, len(self.events) - 1

    def _put(self, stream: int, operation: Operation) -> None:
        assert self.depth, "a call without a current context"
        self.streams[stream].append(operation)

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> tuple[CUresult]:
        self._put(stream, lambda: bool(ctypes.memmove(target, source, nbytes)))
        return self._done("copy in", target, source, nbytes, stream)

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: int) -> tuple[CUresult]:
        self._put(stream, lambda: bool(ctypes.memmove(target, source, nbytes)))
        return self._done("copy out", target, source, nbytes, stream)

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> tuple[CUresult]:
        self._put(stream, lambda: bool(ctypes.memmove(target, source, nbytes)))
        return self._done("copy", target, source, nbytes, stream)

    def cuMemsetD32Async(self, target: int, word: int, count: int, stream: int) -> tuple[CUresult]:
        def fill() -> bool:
            _words(target, count)[:] = word
            return True

        self._put(stream, fill)
        return self._done("fill", target, word, count, stream)

    def cuEventRecord(self, event: int, stream: int) -> tuple[CUresult]:
        self.events[event] += 1
        self.recorded[event] = self.recorded.get(event, 0) + 1
        self._put(stream, lambda: self._pass(event))
        return self._done("record", event, stream)

    def cuEventElapsedTime(self, begun: int, ended: int) -> tuple[CUresult, float]:
        return (OK, 1.0) if not self.events[begun] and not self.events[ended] else (CUresult.CUDA_ERROR_NOT_READY, 0.0)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[CUresult]:
        awaited = self.recorded.get(event, 0)  # later recordings do not count
        self._put(stream, lambda: self.recorded.get(event, 0) - self.events[event] >= awaited)
        return self._done("wait event", stream, event)

    def cuEventQuery(self, event: int) -> tuple[CUresult]:
        if os.getpid() != self.pid:
            return (CUresult.CUDA_ERROR_NOT_INITIALIZED,)
        if not self.events[event]:
            return (self.broken or OK,)
        self.step()
        return (self.broken or CUresult.CUDA_ERROR_NOT_READY,)

    def cuStreamSynchronize(self, stream: int) -> tuple[CUresult]:
        while self.streams[stream] and not self.broken and os.getpid() == self.pid:
            assert self.step() or not self.streams[stream], "the streams wait for each other"
        return self._done("synchronise", stream)

    def cuEventDestroy(self, event: int) -> tuple[CUresult]:
        return self._done("destroy event", event)

    def cuStreamDestroy(self, stream: int) -> tuple[CUresult]:
        return self._done("destroy stream", stream)

    def cuModuleLoad(self, path: bytes) -> tuple[CUresult, str]:
        return *self._done("load"), path.decode()

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[CUresult, str]:
        assert name == b"vpps_kernel"
        return OK, module

    def cuModuleUnload(self, module: str) -> tuple[CUresult]:
        return self._done("unload")

    def cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> tuple[CUresult]:
        return self._done("set", attribute, value)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, f: str, threads: int, shared: int) -> tuple[CUresult, int]:
        return OK, self.blocks_per_sm

    def cuLaunchCooperativeKernel(
        self, f: str, x: int, y: int, z: int, bx: int, by: int, bz: int, shared: int, stream: int, parameters: int
    ) -> tuple[CUresult]:
        assert (y, z, bx, by, bz) == (1, 1, cuda.THREADS, 1, 1)
        result = self._done("launch", shared, stream)
        if result[0] == OK:
            pointer = ctypes.c_void_p.from_address(parameters).value
            assert pointer is not None
            copied = LaunchParameters.from_buffer_copy(ctypes.string_at(pointer, ctypes.sizeof(LaunchParameters)))
            kernel = Emulator(Path(f))
            self._put(stream, lambda: self.emulate(kernel, copied, x, shared))
        return result

    # ---- the kernel

    def _from(self, address: int) -> np.ndarray[Any, Any]:
        """Return the words from an address to the end of its memory."""
        (memory,) = (m for m in self.memories if m.ptr <= address < m.ptr + m.nbytes)
        return _words(address, (memory.ptr + memory.nbytes - address) // 4)

    def emulate(self, kernel: Emulator, p: Any, blocks: int, shared: int) -> bool:
        """Run one launch. The pool extends to the end of its memory."""
        self.findings += kernel.run(
            self._from(p.pool).view(np.float32),
            _words(p.script, int(_words(p.script, HEADER_WORDS)[3])),
            _words(p.counters, COUNTER_WORDS),
            _words(p.cleared, COUNTER_WORDS),
            _words(p.report, 2 + blocks),
            p.patience,
            blocks=blocks,
            shared_bytes=shared,
            stopped=_words(p.stopped, 1),
            losses=_words(p.losses, FIRST_FREE).view(np.float32),
            recording=self._from(p.recording) if p.recording else None,
            room=p.room,
        )
        return True


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold signal handlers back: a call of the real driver is not interruptible Python."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda | None = None) -> FakeCuda:
    """Give this process a simulated GPU for the lifetime of the fixture."""
    fake = FakeCuda() if fake is None else fake
    real_library, run = ctypes.CDLL, driver.Driver.run

    class Library:
        def cuDriverGetVersion(self, version: Any) -> int:
            version._obj.value = VERSION
            return 0

        def nvmlInit_v2(self) -> int:
            return fake.management

        def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
            text.value = RELEASE.encode()
            return 0

        def nvmlShutdown(self) -> int:
            return 0

    def library(name: str, *args: Any, **options: Any) -> Any:
        if name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            return Library()
        return real_library(name, *args, **options)

    def run_undisturbed(self: driver.Driver, *calls: driver.Call) -> None:
        with undisturbed():
            run(self, *calls)

    def alloc(nbytes: int) -> Memory:
        if nbytes > fake.free:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        fake.calls.append(("allocate", nbytes))
        memory = Memory(nbytes)
        memory.array[:] = 0xCD  # memory is never cleared
        fake.memories.add(memory)
        return memory

    def plain(nbytes: int) -> Memory:
        fake.calls.append(("allocate for itself", nbytes))
        return alloc(nbytes)

    def array(shape: tuple[int, ...], dtype: Any, pointer: MemoryPointer) -> DeviceArray:
        flat = pointer.mem.array[pointer.ptr - pointer.mem.ptr :].view(dtype)[: int(np.prod(shape))]
        return flat.reshape(shape).view(DeviceArray)

    cupy = ModuleType("cupy")
    cupy.__dict__["cuda"] = SimpleNamespace(
        alloc=alloc,
        alloc_pinned_memory=lambda nbytes: _pinned(alloc(nbytes)),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError),
        get_current_stream=lambda: Stream(fake, fake.current),
        ExternalStream=lambda ptr: Stream(fake, ptr),
        Memory=plain,
        MemoryPointer=MemoryPointer,
        Stream=lambda non_blocking: nullcontext(SimpleNamespace(synchronize=lambda: None)),
        Event=lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
        get_elapsed_time=lambda begin, end: 1.0,
    )
    cupy.__dict__.update(
        ndarray=array,
        asarray=lambda value: np.array(value, copy=True).view(DeviceArray),
        arange=lambda n: np.arange(n).view(DeviceArray),
        from_dlpack=lambda value: value,
        asnumpy=lambda value, out=None: np.positive(
            value, out=np.empty(value.shape, value.dtype) if out is None else out
        ),
    )
    bindings = ModuleType("cuda.bindings")
    bindings.__dict__.update(__version__="13.0.0", driver=fake)
    packages = {"cupy": cupy, "cuda": ModuleType("cuda"), "cuda.bindings": bindings, "cuda.bindings.driver": fake}
    for name, module in packages.items():
        module.__spec__ = ModuleSpec(name, None)  # type: ignore[union-attr]
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    monkeypatch.setattr(driver, "find_spec", lambda name: packages.get(name))
    monkeypatch.setattr(driver.Driver, "run", run_undisturbed)
    monkeypatch.setattr(ctypes, "CDLL", library)
    driver.release.cache_clear()
    return fake


def install_with_kernels(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda | None = None) -> FakeCuda:
    """Install a simulated GPU with kernels that are compiled for the emulator instead of with NVRTC."""

    def compile_cubin(source: str, arch: str, cached_registers: int = 0) -> nvrtc.Cubin:
        assert arch == "sm_90"
        resources = Resources(128, 0, 0, 0, 0, 10_000, cached_registers, 1.0, "NVRTC 13.0")
        return nvrtc.Cubin(build_simt(source, races=True), Path(), resources, ())

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "library_version", lambda: "13.0")
    return install(monkeypatch, fake)


class _Pinned(np.ndarray[Any, Any]):
    """Page-locked memory: a buffer with an address."""

    memory: Memory
    ptr: int


def _pinned(memory: Memory) -> _Pinned:
    found = memory.array.view(_Pinned)
    found.memory, found.ptr = memory, memory.ptr
    return found
