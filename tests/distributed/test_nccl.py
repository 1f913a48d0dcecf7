"""Gradients from GPU to GPU: imaginary GPUs, and a stand-in for NCCL that has the signatures of nccl4py."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vpps
from tests.distributed import fake_nccl, ranks
from tests.distributed.fake_nccl import FakeNccl, Message, Result
from tests.distributed.on_gpus import FROM_GPU
from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import OK, DeviceArray, FakeCuda
from vpps.distributed.transports import Messages, Patience, Transport, Unanswered
from vpps.distributed.transports.nccl import NO_NCCL, NcclTransport, obstacle
from vpps.engine.gradients import GradientPiece
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import ChipOptions
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.machine import Wanted

SHARDS = 4
TIMEOUT = 0.05


def trained(n: int, how: str) -> tuple[list[dict[str, Any]], str]:
    """What every rank has learned, and complaints."""
    ended = ranks.finish(ranks.start("mpiexec", n, "tests.distributed.on_gpus", SHARDS, how), timeout=300)
    assert ended.status == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()], ended.err


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one process learns; it sums in the memory of its GPU, without NCCL."""
    (found,), said = trained(1, "none")
    assert said == ""
    return found


@pytest.mark.simt
def test_gradients_go_from_gpu_to_gpu(alone: dict[str, Any]) -> None:
    """With the same bits, and once each way to and from every other rank."""
    found, said = trained(4, "nccl")
    assert said == ""
    for one in found:
        assert (one["weights"], one["losses"]) == (alone["weights"], alone["losses"])
        assert "through nccl" in one["world"]
        assert one["carried"] == len(FROM_GPU) * 4 * 3


@pytest.mark.simt
@pytest.mark.parametrize(
    "how, why",
    [
        ("none", "rank 0 of 2 .* has no NCCL .*pip install 'vpps.nccl13.'"),
        ("same", "rank 0 of 2 .* and rank 1 of 2 .* have the same GPU"),
        ("refused", "rank 1: NCCL says the cable is cut"),
    ],
)
def test_without_nccl_they_go_through_hosts(how: str, why: str, alone: dict[str, Any]) -> None:
    """One rank says why, once."""
    found, said = trained(2, how)
    (line,) = said.splitlines()
    assert re.search(f"through the memory of the hosts.*: {why}", line)
    for one in found:
        assert (one["weights"], one["losses"]) == (alone["weights"], alone["losses"])
        assert "through mpi" in one["world"]
        assert one["carried"] == 0


class Host(Transport):
    """Rank 0 of two."""

    name = "host"
    rank, size = 0, 2

    def __init__(self) -> None:
        self.exchanged = 0

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        self.exchanged += 1

    def abort(self, status: int) -> None:
        raise AssertionError

    def close(self) -> None:
        self.exchanged = -1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake_cuda.install(monkeypatch)


def never() -> Callable[[Sequence[Message]], Callable[[], bool]]:
    return lambda messages: lambda: False


