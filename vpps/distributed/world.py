"""World: the processes that train one model together, and their communication."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from vpps.config import leave_notices_to_others
from vpps.distributed.message import packed, unpacked
from vpps.distributed.transports import Messages, NoAnswer, Transport
from vpps.errors import DistributedError
from vpps.runtime.cores import usable_cores
from vpps.text import counted

Ints = NDArray[np.int64]
T = TypeVar("T")

CALLS = ("step", "gather", "end", "failure")
"""Collective calls of ranks. All ranks must make the same call."""

DETAILS = 12
"""Number of ints in a header that depend on the call."""

HEADER = np.dtype([("call", np.int64), ("meeting", np.int64), ("details", np.int64, DETAILS), ("failure", "S512")])
"""Header that ranks exchange at the beginning of a call; `failure` is the reason why a rank cannot continue."""

TURN = 1.0
"""Seconds that each rank waits for its predecessor before it reports an error: if all end for the same reason, only the
first one reports it. No rank waits longer than LATEST turns."""

LATEST = 2

GRACE = (LATEST + 1.5) * TURN
"""Seconds for a failed rank, or the launcher, to end the other ranks, before these end by themselves."""


class Peer(NamedTuple):
    """A process of the world: its machine, its process id, and the cores that it may run on."""

    host: str
    pid: int
    cores: tuple[int, ...]


class World:
    """The processes that train one model together; `vpps.distributed.init` returns it.

        with vpps.distributed.init() as world:
            handle = vpps.Handle(model, optimizer, world=world)

    If one rank ends, all end, and one message names the rank and the reason. Possible reasons: an uncaught exception;
    an exception that leaves the `with` block; a program that ends while others wait for it; a rank that is more than
    `timeout` seconds late. The launcher (mpiexec, torchrun, srun) notices killed ranks.

    All ranks make the same calls in the same order; matching calls wait for each other.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        shards: number of parts in every mini-batch; it decides the last bits of results, `size` does not.
        mine: numbers of this rank's shards.
        timeout: seconds that a rank may be late.
        check_every: number of steps after which all ranks compare their weights.
        peers: all processes, by rank.
        abandoned: number of loops over `batches(world=)` that were left before their end.
        drawn: number of mini-batches that the world's thread has drawn from `batches(world=)`.
    """

    def __init__(
        self, transport: Transport | None, shards: int | None, timeout: float, check_every: int, bind: bool
    ) -> None:
        self.rank, self.size = (0, 1) if transport is None else (transport.rank, transport.size)
        leave_notices_to_others(self.rank > 0)
        self._transport = transport if self.size > 1 else None  # a single rank needs none
        self.shards = self.size if shards is None else shards
        if self.shards % self.size:
            raise DistributedError(
                f"init(shards={shards}): {self.size} ranks cannot have as many shards each; use {self.size}, "
                f"{2 * self.size}, {3 * self.size} ..."
            )
        self.timeout, self.check_every = timeout, check_every
        each = self.shards // self.size
        self.mine = range(self.rank * each, (self.rank + 1) * each)
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._aside: _Worker | None = None
        self._done = threading.Event()  # set when the background work is done
        self._done.set()
        self._meetings = self.abandoned = self.drawn = 0
        self._broken = ""  # reason why ranks can no longer communicate
        self._closed = self._bound = False
        cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
        self.peers = [Peer(os.uname().nodename, self._pid, cores)]
        if self.size > 1:
            self._catch()
            told = self.gather([list(self.peers[0]), self.shards, check_every])
            try:
                self.peers = [Peer(str(host), int(pid), tuple(map(int, cores))) for (host, pid, cores), *_ in told]
            except (TypeError, ValueError) as error:
                self.give_up(f"init: another rank sent an unknown introduction ({error}); do all run the same vpps?")
            if any(more != [self.shards, check_every] for _, *more in told):
                self.give_up("init: all ranks must have the same shards and check_every")
            self._share_cores(bind)

    def __repr__(self) -> str:
        how = f" through {self._transport.name}" if self._transport is not None else ""
        return f"<vpps.distributed.World: rank {self.rank} of {self.size}{how}, {counted(self.shards, 'shard')}>"

    @property
    def is_first(self) -> bool:
        """True for rank 0, which prints and saves."""
        return self.rank == 0

    @property
    def local_rank(self) -> int:
        """Number of this rank among the ranks on its machine, which divide the GPUs."""
        return sum(peer.host == self.peers[self.rank].host for peer in self.peers[: self.rank])

    def _share_cores(self, bind: bool) -> None:
        """Bind this rank to its part of the cores, unless the launcher has given each rank its own cores. Without this,
        virtual processors of one rank would wait for those of another."""
        assert self._transport is not None
        own = self.peers[self.rank]
        sharing = [r for r, peer in enumerate(self.peers) if (peer.host, peer.cores) == (own.host, own.cores)]
        self._transport.has_core = bool(own.cores) and len(sharing) <= usable_cores()
        if bind and len(sharing) > 1 and own.cores:
            each, k = max(1, usable_cores() // len(sharing)), sharing.index(self.rank)
            cores = [own.cores[(k * each + i) % len(own.cores)] for i in range(each)]
            _keep_to(cores)
            self._bound = True

    # ---- communication

    def barrier(self) -> None:
        """Wait until all ranks have made this call."""
        self.gather(None)

    def gather(self, given: Any) -> list[Any]:
        """Collect one value from every rank. Each rank gets copies of all values, in the order of ranks.

        Args:
            given: None, bool, int, float, str, bytes, NumPy arrays and numbers, or lists, tuples and dicts of these.
                No data from another rank is executed.

        Raises:
            DistributedError: `given` has a wrong type; a rank makes a different call, has failed, or does not answer.
        """
        data = np.frombuffer(bytearray(packed(given)), np.uint8)  # PyTorch requires writable arrays
        lengths = self.meet("gather", [len(data)])[:, 0]
        if lengths.min() < 0:
            self.give_up(f"{self.named(int(lengths.argmin()))} announces {lengths.min()} bytes")
        return [unpacked(part.tobytes()) for part in self.all_gather(data, lengths)]

    def meet(self, call: str, details: Sequence[int] = ()) -> Ints:
        """Begin a call that all ranks make.

        Args:
            call: one of CALLS.
            details: at most DETAILS ints.

        Returns:
            (size, DETAILS), the details of every rank, padded with zeros.

        Raises:
            DistributedError: another rank makes a different call, has failed, or does not answer.
        """
        if self._aside is None or threading.get_ident() != self._aside.ident:
            self._check_caller(call)
            self.wait_aside()
        if self._broken:
            raise DistributedError(self._broken)
        headers = self._headers(call, details)
        if len({(header["call"], header["meeting"]) for header in headers}) > 1:
            self._disagree(headers)
        found: Ints = headers["details"]
        return found

    def _check_caller(self, call: str = "") -> None:
        """Raise DistributedError if the caller is a forked child, or not the thread that created the world."""
        if self.size > 1 and self._pid != os.getpid():
            raise DistributedError(
                "a forked child is not a rank of its parent's world: use the parent, or fork before init"
            )
        if self.size > 1 and call != "end" and self._thread != threading.get_ident():
            raise DistributedError(
                "a world belongs to the thread that made it: calls from several threads would be mixed up between "
                "ranks; let one thread train, gather and wait"
            )

    def aside(self, work: Callable[[], T]) -> Future[T]:
        """Run `work`, in which ranks communicate, in the world's thread. The caller's next communication waits for it.
        If the transport supports only one thread, `work` runs at once."""
        self._check_caller()
        done: Future[T] = Future()
        if self._pid != os.getpid() or (self._transport is not None and not self._transport.any_thread):
            _do(work, done)
            return done
        if self._aside is None:
            self._aside = _Worker(name="vpps world", daemon=True)
            self._aside.start()
            atexit.register(self.wait_aside)  # runs before the exit callbacks of machines, which are registered earlier
        self._done = threading.Event()
        self._aside.work.put((work, done, self._done))
        return done

    def wait_aside(self) -> None:
        """Wait until the background work is done and its references are dropped; its future reports errors."""
        if self._pid == os.getpid() and threading.current_thread() is not self._aside:
            self._done.wait()

    def _headers(self, call: str, details: Sequence[int] = (), failure: str = "") -> NDArray[np.void]:
        """Exchange headers; return those of all ranks, (size,)."""
        self._meetings += 1
        header = np.zeros(1, HEADER)
        header["call"], header["meeting"], header["failure"] = CALLS.index(call), self._meetings, failure.encode()
        header["details"][0, : len(details)] = details
        return np.concatenate(self.all_gather(header.view(np.uint8))).view(HEADER)

    def all_gather(self, array: NDArray[Any], lengths: Sequence[int] | Ints | None = None) -> list[NDArray[Any]]:
        """Return the arrays of all ranks, in the order of ranks.

        Args:
            lengths: lengths along the first axis, by rank; default: this rank's length for all.
        """
        found: list[NDArray[Any]] = []
        for r in range(self.size):
            n = len(array) if lengths is None else int(lengths[r])
            found.append(array if r == self.rank else np.empty((n, *array.shape[1:]), array.dtype))
        self.exchange([(r, array) for r in range(self.size)], list(enumerate(found)))
        return found

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Call `Transport.exchange`, leaving out empty messages and messages to this rank. Raises DistributedError if a
        rank does not answer."""
        if self._transport is None:
            return
        with self.exchanging():
            try:
                self._transport.exchange(self._of_others(sends), self._of_others(receives), self.timeout)
            except NoAnswer as missing:
                who = ", ".join(map(self.named, missing.ranks)) or "another rank"
                if missing.cause:  # that rank, or the launcher, reports the reason first
                    time.sleep(GRACE)
                    self.give_up(f"{who} is gone ({missing.cause})")
                self.give_up(f"{who} did not come within {self.timeout:g} s, while {self.named(self.rank)} waited")

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Return a context that stops communication after an error: the other ranks would mistake later messages from
        this rank for those that they wait for."""
        try:
            yield
        except BaseException as error:
            if self._transport is not None:
                self._broken = self._broken or f"{self.named(self.rank)} left an exchange by {type(error).__name__}"
            raise

    def _of_others(self, messages: Messages) -> Messages:
        """Return messages to other ranks, beginning with the next rank, to spread the load."""
        found = [message for message in messages if message[0] != self.rank and message[1].size]
        return sorted(found, key=lambda message: (message[0] - self.rank) % self.size)

    def gpu_number(self, gpu: bytes) -> int:
        """Return a number that identifies this rank's GPU; 0 if arrays in its memory cannot be exchanged.

        Args:
            gpu: identity of the GPU; b"" if there is none.
        """
        if not gpu or (self._transport is not None and not self._transport.takes_gpus):
            return 0
        return int.from_bytes(hashlib.blake2b(gpu, digest_size=7).digest(), "little") | 1

    def _disagree(self, headers: NDArray[np.void]) -> NoReturn:
        """Raise DistributedError: other ranks make a different call, or have failed."""
        if not all(0 <= call < len(CALLS) for call in headers["call"].tolist()):
            self.give_up("another rank sent what vpps did not write; do all ranks have the same version of vpps?")
        kinds = [CALLS[call] for call in headers["call"]]
        if "failure" in kinds:
            failed = kinds.index("failure")
            said = bytes(headers["failure"][failed]).decode(errors="replace")
            why = "".join(c if c.isprintable() else " " for c in said)  # a terminal would execute control characters
            if failed != self.rank:
                time.sleep(GRACE)
            self.give_up(f"{self.named(failed)} has failed: {why}")
        if "end" in kinds and set(kinds) != {"end"}:
            late, kind = next((r, kind) for r, kind in enumerate(kinds) if kind != "end")
            self.give_up(f"{self.named(kinds.index('end'))} has ended, while {self.named(late)} begins a {kind}")
        what = ", ".join(f"rank {r} a {kind}" for r, kind in enumerate(kinds))
        self.give_up(f"ranks make different calls: {what}; all must make the same calls in the same order")

    def check_alike(self, values: list[int], what: str) -> None:
        """Raise DistributedError unless all values are equal. The error names a rank whose value is not the most common
        one; if several values are equally common, the one of the lowest rank is taken as correct."""
        if min(values) != max(values):
            usual = max(values, key=values.count)
            odd = next(r for r, value in enumerate(values) if value != usual)
            self.give_up(
                f"{self.named(odd)} is not like the others in {what}: all must begin with the same model and "
                "checkpoint, and make the same calls"
            )

    def named(self, rank: int) -> str:
        """Describe a rank in words."""
        if rank >= len(self.peers):  # during construction
            return f"rank {rank} of {self.size}"
        return f"rank {rank} of {self.size} (process {self.peers[rank].pid} on {self.peers[rank].host})"

    def give_up(self, why: str) -> NoReturn:
        """Raise DistributedError, now and in all later communication."""
        self._broken = self._broken or why
        raise DistributedError(why)

    # ---- the end

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks, at their next call, that this rank cannot continue."""
        if self._transport is None or self._broken or self._pid != os.getpid():
            return
        why = f"{type(error).__name__}: {error}"
        self._broken = f"{self.named(self.rank)} has failed: {why}"
        # A thread waits for the other ranks, so that the caller does not have to.
        threading.Thread(target=self._tell, args=(why,), daemon=True).start()

    def _tell(self, why: str) -> None:
        with suppress(DistributedError):  # the other ranks are gone, or have failed, too
            self.wait_aside()
            self._headers("failure", failure=why)

    def count_batch(self) -> None:
        """Count a drawn mini-batch, to detect a rank that skips a step: its shards would be added to those of another
        step. Mini-batches drawn by prefetching threads are not counted, because their progress varies."""
        self.drawn += threading.get_ident() == self._thread

    def fails_alike(self, why: str) -> bool:
        """Exchange the reasons for a failure that occurs on all ranks. Return True if a lower rank has the same reason.
        If a rank is in another call, all ranks end. Raises DistributedError if some ranks do not answer."""
        failures = self._headers("failure", failure=why)["failure"]
        self._closed, self._broken = True, f"{self.named(self.rank)} has failed: {why}"
        _OPEN.pop(self, None)
        return failures[self.rank] in failures[: self.rank]

    def close(self) -> None:
        """Wait until all ranks make this call, and leave the world. Raises DistributedError if a rank has failed."""
        if self._transport is not None and not self._closed and self._pid == os.getpid():
            self.meet("end")
            self._closed, self._broken = True, "the world is closed"
            self._transport.close()
            if self._bound:
                _keep_to(self.peers[self.rank].cores)
        if self._aside is not None and self._pid == os.getpid():
            self._aside.work.put(None)
            self._aside = None
            atexit.unregister(self.wait_aside)
        _OPEN.pop(self, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        else:
            self.end(error)

    def end(self, error: BaseException) -> None:
        """Report an error and end all ranks; returns only in a world of one rank."""
        if self.size == 1 or self._pid != os.getpid() or self not in _OPEN:
            return
        _OPEN.pop(self, None)
        self.await_turn()
        if not isinstance(error, DistributedError | SystemExit | KeyboardInterrupt):
            traceback.print_exception(error)
        said, status = " ".join(str(error).split()), 130 if isinstance(error, KeyboardInterrupt) else 1
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            said, status = f"{self.named(self.rank)} ends with status {error.code}", error.code
        elif not isinstance(error, DistributedError):
            said = f"{self.named(self.rank)} ends with {type(error).__name__}{': ' if said else ''}{said}"
        print(f"vpps: {said}; all ranks end", file=sys.stderr, flush=True)
        sys.stdout.flush()
        assert self._transport is not None
        self._transport.abort(status)

    def await_turn(self) -> bool:
        """Wait so that lower ranks can report the same error first and end all ranks. Return False if none did."""
        time.sleep(min(self.rank, LATEST) * TURN)
        return False

    def _catch(self) -> None:
        """Install hooks: an uncaught exception ends all ranks, and the end of the program waits for all ranks."""
        if not _OPEN:
            atexit.register(_part)
            before = sys.excepthook

            def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
                for world in tuple(_OPEN):
                    world.end(error)
                before(kind, error, trace)

            sys.excepthook = hook
        _OPEN[self] = None


class _Worker(threading.Thread):
    """Thread that runs background work, one item after the other."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.work: SimpleQueue[tuple[Callable[[], Any], Future[Any], threading.Event] | None] = SimpleQueue()

    def run(self) -> None:
        while (item := self.work.get()) is not None:
            ended = item[2]
            _do(*item[:2])
            del item  # drops references before the next wait
            ended.set()


def _do(work: Callable[[], T], done: Future[T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # raised by the future's result()
        done.set_exception(error)


def _keep_to(cores: Sequence[int]) -> None:
    """Bind all threads to these cores: a gloo thread on another rank's core would wait behind that rank for
    milliseconds."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), cores)


_OPEN: dict[World, None] = {}  # open worlds in order of creation, the same on all ranks; closed in this order


def _part() -> None:
    """Close all worlds at the end of the program."""
    for world in tuple(_OPEN):
        try:
            world.close()
        except DistributedError as error:
            world.end(error)
