"""Interface of machines: virtual processors, their pool, and sequential launches."""

from __future__ import annotations

import atexit
import ctypes
import os
import weakref
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpps.errors import CapacityError, HandleError
from vpps.kernel.resources import Resources
from vpps.kernel.spec import KernelSpec
from vpps.model.precisions import ALL_EXACT, Precisions
from vpps.ops.element import FLOAT32, WORD_BYTES
from vpps.placement.distribution import Pool
from vpps.placement.onchip import ChipOptions, Device
from vpps.runtime.recording import Recording
from vpps.script.instructions import MAX_GROUPS
from vpps.targets import AUTO, GPUS, Target, listed, present_target, target_named
from vpps.values import as_index

MAX_POOL_FLOATS = 2**32  # addresses are 32-bit element offsets
_ALIGN_BYTES = 64  # a cache line
_GROWTH = 1.25  # smallest growth factor of the pool, so that growing batches do not copy it every time


def aligned_zeros(floats: int) -> NDArray[np.float32]:
    """Return zeros aligned to a cache line. The system commits the memory only when it is touched."""
    try:
        raw = np.zeros(floats + _ALIGN_BYTES // FLOAT32.bytes, FLOAT32.dtype)
    except MemoryError:
        raise CapacityError(
            f"the system has no {floats * FLOAT32.bytes / 2**20:.0f} MiB left for the pool; "
            "use smaller batches, or fewer other programs"
        ) from None
    shift = -raw.ctypes.data % _ALIGN_BYTES // FLOAT32.bytes
    return raw[shift : shift + floats]


_OPEN: set[Any] = set()  # states of machines


def freed_with(machine: Machine, state: Any) -> weakref.finalize[Any, Any]:
    """Return a finalizer that calls `state.shutdown()` once: when it is called, or when the machine is collected. In a
    forked child, which has no threads and no GPU, it does nothing.

    It does not run when Python exits. A daemon thread or a launch may then still use the memory, and a thread that
    Python has frozen cannot be waited for. The system frees everything.
    """
    _OPEN.add(state)
    finalizer = weakref.finalize(machine, _shut_down, state, os.getpid())
    finalizer.atexit = False
    return finalizer


def _shut_down(state: Any, pid: int) -> None:
    if not _ending:
        _OPEN.discard(state)
        if os.getpid() == pid:
            state.shutdown()


_ending: list[bool] = []  # not empty if Python is exiting


def is_ending() -> bool:
    """Return True if Python is exiting."""
    return bool(_ending)


def _keep_all() -> None:
    """Keep the memory of all machines at exit, regardless of the order in which Python clears its modules."""
    _ending.append(True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_OPEN))


atexit.register(_keep_all)


class MachineRequest(NamedTuple):
    """A handle's requirements for its machine.

    Attributes:
        vps: number of virtual processors; None for the machine's default.
        onchip: forced parts of the on-chip weight distribution, and the number of groups.
        train: True if the host will work during launches.
        timeline: True if kernels record a timeline of every virtual processor.
        schedule: name of the schedule.
        local_rank: number of this process among the ranks on this computer, which divide its GPUs.
        precision: precision of products with parameters.
    """

    vps: int | None
    onchip: ChipOptions
    train: bool
    timeline: bool
    schedule: str = "vector"
    local_rank: int = 0
    precision: Precisions = ALL_EXACT


class Failure(NamedTuple):
    """Failure of a launch.

    Attributes:
        message: a sentence; its placeholders `{0}`, `{1}`, ... stand for the positions in the user's words.
        positions: positions of instructions in the script.
    """

    message: str
    positions: tuple[int, ...]


