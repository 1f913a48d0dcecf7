"""MPI transport, through mpi4py."""

from __future__ import annotations

import atexit
import faulthandler
import os
import time
from typing import Any

from vpps.distributed.transports import Messages, NoAnswer, Patience, Transport
from vpps.errors import DistributedError

SPIN = {True: 5e-3, False: 2e-4}
"""Seconds that a rank polls without a pause, with and without a core of its own; later it sleeps between polls. Large
messages travel in pieces while both sides poll, so an early sleep would slow them down (80 KB: 90 us, not 14)."""

LONGEST_SLEEP = 1e-3

READING = 0.3
"""Seconds for the launcher to read the output before it ends all ranks; it loses unread output."""


class MpiTransport(Transport):
    """Exchanges messages in its own communicator, so that they do not mix with other messages.

    Args:
        comm: an `mpi4py.MPI.Comm`; None for all processes of the launcher.
        timeout: seconds that ranks may take to meet at the start.

    Raises:
        DistributedError: mpi4py or an MPI library is missing.
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
            atexit.register(_abort, given, 1)  # else MPI's finalization would wait for the missing ranks
            raise DistributedError(f"init: not all of {self.size} ranks came here within {timeout:g} s")

    @property
    def library(self) -> str:
        """Name and version of mpi4py's MPI library."""
        name, version = self._mpi.get_vendor()
        return f"{name} {'.'.join(map(str, version))}"

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        requests = [self._comm.Irecv(array, r) for r, array in receives]
        requests += [self._comm.Isend(array, r) for r, array in sends]
        if not self._wait(requests, timeout):
            ranks = [r for r, _ in (*receives, *sends)]
            raise NoAnswer(sorted({r for r, request in zip(ranks, requests, strict=True) if not request.Test()}))

    def _wait(self, requests: list[Any], timeout: float) -> bool:
        """Wait until all requests are done. Returns False after the timeout."""
        self._requests = requests  # keeps their arrays alive: MPI writes to them even if an exception leaves this call
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
    """Import mpi4py's MPI. MPICH's initialization waits forever for ranks that have already ended, and blocks all
    Python threads. After the timeout, faulthandler ends the process and prints only its stack. The name of this
    function is then the message."""
    faulthandler.dump_traceback_later(timeout, exit=True, file=2)
    try:
        from mpi4py import MPI
    finally:
        faulthandler.cancel_dump_traceback_later()
    return MPI


def _abort(comm: Any, status: int) -> None:
    time.sleep(READING)
    comm.Abort(status)
