"""Shared by all benches: interleaved timing, and one JSON line per result with machine, versions and commit."""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_LOAD = round(os.getloadavg()[0], 2)  # before the bench adds its own
_PRELOADED = "VPPS_BENCH_PRELOADED"  # set by mkl_avx512 for the re-executed program: the folder of the library


def numbers(text: str) -> list[int]:
    """Parse an option such as "1,8,64"."""
    return [int(part) for part in text.split(",")]


def words(text: str) -> list[str]:
    """Parse an option such as "vpps,dynet"."""
    return text.split(",")


_OPTIONS: dict[str, dict[str, Any]] = {
    "trees": {"type": Path, "metavar": "FILE", "help": "Penn-bracketed trees, one a line"},
    "data": {"type": Path, "metavar": "FOLDER", "help": "folder of data sets (default: $VPPS_DATA or shared/data)"},
    "synthetic": {"action": "store_true", "help": "synthetic data"},
    "workload": {"metavar": "NAME,...", "help": "some of ED-Batch's eight (default: all)"},
    "policy": {"metavar": "NAME,...", "help": "batching policies (default: all)"},
    "contenders": {"metavar": "NAME,...", "help": "contenders (default: all that can run)"},
    "batch_sizes": {"type": numbers, "metavar": "N,N,..."},
    "batch_size": {"type": int},
    "hidden": {"type": int},
    "embedding": {"type": int},
    "limit": {"type": int, "help": "most examples in a pass"},
    "passes": {"type": int, "help": "timed passes of every contender, interleaved"},
    "rounds": {"type": int},
    "threads": {"type": int, "help": "virtual processors of vpps, threads of others"},
    "cores": {"type": int, "help": "cores of the process, vpps's host thread included (default: --threads)"},
    "vps": {"type": int, "help": "virtual processors of vpps (default: its own choice)"},
    "device": {"choices": ["cuda", "cpu"], "help": "target of vpps"},
    "mode": {"choices": ["train", "infer"]},
    "dynet_autobatch": {"type": int, "choices": [1, 2], "help": "1: agenda, 2: depth"},
    "mkl_avx512": {"action": "store_true", "help": "make torch's MKL use AVX-512 on a CPU that Intel did not make"},
    "precision": {"choices": ["float32", "bf16"], "help": "precision of products with parameters"},
    "quick": {"action": "store_true", "help": "small sizes, to check that everything runs"},
    "lines": {"type": Path, "metavar": "FILE.jsonl"},
}
"""Command-line options that several benches have."""


def parser(doc: str | None, *arguments: str, **usual: Any) -> argparse.ArgumentParser:
    """Return a bench's command-line parser; the bench's docstring is its description.

    Args:
        arguments: positional arguments, by names of _OPTIONS.
        usual: options of _OPTIONS with their defaults; `...` marks a required option.
    """
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in arguments:
        made.add_argument(name, **_OPTIONS[name])
    for name, default in usual.items():
        settings = _OPTIONS[name] | ({"required": True} if default is ... else {"default": default})
        if default not in (..., None, False):
            shown = ",".join(map(str, default)) if isinstance(default, list | tuple) else default
            settings["help"] = f"{settings.get('help', '')} (default: {shown})".lstrip()
        made.add_argument(f"--{name.replace('_', '-')}", **settings)
    return made


