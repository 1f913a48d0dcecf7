"""NCCL, through nccl4py, beside a transport of the host: what is in the memory of GPUs goes from there to there.

The communicator is non-blocking, so that every wait has a limit: until NCCL has connected ranks, which it does when
these exchange something first, until the stream has come so far.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from vpps.distributed.transports import Messages, Patience, Transport, Unanswered
from vpps.interop import is_on_gpu

NO_GPU, NO_NCCL = 0, 1
"""What stands for a GPU in `gpu_number`, where there is none, or NCCL cannot be used there."""

SPIN = 2e-3
"""Seconds that a rank asks without pause: gradients of some MB take less."""

PAUSE = 1e-4


@cache
def why_unusable() -> str:
    """Why NCCL cannot be used by this process; "" if it can, as far as packages tell."""
    try:
        from nccl.core import get_version
    except ImportError as error:
        return f"{error}; pip install 'vpps[nccl13]', or 'vpps[nccl12]' with CUDA 12"
    return "" if get_version().libnccl else "libnccl is not found: pip install nvidia-nccl-cu13 (-cu12 with CUDA 12)"


def gpu_number(gpu: bytes) -> int:
    """For other ranks: a number of the GPU with that identity (b"": none), or one of the constants."""
    if not gpu or why_unusable():
        return NO_NCCL if gpu else NO_GPU
    return int.from_bytes(hashlib.blake2b(gpu, digest_size=7).digest(), "little") | 2


def obstacle(numbers: Sequence[int], named: Callable[[int], str]) -> str:
    """Why ranks with GPUs of these numbers do not have NCCL between them; "" if they may.

    Args:
        named: a rank in words.
    """
    if NO_NCCL in numbers:
        why = why_unusable()
        return f"{named(numbers.index(NO_NCCL))} has no NCCL{f' ({why})' if why else ''}"
    for rank, number in enumerate(numbers):
        if numbers.index(number) < rank:
            return f"{named(numbers.index(number))} and {named(rank)} have the same GPU"
    return ""


class NcclTransport(Transport):
    """What is on GPUs goes through NCCL, everything else through the host's transport.

    Args:
        host: connects the same ranks.
    """

    name = "nccl"

    def __init__(self, host: Transport) -> None:
        from nccl import core
        from nccl.bindings import nccl as bindings

        self._host, self._nccl = host, core
        self._error: type[Exception] = bindings.NCCLError
        self._success, self._goes_on = bindings.Result.Success, bindings.Result.InProgress
        self.rank, self.size = host.rank, host.size
        self.has_core, self.any_thread = host.has_core, host.any_thread
        self._comm = core.Communicator()

    def connect(self, gather: Callable[[Any], list[Any]], timeout: float) -> str:
        """Meet the others; all must call it, with their GPU current. Why it did not work, on any rank; "" if it did.

        Args:
            gather: gives what every rank has given, in their order.
            timeout: seconds that it may take.
        """
        own_id = self._tried(lambda: bytes(self._nccl.get_unique_id())) if self.rank == 0 else (None, "")
        unique_id, why = gather(own_id)[0]
        if not why:
            why = self._tried(self._join, unique_id, timeout)[1]
        why = next((f"rank {r}: {said}" for r, said in enumerate(gather(why)) if said), "")
        if why:
            self._comm.abort()
        return why

    def _tried(self, call: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
        """Its result, or why there is none."""
        try:
            return call(*arguments), ""
        except self._error as error:
            return None, f"NCCL says {error}"
        except Unanswered as missing:
            return None, missing.cause or "NCCL has not connected all ranks in time"

    def _join(self, unique_id: bytes, timeout: float) -> None:
        config = self._nccl.NCCLConfig(blocking=False)
        self._comm.initialize(self.size, self.rank, self._nccl.UniqueId.from_bytes(unique_id), config)
        self._wait(lambda: True, timeout)

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        """As `Transport.exchange`, first between hosts. On a GPU the exchange comes after what CuPy's current stream
        does."""
        from_host, from_gpu = _by_place(sends)
        to_host, to_gpu = _by_place(receives)
        if from_host or to_host:
            self._host.exchange(from_host, to_host, timeout)
        if from_gpu or to_gpu:
            self.carry(from_gpu, to_gpu, timeout)

    def carry(self, sends: Messages, receives: Messages, timeout: float) -> None:
        """Exchange (rank, array of CuPy), also with oneself. Raises Unanswered."""
        import cupy

        stream = cupy.cuda.get_current_stream()
        try:
            with self._nccl.group():
                for r, array in receives:
                    self._comm.recv(array, r, stream=stream.ptr)
                for r, array in sends:
                    self._comm.send(array, r, stream=stream.ptr)
            self._wait(lambda: stream.done, timeout)
        except self._error as error:
            raise Unanswered([], f"NCCL says {error}") from error

    def _wait(self, ended: Callable[[], bool], timeout: float) -> None:
        """Until NCCL has done what it was told to, and then until `ended`. Raises Unanswered; then nothing is left of
        it on the GPU, where a kernel of NCCL would wait for ever."""
        patience = Patience()
        while (state := self._comm.get_async_error()) == self._goes_on or (state == self._success and not ended()):
            waited = patience.seconds()
            if waited > timeout:
                self._comm.abort()
                raise Unanswered([])
            if waited > SPIN:
                time.sleep(PAUSE)
            else:
                os.sched_yield()
        if state != self._success:
            said = self._comm.get_last_error()
            self._comm.abort()
            raise Unanswered([], f"NCCL says {said or f'error {int(state)}'}")

    def abort(self, status: int) -> None:
        self._host.abort(status)

    def close(self) -> None:
        self._comm.destroy()
        self._host.close()


def _by_place(messages: Messages) -> tuple[Messages, Messages]:
    """Those of arrays on the host, and on the GPU."""
    return [m for m in messages if not is_on_gpu(m[1])], [m for m in messages if is_on_gpu(m[1])]
