"""Runs a program of bench/gpu_micro in the emulator of target simt: the program's own checks, and a search for races.

    python tests/bench/emulated_micro.py matvec [--blocks 2] [--without "a statement;"]

Prints a line per case that was checked. Exits with a message where a result is wrong or the emulator finds something.
Times mean nothing here: every repetition is run once.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
MICRO = ROOT / "bench" / "gpu_micro"
sys.path.insert(0, str(MICRO))

from device import THREADS, Build, Device  # noqa: E402  (found by the line above)

from vpps.kernel.simt_compiler import build_simt  # noqa: E402
from vpps.runtime.emulator import Emulator  # noqa: E402

ALIGNED = 64  # floats: arrays begin at multiples, as a GPU's allocator has it

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


def source_of(build: Build, without: str) -> str:
    """The kernel with its headers in place, its macros, and the entry that the emulator calls.

    without: text to leave out, for tests that a missing barrier is noticed.
    """
    text = (MICRO / build.file).read_text(encoding="utf-8")
    for header in ("slot.cuh", "ptx.cuh"):
        text = text.replace(f'#include "{header}"', (MICRO / header).read_text(encoding="utf-8"), 1)
    if without and without not in text:
        sys.exit(f"{build.file}: there is no {without!r} to leave out")
    text = text.replace(without, "")
    macros = "".join(f"#define {name} {value}\n" for name, value in build.macros.items())
    entry = f'extern "C" __global__ void vpps_kernel(const Launch launch) {{ call({build.kernel}, launch); }}\n'
    return macros + text.replace("#pragma once", "") + ADAPTER + entry


class EmulatedKernel:
    """A kernel in the emulator, called like device.Kernel."""

    def __init__(self, build: Build, without: str) -> None:
        self.build = build
        self.emulator = Emulator(build_simt(source_of(build, without), races=True))
        self.binary = argparse.Namespace(registers=0)

    def __call__(self, blocks: int, shared: int, *arguments: Any, cooperative: bool = False) -> None:
        """Launch and wait. Exits where the emulator finds something."""
        places, words, end = [], [], 0
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                places.append((argument, end))
                words.append(end)
                end += -(-argument.size // ALIGNED) * ALIGNED
            else:
                number = np.float32(argument) if isinstance(argument, np.float32) else np.uint32(argument)
                words.append(int(number.view(np.uint32)))
        pool = _aligned(end)
        pool[:] = np.nan
        for array, place in places:
            pool[place : place + array.size] = array.reshape(-1).view(np.float32)
        empty = np.zeros(1, np.uint32)
        findings = self.emulator.run(
            pool, np.array(words, np.uint32), empty, empty.copy(), empty.copy(), blocks=blocks, threads=THREADS,
            shared_bytes=shared,
        )  # fmt: skip
        if findings:
            sys.exit(f"{self.build}: " + "; ".join(f"{finding.kind}: {finding.message}" for finding in findings))
        for array, place in places:
            array.reshape(-1).view(np.float32)[:] = pool[place : place + array.size]


def _aligned(count: int) -> NDArray[np.float32]:
    raw = np.empty(count + ALIGNED, np.float32)
    skipped = -raw.ctypes.data // 4 % ALIGNED
    return raw[skipped : skipped + count]


class EmulatedDevice:
    """What the programs ask of device.Device; arrays are NumPy's."""

    shared, l2, clock, fp32 = 227 << 10, 1 << 20, 1e9, 1e12
    l2_bandwidth = dram_bandwidth = 1e12
    l2_round_trip = 1.0
    floor, staged_vectors = Device.floor, Device.staged_vectors

    def __init__(self, sms: int, without: str) -> None:
        self.sms, self.without = sms, without
        self.cupy = argparse.Namespace(matmul=np.matmul)

    def load(self, build: Build) -> EmulatedKernel:
        """Compile."""
        return EmulatedKernel(build, self.without)

    def array(self, values: NDArray[Any]) -> NDArray[Any]:
        """A copy."""
        return np.array(values, order="C")

    def zeros(self, shape: Any, dtype: Any = np.float32) -> NDArray[Any]:
        """Zeros."""
        return np.zeros(shape, dtype)

    def unwritten(self, shape: Any) -> NDArray[Any]:
        """NaN everywhere."""
        return np.full(shape, np.nan, np.float32)

    def numpy(self, array: NDArray[Any]) -> NDArray[Any]:
        """A copy."""
        return array.copy()

    def synchronize(self) -> None:
        """Launches have ended when they return."""

    def microseconds(self, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        """Not a time."""
        return 1.0

    def per_repetition(self, work: Callable[[int], object], repeats: int, rounds: int) -> list[float]:
        """Not a time."""
        return [1.0] * rounds


def main() -> None:
    """Run one program, quick, with few blocks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--blocks", type=int, default=2, help="multiprocessors of the emulated device")
    parser.add_argument("--without", default="", metavar="TEXT", help="leave this out of the source")
    parser.add_argument("--set", nargs=2, action="append", default=[], metavar=("NAME", "INT"), help="of its constants")
    options = parser.parse_args()
    program = importlib.import_module(options.program)
    for name, value in options.set:
        setattr(program, name, int(value))

    def report(
        case: str, values: Sequence[float], unit: str = "us", floor: float | None = None, **extra: object
    ) -> None:
        print(case)

    program.measure(
        EmulatedDevice(options.blocks, options.without), report, argparse.Namespace(quick=True, rounds=1)
    )  # fmt: skip


if __name__ == "__main__":
    main()
