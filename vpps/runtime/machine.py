"""What a handle asks of a machine: virtual processors, the pool they work on, launches one after the other."""

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
_GROWTH = 1.25  # the pool grows by at least a quarter, so that growing batches do not copy it every time


def aligned_zeros(floats: int) -> NDArray[np.float32]:
    """Zeros that begin at a cache line. The memory is taken from the system only as it is touched."""
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
    """Have `state.shutdown()` called once: when the result is, or nobody uses the machine any more. In a forked child,
    where there are no threads and no GPU, it is not.

    Not when Python exits: a daemon thread may be planning into its memory, or a launch be running there, and nobody can
    wait for a thread that Python does not continue. The system takes everything back.
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


_ending: list[bool] = []  # has an element when Python exits


def is_ending() -> bool:
    """True once Python exits."""
    return bool(_ending)


def _keep_all() -> None:
    """Let no memory of machines go any more, in whatever order Python clears its modules."""
    _ending.append(True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_OPEN))


atexit.register(_keep_all)


class Wanted(NamedTuple):
    """The machine that a handle asks for.

    Attributes:
        vps: virtual processors; None for what suits the machine.
        onchip: what is forced of the distribution of weights over the chip, and how many groups there are.
        train: whether the host will work during launches.
        timeline: whether kernels record what every virtual processor does when.
        schedule: name of the schedule.
        local_rank: number of this process among those of this computer that train together, which divide its GPUs.
        precision: of products with parameters.
    """

    vps: int | None
    onchip: ChipOptions
    train: bool
    timeline: bool
    schedule: str = "vector"
    local_rank: int = 0
    precision: Precisions = ALL_EXACT


class Failure(NamedTuple):
    """Why a launch did not end as it should.

    Attributes:
        message: a sentence with `{0}`, `{1}`, ... where the user's words for the positions belong.
        positions: of instructions in the script.
    """

    message: str
    positions: tuple[int, ...]


class Machine(ABC):
    """Virtual processors and the pool they work on.

    Attributes:
        target: name of the row in `vpps.targets`.
        vps: number of virtual processors.
        pool: grows by `reserve`.
        panel: rows of a packed panel; also the granule in which units are dealt to virtual processors.
        arch: what kernels are compiled for: "sm_90", "avx512", or "" for the emulator.
        source: the kernel's source; "" before `specialise`, where kernels are specialised to models.
        helped: whether whoever waits for the launch that comes does so at once, and may work for it.
        queues: whether a launch may be begun while another one runs, to follow it. If that one is stopped, the one that
            was to follow it has never begun.
        spec: what its kernel can do; None before `specialise`, and where one kernel serves every model.
        resources: what the compiler reports of its kernel; None if nothing.
        gpu: identity of the GPU, in all the world; b"" where there is none.
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
        """A launch comes soon."""
        return

    @property
    def in_order(self) -> AbstractContextManager[Any]:
        """A context in which what CuPy does has its place among the launches, and has ended when that is left."""
        return nullcontext()

    @property
    def device(self) -> Device | None:
        """The chip on which weights can be held; None where they stay in memory."""
        return None

    @property
    def driver(self) -> str:
        """What the GPU's driver says of itself, such as "580.65.06, CUDA 13.0"; "" where there is none."""
        return ""

    @property
    def default_pool_limit(self) -> int:
        """Bytes that the pool may grow to, unless the user says otherwise: half of the memory, and no more than
        addresses reach."""
        try:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            memory = 8 * 2**30
        return min(memory // 2, WORD_BYTES * MAX_POOL_FLOATS)

    def can_run(self, spec: KernelSpec) -> bool:
        """Whether its kernel can do what `spec` says."""
        return self.spec is not None and self.spec.covers(spec)

    def specialise(self, spec: KernelSpec) -> None:
        """Have a kernel that can do what `spec` says, and what its kernel can do. No launch may be running.

        Raises:
            CompileError: it does not compile, or not load.
            HandleError: the GPU does not run that many virtual processors at the same time.
        """
        if not self.can_run(spec):
            self._specialise(spec if self.spec is None else self.spec.joined(spec))

    @abstractmethod
    def _specialise(self, spec: KernelSpec) -> None:
        """Have a kernel for `spec` in place of the one that there is."""

    def grow(self, floats: int, keep: int, pool_limit: int) -> None:
        """Make the pool at least `floats` long, keeping its first `keep` floats. No launch may be running.

        Args:
            pool_limit: bytes that it may grow to.

        Raises:
            CapacityError: that is not enough, or the memory is not there.
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
        """As `grow`, but to this size and without a limit. Raises CapacityError."""
        if floats > len(self.pool):
            larger = aligned_zeros(floats)
            larger[:keep] = self.pool[:keep]
            self.pool = larger

    @abstractmethod
    def record(self, capacity: int) -> Recording:
        """Memory for what the next launch records; only for a machine made with `timeline`. No launch may be running,
        but where they queue.

        Args:
            capacity: records of each virtual processor that there is to be room for; a machine may limit it.
        """

    def stage(self, script: NDArray[np.uint32]) -> None:  # noqa: B027 - most have nothing to do
        """Begin to bring the script of the next launch to where it will be read, which may take a while."""

    @abstractmethod
    def launch(self, script: NDArray[np.uint32]) -> None:
        """Begin to execute a script; returns at once. The previous launch must have ended, or the one before it where
        launches queue.

        Raises:
            HandleError: too many launches are in flight, or there is no kernel.
        """

    @property
    @abstractmethod
    def launches(self) -> int:
        """Launches begun so far."""

    @abstractmethod
    def wait(self, number: int | None = None) -> Failure | None:
        """Wait for a launch to end: the one of that number, or the oldest one that runs. None if all went well.

        Raises:
            DriverError: the GPU gave up.
        """

    @abstractmethod
    def loss(self, slot: int) -> float:
        """What the latest launch that has ended and wrote there left at that place among the first of the pool."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it can launch: neither closed nor ended because Python exits, and no GPU of it is lost."""

    @abstractmethod
    def close(self) -> None:
        """Wait for the launch in flight and free everything; may be called twice."""


def make_machine(target: str, wanted: Wanted) -> Machine:
    """The machine for a target, given by its name or as `AUTO`.

    Raises:
        HandleError, CompileError: it cannot be had; says why and what to do.
    """
    chosen = present_target() if target == AUTO else target_named(target)
    _check_groups(chosen, wanted)
    machine: Machine = chosen.machine(wanted)
    return machine


def _check_groups(target: Target, wanted: Wanted) -> None:
    """Raises HandleError where there cannot be so many groups of virtual processors."""
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
