"""torch.distributed: the process group that a PyTorch program has, or one that torchrun's variables describe."""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import timedelta
from typing import Any

from vpps.config import TORCH_RESTARTS
from vpps.distributed.transports import Messages, Transport, Unanswered
from vpps.errors import DistributedError

TICK = 0.01
"""Seconds that gloo may be early."""


class ProcessGroupTransport(Transport):
    """Messages of a group of its own, of gloo: what is exchanged is in the host's memory.

    Args:
        group: a `torch.distributed.ProcessGroup`; None: that of all processes.
        timeout: seconds that ranks may take to meet at the beginning.

    Raises:
        DistributedError: PyTorch is not there, or was built without gloo; this process is not of the group.
    """

    name = "torch"

    def __init__(self, group: Any = None, timeout: float = 300.0) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise DistributedError(
                f"this process was started by torchrun, and PyTorch cannot be imported ({error}): pip install "
                "'vpps[torch]', or start it with mpiexec"
            ) from error
        if not dist.is_available() or not dist.is_gloo_available():
            raise DistributedError("torch.distributed: this PyTorch was built without gloo; use MPI")
        self._torch, self._dist = torch, dist
        wait = timedelta(seconds=timeout)
        self._owns = not dist.is_initialized()
        try:
            if self._owns:
                store, rank, size = next(dist.rendezvous("env://", timeout=wait))
                # torchrun's store still has the addresses of processes that it has restarted.
                store = dist.PrefixStore(f"start {TORCH_RESTARTS.get()}", store)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
            ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
            if dist.get_rank() not in ranks:
                raise DistributedError(f"init(backend=group): rank {dist.get_rank()} is not of that group, {ranks}")
            self._group = dist.new_group(ranks, timeout=wait, backend="gloo", use_local_synchronization=True)
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            raise DistributedError(f"init: ranks did not meet within {timeout:g} s ({said})") from error
        self._ranks = ranks
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        dist, tensor = self._dist, self._torch.from_numpy
        until, works, partner = time.monotonic() + timeout, list[tuple[int, Any]](), self.rank
        try:
            for partner, array in receives:
                works.append((partner, dist.irecv(tensor(array), self._ranks[partner], self._group)))
            for partner, array in sends:
                works.append((partner, dist.isend(tensor(array), self._ranks[partner], self._group)))
            for partner, work in works:  # noqa: B007 - the error is about it
                work.wait(timedelta(seconds=max(until - time.monotonic(), 1e-3)))
        except RuntimeError as error:
            late = time.monotonic() > until - TICK
            said = re.sub(r"^\[\S*\] ", "", str(error)).partition(". ")[0]  # without gloo's source file and advice
            raise Unanswered([partner], "" if late else said) from error

    def abort(self, status: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # torchrun ends the others

    def close(self) -> None:
        self._dist.destroy_process_group(self._group)
        if self._owns:
            self._dist.destroy_process_group()
