"""Interface to the CUDA driver, and checks that the cuda target can use it.

Calls go through cuda-python and cost 0.3 us each. Memory comes from CuPy's allocators, so that vpps and a program that
uses CuPy share one memory pool. Both packages are imported when a `Driver` is created.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vpps.config import PLAIN_ALLOCATIONS
from vpps.errors import CapacityError, CompileError, HandleError, KernelError
from vpps.kernel.nvrtc import KERNEL
from vpps.ops.element import FLOAT32, WORD_BYTES
from vpps.placement.onchip import Device

# A driver call with bound arguments. It returns cuda-python's result: a tuple that begins with the status.
Call = Callable[[], Any]

_LIBRARY = "libcuda.so.1"  # comes with the driver, not with the toolkit
_MANAGEMENT = "libnvidia-ml.so.1"  # comes with the driver, too
_OLDEST = (7, 0)  # blocks that wait for each other need the forward progress of Volta (CUDA programming guide, 7.6)
_OLDEST_OF_MAJOR = {13: (7, 5)}  # oldest capability that the NVRTC of a CUDA major version compiles for

_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_STREAM_NON_BLOCKING = 1  # ordered only by events, not by work of others in the legacy default stream
_EVENT_DISABLE_TIMING = 2

# After one of these errors, every further call by the process fails in the same way (CUDA driver API, CUresult).
_LOST = frozenset(
    "CUDA_ERROR_" + name
    for name in (
        "ILLEGAL_ADDRESS LAUNCH_FAILED LAUNCH_TIMEOUT MISALIGNED_ADDRESS ILLEGAL_INSTRUCTION INVALID_ADDRESS_SPACE "
        "INVALID_PC HARDWARE_STACK_ERROR ASSERT ECC_UNCORRECTABLE NVLINK_UNCORRECTABLE CONTAINED TENSOR_MEMORY_LEAK "
        "CONTEXT_IS_DESTROYED EXTERNAL_DEVICE UNKNOWN"
    ).split()
)
_DEFECT = "it is a defect of vpps, please report it; VPPS_VERIFY=1 checks every script before it runs"
_ADVICE = {
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory failed: nvidia-smi -q -d ECC says how often",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the GPU drives a display, which limits launches to seconds: use smaller batches",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "another library of this process has reset the GPU",
    "CUDA_ERROR_UNKNOWN": "the system log (dmesg) may know more",
}


class DriverError(KernelError):
    """The driver refused a call, or reports the failure of an earlier launch.

    Attributes:
        name: CUDA's name of the error, such as "CUDA_ERROR_ILLEGAL_ADDRESS".
        lost: True if this process can no longer use the GPU.
        index: index of the failed call among the calls that were run together.
    """

    def __init__(self, name: str, text: str, index: int = 0) -> None:
        self.name = name
        self.lost = name in _LOST
        self.index = index
        message = f"CUDA reports {name} ({text}): {_ADVICE.get(name, _DEFECT)}"
        if self.lost:
            message += (
                ". This process can no longer use the GPU, and all training since weights were last copied back is "
                "lost: restart the program and continue from the last checkpoint"
            )
        super().__init__(message)


def _how_to_install(version: int) -> str:
    return f"pip install 'vpps[cuda{13 if version >= 13000 else 12}]'"


def _driver_version() -> int:
    """Return the driver's CUDA version, 1000 * major + 10 * minor. Raises HandleError if there is no driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise HandleError(
            f"target='cuda': this machine has no NVIDIA driver ({_LIBRARY} is not found); install one, in a container "
            "start it with --gpus all, or use target='cpu'"
        ) from None
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    return version.value


@lru_cache(maxsize=1)
def release() -> str:
    """Return the driver's own version, such as "580.65.06", from its management library; "" if it is not available."""
    text = ctypes.create_string_buffer(80)
    try:
        library = ctypes.CDLL(_MANAGEMENT)
        if library.nvmlInit_v2():
            return ""
        try:
            library.nvmlSystemGetDriverVersion(text, len(text))
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError):  # containers may lack it
        return ""
    return text.value.decode()


