"""torch.distributed transport: uses a PyTorch program's process group, or creates one from torchrun's variables."""

from __future__ import annotations

import os
import re
import sys
import time
from datetime import timedelta
from functools import cached_property
from typing import Any

from vpps.config import TORCH_RESTARTS
from vpps.distributed.transports import Messages, NoAnswer, Patience, Transport
from vpps.errors import DistributedError
from vpps.interop import is_on_gpu

TICK = 0.01
"""Seconds by which gloo may time out early."""

SPIN = 2e-3
"""Seconds of polling NCCL without a pause: gradients of some MB take less."""

PAUSE = 1e-4


class ProcessGroupTransport(Transport):
    """Exchanges messages in its own groups: gloo for arrays on the host, NCCL for arrays on GPUs.

    Args:
        group: a `torch.distributed.ProcessGroup`; None for the default group. If an existing group does not use NCCL,
            this transport does not use it either.
        timeout: seconds that ranks may take to meet at the start.

    Raises:
        DistributedError: PyTorch is missing, or was built without gloo, or this process is not in the group.
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
        self._timeout = wait = timedelta(seconds=timeout)
        self._owns = not dist.is_initialized()
        try:
            if self._owns:
                store, rank, size = next(dist.rendezvous("env://", timeout=wait))
                # After a restart, torchrun's store still has the addresses of the old processes.
                store = dist.PrefixStore(f"start {TORCH_RESTARTS.get()}", store)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
            ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
            if dist.get_rank() not in ranks:
                raise DistributedError(f"init(backend=group): rank {dist.get_rank()} is not of that group, {ranks}")
            self._ranks = ranks
            self._group = self._new_group("gloo", wait)
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            raise DistributedError(f"init: ranks did not meet within {timeout:g} s ({said})") from error
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)
        uses_nccl = self._owns or "nccl" in dist.get_backend_config(group)
        self.takes_gpus = uses_nccl and dist.is_nccl_available() and torch.cuda.is_available()

    def _new_group(self, backend: str, timeout: timedelta) -> Any:
        return self._dist.new_group(self._ranks, timeout=timeout, backend=backend, use_local_synchronization=True)

    @cached_property
    def _gpu_group(self) -> Any:
        """NCCL group, created at the first exchange between GPUs. NCCL's timeout is longer, as it ends the process."""
        return self._new_group("nccl", 2 * self._timeout)

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        from_host, from_gpu = _by_place(sends)
        to_host, to_gpu = _by_place(receives)
        if from_host or to_host:
            self._exchange_on_hosts(from_host, to_host, timeout)
        if from_gpu or to_gpu:
            self._exchange_on_gpus(from_gpu, to_gpu, timeout)

    def _exchange_on_gpus(self, sends: Messages, receives: Messages, timeout: float) -> None:
        """Exchange CuPy arrays, after the work on CuPy's current stream; PyTorch reads them through DLPack."""
        import cupy

        dist, torch = self._dist, self._torch
        _, device = (*receives, *sends)[0][1].__dlpack_device__()
        stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr, device=device)
        patience = Patience()
        try:
            with torch.cuda.stream(stream):
                works = dist.batch_isend_irecv(
                    [
                        dist.P2POp(call, torch.from_dlpack(array), self._ranks[r], self._gpu_group)
                        for call, messages in ((dist.irecv, receives), (dist.isend, sends))
                        for r, array in messages
                    ]
                )
                while not all(work.is_completed() for work in works):  # NCCL's own wait has no timeout
                    waited = patience.seconds()
                    if waited > timeout:
                        raise NoAnswer([])
                    time.sleep(PAUSE if waited > SPIN else 0)
                for work in works:
                    work.wait()
        except RuntimeError as error:
            raise NoAnswer([], f"NCCL says {_first_sentence(error)}") from error

    def _exchange_on_hosts(self, sends: Messages, receives: Messages, timeout: float) -> None:
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
            raise NoAnswer([partner], "" if late else _first_sentence(error)) from error

    def abort(self, status: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # torchrun ends the others

    def close(self) -> None:
        for group in (self._group, self.__dict__.get("_gpu_group")):
            if group is not None:
                self._dist.destroy_process_group(group)
        if self._owns:
            self._dist.destroy_process_group()


def _by_place(messages: Messages) -> tuple[Messages, Messages]:
    """Split messages into those on the host and those on the GPU."""
    return [m for m in messages if not is_on_gpu(m[1])], [m for m in messages if is_on_gpu(m[1])]


def _first_sentence(error: RuntimeError) -> str:
    """Return the first sentence of the error, without the name of a source file before it."""
    return re.sub(r"^\[\S*\] ", "", str(error)).partition(". ")[0]
