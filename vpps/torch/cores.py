"""Threads of PyTorch and of vpps on the same cores: said once where they are too many, and a way to share."""

from __future__ import annotations

import warnings

import torch

from vpps.config import OMP_WAIT_POLICY
from vpps.engine.losses import users_level
from vpps.errors import HandleError
from vpps.runtime.cores import usable_cores
from vpps.targets import TARGETS
from vpps.text import counted
from vpps.values import as_count

_advised = False
_fitting: set[tuple[int, int]] = set()  # numbers of threads and of virtual processors of which nothing is said


def share_cores(torch_threads: int = 1) -> None:
    """Let PyTorch's operators run on so many threads of this process, so that virtual processors have the other cores.

    PyTorch and vpps work in turn, but threads of OpenMP spin for a while when they have nothing to do, on cores that
    virtual processors need by then. One thread is best where PyTorch's part is small. With `OMP_WAIT_POLICY=PASSIVE`
    in the environment they sleep instead.

    Raises:
        HandleError: no such number of threads.
    """
    global _advised
    torch.set_num_threads(as_count(torch_threads, "share_cores: torch_threads", HandleError))
    _advised = True


def advise(target: str, vps: int) -> None:
    """Warn, once in a process, where virtual processors and threads of PyTorch have to share cores."""
    global _advised
    if _advised or (threads := torch.get_num_threads()) == 1 or (threads, vps) in _fitting:
        return
    cores = usable_cores()
    passive = OMP_WAIT_POLICY.get().upper() == "PASSIVE"
    if TARGETS[target].is_gpu or passive or threads - 1 + vps <= cores:  # who calls waits while virtual processors work
        _fitting.add((threads, vps))
        return
    _advised = True
    warnings.warn(
        f"PyTorch's {counted(threads, 'thread')} and {counted(vps, 'virtual processor')} share {cores} cores and "
        "slow each other down: call vpps.torch.share_cores() first, which leaves PyTorch one thread, or make the "
        "Module with a smaller vps=",
        RuntimeWarning,
        stacklevel=users_level("vpps", "torch"),
    )