def _check_packages(version: int) -> None:
    """Raise HandleError if the packages that call the driver are missing, or too new for it."""
    for package in ("cuda", "cuda.bindings", "cupy"):  # cuda is the parent package of cuda.bindings
        if find_spec(package) is None:
            raise HandleError(f"target='cuda' needs the package {package}: {_how_to_install(version)}")
    try:
        from cuda.bindings import __version__ as installed
    except ImportError as error:
        raise HandleError(
            f"target='cuda': the package cuda.bindings is damaged ({error}): {_how_to_install(version)} again"
        ) from error
    needed = int(installed.partition(".")[0])
    if version < 1000 * needed:
        raise HandleError(
            f"target='cuda': the driver is made for CUDA {version // 1000}.{version % 1000 // 10} and the installed "
            f"packages for CUDA {needed}: update the driver, or {_how_to_install(version)}"
        )


class Properties(NamedTuple):
    """Properties of a GPU.

    Attributes:
        name: the vendor's name for the GPU.
        arch: architecture for the compiler, such as "sm_90".
        sms: number of multiprocessors that this process may use: those of its slice if the GPU is partitioned (MIG).
        shared_bytes: largest shared memory per block.
        cuda: CUDA version of the driver, 1000 * major + 10 * minor.
        l2_bytes: size of the second-level cache.
    """

    name: str
    arch: str
    sms: int
    shared_bytes: int
    cuda: int
    l2_bytes: int

    @property
    def driver(self) -> str:
        """Versions of the driver, such as "580.65.06, CUDA 13.0"."""
        cuda = f"CUDA {self.cuda // 1000}.{self.cuda % 1000 // 10}"
        return f"{release()}, {cuda}" if release() else cuda

    @property
    def device(self) -> Device:
        """Description of the GPU for weight placement."""
        return Device(self.name, int(self.arch[3:]), self.sms, self.shared_bytes, self.l2_bytes)


def usable_gpus() -> int:
    """Return the number of GPUs that this process sees. Raises HandleError, with a remedy, if there is none."""
    _check_packages(_driver_version())
    from cuda.bindings import driver as api

    (status,) = api.cuInit(0)
    if status == api.CUresult.CUDA_ERROR_NOT_INITIALIZED:
        raise HandleError(
            "target='cuda': this process was forked from one that uses the GPU, and CUDA does not work in such a "
            "process: start it with multiprocessing's method 'spawn'"
        )
    if status not in (api.CUresult.CUDA_SUCCESS, api.CUresult.CUDA_ERROR_NO_DEVICE):
        raise HandleError(f"target='cuda': the NVIDIA driver does not start ({status.name}); does nvidia-smi run?")
    count = 0 if status == api.CUresult.CUDA_ERROR_NO_DEVICE else api.cuDeviceGetCount()[1]
    if not count:
        raise HandleError(
            "target='cuda': the driver sees no GPU; does nvidia-smi list one, and does CUDA_VISIBLE_DEVICES allow it?"
        )
    return int(count)