@pytest.fixture
def nccl(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    """Whose messages never arrive."""
    nccl = FakeNccl(gpu, never)
    for name, module in fake_nccl.modules(nccl).items():
        monkeypatch.setitem(sys.modules, name, module)
    return nccl


def on_gpu(values: Any) -> Any:
    return np.array(values, np.float32).view(DeviceArray)


def connected(host: Host) -> NcclTransport:
    transport = NcclTransport(host)
    with CudaMachine(3).in_order:
        assert transport.connect(lambda given: [given, ""], 10) == ""
    return transport


@pytest.mark.host
class TestTransport:
    def test_what_is_on_hosts_is_for_the_hosts_engine(self, nccl: FakeNccl) -> None:
        host = Host()
        transport = connected(host)
        transport.exchange([(1, np.ones(3))], [(1, np.ones(3))], TIMEOUT)
        transport.exchange([], [], TIMEOUT)
        assert (host.exchanged, nccl.carried) == (1, [])
        transport.close()
        assert host.exchanged == -1

    @pytest.mark.parametrize("state, cause", [(Result.Success, ""), (Result.RemoteError, "NCCL says the cable is cut")])
    def test_leaves_nothing_on_the_gpu_when_a_rank_does_not_come(
        self, nccl: FakeNccl, gpu: FakeCuda, state: Result, cause: str
    ) -> None:
        host = Host()
        transport, machine = connected(host), CudaMachine(3)
        nccl.state = state
        with pytest.raises(Unanswered) as raised, machine.in_order:
            transport.exchange([(1, np.ones(3)), (1, on_gpu([1, 2]))], [(1, on_gpu([0, 0]))], TIMEOUT)
        assert (raised.value.ranks, raised.value.cause) == ([], cause)
        assert (host.exchanged, nccl.aborted) == (1, 1)
        machine.close()
        assert not any(gpu.streams)

    def test_a_process_that_was_stopped_itself_finds_what_came_meanwhile(
        self, nccl: FakeNccl, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nccl.make_carry = lambda: lambda messages: lambda: True
        transport, clock = connected(Host()), itertools.count(step=9)
        monkeypatch.setattr("vpps.distributed.transports.time", SimpleNamespace(monotonic=lambda: next(clock)))
        with CudaMachine(3).in_order:
            transport.exchange([(1, on_gpu([1, 2]))], [(1, on_gpu([0, 0]))], 20 * Patience.LONGEST_PAUSE)

    def test_says_why_nccl_does_not_begin(self, nccl: FakeNccl) -> None:
        nccl.refuses = Result.UnhandledCudaError
        transport = NcclTransport(Host())
        with CudaMachine(3).in_order:
            why = transport.connect(lambda given: [given, ""], 10)
        assert why == "rank 0: NCCL says UnhandledCudaError (1)"


@pytest.mark.host
def test_gradients_for_the_host_go_through_page_locked_memory(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    asked: list[int] = []
    allocate = cupy.cuda.alloc_pinned_memory
    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", lambda nbytes: asked.append(nbytes) or allocate(nbytes))
    nothing = Distribution(vpps.Model(), 1, 1, 0, True, False)
    found = GradientPiece(on_gpu([1, 2, 3]), nothing, is_in_pool=True).on_host()
    assert (found.floats.tolist(), type(found.floats), found.is_in_pool) == ([1, 2, 3], np.ndarray, False)
    assert asked == [12]
    assert found.on_host() is found


@pytest.mark.host
def test_every_rank_needs_a_gpu_and_nccl() -> None:
    assert obstacle([5, 7, 6], str) == ""
    assert obstacle([5, 7, 5], "rank {}".format) == "rank 0 and rank 2 have the same GPU"
    assert "rank 1 has no NCCL" in obstacle([5, NO_NCCL, 5], "rank {}".format)


@pytest.mark.host
def test_ranks_of_a_machine_divide_its_gpus(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.devices = 2
    monkeypatch.setattr(gpu, "cuDeviceGetUuid", lambda device: (OK, SimpleNamespace(bytes=bytes([device] * 16))))
    wanted = Wanted(3, ChipOptions(), True, False)
    assert [CudaMachine.for_handle(wanted._replace(local_rank=k)).gpu[0] for k in range(4)] == [0, 1, 0, 1]


@pytest.mark.host
class TestStandIn:
    """It has what the installed package has."""

    @pytest.fixture
    def core(self) -> Any:
        return pytest.importorskip("nccl.core", exc_type=ImportError)

    @staticmethod
    def parameters(function: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    def test_signatures(self, core: Any) -> None:
        stand_in = FakeNccl(FakeCuda(), never)
        for name in ("initialize", "send", "recv", "get_async_error", "get_last_error", "abort", "destroy", "__init__"):
            ours, theirs = getattr(stand_in.Communicator, name), getattr(core.Communicator, name)
            assert self.parameters(ours) == self.parameters(theirs), name
        for name in ("get_unique_id", "get_version", "group"):
            assert self.parameters(getattr(stand_in, name)) == self.parameters(getattr(core, name)), name

    def test_types(self, core: Any) -> None:
        from nccl.bindings import nccl as bindings

        assert {field.name for field in fields(fake_nccl.NCCLConfig)} <= {f.name for f in fields(core.NCCLConfig)}
        assert {state.name: state.value for state in Result}.items() <= bindings.Result.__members__.items()
        assert issubclass(bindings.NCCLError, Exception)
        assert hasattr(core.get_version(), "libnccl")
