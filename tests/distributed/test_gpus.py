"""Exchange of gradients between simulated GPUs: from GPU to GPU, or through host memory."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vpps
from tests.distributed import ranks
from tests.distributed.on_gpus import FROM_GPU
from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import OK, DeviceArray, FakeCuda
from vpps.distributed.transports import Patience
from vpps.engine.gradients import GradientPiece
from vpps.placement.distribution import Distribution
from vpps.placement.onchip import ChipOptions
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.machine import MachineRequest

SHARDS = 4


def learned(launcher: str, n: int, how: str) -> list[dict[str, Any]]:
    """Return the results of every rank."""
    return [json.loads(line) for line in ranks.run(launcher, n, "tests.distributed.on_gpus", SHARDS, how).splitlines()]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the results of one process; it sums in its GPU's memory."""
    (found,) = learned("mpiexec", 1, "own")
    return found


@pytest.mark.simt
@pytest.mark.parametrize(
    "launcher, n, how, carried",
    [
        ("mpiexec", 2, "own", 0),
        pytest.param("torchrun", 2, "same", 0, marks=ranks.GLOO),
        pytest.param("torchrun", 4, "own", len(FROM_GPU) * 4 * 3, marks=ranks.GLOO),  # once each way to every other
    ],
)
def test_bits_do_not_depend_on_the_way_of_gradients(
    launcher: str, n: int, how: str, carried: int, alone: dict[str, Any]
) -> None:
    assert learned(launcher, n, how) == [{**alone, "carried": carried}] * n


@pytest.mark.host
def test_patience_does_not_count_the_time_in_which_this_process_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = iter([0, 0.25, 9.25])
    monkeypatch.setattr("vpps.distributed.transports.time", SimpleNamespace(monotonic=lambda: next(clock)))
    patience = Patience()
    assert patience.seconds() == 0.25
    assert patience.seconds() == 0.25 + Patience.LONGEST_PAUSE


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake_cuda.install(monkeypatch)


@pytest.mark.host
def test_gradients_for_the_host_go_through_page_locked_memory(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    asked: list[int] = []
    allocate = cupy.cuda.alloc_pinned_memory
    monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", lambda nbytes: asked.append(nbytes) or allocate(nbytes))
    nothing = Distribution(vpps.Model(), 1, 1, 0, True, False)
    piece = GradientPiece(np.array([1, 2, 3], np.float32).view(DeviceArray), nothing, is_in_pool=True)
    found = piece.on_host()
    assert (found.floats.tolist(), type(found.floats), found.is_in_pool) == ([1, 2, 3], np.ndarray, False)
    assert asked == [12]
    assert found.on_host() is found


@pytest.mark.host
def test_ranks_of_a_machine_divide_its_gpus(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.devices = 2
    monkeypatch.setattr(gpu, "cuDeviceGetUuid", lambda device: (OK, SimpleNamespace(bytes=bytes([device] * 16))))
    wanted = MachineRequest(3, ChipOptions(), True, False)
    assert [CudaMachine.for_handle(wanted._replace(local_rank=k)).gpu[0] for k in range(4)] == [0, 1, 0, 1]
