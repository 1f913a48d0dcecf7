"""Transports between processes. One primitive exchanges arrays with all other ranks at once.

All-to-all, all-gather, barriers and sums are built on it. These sums have the same bits on every transport; sums by MPI
libraries and NCCL differ from each other in the last bits. mpi: mpi4py; process_group: torch.distributed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

Messages = Sequence[tuple[int, NDArray[Any]]]
"""Pairs of a rank and a contiguous array for it, or from it. Both sides know the sizes of the arrays."""


class NoAnswer(Exception):
    """Some ranks have not answered in time, or are gone.

    Attributes:
        ranks: numbers of these ranks; empty if the transport does not know them.
        cause: the transport's error message; "" after a timeout.
    """

    def __init__(self, ranks: Sequence[int], cause: str = "") -> None:
        super().__init__(f"ranks {list(ranks)}: {cause or 'time has passed'}")
        self.ranks, self.cause = list(ranks), cause


class Patience:
    """Measures the time waited for other ranks, excluding times when this process itself was stopped."""

    LONGEST_PAUSE = 0.5
    """Largest number of seconds that count between two calls of `seconds`."""

    def __init__(self) -> None:
        self._seconds, self._looked = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Return the seconds waited until now. Call it repeatedly during the wait."""
        before, self._looked = self._looked, time.monotonic()
        self._seconds += min(self._looked - before, self.LONGEST_PAUSE)
        return self._seconds


class Transport(ABC):
    """Processes that exchange arrays.

    Attributes:
        name: name in `init(backend=)`.
        rank, size: number of this process, and number of processes.
        has_core: True if this rank can have a core to itself.
        any_thread: True if any thread may use the transport while other threads run.
        takes_gpus: True if the transport also exchanges arrays in GPU memory.
    """

    name: ClassVar[str]
    rank: int
    size: int
    has_core: bool = False
    any_thread: bool = True
    takes_gpus: bool = False

    @abstractmethod
    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        """Send arrays and receive into others, all at once; return when everything is done.

        Args:
            sends, receives: arrays for one rank arrive in this order. No array is empty or for this rank itself.
            timeout: seconds that another rank may take to make this call.

        Raises:
            NoAnswer: some ranks did not make this call.
        """

    @abstractmethod
    def abort(self, status: int) -> None:
        """End all ranks now, as far as the launcher can; does not return."""

    @abstractmethod
    def close(self) -> None:
        """Free the resources that only this transport uses."""