def usable_gpu(device: int = 0) -> Properties:
    """Return the GPU with that number. Raises HandleError, with a remedy, if the cuda target cannot use it."""
    count, version = usable_gpus(), _driver_version()
    from cuda.bindings import __version__ as installed
    from cuda.bindings import driver as api

    if not 0 <= device < count:
        raise HandleError(f"device={device}: expected 0 to {count - 1}, as this process sees {count} GPU(s)")

    def attribute(name: str) -> int:
        return int(api.cuDeviceGetAttribute(getattr(api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)[1])

    name = api.cuDeviceGetName(128, device)[1].split(b"\0")[0].decode()
    capability = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    if capability < _OLDEST:
        raise HandleError(
            f"target='cuda' needs compute capability 7.0 (Volta, 2017) or newer, and the {name} has "
            f"{capability[0]}.{capability[1]}; use target='cpu'"
        )
    major = int(installed.partition(".")[0])
    if capability < _OLDEST_OF_MAJOR.get(major, _OLDEST):
        raise HandleError(
            f"target='cuda': CUDA {major} no longer compiles for the {name} (compute capability "
            f"{capability[0]}.{capability[1]}): pip install 'vpps[cuda12]'"
        )
    if not attribute("COOPERATIVE_LAUNCH"):
        raise HandleError(
            f"target='cuda': the {name} does not support cooperative launches here, which run all blocks at once; the "
            f"reason may be an old driver for Windows (WDDM): its CUDA version is {version // 1000}"
        )
    return Properties(
        name,
        f"sm_{capability[0]}{capability[1]}",
        attribute("MULTIPROCESSOR_COUNT"),
        attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        version,
        attribute("L2_CACHE_SIZE"),
    )


def why_cuda_is_unusable() -> str | None:
    """Return the reason why the cuda target cannot run here; None if it can. Imports nothing without a driver."""
    try:
        usable_gpu()
    except HandleError as error:
        return str(error)
    return None


def present_gpu() -> Device | None:
    """Return the GPU of this machine that handles use by default; None if there is no usable GPU."""
    return None if why_cuda_is_unusable() else usable_gpu().device


_CONTEXTS: dict[int, Any] = {}  # contexts of this process, by the number of the GPU


class DeviceMemory(NamedTuple):
    """Memory of the GPU; returned to CuPy's allocator when the last reference is dropped."""

    address: int
    nbytes: int
    owner: Any


NO_MEMORY = DeviceMemory(0, 0, None)


class PinnedMemory(NamedTuple):
    """Page-locked memory of the host, which the GPU copies without help from the processor; returned to CuPy's
    allocator when the last reference is dropped."""

    address: int
    words: NDArray[np.uint32]
    owner: Any


class LoadedKernel(NamedTuple):
    """A kernel on the GPU, and the dynamic shared memory of each of its blocks, in bytes."""

    module: Any
    function: Any
    shared_bytes: int


class Driver:
    """One GPU: its memory, streams and events. Calls must be made inside `with driver:`, which makes its context
    current.

    Methods whose names contain an -ing form (`copying_in`, `launching`) return calls for `run`.

    Attributes:
        gpu: properties of the GPU.
        lost: True if this process can no longer use the GPU.
        uuid: identity of the GPU, 16 bytes.
    """

    def __init__(self, device: int = 0) -> None:
        self.gpu = usable_gpu(device)
        import cupy
        from cuda.bindings import driver as api

        self._cupy = cupy
        self._api = api
        self.lost = False
        self.uuid = bytes(self._value(api.cuDeviceGetUuid(device)).bytes)
        # The primary context, shared with CuPy and PyTorch. It is never released: if this were its last owner, CuPy's
        # memory would be freed with it.
        if device not in _CONTEXTS:
            _CONTEXTS[device] = self._value(api.cuDevicePrimaryCtxRetain(device))
        self._context = _CONTEXTS[device]

    def __enter__(self) -> Self:
        self._api.cuCtxPushCurrent(self._context)
        return self

    def __exit__(self, *_: object) -> None:
        self._api.cuCtxPopCurrent()

    def _error(self, status: Any, index: int = 0) -> DriverError:
        name = self._api.cuGetErrorName(status)[1]
        text = self._api.cuGetErrorString(status)[1]
        error = DriverError((name or str(status).encode()).decode(), (text or b"unknown").decode(), index)
        self.lost |= error.lost
        return error

    def _value(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise self._error(result[0])
        return result[1] if len(result) > 1 else None

    def run(self, *calls: Call) -> None:
        """Run calls one after the other.

        Python executes no instruction in between, so a signal handler (Ctrl-C) runs either before or after all of them.
        Calls that are not driver calls return None. Raises DriverError for the first call that fails.
        """
        results = list(map(operator.call, calls))
        for index, result in enumerate(results):
            if result is not None and int(result[0]):
                raise self._error(result[0], index)

    def finish(self, stream: Any, *calls: Call) -> None:
        """Run calls, then wait until the stream has executed them."""
        self.run(*calls, partial(self._api.cuStreamSynchronize, stream))

    # ---- memory

    def memory(self) -> tuple[int, int]:
        """Return the GPU's free and total memory in bytes. CuPy's reserve does not count as free."""
        result = self._api.cuMemGetInfo()
        self._value(result)
        return int(result[1]), int(result[2])

    def _allocated(self, allocate: Callable[[int], Any], nbytes: int, where: str, purpose: str) -> Any:
        try:
            return allocate(nbytes)
        except (self._cupy.cuda.memory.OutOfMemoryError, self._cupy.cuda.runtime.CUDARuntimeError) as error:
            if "out of memory" not in str(error).lower():
                self.lost = True
                raise DriverError("CUDA_ERROR_UNKNOWN", str(error)) from error
            free, total = self.memory()
            raise CapacityError(
                f"{where} has no {nbytes / 2**20:.1f} MiB left for {purpose}; the {self.gpu.name} has "
                f"{free / 2**20:.0f} of {total / 2**20:.0f} MiB free. Use smaller batches, close other programs on the "
                "GPU (nvidia-smi lists them), or give back what CuPy and PyTorch keep in reserve "
                "(cupy.get_default_memory_pool().free_all_blocks(), torch.cuda.empty_cache())"
            ) from error

    def allocate(self, nbytes: int, purpose: str) -> DeviceMemory:
        """Allocate GPU memory without clearing it. Raises CapacityError."""
        allocate = self._plain if PLAIN_ALLOCATIONS.get() == "1" else self._cupy.cuda.alloc
        owner = self._allocated(allocate, nbytes, "the GPU", purpose)
        # CuPy's pool is ordered by its stream: memory that it hands out may still be in use by work on that stream.
        self._cupy.cuda.get_current_stream().synchronize()
        return DeviceMemory(int(owner.ptr), nbytes, owner)

    def _plain(self, nbytes: int) -> Any:
        """Allocate like CuPy's `alloc`, but not from its pool."""
        cuda = self._cupy.cuda
        return cuda.MemoryPointer(cuda.Memory(nbytes), 0)

    def pinned(self, nbytes: int, purpose: str) -> PinnedMemory:
        """Allocate page-locked host memory. Raises CapacityError."""
        owner = self._allocated(self._cupy.cuda.alloc_pinned_memory, nbytes, "the system", purpose)
        return PinnedMemory(int(owner.ptr), np.frombuffer(owner, np.uint32, nbytes // WORD_BYTES), owner)

    def mapped(self, memory: PinnedMemory) -> int:
        """Return the address at which kernels access page-locked memory; it is valid for every GPU."""
        return int(self._value(self._api.cuMemHostGetDevicePointer(memory.address, 0)))

    def array(self, memory: DeviceMemory, offset: int, shape: tuple[int, ...]) -> Any:
        """Return a float32 CuPy array over `memory`, from byte `offset` on, without a copy."""
        pointer = self._cupy.cuda.MemoryPointer(memory.owner.mem, memory.owner.ptr - memory.owner.mem.ptr + offset)
        return self._cupy.ndarray(shape, FLOAT32.dtype, pointer)

    def following(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which CuPy uses the stream."""
        context: AbstractContextManager[Any] = self._cupy.cuda.ExternalStream(int(stream))
        return context

    def copying_in(self, target: int, source: int, nbytes: int, stream: Any) -> Call:
        """Copy from the host's memory, which must not change until the stream has executed the copy."""
        return partial(self._api.cuMemcpyHtoDAsync, target, source, nbytes, stream)

    def copying_out(self, target: int, source: int, nbytes: int, stream: Any) -> Call:
        """Copy to the host's memory."""
        return partial(self._api.cuMemcpyDtoHAsync, target, source, nbytes, stream)

    def copying(self, target: int, source: int, nbytes: int, stream: Any) -> Call:
        """Copy within the GPU's memory."""
        return partial(self._api.cuMemcpyDtoDAsync, target, source, nbytes, stream)

    def filling(self, target: int, word: int, count: int, stream: Any) -> Call:
        """Fill `count` words of the GPU's memory with `word`."""
        return partial(self._api.cuMemsetD32Async, target, word, count, stream)

    # ---- order

    def stream(self) -> Any:
        """Create a stream on the GPU."""
        return self._value(self._api.cuStreamCreate(_STREAM_NON_BLOCKING))

    def event(self) -> Any:
        """Create an event. It counts as passed until it is recorded."""
        return self._value(self._api.cuEventCreate(_EVENT_DISABLE_TIMING))

    def recording(self, event: Any, stream: Any) -> Call:
        """Record the event: it passes when the stream reaches this point."""
        return partial(self._api.cuEventRecord, event, stream)

    def awaiting(self, event: Any, stream: Any) -> Call:
        """Make the stream wait until the event has passed."""
        return partial(self._api.cuStreamWaitEvent, stream, event, 0)

    def has_passed(self, event: Any) -> bool:
        """Return True if the event has passed. Raises DriverError for any earlier failure on the GPU."""
        (status,) = self._api.cuEventQuery(event)
        code = int(status)
        if code and code != _NOT_READY:
            raise self._error(status)
        return not code

    def freeing(self, kernel: LoadedKernel | None, streams: list[Any], events: list[Any]) -> list[Call]:
        """Return calls that free everything; the caller ignores their status."""
        api = self._api
        return [
            partial(api.cuCtxPushCurrent, self._context),
            *(partial(api.cuStreamSynchronize, s) for s in streams),
            *(partial(api.cuEventDestroy, e) for e in events),
            *(partial(api.cuStreamDestroy, s) for s in streams),
            *([] if kernel is None else [partial(api.cuModuleUnload, kernel.module)]),
            api.cuCtxPopCurrent,
        ]

    # ---- kernels

    def load(self, binary: Path, shared_bytes: int) -> LoadedKernel:
        """Load a kernel. A binary that does not load is removed from the cache; the next attempt compiles it again.

        Args:
            shared_bytes: dynamic shared memory per block.

        Raises:
            CompileError: the binary is damaged, or not for this GPU.
            HandleError: this GPU has less shared memory per block.
        """
        if shared_bytes > self.gpu.shared_bytes:
            raise HandleError(
                f"the kernel takes {shared_bytes / 1024:.0f} KiB of shared memory a block, and the {self.gpu.name} has "
                f"{self.gpu.shared_bytes / 1024:.0f}"
            )
        api = self._api
        try:
            module = self._value(api.cuModuleLoad(str(binary).encode()))
            function = self._value(api.cuModuleGetFunction(module, KERNEL.encode()))
        except DriverError as error:
            if error.lost:
                raise
            binary.unlink(missing_ok=True)
            raise CompileError(
                f"the compiled kernel cannot be loaded and was removed from the cache ({error.name}); try again, and "
                "if that does not help update the driver"
            ) from error
        attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.run(partial(api.cuFuncSetAttribute, function, attribute, shared_bytes))
        return LoadedKernel(module, function, shared_bytes)

    def unload(self, kernel: LoadedKernel) -> None:
        """Unload a kernel from the GPU."""
        self.run(partial(self._api.cuModuleUnload, kernel.module))

    def blocks_per_sm(self, kernel: LoadedKernel, threads: int) -> int:
        """Return the number of the kernel's blocks that a multiprocessor runs at the same time."""
        occupancy = self._api.cuOccupancyMaxActiveBlocksPerMultiprocessor
        return int(self._value(occupancy(kernel.function, threads, kernel.shared_bytes)))

    def launching(self, kernel: LoadedKernel, blocks: int, threads: int, stream: Any, parameters: int) -> Call:
        """Launch cooperatively: all blocks run at the same time, or the driver refuses the launch.

        Args:
            parameters: address of an array of pointers to the kernel's parameters; the driver copies them.
        """
        return partial(
            self._api.cuLaunchCooperativeKernel,
            kernel.function, blocks, 1, 1, threads, 1, 1, kernel.shared_bytes, stream, parameters,
        )  # fmt: skip
