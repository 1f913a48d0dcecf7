"""What the programs of this folder share: compiling with NVRTC, launching, timing on the device, lines of JSON.

Compiling takes NVRTC and no device; running takes an NVIDIA GPU, `cuda.bindings` and CuPy besides.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import functools
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER.parent), str(FOLDER.parents[1])]

import harness  # noqa: E402  (the line above finds it)

from vpps.kernel.libnvrtc import library  # noqa: E402

THREADS = 256  # of every block; ptx.cuh
_DELAY = 200_000  # nanoseconds in which the host enqueues two events and a launch
_LANES = {70: 64, 75: 64, 80: 64}  # float32 lanes per multiprocessor where they are not 128


@dataclass(frozen=True)
class Binary:
    """A kernel compiled for one architecture, with what the assembler says about it."""

    cubin: bytes
    registers: int
    stack: int
    spills: int


@dataclass(frozen=True)
class Build:
    """A kernel of this folder with values for its macros."""

    file: str
    kernel: str
    macros: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.kernel, *(f"{name.lower()}={value}" for name, value in self.macros.items())])

    def compile(self, arch: str) -> Binary:
        """Compile for an architecture such as "sm_90". Exits with the compiler's log where that fails."""
        # -v: registers, stack and spills. No --Ofast-compile, no -G: they put register arrays into memory.
        options = [f"--gpu-architecture={arch}", "--std=c++17", f"--include-path={FOLDER}", "--ptxas-options=-v"]
        options += [f"--define-macro={name}={value}" for name, value in self.macros.items()]
        done = library().compile((FOLDER / self.file).read_text(), self.file, tuple(options), "CUBIN")
        if done.error:
            sys.exit(f"{self.file} for {arch}, {self}: {done.error}\n{done.log}")
        return Binary(done.image, *_resources(done.log, self.kernel))


def _resources(log: str, kernel: str) -> tuple[int, int, int]:
    """Registers, bytes of stack and bytes of spills (stores and loads) of a kernel, from the assembler's report."""
    for part in log.split("Compiling entry function ")[1:]:
        if part.startswith(f"'{kernel}'"):
            found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
            stack, stores, loads = map(int, found.groups())
            return int(re.search(r"Used (\d+) registers", part)[1]), stack, stores + loads
    raise RuntimeError(f"the assembler's report does not mention {kernel}:\n{log}")


def checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call of cuda.bindings returned besides its status. Raises RuntimeError where that is an error."""
    status, *values = result
    if status.value != 0:
        raise RuntimeError(f"{type(status).__name__} {status.name}")
    return tuple(values)


class Kernel:
    """A kernel on the present device. Arguments are CuPy arrays, numpy.float32, and ints for 32-bit words."""

    def __init__(self, build: Build, device: Device) -> None:
        from cuda.bindings import driver

        self.build, self._driver = build, driver
        self.binary = build.compile(device.arch)
        (self._module,) = checked(driver.cuModuleLoadData(self.binary.cubin))
        (self.function,) = checked(driver.cuModuleGetFunction(self._module, build.kernel.encode()))
        self._shared = 48 << 10  # bytes of dynamic shared memory that need no leave

    def __call__(self, blocks: int, shared: int, *arguments: Any, cooperative: bool = False) -> None:
        """Launch on the default stream. shared: bytes of dynamic shared memory; cooperative: all blocks at once or
        an error."""
        if shared > self._shared:
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(self._driver.cuFuncSetAttribute(self.function, attribute, shared))
            self._shared = shared
        parameters = tuple(zip(*map(_packed, arguments), strict=True))  # values, types
        grid = self.function, blocks, 1, 1, THREADS, 1, 1, shared, 0
        if cooperative:
            checked(self._driver.cuLaunchCooperativeKernel(*grid, parameters))
        else:
            checked(self._driver.cuLaunchKernel(*grid, parameters, 0))


def _packed(argument: Any) -> tuple[Any, Any]:
    if isinstance(argument, np.float32):
        return float(argument), ctypes.c_float
    if isinstance(argument, int):
        return argument, ctypes.c_uint
    return argument.data.ptr, ctypes.c_void_p


class Device:
    """The present GPU: its memory through CuPy, its clock through events, what it can do at best."""

    def __init__(self, smallest: bool = False) -> None:
        """Exits where there is no GPU or no CuPy. smallest: figures mean nothing, every line is executed."""
        try:
            import cupy

            cupy.zeros(1)  # makes the device's primary context the current one, of cuda.bindings too
        except Exception as error:  # of any kind: no CuPy, no driver, no device
            sys.exit(f"this takes an NVIDIA GPU and CuPy (--compile-only does not): {type(error).__name__}: {error}")
        from cuda.bindings import driver

        def attribute(name: str) -> int:
            key = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(checked(driver.cuDeviceGetAttribute(key, 0))[0])

        self.cupy, self.smallest = cupy, smallest
        self.name: str = checked(driver.cuDeviceGetName(128, 0))[0].decode().rstrip("\0")
        self.capability = 10 * attribute("COMPUTE_CAPABILITY_MAJOR") + attribute("COMPUTE_CAPABILITY_MINOR")
        self.arch = f"sm_{self.capability}"
        self.sms = attribute("MULTIPROCESSOR_COUNT")
        self.l2 = attribute("L2_CACHE_SIZE")
        self.shared = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.clock = 1e3 * attribute("CLOCK_RATE")  # Hz, the highest
        self.fp32 = self.sms * _LANES.get(self.capability, 128) * 2 * self.clock  # FLOP/s
        self._delay = self.load(Build("ceilings.cu", "delay"))
        self._delay(1, 0, 300_000_000)  # an idle device needs a moment to raise its clock

    def load(self, build: Build) -> Kernel:
        """Compile and load a kernel."""
        return Kernel(build, self)

    def array(self, values: NDArray[Any]) -> Any:
        """Copy to the device."""
        return self.cupy.asarray(values)

    def zeros(self, shape: Any, dtype: Any = np.float32) -> Any:
        """Zeros on the device."""
        return self.cupy.zeros(shape, dtype)

    def unwritten(self, shape: Any) -> Any:
        """float32 on the device, NaN everywhere, so that what a kernel does not write is noticed."""
        return self.cupy.full(shape, np.nan, np.float32)

    @staticmethod
    def numpy(array: Any) -> NDArray[Any]:
        """Copy to the host; waits for the kernels before."""
        return array.get()

    def synchronize(self) -> None:
        """Wait for everything; raises the error of a kernel that failed."""
        self.cupy.cuda.runtime.deviceSynchronize()

    def microseconds(self, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        """Device time of what `work` enqueues on the default stream, after what `before` enqueues there, which is not
        timed. The host's share is hidden behind a delay."""
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        before()
        self._delay(1, 0, _DELAY)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return 1e3 * float(self.cupy.cuda.get_elapsed_time(begin, end))

    def per_repetition(self, work: Callable[[int], object], repeats: int, rounds: int) -> list[float]:
        """Microseconds that one repetition inside a kernel takes: the slope between `repeats` and five times as many.

        work(r) enqueues a launch with r repetitions. A value per round.
        """
        repeats = 1 if self.smallest else repeats
        work(repeats)  # the first launch of a kernel loads it
        self.synchronize()
        found = []
        for _ in range(rounds):
            few, many = self.microseconds(lambda: work(repeats)), self.microseconds(lambda: work(5 * repeats))
            found.append((many - few) / (4 * repeats))
        return found

    @functools.cached_property
    def l2_bandwidth(self) -> float:
        """Bytes per second that all multiprocessors together read from L2, measured."""
        count = (THREADS << 4 if self.smallest else min(self.l2 // 8, 4 << 20)) // 16  # float4
        kernel, x = self.load(Build("ceilings.cu", "read_all")), self.zeros(4 * count)
        sums = self.zeros(2 * self.sms * THREADS)
        run = functools.partial(kernel, 2 * self.sms, 0, x, sums, count)
        return 2 * self.sms * 16 * count / (1e-6 * min(self.per_repetition(run, 2, 5)))

    @functools.cached_property
    def l2_round_trip(self) -> float:
        """Microseconds from a thread's read of L2 to its answer, measured."""
        count, stride = 8 if self.smallest else 1024, 64  # words that are 256 bytes apart, so that no two share a line
        places = np.random.default_rng(1).permutation(count) * stride
        following = np.zeros(count * stride, np.uint32)
        following[places] = np.roll(places, -1)
        kernel, words, last = self.load(Build("ceilings.cu", "chase")), self.array(following), self.zeros(1, np.uint32)
        return min(self.per_repetition(lambda steps: kernel(1, 0, words, last, steps), count, 5))

    @functools.cached_property
    def dram_bandwidth(self) -> float:
        """Bytes per second, read and written, of a large copy on the device, measured."""
        source, target = (self.zeros(1 << (10 if self.smallest else 28)) for _ in range(2))
        times = [self.microseconds(lambda: self.cupy.copyto(target, source)) for _ in range(5)]
        return 2 * source.nbytes / (1e-6 * statistics.median(times))

    def staged_vectors(self, width: int, n: int, tile: int, other: int) -> int:
        """How many vectors of `width` words fit into a block's shared memory besides `other` bytes: enough for n, or as
        many as there is room for, a multiple of `tile` either way."""
        room = (self.shared - other) // (4 * width) // tile
        return tile * min(-(-n // tile), room)

    def floor(self, *, flops: float = 0.0, l2_bytes: float = 0.0, dram_bytes: float = 0.0) -> float:
        """Microseconds below which no program can stay: arithmetic at the peak, bytes at the measured bandwidths."""
        times = [flops / self.fp32]
        if l2_bytes:
            times.append(l2_bytes / self.l2_bandwidth)
        if dram_bytes:
            times.append(dram_bytes / self.dram_bandwidth)
        return 1e6 * max(times)

    @functools.cached_property
    def description(self) -> dict[str, object]:
        """What figures depend on, for the lines."""
        runtime = self.cupy.cuda.runtime
        return {
            "name": self.name, "arch": self.arch, "sms": self.sms, "l2_mb": round(self.l2 / 2**20),
            "max_clock_mhz": round(self.clock / 1e6), "driver_cuda": runtime.driverGetVersion(),
            "cupy": self.cupy.__version__,
        }  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Prints the lines of one program."""

    bench: str
    device: Device

    def __call__(
        self, case: str, values: Sequence[float], unit: str = "us", floor: float | None = None, **extra: object
    ) -> None:
        """One result: the median, the spread, and the floor beside it, in the same unit."""
        if floor is not None:
            extra = {"floor": float(f"{floor:.4g}"), **extra}
        harness.report(
            self.bench, case, values, unit, spread=[float(f"{v:.4g}") for v in (min(values), max(values))], **extra,
            gpu=self.device.description, date=datetime.date.today().isoformat(),
        )  # fmt: skip


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Norm of the difference over the norm of what is expected; infinite where anything is not a number."""
    error = float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))
    return error if np.isfinite(error) else float("inf")


def require(error: float, bound: float, what: str) -> None:
    """Exit where a kernel is wrong: its times would mean nothing."""
    if not error <= bound:
        sys.exit(f"{what}: relative error {error:.3g}, more than {bound:.3g}: no times are printed")


def run(
    bench: str,
    description: str,
    builds: Callable[[bool], Sequence[Build]],
    measure: Callable[[Device, Report, argparse.Namespace], None],
    arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> None:
    """The main function of a program: the command line, then `measure`, or compiling all of `builds(quick)`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--smallest", action="store_true", help="the smallest sizes: a dry run, no figures")
    parser.add_argument("--rounds", type=int, help="of every measurement (default 11, quick 3)")
    parser.add_argument("--compile-only", action="store_true", help="compile all kernels; needs no device")
    parser.add_argument(
        "--arch", type=lambda text: text.split(","), default=["sm_90"], help="of --compile-only: sm_80,sm_90"
    )
    arguments(parser)
    options = parser.parse_args()
    options.quick |= options.smallest
    options.rounds = options.rounds or (1 if options.smallest else 3 if options.quick else 11)
    if not options.compile_only:
        device = Device(options.smallest)
        measure(device, Report(bench, device), options)
        return
    for arch in options.arch:
        for build in builds(options.quick):
            start = time.perf_counter()
            binary = build.compile(arch)
            harness.report(
                bench, f"{build} {arch}", [time.perf_counter() - start], "s", registers=binary.registers,
                stack=binary.stack, spills=binary.spills, cubin_bytes=len(binary.cubin),
            )  # fmt: skip
