"""NCCL that is not there: `nccl.core` as far as vpps calls it, between processes with imaginary GPUs.

What is sent and received is put into a stream of tests/runtime/fake_cuda.py and travels when that has got there,
through MPI. A communicator is non-blocking: everything takes a while, and has to be asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tests.runtime.fake_cuda import DeviceArray, FakeCuda

LATE = 3
"""How often the state of a communicator is asked for before it is another one."""


class Result(IntEnum):
    Success = 0
    UnhandledCudaError = 1
    RemoteError = 6
    InProgress = 7


class NCCLError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"{Result(status).name} ({status})")


class UniqueId(NamedTuple):
    number: int

    def __bytes__(self) -> bytes:
        return bytes([self.number])

    @staticmethod
    def from_bytes(data: bytes) -> UniqueId:
        return UniqueId(*data)


@dataclass(kw_only=True)
class NCCLConfig:
    blocking: bool | None = None


class Message(NamedTuple):
    """Of a group."""

    array: DeviceArray
    peer: int
    is_sent: bool
    stream: int


Carry = Callable[[Sequence[Message]], Callable[[], bool]]
"""Begins to carry messages, and gives what says whether all have been carried."""


def through_mpi() -> Carry:
    """Between the processes that an MPI launcher has started; all must call it."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()

    def carry(messages: Sequence[Message]) -> Callable[[], bool]:
        requests = [(comm.Isend if m.is_sent else comm.Irecv)(np.asarray(m.array), m.peer) for m in messages]
        return lambda: bool(MPI.Request.Testall(requests))

    return carry


class FakeNccl:
    """The module `nccl.core`, of a process.

    Attributes:
        carried: messages so far.
        refuses: what a communicator's beginning ends with.
        state: of communicators that have begun.
        aborted: how many were.
    """

    NCCLConfig, UniqueId = NCCLConfig, UniqueId

    def __init__(self, gpu: FakeCuda, carry: Callable[[], Carry]) -> None:
        self.gpu, self.make_carry = gpu, carry
        self.carried: list[Message] = []
        self.refuses, self.state = Result.Success, Result.Success
        self.aborted = 0
        self.waits = -1  # how often the communicator will be in progress yet; -1: there is none
        self._group: list[Message] | None = None
        fake = self

        class Communicator(_Communicator):
            nccl = fake

        self.Communicator = Communicator

    def get_version(self) -> Any:
        return SimpleNamespace(libnccl="imaginary")

    def get_unique_id(self, empty: bool = False) -> UniqueId:
        return UniqueId(7)

    @contextmanager
    def group(self) -> Iterator[None]:
        assert self._group is None
        self._group = []
        try:
            yield
        finally:
            messages, self._group = self._group, None
            self._put(messages)

    def add(self, message: Message) -> None:
        """To the group."""
        assert self._group is not None, "alone it would wait for its partner"
        assert isinstance(message.array, DeviceArray), "it is not in the memory of the GPU"
        assert message.array.size
        assert message.array.flags.c_contiguous
        self._group.append(message)

    def _put(self, messages: Sequence[Message]) -> None:
        self.carried += messages
        begun: list[Callable[[], bool]] = []

        def happen() -> bool:
            if self.aborted:
                return True
            if not begun:
                begun.append(self.carry(messages))
            return begun[0]()

        if messages:
            self.waits = LATE
            (stream,) = {message.stream for message in messages}
            self.gpu._put(stream, happen)


class _Communicator:
    nccl: FakeNccl

    def __init__(self, ptr: int | None = None) -> None:
        pass

    def initialize(
        self, nranks: int, rank: int, unique_id: UniqueId | Sequence[UniqueId], config: NCCLConfig | None = None
    ) -> None:
        nccl = self.nccl
        assert nccl.gpu.depth, "no GPU is current"
        assert unique_id == UniqueId(7)
        assert config == NCCLConfig(blocking=False)
        if nccl.refuses == Result.UnhandledCudaError:
            raise NCCLError(nccl.refuses)
        nccl.waits, nccl.state = LATE, nccl.refuses
        nccl.carry = nccl.make_carry()

    def get_async_error(self) -> Result:
        assert self.nccl.waits >= 0
        self.nccl.waits -= self.nccl.waits > 0
        return Result.InProgress if self.nccl.waits else self.nccl.state

    def get_last_error(self) -> str:
        return "the cable is cut"

    def send(self, sendbuf: Any, peer: int, *, stream: int | None = None) -> None:
        self._add(sendbuf, peer, True, stream)

    def recv(self, recvbuf: Any, peer: int, *, stream: int | None = None) -> None:
        self._add(recvbuf, peer, False, stream)

    def _add(self, array: Any, peer: int, is_sent: bool, stream: int | None) -> None:
        assert self.nccl.waits == 0, "it is not ready"
        assert stream is not None, "the default stream knows nothing of the launches"
        self.nccl.add(Message(array, peer, is_sent, stream))

    def abort(self) -> None:
        self.nccl.aborted += self.nccl.waits >= 0
        self.nccl.waits = -1

    def destroy(self) -> None:
        self.nccl.waits = -1


def modules(nccl: FakeNccl) -> dict[str, Any]:
    """What `sys.modules` is to have."""
    bindings, package = ModuleType("nccl.bindings"), ModuleType("nccl")
    bindings.__dict__["nccl"] = SimpleNamespace(NCCLError=NCCLError, Result=Result)
    package.__dict__.update(core=nccl, bindings=bindings)
    return {"nccl": package, "nccl.core": nccl, "nccl.bindings": bindings}


def install(gpu: FakeCuda, carry: Callable[[], Carry] = through_mpi) -> FakeNccl:
    """Let this process, which has an imaginary GPU, have NCCL until it ends."""
    nccl = FakeNccl(gpu, carry)
    sys.modules.update(modules(nccl))
    return nccl
