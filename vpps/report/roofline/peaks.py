"""What a machine gives: operations per second, bytes per second by how much memory is in use, what a barrier and a
launch cost. Measured in a few seconds and kept in the cache directory, or taken from the data sheet of a GPU."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vpps.config import cache_dir
from vpps.errors import KernelError
from vpps.files import replacing
from vpps.kernel.cache import Label, load_library
from vpps.kernel.host_compiler import ISA_FLAGS, build_library, processor_name
from vpps.kernel.prebuilt import HostLibrary
from vpps.kernel.render import TILES
from vpps.ops.element import WORD_BYTES
from vpps.placement.distribution import FIRST_FREE
from vpps.runtime.cores import usable_cores
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import barrier, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC

_log = logging.getLogger(__name__)

FILE = "machine.json"
VERSION = 1  # of what is measured, and how

KIB, MIB = 1024, 1024**2
SIZES = (*(k * KIB for k in (16, 32, 64, 128, 256, 512)), *(m * MIB for m in (1, 2, 4, 8, 16, 32, 64, 256)))
SECONDS = 0.004  # that one measurement takes: short, to fall between what else the machine does
TIMES = 8  # of which the best one counts: whatever disturbs makes it slower
LARGE = 32 * MIB  # from here on it takes longer to fill the memory than to measure: fewer times
BARRIERS = 200  # of the launch that measures one

_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-ffp-contract=fast", "-Wall", "-Wextra")


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second by how many bytes are in use, over all virtual processors.

    Attributes:
        sizes: bytes in use, ascending.
        rates: bytes per second at each of them; from one size to the next they fall.
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    @classmethod
    def measured(cls, sizes: tuple[float, ...], rates: list[float]) -> Self:
        """From measurements: more data never come faster, so what disturbed one of fewer data is mended."""
        return cls(sizes, tuple(np.maximum.accumulate(rates[::-1])[::-1].tolist()))

    def at(self, size: float) -> float:
        """Bytes per second where so many bytes are in use; between measured sizes by the logarithm of the size."""
        return float(np.interp(np.log(max(size, 1.0)), np.log(self.sizes), self.rates))

    @property
    def nearest(self) -> float:
        """Of the smallest size: of the cache next to the core."""
        return self.rates[0]

    @property
    def farthest(self) -> float:
        """Of the largest size: of memory."""
        return self.rates[-1]


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a machine gives to some virtual processors.

    Attributes:
        name: of the processor or GPU.
        isa: instruction set of the kernel: "avx512", "sm_90" ...
        n_vps: virtual processors that all rates are for.
        flops: floating-point operations per second, a fused multiply-add counted as two.
        flops_of_one: those of one virtual processor that runs alone.
        read: of data that are read only.
        triad: of data that are read and written, two to one.
        barrier: seconds from the last arrival at a barrier to the last departure.
        launch: seconds of an empty launch and the wait for it.
        source: "measured", or where the figures come from.
        load: of the machine before it was measured (average of a minute), where that is known.
    """

    name: str
    isa: str
    n_vps: int
    flops: float
    flops_of_one: float
    read: Bandwidth
    triad: Bandwidth
    barrier: float
    launch: float
    source: str = "measured"
    load: float | None = None

    def as_json(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Any) -> Self:
        """From what `as_json` gave. Raises TypeError, KeyError, ValueError: it is something else."""
        values = {f.name: kept[f.name] for f in fields(cls)}
        for name in ("read", "triad"):
            sizes, rates = (tuple(float(v) for v in kept[name][k]) for k in ("sizes", "rates"))
            if not sizes or len(sizes) != len(rates) or min(rates) <= 0:
                raise ValueError(f"{name}: no rates")
            values[name] = Bandwidth(sizes, rates)
        for name in ("flops", "flops_of_one", "barrier", "launch"):
            values[name] = float(kept[name])
        return cls(**values)


def machine_peaks(
    n_vps: int, isa: str, remeasure: bool = False, progress: Callable[[str], None] = lambda what: None
) -> Peaks:
    """Peaks of this machine for so many virtual processors of target cpu: kept ones, or measured now (2 to 4 s).

    Args:
        isa: instruction set of the kernel, `CpuMachine.arch`.
        remeasure: even if there are kept ones.

    Raises:
        CompileError: no compiler, or the cache directory cannot be used.
        KernelError: the machine has not the memory or the threads for it.
    """
    name = processor_name()
    key = f"{name}, {usable_cores()} of {os.cpu_count()} cores, {isa}, {n_vps} virtual processors"
    file = cache_dir().absolute() / FILE
    kept = _kept(file)
    if not remeasure and key in kept:
        try:
            return Peaks.from_json(kept[key])
        except (TypeError, KeyError, ValueError) as error:
            _log.info("%s: the figures of %s are of no use (%r): measuring again", file, key, error)
    peaks = measure(n_vps, isa, progress)
    contents = {"version": VERSION, "machines": _kept(file) | {key: peaks.as_json()}}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(file) as fresh:
            fresh.write_text(json.dumps(contents, indent=1), encoding="utf-8")
    except OSError as error:
        _log.warning("%s: the figures cannot be kept (%s), so they will be measured again", file, error)
    return peaks


