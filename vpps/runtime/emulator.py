"""Runs a kernel of the simt target: CUDA source compiled as host C++, one fiber per CUDA thread, with race detection.

The library (vpps/kernel/simt_compiler.py) has global launch state, so launches of one library run one after the other.
"""

from __future__ import annotations

import ctypes
import operator
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.errors import CapacityError, HandleError
from vpps.kernel.cache import load_library
from vpps.runtime.results import LaunchParameters

MAX_BLOCKS = 256
MAX_WORDS = 1 << 26  # words in one array, limited by the index of the array's shadow
MAX_SEED = 2**64 - 1
_POSITIONS = 32
_NOWHERE = 0xFFFFFFFF

FloatArray = NDArray[np.float32]
WordArray = NDArray[np.uint32]


class Finding(NamedTuple):
    """An error found in a launch.

    Attributes:
        kind: "race", "deadlock", "divergent barrier", "unwritten fence" (a signal or a wait is relaxed and orders
            nothing), "non-coherent read", "out of bounds" or "misaligned access".
        message: a sentence; `{0}`, `{1}` stand for the places in `positions`.
        positions: positions in the script, reported by the kernel with `at`; -1 before its first instruction.
    """

    kind: str
    message: str
    positions: tuple[int, ...]


class _Request(ctypes.Structure):
    """Mirrors SimtRequest in templates/simt/machine.h."""

    _fields_ = [
        ("launch", LaunchParameters),
        ("words", ctypes.c_uint64 * 8),
        ("seed", ctypes.c_uint64),
        ("blocks", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint32),
        ("races", ctypes.c_uint32),
    ]


class _Library:
    """A loaded library. Emulators with the same path share it; its memory is freed when the last of them is gone."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.lock = threading.RLock()  # reentrant: a signal handler may use another handle with this kernel
        weakref.finalize(self, lib.vpps_simt_release).atexit = False  # at exit a daemon thread may still run it


_libraries: weakref.WeakValueDictionary[Path, _Library] = weakref.WeakValueDictionary()
_loading = threading.Lock()
_CALL: Callable[[Callable[[], Any]], Any] = operator.call


def _library(path: Path) -> _Library:
    with _loading:
        library = _libraries.get(path)
        if library is None:
            lib = load_library(path)
            lib.vpps_simt_run.argtypes = [ctypes.POINTER(_Request)]
            lib.vpps_simt_finding.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 3]
            lib.vpps_simt_switches.restype = ctypes.c_uint64
            lib.vpps_simt_release.restype = None
            library = _libraries[path] = _Library(lib)
        return library


class Emulator:
    """A compiled kernel and its emulated machine.

    Args:
        library_path: result of `build_simt`.

    Attributes:
        switches: number of switches between threads during the last launch.

    Raises:
        CompileError: the library cannot be loaded.
    """

    def __init__(self, library_path: Path) -> None:
        self._library = _library(library_path)
        self.switches = 0

    def run(
        self,
        pool: FloatArray,
        script: WordArray,
        counters: WordArray,
        cleared: WordArray,
        report: WordArray,
        patience: int = 0,
        *,
        blocks: int,
        threads: int = 256,
        shared_bytes: int = 0,
        seed: int = 0,
        races: bool = True,
        stopped: WordArray | None = None,
        losses: FloatArray | None = None,
        recording: WordArray | None = None,
        room: int = 0,
        then: Callable[[], object] = tuple,
    ) -> list[Finding]:
        """Run one launch to its end, or to its first deadlock, divergent barrier or access outside all arrays.

        The kernel sees a virtual clock, which continues from launch to launch. It advances by a nanosecond at every
        switch between threads. If all threads wait, it advances by a quarter of `patience` at a time, so that a kernel
        with a clock limit stops by itself. With patience 0, the emulator reports a deadlock instead.

        Args:
            pool, script, counters, cleared, report: arrays of `struct Launch`; accesses outside them are reported.
            patience: nanoseconds that a wait may take; 0 for no limit.
            blocks: number of virtual processors.
            threads: number of threads per block; a multiple of 32.
            shared_bytes: shared memory per block; its words are NaN at first.
            seed: 0 runs threads in order; any other number selects a random order, reproducibly.
            races: True to look for races; the library must be compiled for it.
            stopped, losses: further arrays of `struct Launch` in rendered kernels.
            recording, room: further members of `struct Launch` in kernels that record a timeline.
            then: called after the launch; no signal handler can run in between.

        Returns:
            At most 20 findings, which differ in kind or place; the last one may have ended the launch.

        Raises:
            HandleError: an argument is not as described.
            CapacityError: the system has no memory for the threads' stacks or the shadows of the arrays.
        """
        arrays: dict[str, Any] = {
            "pool": pool, "script": script, "counters": counters, "cleared": cleared, "report": report,
            "stopped": stopped, "losses": losses, "recording": recording,
        }  # fmt: skip
        for name, given in arrays.items():
            wanted = np.dtype(np.float32 if name in ("pool", "losses") else np.uint32)
            array = arrays[name] = np.zeros(0, wanted) if given is None else given
            if array.dtype != wanted or not array.flags.c_contiguous or array.size >= MAX_WORDS:
                raise HandleError(
                    f"{name}: expected a contiguous array of fewer than {MAX_WORDS} {wanted.name}, got {array.size} "
                    f"{array.dtype}"
                )
            if name != "script" and not array.flags.writeable:
                raise HandleError(f"{name} is read-only, and a launch writes to it: pass a copy")
        *pointers, flag, told, recorded = [array.ctypes.data for array in arrays.values()]
        parameters = LaunchParameters(*pointers, patience, flag, told, recorded, room)
        words = (ctypes.c_uint64 * 8)(*(array.size for array in arrays.values()))
        request = _Request(parameters, words, seed, blocks, threads, shared_bytes, races)
        lib = self._library.lib
        with self._library.lock:
            calls: list[Callable[[], Any]] = [partial(lib.vpps_simt_run, ctypes.byref(request)), then]
            count, _ = map(_CALL, calls)
            if count < 0:
                raise CapacityError(
                    f"the system has no memory left for {blocks} blocks of {threads} emulated threads and the shadows "
                    "of their arrays; use fewer blocks or a smaller pool"
                )
            self.switches = int(lib.vpps_simt_switches())
            return [_finding(lib, i) for i in range(count)]


def _finding(lib: Any, index: int) -> Finding:
    kind, message = ctypes.c_char_p(), ctypes.c_char_p()
    positions = (ctypes.c_uint32 * _POSITIONS)()
    count = lib.vpps_simt_finding(index, ctypes.byref(kind), ctypes.byref(message), positions)
    places = tuple(-1 if p == _NOWHERE else int(p) for p in positions[:count])
    return Finding((kind.value or b"").decode(), (message.value or b"").decode(), places)
