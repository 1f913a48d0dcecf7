"""MPI, through mpi4py."""

from __future__ import annotations

import atexit
import faulthandler
import os
import time
from typing import Any

from vpps.distributed.transports import Messages, NoAnswer, Patience, Transport
from vpps.errors import DistributedError

SPIN = {True: 5e-3, False: 2e-4}
"""Seconds that a rank asks without pause, by whether it has a core of its own; then it sleeps in between. Large
messages travel in pieces, each when both sides ask: an early sleep would take longest of all (80 KB: 90 us, not 14)."""

LONGEST_SLEEP = 1e-3

READING = 0.3
"""Seconds in which the launcher reads what was said, before it is told to end all ranks: it loses the rest."""


class MpiTransport(Transport):
    """Messages of a communicator of its own, so that they meet no others.

    Args:
        comm: an `mpi4py.MPI.Comm`; None: all processes that the launcher started.
        timeout: seconds that ranks may take to meet at the beginning.

    Raises:
        DistributedError: mpi4py, or an MPI library, is not there.
    """

    name = "mpi"

    def __init__(self, comm: Any, timeout: float) -> None:
        try:
            MPI = _wait_until_all_ranks_have_begun(timeout)
        except (ImportError, RuntimeError) as error:
            raise DistributedError(
                f"this process was started by an MPI launcher, and mpi4py cannot be used ({error}): pip install "
                "'vpps[mpi]' brings it and MPICH; where the system has an MPI of its own, pip install mpi4py uses that"
            ) from error
        self._mpi = MPI
        self.any_thread = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        given = MPI.COMM_WORLD if comm is None else comm
        self.rank, self.size = given.Get_rank(), given.Get_size()
        comm, request = given.Idup()
        self._comm: Any = comm
        if not self._wait([request], timeout):
            atexit.register(_abort, given, 1)  # else MPI, at its end, would wait for them
            raise DistributedError(f"init: not all of {self.size} ranks came here within {timeout:g} s")

    @property
    def library(self) -> str:
        """What mpi4py uses, in words."""
        name, version = self._mpi.get_vendor()
        return f"{name} {'.'.join(map(str, version))}"

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        requests = [self._comm.Irecv(array, r) for r, array in receives]
        requests += [self._comm.Isend(array, r) for r, array in sends]
        if not self._wait(requests, timeout):
            ranks = [r for r, _ in (*receives, *sends)]
            raise NoAnswer(sorted({r for r, request in zip(ranks, requests, strict=True) if not request.Test()}))

    def _wait(self, requests: list[Any], timeout: float) -> bool:
        """Until all are done; whether that was in time."""
        self._requests = requests  # they hold their arrays, which MPI writes to even when this call is left
        test, patience, sleep = self._mpi.Request.Testall, Patience(), 1e-5
        spin = SPIN[self.has_core]
        while not test(requests):
            waited = patience.seconds()
            if waited > timeout:
                return False
            if waited > spin:
                time.sleep(sleep)
                sleep = min(2 * sleep, LONGEST_SLEEP)
            else:
                os.sched_yield()
        return True

    def abort(self, status: int) -> None:
        _abort(self._comm, status)

    def close(self) -> None:
        self._comm.Free()


def _wait_until_all_ranks_have_begun(timeout: float) -> Any:
    """mpi4py's MPI. MPICH waits in its beginning for ranks that have ended before theirs, and no thread of Python runs
    meanwhile: what ends the process then prints its stack alone, in which is the name of this function."""
    faulthandler.dump_traceback_later(timeout, exit=True, file=2)
    try:
        from mpi4py import MPI
    finally:
        faulthandler.cancel_dump_traceback_later()
    return MPI


def _abort(comm: Any, status: int) -> None:
    time.sleep(READING)
    comm.Abort(status)