class Machine(ABC):
    """Virtual processors and their pool.

    Attributes:
        target: name of the target, a row in `vpps.targets`.
        vps: number of virtual processors.
        pool: memory of the kernels; grows with `reserve`.
        panel: rows of a packed panel; also the granularity at which units are distributed to virtual processors.
        arch: architecture of the kernels: "sm_90", "avx512", or "" for the emulator.
        source: source of the kernel; "" before `specialise` on targets with a kernel per model.
        helped: True if the caller waits right after the next launch, so that its thread can execute part of it.
        queues: True if a launch may be queued behind a running one. If the running one is stopped, the queued launch is
            treated as never begun.
        spec: abilities of the kernel; None before `specialise`, or if one kernel serves every model.
        resources: the compiler's report on the kernel; None if there is none.
        gpu: globally unique identity of the GPU; b"" without a GPU.
    """

    target: str
    vps: int
    pool: Pool
    panel = 1
    arch = ""
    source = ""
    queues = False
    helped = False
    spec: KernelSpec | None = None
    resources: Resources | None = None
    gpu = b""

    def expect(self) -> None:
        """Announce that a launch will begin soon."""
        return

    @property
    def in_order(self) -> AbstractContextManager[Any]:
        """Context that orders CuPy's work with the launches; the work has ended when the context is left."""
        return nullcontext()

    @property
    def device(self) -> Device | None:
        """Chip that can hold weights; None if weights stay in memory."""
        return None

    @property
    def driver(self) -> str:
        """Versions of the GPU's driver, such as "580.65.06, CUDA 13.0"; "" without a GPU."""
        return ""

    @property
    def default_pool_limit(self) -> int:
        """Default limit of the pool in bytes: half of the memory, but at most the range of addresses."""
        try:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            memory = 8 * 2**30
        return min(memory // 2, WORD_BYTES * MAX_POOL_FLOATS)

    def can_run(self, spec: KernelSpec) -> bool:
        """Return True if the kernel covers `spec`."""
        return self.spec is not None and self.spec.covers(spec)

    def specialise(self, spec: KernelSpec) -> None:
        """Load a kernel that covers `spec` and everything that the current kernel covers. No launch may be running.

        Raises:
            CompileError: the kernel does not compile, or does not load.
            HandleError: the GPU does not run that many virtual processors at the same time.
        """
        if not self.can_run(spec):
            self._specialise(spec if self.spec is None else self.spec.joined(spec))

    @abstractmethod
    def _specialise(self, spec: KernelSpec) -> None:
        """Replace the kernel with one for `spec`."""

    def grow(self, floats: int, keep: int, pool_limit: int) -> None:
        """Grow the pool to at least `floats` and keep its first `keep` floats. On the host, no launch may be
        running; a GPU ends its launches first.

        Args:
            pool_limit: bytes that the pool may grow to.

        Raises:
            CapacityError: the limit is too low, or the memory is not available.
        """
        if floats <= len(self.pool):
            return
        limit = min(pool_limit // WORD_BYTES, MAX_POOL_FLOATS)
        if floats > limit:
            reach = " (addresses reach no further)" if limit == MAX_POOL_FLOATS else "; raise pool_limit="
            raise CapacityError(
                f"the graph needs a pool of {floats * WORD_BYTES / 2**20:.1f} MiB and it may grow to "
                f"{limit * WORD_BYTES / 2**20:.1f} MiB{reach}, or use smaller batches"
            )
        self.reserve(min(max(floats, int(len(self.pool) * _GROWTH)), limit), keep)

    def reserve(self, floats: int, keep: int) -> None:
        """Grow the pool to exactly `floats`, without a limit, but otherwise like `grow`. Raises CapacityError."""
        if floats > len(self.pool):
            larger = aligned_zeros(floats)
            larger[:keep] = self.pool[:keep]
            self.pool = larger

    @abstractmethod
    def record(self, capacity: int) -> Recording:
        """Create the recording of the next launch; only for a machine with `timeline`. No launch may be running, unless
        the machine queues launches.

        Args:
            capacity: number of records per virtual processor to reserve; a machine may limit it.
        """

    def stage(self, script: NDArray[np.uint32]) -> None:  # noqa: B027 - most machines have nothing to do
        """Begin to copy the script of the next launch to the memory from which the kernel reads it."""

    @abstractmethod
    def launch(self, script: NDArray[np.uint32]) -> None:
        """Begin to execute a script and return at once. The previous launch must have ended. If the machine queues
        launches, the previous one may still run, but the one before it must have ended.

        Raises:
            HandleError: too many launches are in flight, or there is no kernel.
        """

    @property
    @abstractmethod
    def launches(self) -> int:
        """Number of launches begun so far."""

    @abstractmethod
    def wait(self, number: int | None = None) -> Failure | None:
        """Wait for the launch with that number, by default the oldest in flight, to end. Returns None on success.

        Raises:
            DriverError: the GPU reports an error.
        """

    @abstractmethod
    def loss(self, slot: int) -> float:
        """Return the value of a slot among the pool's first floats, as written by the latest finished launch that wrote
        to it."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """True if the machine can launch: it is not closed, Python is not exiting, and its GPU works."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the launch in flight and free everything; may be called twice."""


def make_machine(target: str, wanted: MachineRequest) -> Machine:
    """Create the machine for a target, given by name or as `AUTO`.

    Raises:
        HandleError, CompileError: the target is not available; the message gives the reason and a remedy.
    """
    chosen = present_target() if target == AUTO else target_named(target)
    _check_groups(chosen, wanted)
    machine: Machine = chosen.machine(wanted)
    return machine


def _check_groups(target: Target, wanted: MachineRequest) -> None:
    """Raise HandleError if the target does not support that number of groups of virtual processors."""
    given, vps = wanted.onchip.groups, wanted.vps
    if given is None:
        return
    groups = as_index(given)
    if groups is None or not 1 <= groups <= MAX_GROUPS:
        raise HandleError(f"ChipOptions(groups={given!r}): expected an int from 1 to {MAX_GROUPS}")
    if groups == 1:
        return
    if not target.is_gpu:
        raise HandleError(
            f"ChipOptions(groups={groups}): target {target.name!r} has one group, as all threads share the weights in "
            f"memory; use groups=1, or target {listed(GPUS)}"
        )
    if wanted.schedule == "paper":
        raise HandleError(
            f"ChipOptions(groups={groups}) with schedule='paper': the published scheme has one group; use groups=1, or "
            "schedule='vector'"
        )
    count = groups if vps is None else as_index(vps)
    if count is not None and (count % groups or not count):
        raise HandleError(
            f"vps={vps} with groups={groups}: groups are equally large; use a multiple of {groups} virtual processors, "
            f"such as vps={max(count // groups, 1) * groups}"
        )
