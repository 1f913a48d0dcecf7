"""What a handle asks of a machine: virtual processors, the pool they work on, launches one after the other."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from vpps.kernel.resources import Resources
from vpps.kernel.spec import KernelSpec
from vpps.placement.distribution import Pool
from vpps.placement.onchip import ChipOptions, Device
from vpps.runtime.recording import Recording
from vpps.script.products import Continuation


class Wanted(NamedTuple):
    """The machine that a handle asks for.

    Attributes:
        vps: virtual processors; None for what suits the machine.
        groups: of them.
        onchip: what is forced of the distribution of weights over the chip.
        train: whether the host will work during launches.
        timeline: whether kernels record what every virtual processor does when.
        tile: name of the tile of products, on a target that has them; None for the processor's usual one.
    """

    vps: int | None
    groups: int
    onchip: ChipOptions
    train: bool
    timeline: bool
    tile: str | None


class Failure(NamedTuple):
    """Why a launch did not end as it should.

    Attributes:
        message: a sentence with `{0}`, `{1}`, ... where the user's words for the positions belong.
        positions: of instructions in the script.
    """

    message: str
    positions: tuple[int, ...]


class Machine(Protocol):
    """Virtual processors and the pool they work on.

    Attributes:
        target: name of the row in `vpps.targets`.
        vps: number of virtual processors.
        panel: rows of a packed panel; also the granule in which units are dealt to virtual processors.
        arch: what kernels are compiled for: "sm_90", "avx512", or "" for the emulator.
        source: the kernel's source; "" before `specialise`, where kernels are specialised to models.
        queues: whether a launch may be begun while another one runs, to follow it. If that one is stopped, the one that
            was to follow it has never begun.
    """

    target: str
    vps: int
    panel: int
    arch: str
    source: str
    queues: bool

    @property
    def pool(self) -> Pool:
        """The pool; grows by `reserve`."""
        ...

    @property
    def device(self) -> Device | None:
        """The chip on which weights can be held; None where they stay in memory."""
        ...

    @property
    def default_pool_limit(self) -> int:
        """Bytes that the pool may grow to, unless the user says otherwise."""
        ...

    @property
    def spec(self) -> KernelSpec | None:
        """What its kernel can do; None before `specialise`, and where one kernel serves every model."""
        ...

    @property
    def resources(self) -> Resources | None:
        """What the compiler reports of its kernel; None if nothing."""
        ...

    @property
    def driver(self) -> str:
        """What the GPU's driver says of itself; "" where there is none."""
        ...

    def can_run(self, spec: KernelSpec) -> bool:
        """Whether its kernel can do what `spec` says."""
        ...

    def specialise(self, spec: KernelSpec) -> None:
        """Have a kernel that can do what `spec` says. No launch may be running. Raises CompileError."""
        ...

    def reserve(self, floats: int, keep: int) -> None:
        """Make the pool at least `floats` long, keeping its first `keep` floats. No launch may be running."""
        ...

    def record(self, capacity: int) -> Recording:
        """Memory for what the next launch records; only for a machine made with `timeline`.

        Args:
            capacity: records of each virtual processor that there is to be room for; a machine may limit it.
        """
        ...

    def stage(self, script: NDArray[np.uint32]) -> None:
        """Begin to bring the script of the next launch to where it will be read, which may take a while."""
        ...

    def launch(self, script: NDArray[np.uint32], sequel: Continuation | None = None) -> None:
        """Begin to execute a script, and what follows it; returns at once. The previous launch must have ended, or the
        one before it where launches queue.

        Products, and a second launch of the script, count as part of the launch.
        """
        ...

    @property
    def launches(self) -> int:
        """Launches begun so far."""
        ...

    def wait(self, number: int | None = None) -> Failure | None:
        """Wait for a launch to end: the one of that number, or the oldest one that runs. None if all went well."""
        ...

    def loss(self, slot: int) -> float:
        """What the latest launch that has ended and wrote there left at that place among the first of the pool."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it can launch: neither closed nor ended because Python exits."""
        ...

    def close(self) -> None:
        """Wait for the launch in flight and free everything; may be called twice."""
        ...