def interleave(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds that each contender took in each round.

    A round runs every contender once, so that a slow spell of the machine hits all of them; the order rotates. Each
    contender's garbage is collected before the next contender's clock starts.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            start = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def timed(work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return the seconds that each of some calls takes."""
    seconds = []
    for _ in range(times):
        start = clock()
        work()
        seconds.append(clock() - start)
    return seconds


def choose_contenders(asked: str | None, known: Sequence[str]) -> list[str]:
    """Return the names from the command line, separated by commas; default: all known ones. Exits if any cannot run."""
    has_dynet = importlib.util.find_spec("dynet") is not None
    advice = 'dynet cannot be imported by this Python; pip install "dyNET38==2.2" (bench/README.md)'
    if asked is None:
        if not has_dynet:
            print(f"measuring without DyNet: {advice}", file=sys.stderr)
        return [name for name in known if not name.startswith("dynet") or has_dynet]
    names = asked.split(",")
    if unknown := set(names) - set(known):
        sys.exit(f"unknown contenders: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if any(name.startswith("dynet") for name in names) and not has_dynet:
        sys.exit(advice)
    return names


def choose(asked: str | None, known: Sequence[str], what: str) -> list[str]:
    """Return the names from the command line, separated by commas; default: all known ones. Exits if one is unknown."""
    names = list(known) if asked is None else asked.split(",")
    if unknown := set(names) - set(known):
        sys.exit(f"unknown {what}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def report(
    bench: str,
    case: str,
    values: Sequence[float],
    unit: str,
    peer: tuple[str, Sequence[float]] | None = None,
    *,
    higher_is_better: bool = True,
    **extra: object,
) -> None:
    """Print one result: medians over the rounds, and the median of the per-round ratios (> 1: vpps is better).

    values[k] and peer[1][k] belong to the same round: their ratio cancels the machine's state in that round.
    """
    line: dict[str, object] = {"bench": bench, "case": case, "value": _rounded(statistics.median(values)), "unit": unit}
    if peer is not None:
        name, peer_values = peer
        ratios = [v / p if higher_is_better else p / v for v, p in zip(values, peer_values, strict=True)]
        line |= {"peer": name, "peer_value": _rounded(statistics.median(peer_values))}
        line |= {"ratio": _rounded(statistics.median(ratios)), "ratios": [_rounded(min(ratios)), _rounded(max(ratios))]}
    line |= extra | {"rounds": len(values), "machine": machine(), "versions": versions(), "commit": commit()}
    print(json.dumps(line), flush=True)


def median(values: Sequence[float]) -> float:
    """Return the median, rounded for output."""
    return _rounded(statistics.median(values))


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over the rounds of two contenders' ratios."""
    return median([value / other for value, other in zip(values, others, strict=True)])


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def machine() -> dict[str, object]:
    """Return the CPU model and microarchitecture, the cores of the machine and those this process may use, and the load
    average at the start of the bench."""
    cpu = _cpu()
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "microarchitecture": microarchitecture(), "cores": os.cpu_count(), "usable": usable_cores(), "load": _LOAD,
    }  # fmt: skip


@functools.cache
def _cpu() -> dict[str, str]:
    """Return the system's data on its first CPU; empty outside Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    first = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.exists() else ""
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


@functools.cache
def microarchitecture() -> str:
    """Return the compiler's name for the CPU, its vendor, family and model; a virtual machine may hide the model."""
    known = _output(_compiler_command() or "g++", "-march=native", "-Q", "--help=target").split()
    name = known[known.index("-march=") + 1] if "-march=" in known[:-1] else ""
    numbers = [_cpu()[key] for key in ("vendor_id", "cpu family", "model", "stepping") if key in _cpu()]
    return f"{name} ({' '.join(numbers)})" if numbers else name or platform.machine()


@functools.cache
def versions() -> dict[str, str | None]:
    """Return the versions that the figures depend on; None for a package that is not installed."""
    return {
        "python": platform.python_version(),
        **{package: _installed(package) for package in ("numpy", "vpps", "torch")},
        # There are two builds: the wheel's, and peers/build_dynet.
        "dynet": getattr(sys.modules.get("dynet"), "__gitversion__", None) or _installed("dyNET38"),
        "compiler": _compiler(),
        **_gpu_versions(),
    }


def _gpu_versions() -> dict[str, str | None]:
    """Return the versions that NVRTC and the GPU's driver report; None if absent."""
    if importlib.util.find_spec("vpps") is None:
        return {"nvrtc": None, "driver": None}
    from vpps.errors import CompileError
    from vpps.kernel.libnvrtc import library
    from vpps.runtime.driver import release

    try:
        nvrtc = library().version
    except CompileError:
        nvrtc = None
    return {"nvrtc": nvrtc, "driver": release() or None}


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", None)


def _compiler() -> str | None:
    """Return the first `--version` line of the compiler that vpps would use."""
    name = _compiler_command()
    return _output(name, "--version").partition("\n")[0] or None if name else None


def _compiler_command() -> str | None:
    return next((name for name in (os.environ.get("CXX"), "g++", "clang++") if name and shutil.which(name)), None)


@functools.cache
def commit() -> dict[str, Any]:
    """Return the commit of this checkout, and True if anything but the results differs from it."""
    changed = _output("git", "-C", str(_ROOT), "status", "--porcelain", "--", ".", ":!bench/results")
    return {"id": _output("git", "-C", str(_ROOT), "rev-parse", "HEAD") or None, "dirty": bool(changed)}


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Return the number of cores this process may use."""
    return len(_cores())


def confine(cores: int) -> None:
    """Keep this process, host thread included, on that many cores. Otherwise "one thread" would give an asynchronous
    contender more cores than a synchronous one. Call it before any library starts threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, _cores()[:cores])


def megabytes() -> float:
    """Return the resident memory of the process after garbage collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def keep_freed_memory() -> None:
    """Tell glibc to reuse freed memory of any block size instead of returning it to the kernel. Otherwise page faults
    dominate the times of programs that allocate per batch. Does nothing with other C libraries."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
        mallopt(m_trim_threshold, 2**31 - 1)
        mallopt(m_mmap_max, 0)


def mkl_avx512() -> None:
    """Make MKL use AVX-512 on a CPU that Intel did not make: re-execute this program with a preloaded library.

    MKL picks its code path by vendor, through the function below. Without it, the peer's matrix products run at less
    than half the library's speed there. Call this function first: the re-execution loses all earlier state.
    """
    if folder := os.environ.pop(_PRELOADED, None):
        del os.environ["LD_PRELOAD"]  # already loaded; compilers that we start do not need it
        shutil.rmtree(folder, ignore_errors=True)
        return
    folder = tempfile.mkdtemp(prefix="vpps-bench-")
    library = mkl_avx512_library(folder)
    os.execve(sys.executable, sys.orig_argv, os.environ | {"LD_PRELOAD": str(library), _PRELOADED: folder})


def mkl_avx512_library(folder: str) -> Path:
    """Compile the library that `mkl_avx512` preloads."""
    return shared_library(folder, "mkl_avx512", "c", "int mkl_serv_intel_cpu_true(void) { return 1; }\n")


def shared_library(folder: str, name: str, language: str, source: str, *flags: str) -> Path:
    """Compile a C library; `language` is "c" or "c++"."""
    library = Path(folder, f"{name}.so")
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", *flags, "-x", language, "-o", library, "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return library
