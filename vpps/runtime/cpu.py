"""The cpu target: virtual processors are OS threads, in a shared library compiled from the kernel source."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpps.errors import HandleError
from vpps.kernel.cache import load_library
from vpps.kernel.host_compiler import build_cpu, build_tails
from vpps.kernel.shared_types import address
from vpps.kernel.spec import KernelSpec, check_numbers
from vpps.runtime.cores import default_vps, usable_cores
from vpps.runtime.machine import Failure, Machine, MachineRequest, aligned_zeros, freed_with, is_ending
from vpps.runtime.recording import HostRecording
from vpps.script.tails import Tail
from vpps.targets import CPU
from vpps.values import as_index

MAX_VPS = 1024
_POLL_MS = 100  # longest wait outside Python; Ctrl-C is handled after it

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int

# Result type and argument types of the functions in templates/host/machine.h.
_FUNCTIONS = {
    "vpps_open": (_POINTER, [_INT, _INT]),
    "vpps_close": (None, [_POINTER]),
    "vpps_launches": (ctypes.c_uint, [_POINTER]),
    "vpps_expect": (None, [_POINTER]),
    "vpps_launch": (_INT, [_POINTER, _POINTER, _POINTER, _INT]),
    "vpps_wait": (ctypes.c_long, [_POINTER, _INT]),
    "vpps_set_tails": (None, [_POINTER, _POINTER]),
    "vpps_apply": (None, [_INT, _POINTER, _POINTER, ctypes.c_long]),
    "vpps_timeline": (None, [_POINTER, _POINTER]),
}


@lru_cache(maxsize=8)
def _library(path: Path) -> ctypes.CDLL:
    lib = load_library(path)
    for name, (returned, taken) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = returned, taken
    return lib


class _TailEntry(ctypes.Structure):
    """An entry in a table of tails. Mirrors TailEntry in templates/host/prelude.h."""

    _fields_ = (("number", ctypes.c_uint32), ("run", ctypes.c_void_p))


@lru_cache(maxsize=256)
def _entries(path: Path) -> tuple[tuple[int, int], ...]:
    """Return the table in a library of tails: the number and address of each tail. The library stays loaded."""
    table = ctypes.pointer(_TailEntry.in_dll(load_library(path), "vpps_tails"))
    found: list[tuple[int, int]] = []
    while table[len(found)].run:
        found.append((int(table[len(found)].number), int(table[len(found)].run)))
    return tuple(found)


class _State:
    """State for the finalizer; holds no reference to the CpuMachine."""

    def __init__(self, lib: ctypes.CDLL, handle: int) -> None:
        self.lib = lib
        self.handle = handle
        self.alive: list[Any] = []  # keeps memory of the launch in flight alive
        self.tables: list[Any] = []  # tables of tails; the threads use the last table

    def shutdown(self) -> None:
        """Wait for the launch in flight and end the threads, in one call that Ctrl-C cannot interrupt: the pool must
        not be freed while threads write to it."""
        self.lib.vpps_close(self.handle)
        self.alive.clear()


class CpuMachine(Machine):
    """Virtual processors and their pool; see `Machine` in vpps/runtime/machine.py. One kernel serves every model,
    except for tails of cells.

    Args:
        vps: number of virtual processors; default: `default_vps` of the cores that this process may use.
        overlapped: True if the host thread will work during launches.
        rounds: True if products may round their factors.
    """

    target = CPU.name

    def __init__(self, vps: int | None = None, overlapped: bool = False, rounds: bool = False) -> None:
        cores = usable_cores()
        count = as_index(default_vps(cores, overlapped) if vps is None else vps)
        if count is None or not 1 <= count <= MAX_VPS:
            raise HandleError(f"vps={vps!r}: expected an int from 1 to {MAX_VPS}")
        path, self.source, built = build_cpu(rounds)
        self._tails: frozenset[Tail] = frozenset()  # tails with compiled code
        self._entries: list[tuple[int, int]] = []
        self.panel = built.panel
        self.arch = built.isa
        self.vps = count
        self.pool: NDArray[np.float32] = aligned_zeros(0)
        lib = _library(path)
        handle = lib.vpps_open(count, cores)
        if not handle:
            raise HandleError(
                f"the system starts no {count} threads: choose fewer virtual processors with vps=, or raise the limits "
                "of processes and memory (ulimit -u, ulimit -v)"
            )
        self._state = _State(lib, handle)
        self._finalizer = freed_with(self, self._state)
        self._recording: HostRecording | None = None

    @classmethod
    def for_handle(cls, w: MachineRequest) -> CpuMachine:
        """Create the machine that a handle needs."""
        return cls(w.vps, w.train, w.precision.is_reduced)

    def record(self, capacity: int) -> HostRecording:
        self._recording = HostRecording(self.vps, capacity)
        self._state.lib.vpps_timeline(self._state.handle, self._recording.address)
        return self._recording

    def expect(self) -> None:
        self._state.lib.vpps_expect(self._state.handle)

    def launch(self, script: NDArray[np.uint32]) -> None:
        state, pool = self._state, self.pool
        state.alive[:] = [pool, script, self._recording]
        if not state.lib.vpps_launch(state.handle, address(pool), address(script), self.helped):
            raise HandleError("a launch was begun while another one is running")

    @property
    def launches(self) -> int:
        return int(self._state.lib.vpps_launches(self._state.handle))

    def can_run(self, spec: KernelSpec) -> bool:
        return self._tails >= spec.tails

    def _specialise(self, spec: KernelSpec) -> None:
        """Compile code for the tails of `spec`."""
        new = [tail for tail in spec.tails if tail not in self._tails]
        check_numbers(spec.tails | self._tails)
        entries = [*self._entries, *_entries(build_tails(new))]
        table = (_TailEntry * (len(entries) + 1))()  # the last entry stays zero and ends the table
        for entry, (number, run) in zip(table, entries, strict=False):
            entry.number, entry.run = number, run
        # Ctrl-C may come between any two of these statements. The table in use must stay alive, and `_tails` must not
        # list tails that this table lacks.
        self._state.tables.append(table)
        self._state.lib.vpps_set_tails(self._state.handle, table)
        del self._state.tables[:-1]
        self._entries = entries
        self._tails |= spec.tails

    def wait(self, number: int | None = None) -> Failure | None:
        while (result := self._state.lib.vpps_wait(self._state.handle, _POLL_MS)) < 0:
            pass  # Python handles signals here, but only after the launch if this thread executes part of it
        if not result:
            return None
        position = int(result) - 1
        return Failure(f"the kernel stopped at word {position} of its script: {{0}}", (position,))

    def loss(self, slot: int) -> float:
        return float(self.pool[slot])

    @property
    def is_open(self) -> bool:
        return self._finalizer.alive and not is_ending()

    def close(self) -> None:
        self._finalizer()
        self.pool = aligned_zeros(0)
