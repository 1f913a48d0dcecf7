"""Core sharing between PyTorch's threads and vpps: a warning about too many threads, and a function to limit them."""

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
_shared = False  # True after `share_cores`
_fitting: set[tuple[int, int]] = set()  # (threads, virtual processors) that need no warning


def share_cores(torch_threads: int = 1) -> None:
    """Limit PyTorch's operators to `torch_threads` threads in this process, and leave the other cores to vpps.

    PyTorch and vpps work in turn, but idle OpenMP threads spin for a while on cores that virtual processors then need.
    One thread is best if PyTorch's part is small. `OMP_WAIT_POLICY=PASSIVE` (environment) makes idle threads sleep.

    Raises:
        HandleError: the number of threads is invalid.
    """
    global _advised, _shared
    torch.set_num_threads(as_count(torch_threads, "share_cores: torch_threads", HandleError))
    _advised = _shared = True


def vps_of_layers() -> int | None:
    """Return the number of virtual processors of recurrent layers: as many as PyTorch has threads, or, after
    `share_cores`, None for the default."""
    return None if _shared else torch.get_num_threads()


def advise(target: str, vps: int) -> None:
    """Warn, once per process, if virtual processors and PyTorch's threads must share cores."""
    global _advised
    if _advised or (threads := torch.get_num_threads()) == 1 or (threads, vps) in _fitting:
        return
    cores = usable_cores()
    passive = OMP_WAIT_POLICY.get().upper() == "PASSIVE"
    if TARGETS[target].is_gpu or passive or threads - 1 + vps <= cores:  # - 1: the calling thread only waits
        _fitting.add((threads, vps))
        return
    _advised = True
    warnings.warn(
        f"PyTorch's {counted(threads, 'thread')} and {counted(vps, 'virtual processor')} share {cores} cores and "
        "slow each other down: call vpps.torch.share_cores() first, which leaves PyTorch one thread, or give "
        "vpps.torch.Module a smaller vps=",
        RuntimeWarning,
        stacklevel=users_level("vpps", "torch"),
    )
