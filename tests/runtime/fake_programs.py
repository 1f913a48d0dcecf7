"""The imaginary GPU for programs that compile, launch and time kernels of their own, such as those of bench/gpu_micro:
NVRTC, plain launches, CuPy's arrays and events.

A cubin is the source with its macros; a kernel is compiled for the emulator when it is looked up. Launches happen at
once, and a finding of the emulator ends the program. Between two events, where a program takes times, nothing happens:
what it does there it has done before, and checked.

IMAGINARY_WITHOUT in the environment is text to leave out of sources, for tests that a missing barrier is noticed.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.runtime.fake_cuda import OK, VERSION, CUresult, DeviceArray, FakeCuda
from vpps.kernel import libnvrtc
from vpps.kernel.libnvrtc import CompileOutcome, Form
from vpps.kernel.simt_compiler import build_simt
from vpps.runtime.emulator import Emulator

ALIGNED = 64  # floats: arrays begin at multiples, as a GPU's allocator has it
DELAY = "delay"  # a kernel that waits for time to pass, and for nothing else
PATIENCE_NS = 4_000_000_000  # of it: where all wait, the virtual clock goes on by a quarter

# The kernel's own arguments come with the script: numbers as they are, pointers as places in the pool.
ADAPTER = """
struct Launch {
    float* pool;
    const Word* script;
    unsigned *counters, *cleared, *report;
    unsigned long long patience;
};
template <class T> struct Argument {
    static T of(const Launch&, Word word) { return word; }
};
template <> struct Argument<float> {
    static float of(const Launch&, Word word) { return __uint_as_float(word); }
};
template <class T> struct Argument<T*> {
    static T* of(const Launch& launch, Word word) { return (T*)(launch.pool + word); }
};
template <unsigned... PLACES> struct Places {};
template <unsigned N, unsigned... PLACES> struct Count : Count<N - 1, N - 1, PLACES...> {};
template <unsigned... PLACES> struct Count<0, PLACES...> { typedef Places<PLACES...> type; };
template <class... A, unsigned... PLACES> void call(void (*kernel)(A...), const Launch& launch, Places<PLACES...>)
{
    kernel(Argument<A>::of(launch, launch.script[PLACES])...);
}
template <class... A> void call(void (*kernel)(A...), const Launch& launch)
{
    call(kernel, launch, typename Count<sizeof...(A)>::type());
}
"""

_SIGNATURE = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(([^)]*)\)")
_arrays: weakref.WeakValueDictionary[int, CupyArray] = weakref.WeakValueDictionary()  # by address


class CupyArray(DeviceArray):
    """What programs ask of a CuPy array."""

    def get(self) -> NDArray[Any]:
        return np.array(self, subok=False)


def _array(values: Any) -> CupyArray:
    found: CupyArray = np.array(values, order="C", subok=False).view(CupyArray)
    _arrays[found.ctypes.data] = found
    return found


class _Function:
    """A kernel in the emulator."""

    def __init__(self, cubin: bytes, name: str) -> None:
        text = cubin.decode()
        self.name = name
        self.types = [
            ctypes.c_void_p if "*" in parameter else ctypes.c_float if "float " in parameter else ctypes.c_uint
            for parameter in dict(_SIGNATURE.findall(text))[name].split(",")
        ]
        entry = f'extern "C" __global__ void vpps_kernel(const Launch launch) {{ call({name}, launch); }}\n'
        self._emulator = Emulator(build_simt(text + ADAPTER + entry, races=True))

    def __call__(self, blocks: int, threads: int, shared: int, values: Any) -> None:
        places: list[tuple[CupyArray, int]] = []
        words, end = [], 0
        for value, kind in zip(values, self.types, strict=True):
            if kind is ctypes.c_void_p:
                array = _arrays[value]  # KeyError: no array begins there
                places.append((array, end))
                words.append(end)
                end += -(-array.size // ALIGNED) * ALIGNED
            else:
                number = np.float32(value) if kind is ctypes.c_float else np.uint32(value)
                words.append(int(number.view(np.uint32)))
        pool = _aligned(end)
        pool[:] = np.nan
        for array, place in places:
            pool[place : place + array.size] = _flat(array)
        empty = np.zeros(1, np.uint32)
        findings = self._emulator.run(
            pool, np.array(words, np.uint32), empty, empty.copy(), empty.copy(),
            PATIENCE_NS if self.name == DELAY else 0, blocks=blocks, threads=threads, shared_bytes=shared,
        )  # fmt: skip
        if findings:
            sys.exit(f"{self.name}: " + "; ".join(f"{finding.kind}: {finding.message}" for finding in findings))
        for array, place in places:
            _flat(array)[:] = pool[place : place + array.size]


def _flat(array: NDArray[Any]) -> NDArray[np.float32]:
    """The words of an array, in place."""
    return np.frombuffer(np.asarray(array).data.cast("B"), np.float32)


def _aligned(count: int) -> NDArray[np.float32]:
    raw = np.empty(count + ALIGNED, np.float32)
    skipped = -raw.ctypes.data // 4 % ALIGNED
    return raw[skipped : skipped + count]


class ProgrammableCuda(FakeCuda):
    """The module `cuda.bindings.driver`, with plain launches."""

    timing = False  # between two events

    def cuModuleLoadData(self, cubin: bytes) -> tuple[CUresult, bytes]:
        return OK, cubin

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[CUresult, Any]:
        return (OK, _Function(module, name.decode())) if isinstance(module, bytes) else (OK, module)

    def cuFuncSetAttribute(self, function: Any, attribute: str, value: int) -> tuple[CUresult]:
        return (OK,) if isinstance(function, _Function) else super().cuFuncSetAttribute(function, attribute, value)

    def cuLaunchKernel(self, f: Any, *grid: Any) -> tuple[CUresult]:
        x, _, _, threads, _, _, shared, _, parameters, _ = grid
        return self.launch_now(f, x, threads, shared, parameters)

    def cuLaunchCooperativeKernel(self, f: Any, *grid: Any) -> tuple[CUresult]:
        if not isinstance(f, _Function):
            return super().cuLaunchCooperativeKernel(f, *grid)
        x, _, _, threads, _, _, shared, _, parameters = grid
        return self.launch_now(f, x, threads, shared, parameters)

    def launch_now(self, f: _Function, blocks: int, threads: int, shared: int, parameters: Any) -> tuple[CUresult]:
        if isinstance(parameters, int):  # the address of pointers to the arguments
            pointers = (ctypes.c_void_p * len(f.types)).from_address(parameters)
            values = [kind.from_address(pointer).value for kind, pointer in zip(f.types, pointers, strict=True)]
        else:
            values = parameters[0]
        if not self.timing:
            f(blocks, threads, shared, values)
        return (OK,)


class FakeLibrary:
    """NVRTC."""

    version = f"{VERSION // 1000}.{VERSION % 1000 // 10}"
    identity = f"NVRTC {version}, imaginary"

    def archs(self) -> tuple[int, ...]:
        return 75, 90

    def compile(self, source: str, file: str, options: tuple[str, ...], form: Form) -> CompileOutcome:
        given = [option.partition("=")[::2] for option in options]
        folders = [Path(value) for name, value in given if name == "--include-path"]
        macros = [value.partition("=") for name, value in given if name == "--define-macro"]
        text = source
        for header in ("slot.cuh", "ptx.cuh"):  # one includes the other
            found = next(folder / header for folder in folders if (folder / header).exists())
            text = text.replace(f'#include "{header}"', found.read_text(encoding="utf-8"), 1)
        text = "".join(f"#define {name} {value}\n" for name, _, value in macros) + text.replace("#pragma once", "")
        if without := os.environ.get("IMAGINARY_WITHOUT"):
            text = text.replace(without, "")
        log = "".join(
            f"ptxas info : Compiling entry function '{name}' for 'sm_90'\n    0 bytes stack frame, 0 bytes spill "
            f"stores, 0 bytes spill loads\nptxas info : Used 32 registers\n"
            for name, _ in _SIGNATURE.findall(text)
        )
        return CompileOutcome("", text.encode(), log)


def extend(gpu: ProgrammableCuda) -> None:
    """Give the installed imaginary GPU and its CuPy what the programs call."""
    cupy, nvrtc = sys.modules["cupy"], FakeLibrary()
    libnvrtc.library = lambda: nvrtc  # type: ignore[assignment]
    elapsed = iter(range(1, 1 << 62))

    class Event:
        def record(self) -> None:
            gpu.timing = not gpu.timing

        def synchronize(self) -> None:
            pass

    class Module:
        def load(self, cubin: bytes) -> None:
            self._cubin = cubin

        def get_function(self, name: str) -> Callable[..., None]:
            function = _Function(self._cubin, name)

            def launch(grid: Any, block: Any, arguments: Any, *, enable_cooperative_groups: bool) -> None:
                values = [a.data.ptr if isinstance(a, CupyArray) else a for a in arguments]
                gpu.launch_now(function, grid[0], block[0], 0, (values, None))

            return launch

    cupy.__dict__.update(
        __version__="14.0.0",
        zeros=lambda shape, dtype=np.float32: _array(np.zeros(shape, dtype)),
        full=lambda shape, value, dtype: _array(np.full(shape, value, dtype)),
        asarray=_array,
        copyto=np.copyto,
        matmul=np.matmul,
    )
    cuda = cupy.__dict__["cuda"]
    cuda.Event, cuda.get_elapsed_time = Event, lambda begin, end: float(next(elapsed))  # more every time
    cuda.function = SimpleNamespace(Module=Module)
    cuda.runtime.deviceSynchronize = lambda: None
    cuda.runtime.driverGetVersion = lambda: VERSION
    cuda.runtime.memcpyAsync = lambda target, source, nbytes, kind, stream: ctypes.memmove(target, source, nbytes)
