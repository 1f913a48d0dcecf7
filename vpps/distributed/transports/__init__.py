"""What carries bytes between processes. One primitive: arrays to and from every other rank, at once.

All-to-all, all-gather and barriers follow from it, and sums that are the same on every transport: those of MPI
libraries and of NCCL differ from each other in the last bits. mpi: mpi4py; process_group: torch.distributed; nccl:
nccl4py beside one of these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

Arrays = Sequence[NDArray[Any] | None]


class Unanswered(Exception):
    """Some ranks have not answered in time, or are gone.

    Attributes:
        ranks: their numbers; none where the transport does not tell.
        cause: what the transport says; "" where time has passed.
    """

    def __init__(self, ranks: Sequence[int], cause: str = "") -> None:
        super().__init__(f"ranks {list(ranks)}: {cause or 'time has passed'}")
        self.ranks, self.cause = list(ranks), cause


class Transport(ABC):
    """Processes that exchange arrays.

    Attributes:
        name: as `init(backend=)` calls it.
        rank, size: of this process, and how many there are.
        has_core: whether no other rank runs on the cores of this one.
        any_thread: whether a thread may use it while others do something else.
    """

    name: ClassVar[str]
    rank: int
    size: int
    has_core: bool = False
    any_thread: bool = True

    @abstractmethod
    def exchange(self, sends: Arrays, receives: Arrays, timeout: float) -> None:
        """Send `sends[r]` to rank r and fill `receives[r]` with what it sends; returns when all has been done.

        Args:
            sends, receives: by rank, contiguous; both sides know the sizes. None, or an array of no elements: nothing.
                Nothing is sent to oneself.
            timeout: seconds that another rank may take to come here.

        Raises:
            Unanswered: some did not come.
        """

    @abstractmethod
    def abort(self, status: int) -> None:
        """End all ranks now, as far as the launcher can; this process does not return from here."""

    @abstractmethod
    def close(self) -> None:
        """Give back what was made for this transport alone."""


def partners(rank: int, size: int, sends: Arrays, receives: Arrays) -> tuple[list[int], list[int]]:
    """To which ranks something goes, and from which something comes; each begins with its next one, so that not all
    turn to the same rank at once."""
    others = [(rank + k) % size for k in range(1, size)]

    def of(arrays: Arrays) -> list[int]:
        return [r for r in others if (array := arrays[r]) is not None and array.size]

    return of(sends), of(receives)
