"""What carries bytes between processes. One primitive: arrays to and from every other rank, at once.

All-to-all, all-gather and barriers follow from it, and sums that are the same on every transport: those of MPI
libraries and of NCCL differ from each other in the last bits. mpi: mpi4py; process_group: torch.distributed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

Messages = Sequence[tuple[int, NDArray[Any]]]
"""Ranks, and what goes to them or comes from them: contiguous arrays, of which both sides know the sizes."""


class NoAnswer(Exception):
    """Some ranks have not answered in time, or are gone.

    Attributes:
        ranks: their numbers; none where the transport does not tell.
        cause: what the transport says; "" where time has passed.
    """

    def __init__(self, ranks: Sequence[int], cause: str = "") -> None:
        super().__init__(f"ranks {list(ranks)}: {cause or 'time has passed'}")
        self.ranks, self.cause = list(ranks), cause


class Patience:
    """Tells how long others have been waited for: not while this process was stopped itself."""

    LONGEST_PAUSE = 0.5
    """Seconds between two looks that count, at most."""

    def __init__(self) -> None:
        self._seconds, self._looked = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Until now. To be asked for while waiting."""
        before, self._looked = self._looked, time.monotonic()
        self._seconds += min(self._looked - before, self.LONGEST_PAUSE)
        return self._seconds


class Transport(ABC):
    """Processes that exchange arrays.

    Attributes:
        name: as `init(backend=)` calls it.
        rank, size: of this process, and how many there are.
        has_core: whether no other rank runs on the cores of this one.
        any_thread: whether a thread may use it while others do something else.
        takes_gpus: whether it exchanges arrays in the memory of GPUs, too.
    """

    name: ClassVar[str]
    rank: int
    size: int
    has_core: bool = False
    any_thread: bool = True
    takes_gpus: bool = False

    @abstractmethod
    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        """Send arrays, all at once, and fill others with what comes; returns when all has been done.

        Args:
            sends, receives: what goes to one rank arrives in this order; none has no elements, none is for oneself.
            timeout: seconds that another rank may take to come here.

        Raises:
            NoAnswer: some did not come.
        """

    @abstractmethod
    def abort(self, status: int) -> None:
        """End all ranks now, as far as the launcher can; this process does not return from here."""

    @abstractmethod
    def close(self) -> None:
        """Give back what was made for this transport alone."""
