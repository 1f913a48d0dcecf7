"""MPI, through mpi4py."""

from __future__ import annotations

import os
import time
from typing import Any

from vpps.distributed.engines import Arrays, Engine, Unanswered, partners
from vpps.errors import DistributedError

SPIN = 2e-4
"""Seconds that a rank asks without pause. Then it sleeps in between: there may be fewer cores than ranks."""

LONGEST_SLEEP = 1e-3


class MpiEngine(Engine):
    """Messages of a communicator of its own, so that they meet no others.

    Args:
        comm: an `mpi4py.MPI.Comm`; None: all processes that the launcher started.

    Raises:
        DistributedError: mpi4py, or an MPI library, is not there.
    """

    name = "mpi"

    def __init__(self, comm: Any = None) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise DistributedError(
                f"this process was started by an MPI launcher, and mpi4py cannot be used ({error}): pip install "
                "'vpps[mpi]' brings it and MPICH; where the system has an MPI of its own, pip install mpi4py uses that"
            ) from error
        self._mpi = MPI
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()

    def exchange(self, sends: Arrays, receives: Arrays, timeout: float) -> None:
        to, of = partners(self.rank, self.size, sends, receives)
        requests = [self._comm.Irecv(receives[r], r) for r in of] + [self._comm.Isend(sends[r], r) for r in to]
        test, begun, sleep = self._mpi.Request.Testall, time.monotonic(), 1e-5
        while not test(requests):
            waited = time.monotonic() - begun
            if waited > timeout:
                raise Unanswered(sorted({r for r, done in zip([*of, *to], requests, strict=True) if not done.Test()}))
            if waited > SPIN:
                time.sleep(sleep)
                sleep = min(2 * sleep, LONGEST_SLEEP)
            else:
                os.sched_yield()

    def abort(self, status: int) -> None:
        self._comm.Abort(status)

    def close(self) -> None:
        self._comm.Free()
