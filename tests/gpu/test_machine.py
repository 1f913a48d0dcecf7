"""The machine on a real GPU: the tests for simulated GPUs (tests/runtime/test_cuda.py), and further tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import run
from tests.runtime.claims import SPEC, MachineClaims, Make, barriers, ready, script, work
from vpps.errors import HandleError
from vpps.interop import host_array
from vpps.kernel.nvrtc import compile_cubin
from vpps.kernel.spec import KernelSpec
from vpps.placement.distribution import FIRST_FREE, LOSS_SLOTS
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.driver import Properties

pytestmark = pytest.mark.gpu


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[CudaMachine] = []

    def new(vps: int | None = None, **options: Any) -> CudaMachine:
        made.append(CudaMachine(vps, **options))
        return made[-1]

    yield new
    for machine in made:
        machine.close()


class TestMachine(MachineClaims):
    pass


def test_every_multiprocessor_takes_part(make: Make, gpu: Properties) -> None:
    machine = ready(make, gpu.sms)
    assert make().vps == gpu.sms
    machine.pool[FIRST_FREE] = 6
    for k in range(100):
        machine.launch(work(gpu.sms, FIRST_FREE, LOSS_SLOTS, n=k))
        assert machine.wait() is None
    assert machine.pool[LOSS_SLOTS] == 6


def test_more_than_run_at_once_are_refused(make: Make, gpu: Properties) -> None:
    with pytest.raises(HandleError, match="must run at once"):
        make(gpu.sms * 33).specialise(SPEC)  # no GPU holds more than 32 blocks per multiprocessor


def test_everybodys_place_is_told(make: Make) -> None:
    machine = ready(make, 4, patience=200_000_000)
    waits = barriers(99, 1)  # waits for 99 signals, but only four come
    machine.launch(script(*[waits] * 4))
    failure = machine.wait()
    assert failure is not None
    assert len(failure.positions) == 4
    assert "waited longer than 0.2 s at {0}" in failure.message


def test_kernels_learn_more_instructions(make: Make) -> None:
    machine = ready(make)
    machine.specialise(KernelSpec(frozenset({"tanh"})))
    assert machine.source.startswith("// vpps")
    machine.launch(work(3, FIRST_FREE, LOSS_SLOTS))
    assert machine.wait() is None


def test_what_was_compiled_before_is_known_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC's own cache returns no log, and can have the kernel when vpps's cache does not."""
    known = []
    for cache in ("first", "second"):
        monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / cache))
        source = 'extern "C" __global__ void vpps_kernel(float *x) { x[threadIdx.x] *= 3.0f; }'
        known.append(replace(compile_cubin(source, "sm_90").resources, compile_seconds=0.0))
    assert known[0] == known[1]


def test_memory_is_shared_with_other_libraries(make: Make) -> None:
    cupy = pytest.importorskip("cupy")
    machine = ready(make)
    view = machine.pool.view(16, (2, 4))
    view[...] = cupy.arange(8).reshape(2, 4)
    cupy.cuda.get_current_stream().synchronize()
    assert np.array_equal(machine.pool[16:24], np.arange(8))
    assert np.array_equal(host_array(view, "view"), np.arange(8).reshape(2, 4))
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        tensor = torch.from_dlpack(view)
        tensor += 1
        torch.cuda.synchronize()
        assert np.array_equal(machine.pool[16:24], np.arange(8) + 1)
        assert np.array_equal(host_array(tensor, "tensor"), np.arange(8).reshape(2, 4) + 1)


def test_a_forked_child_is_told_to_spawn() -> None:
    out = run(
        """
        import os
        from vpps.errors import HandleError
        from vpps.runtime.cuda import CudaMachine

        machine = CudaMachine(2)
        child = os.fork()
        if not child:
            try:
                CudaMachine(2)
            except HandleError as error:
                print(error, flush=True)
            machine.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        machine.reserve(100, 0)
        machine.pool[:] = 3
        print(machine.pool[99])
        """
    )
    assert "'spawn'" in out
    assert out.rstrip().endswith("3.0")