def _kept(file: Path) -> dict[str, Any]:
    """What was measured before; nothing if that cannot be read."""
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
        return dict(contents["machines"]) if contents["version"] == VERSION else {}
    except (OSError, LookupError, TypeError, ValueError):
        return {}


def measure(n_vps: int, isa: str, progress: Callable[[str], None] = lambda what: None) -> Peaks:
    """Measure this machine. Raises as `machine_peaks`."""
    load = round(os.getloadavg()[0], 2)
    lib = _library(isa)
    # Rates are per time on a core; where threads outnumber cores they take turns.
    cores = min(1.0, usable_cores() / n_vps)
    progress("multiply-adds")
    alone, together = (_best(partial(lib.vpps_peak_flops, n, SECONDS)) for n in (1, n_vps))
    read = _bandwidth("reading", lambda *of: cores * lib.vpps_peak_read(n_vps, *of), progress)
    triad = _bandwidth("reading and writing", lambda *of: cores * lib.vpps_peak_triad(n_vps, *of), progress)
    progress("barriers and launches")
    launch, barrier = launch_costs(n_vps)
    return Peaks(processor_name(), isa, n_vps, cores * together, alone, read, triad, barrier, launch, load=load)


def _bandwidth(what: str, rate: Callable[[float, float], float], progress: Callable[[str], None]) -> Bandwidth:
    """Measure `rate(size, seconds)` for all sizes that fit into memory."""
    sizes = tuple(float(size) for size in SIZES if size * WORD_BYTES <= _memory())
    rates = []
    for size in sizes:
        progress(f"{what} {size / MIB:g} MiB")
        rates.append(_best(partial(rate, size, SECONDS), TIMES if size < LARGE else 2))
    return Bandwidth.measured(sizes, rates)


def _memory() -> int:
    """Bytes of memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not every system says it
        return 2**31


def _best(measured: Callable[[], float], times: int = TIMES) -> float:
    rate = max(float(measured()) for _ in range(times))
    if rate <= 0:
        raise KernelError("this machine has not the memory or the threads to measure what it gives; use fewer vps")
    return rate


def _library(isa: str) -> ctypes.CDLL:
    """The compiled measurements. Raises CompileError."""
    source = Path(__file__).with_name("peaks.cpp").read_text(encoding="utf-8")
    flags = (*_FLAGS, f"-DLANES={TILES[isa].lanes}", *ISA_FLAGS[isa])
    label = Label("measurements", isa)
    lib = load_library(build_library(HostLibrary("peaks", "the source that measures peaks", source, flags, label)))
    for name, arguments in (
        ("vpps_peak_flops", [ctypes.c_int, ctypes.c_double]),
        ("vpps_peak_read", [ctypes.c_int, ctypes.c_double, ctypes.c_double]),
        ("vpps_peak_triad", [ctypes.c_int, ctypes.c_double, ctypes.c_double]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = ctypes.c_double, arguments
    return lib


# ---- barriers and launches


def barriers_script(n_vps: int, barriers: int) -> NDArray[np.uint32]:
    """A script of barriers alone."""
    entry = HEADER_WORDS + n_vps
    header = plain([MAGIC, n_vps, 1, 0] + [entry] * n_vps)
    parts = (barrier(target=n_vps * (k + 1)) for k in range(barriers))
    script = np.concatenate([header, *parts, plain(encode("end", 0, 0))])
    script[3] = len(script)
    return script


def launch_seconds(machine: CpuMachine, script: NDArray[np.uint32], times: int) -> float:
    """Seconds that a launch and the wait for it take; the median."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        machine.launch(script)
        machine.wait()
        found.append(time.perf_counter() - start)
    return float(np.median(found))


def launch_costs(n_vps: int) -> tuple[float, float]:
    """Seconds of an empty launch and of a barrier, the best of some medians. One virtual processor has no barriers."""
    machine = CpuMachine(n_vps)
    try:
        machine.reserve(FIRST_FREE, 0)
        empty, many = barriers_script(n_vps, 0), barriers_script(n_vps, BARRIERS)
        launch = min(launch_seconds(machine, empty, 15) for _ in range(3 * TIMES))
        if n_vps == 1:
            return launch, 0.0
        with_barriers = min(launch_seconds(machine, many, 3) for _ in range(3 * TIMES))
    finally:
        machine.close()
    return launch, max(0.0, with_barriers - launch) / BARRIERS
