"""The cuda target with a simulated GPU: order of calls, errors, lifetimes."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime import fake_cuda
from tests.runtime.claims import END, SPEC, Make, emulated, ready, script, stuck, work
from tests.runtime.fake_cuda import CUresult, FakeCuda
from vpps.errors import CapacityError, CompileError, HandleError, KernelError
from vpps.kernel.resources import Kernel
from vpps.kernel.spec import KernelSpec
from vpps.placement.distribution import FIRST_FREE, LOSS_SLOTS, ONE
from vpps.runtime import driver
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.driver import why_cuda_is_unusable
from vpps.runtime.results import clock_limit

pytestmark = pytest.mark.simt


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake_cuda.install(monkeypatch)


@pytest.fixture
def make(fake: FakeCuda, tmp_path: Path) -> Iterator[Make]:
    made: list[CudaMachine] = []

    def new(vps: int | None = None, **options: Any) -> CudaMachine:
        made.append(CudaMachine(vps, **{"build": emulated(tmp_path), **options}))
        return made[-1]

    yield new
    for machine in made:
        machine.close()
    assert fake.depth == 0, "a context was left current"
    assert fake.findings == []


class TestOrder:
    def test_of_a_launch(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        for _ in range(2):  # each of the two script buffers is allocated by its first script
            machine.launch(work(3, ONE, LOSS_SLOTS))
            machine.wait()
        fake.calls.clear()
        words = work(3, ONE, LOSS_SLOTS)
        machine.launch(words)
        copy, copied, awaited, launch, end = fake.calls
        assert copy[0] == "copy in"
        assert copy[3] == words.nbytes
        assert copied == ("record", copied[1], copy[4])
        assert awaited == ("wait event", launch[2], copied[1])
        assert launch == ("launch", SPEC.chip.shared_bytes, launch[2])
        assert end == ("record", end[1], launch[2])
        assert copy[4] != launch[2], "scripts travel in a stream of their own"
        machine.wait()
        assert machine.loss(LOSS_SLOTS) == 1
        assert len(fake.calls) == 5, "wait and the loss ask the GPU for nothing more"

    def test_scripts_alternate_between_two_places(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        fake.calls.clear()
        for _ in range(4):
            machine.launch(work(3, ONE, LOSS_SLOTS))
            machine.wait()
        targets = [call[1] for call in fake.calls if call[0] == "copy in"]
        assert targets[0] != targets[1]
        assert targets == targets[:2] * 2

    def test_a_copy_in_flight_is_waited_for_before_its_memory_is_reused(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        first, second = work(3, FIRST_FREE, LOSS_SLOTS), work(3, ONE, LOSS_SLOTS)
        machine.stage(first)
        assert any(fake.streams)
        fake.calls.clear()
        machine.stage(second)
        assert fake.names() == ["synchronise", "copy in", "record"]
        machine.launch(second)
        assert fake.names().count("copy in") == 1, "what is staged is not copied again"
        machine.wait()
        assert machine.pool[LOSS_SLOTS] == 1

    def test_a_write_is_over_before_the_array_may_change(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        values = np.arange(4, dtype=np.float32)
        machine.pool[16:20] = values
        values[:] = -1
        assert machine.pool[16:20].tolist() == [0, 1, 2, 3]

    def test_first_floats_are_read_as_all_others(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        machine.launch(work(3, ONE, LOSS_SLOTS))
        machine.wait()
        machine.pool[0:FIRST_FREE] = 7
        assert machine.pool[LOSS_SLOTS] == 7
        machine.pool[ONE] = 3
        machine.launch(work(3, ONE, LOSS_SLOTS))
        assert machine.pool[LOSS_SLOTS] == 3, "reading waits for the launch"
        machine.wait()

    def test_counters_and_report_are_cleared_after_a_stop_alone(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make, patience=100_000_000)
        machine.launch(stuck(3))
        fake.calls.clear()
        assert machine.wait() is not None
        assert fake.names() == ["fill"]
        machine.launch(work(3, ONE, LOSS_SLOTS))
        fake.calls.clear()
        assert machine.wait() is None
        assert fake.names() == []

    def test_ctrl_c_while_waiting_leaves_a_launch_to_be_waited_for(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        machine.launch(work(3, ONE, LOSS_SLOTS))
        query = fake.cuEventQuery

        def interrupt(event: int) -> Any:
            fake.cuEventQuery = query  # type: ignore[method-assign]
            raise KeyboardInterrupt

        fake.cuEventQuery = interrupt  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            machine.wait()
        assert machine.wait() is None
        assert machine.pool[LOSS_SLOTS] == 1

    def test_the_calls_of_a_launch_are_made_in_one_go(self, make: Make, fake: FakeCuda) -> None:
        """Python runs signal handlers only between its own instructions, so none runs between these calls."""
        machine = ready(make)
        before = machine.launches
        made: list[tuple[Any, ...]] = []
        run = machine._driver.run
        machine._driver.run = lambda *calls: made.append(calls)  # type: ignore[method-assign]
        machine.launch(work(3, ONE, LOSS_SLOTS))
        assert machine.launches == before, "it counts when it is made, not before"
        _, together = made
        assert [getattr(call.func, "__name__", "") for call in together] == [
            "cuStreamWaitEvent", "cuLaunchCooperativeKernel", "setattr", "cuEventRecord",
        ]  # fmt: skip
        machine._driver.run = run  # type: ignore[method-assign]
        with machine._driver:
            run(*made[0], *together)
        assert machine.launches == before + 1
        assert machine.wait() is None


class TestFailures:
    def test_name_everybodys_place(self) -> None:
        failure = clock_limit(10**10, {40: [3], 50: [0, 1, 2, 6], 60: [4]}, [5, 7])
        assert failure.positions == (40, 50, 60)
        assert failure.message.format("a", "b", "c").startswith(
            "virtual processor 3 waited longer than 10 s at a; virtual processors 0-2, 6 at b; "
            "virtual processor 4 at c; virtual processors 5, 7 had reached the end. If other programs"
        )

    def test_name_no_more_places_than_anybody_reads(self) -> None:
        failure = clock_limit(10**9, {k: [k] for k in range(132)}, [])
        assert len(failure.positions) == 6
        assert "126 more at other places" in failure.message

    @pytest.mark.parametrize(
        "status, words",
        [
            (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, "ILLEGAL_ADDRESS.*last checkpoint"),
            (CUresult.CUDA_ERROR_ECC_UNCORRECTABLE, "memory failed"),
        ],
    )
    def test_of_the_gpu_are_errors_that_last(self, make: Make, fake: FakeCuda, status: CUresult, words: str) -> None:
        machine = ready(make)
        machine.launch(work(3, ONE, LOSS_SLOTS))
        fake.broken = status
        for _ in range(2):
            with pytest.raises(KernelError, match=words):
                machine.wait()
        with pytest.raises(KernelError):
            machine.pool[:4]
        assert not machine.is_open
        machine.close()

    def test_a_refused_launch_has_not_begun(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        fake.failing["launch"] = CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
        for _ in range(2):
            with pytest.raises(HandleError, match=r"vps=3.*share of it only \(MPS\); use a smaller vps="):
                machine.launch(work(3, ONE, LOSS_SLOTS))
            assert machine.launches == 0
        fake.failing.clear()
        machine.launch(work(3, ONE, LOSS_SLOTS))
        assert machine.wait() is None
        assert machine.is_open

    def test_a_launch_without_a_kernel_is_refused(self, make: Make) -> None:
        machine = make(2)
        with pytest.raises(HandleError, match="specialise"):
            machine.launch(script(END, END))


class TestMemory:
    def test_that_the_gpu_cannot_give_is_an_error_and_the_pool_stays(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        machine.pool[16] = 4
        fake.free = 1000
        with pytest.raises(
            CapacityError, match=r"the GPU has no 4\.0 MiB left.*2048 MiB free.*nvidia-smi.*empty_cache"
        ):
            machine.reserve(2**20, 20)
        assert machine.pool[16] == 4
        fake.free = 2**20
        machine.launch(work(3, 16, LOSS_SLOTS))
        assert machine.wait() is None
        assert machine.pool[LOSS_SLOTS] == 4

    def test_that_nobody_needs_goes_before_more_is_taken(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        fake.free = 10_000
        with pytest.raises(CapacityError):
            machine.reserve(2**20, 0)
        assert len(machine.pool) == 0
        fake.free = 2**30
        machine.reserve(2**20, 0)
        assert not machine.pool[:].any()

    def test_of_the_host_may_be_short_too(self, make: Make, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        import cupy

        machine = ready(make)

        def refuse(nbytes: int) -> Any:
            raise fake_cuda.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

        monkeypatch.setattr(cupy.cuda, "alloc_pinned_memory", refuse)
        with pytest.raises(CapacityError, match="the system has no"):
            machine.launch(work(3, ONE, LOSS_SLOTS))
        monkeypatch.undo()

    @pytest.mark.parametrize("plain", ["0", "1"])
    def test_is_a_part_of_nothing_larger_where_that_is_asked_for(
        self, make: Make, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, plain: str
    ) -> None:
        monkeypatch.setenv("VPPS_PLAIN_ALLOCATIONS", plain)
        machine = ready(make)
        machine.launch(work(3, ONE, LOSS_SLOTS))
        assert machine.wait() is None
        machine.pool.view(16, (2, 3))[:] = 9
        assert machine.pool[15:23].tolist() == [0, 9, 9, 9, 9, 9, 9, 0]
        with pytest.raises(IndexError):
            machine.pool.view(20, (8,))
        assert fake.names().count("allocate for itself") == (4 if plain == "1" else 0)  # counters, pools, a script

    def test_that_a_lost_gpu_cannot_give_is_no_shortage(
        self, make: Make, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import cupy

        machine = ready(make)

        def refuse(nbytes: int) -> Any:
            raise fake_cuda.CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

        monkeypatch.setattr(cupy.cuda, "alloc", refuse)
        with pytest.raises(KernelError, match="illegal memory access"):
            machine.reserve(2**20, 20)
        assert not machine.is_open

    def test_limit_is_half_of_the_gpu(self, make: Make) -> None:
        assert make(1).default_pool_limit == 2**30


class TestKernels:
    def test_are_made_anew_for_what_they_do_not_know(self, make: Make, fake: FakeCuda) -> None:
        machine = make(2)
        assert machine.source == ""
        for instructions, loads in (("end", 1), ("end", 1), ("tanh", 2), ("end", 2), ("tanh", 2)):
            machine.specialise(KernelSpec(frozenset({instructions})))
            assert fake.names().count("load") == loads
        assert machine.source == "// knows end, tanh"
        assert fake.names().count("unload") == 1
        assert ("set", "shared", SPEC.chip.shared_bytes) in fake.calls

    @pytest.mark.parametrize("each, vps", [(1, 5), (2, 9)])
    def test_that_do_not_fit_the_gpu_are_refused(self, make: Make, fake: FakeCuda, each: int, vps: int) -> None:
        fake.blocks_per_sm = each
        machine = make(vps)
        with pytest.raises(
            HandleError, match=rf"vps={vps}: the Imaginary 1 runs {4 * each} .*use vps={4 * each} or less.*MIG"
        ):
            machine.specialise(SPEC)
        make(vps - 1).specialise(SPEC)
        fake.blocks_per_sm = 0
        with pytest.raises(HandleError, match="more than a multiprocessor of the Imaginary 1 has"):
            make(1).specialise(SPEC)

    def test_with_too_much_shared_memory_are_refused(self, make: Make, fake: FakeCuda, tmp_path: Path) -> None:
        machine = make(1, build=lambda spec, arch: Kernel("", tmp_path / "k", 300_000))
        with pytest.raises(HandleError, match="293 KiB of shared memory a block, and the Imaginary 1 has 227"):
            machine.specialise(SPEC)

    def test_that_are_damaged_leave_the_cache(self, make: Make, fake: FakeCuda, tmp_path: Path) -> None:
        machine = make(1)
        fake.failing["load"] = CUresult.CUDA_ERROR_INVALID_IMAGE
        with pytest.raises(CompileError, match="removed from the cache"):
            machine.specialise(SPEC)
        assert not (tmp_path / "kernel.so").exists()


class TestUsable:
    def test_gpus_are(self, fake: FakeCuda) -> None:
        assert why_cuda_is_unusable() is None
        assert driver.usable_gpu() == ("Imaginary 1", "sm_90", 4, 227 * 1024, 13000, 50 << 20)

    def test_say_which_driver_they_have_if_the_management_library_starts(self, fake: FakeCuda) -> None:
        assert driver.usable_gpu().driver == "580.65.06, CUDA 13.0"
        driver.release.cache_clear()
        fake.management = 9  # NVML_ERROR_DRIVER_NOT_LOADED
        assert driver.usable_gpu().driver == "CUDA 13.0"

    def test_without_a_driver_nothing_is_imported(self, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> None:
            raise OSError(name)

        monkeypatch.setattr(ctypes, "CDLL", missing)
        monkeypatch.setattr(driver, "find_spec", lambda name: pytest.fail("looked for packages"))
        reason = why_cuda_is_unusable()
        assert reason is not None
        assert "no NVIDIA driver" in reason
        with pytest.raises(HandleError, match="--gpus all"):
            CudaMachine()

    @pytest.mark.parametrize(
        "change, words",
        [
            *(
                (
                    {"find_spec": lambda name, lacking=lacking: None if name == lacking else name},
                    rf"package {lacking}: pip install 'vpps\[cuda13\]'",
                )
                for lacking in ("cuda", "cuda.bindings", "cupy")
            ),
            ({"VERSION": 12040}, r"made for CUDA 12\.4 .* CUDA 13: update .*pip install 'vpps\[cuda12\]'"),
            ({"COMPUTE_CAPABILITY_MAJOR": 6}, "7.0 .* newer, and the Imaginary 1 has 6.0"),
            ({"COMPUTE_CAPABILITY_MAJOR": 7}, r"CUDA 13 no longer compiles .*\(compute capability 7.0\).*cuda12"),
            ({"COOPERATIVE_LAUNCH": 0}, "cooperative launches"),
            ({"init": CUresult.CUDA_ERROR_NO_DEVICE}, "sees no GPU.*CUDA_VISIBLE_DEVICES"),
            ({"init": CUresult.CUDA_ERROR_NOT_INITIALIZED}, "forked.*'spawn'"),
            ({"init": CUresult.CUDA_ERROR_UNKNOWN}, "does not start.*CUDA_ERROR_UNKNOWN.*nvidia-smi"),
            ({"device": -1}, "device=-1: expected 0 to 0"),
            ({"device": 1}, "device=1: expected 0 to 0"),
            *(
                ({"vps": vps}, "expected a positive int; the Imaginary 1 has 4 by default")
                for vps in (0, -1, 1.5, "two", True)
            ),
        ],
    )
    def test_others_are_told_what_they_lack(
        self, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
    ) -> None:
        ((name, value),) = change.items()
        arguments = change if name in ("device", "vps") else {}
        if name == "find_spec":
            monkeypatch.setattr(driver, name, value)
        elif name == "VERSION":
            monkeypatch.setattr(fake_cuda, name, value)
        elif not arguments:
            (fake.failing if name == "init" else fake.attributes)[name] = value
        with pytest.raises(HandleError, match=words):
            CudaMachine(**arguments)

    def test_vps_is_the_number_of_multiprocessors_by_default(self, make: Make) -> None:
        assert make().vps == 4

    def test_groups_are_equally_large_by_default(self, make: Make) -> None:
        assert make(groups=2).vps == 4
        assert make(groups=3).vps == 3


class TestEnd:
    def test_gives_everything_back_once(self, make: Make, fake: FakeCuda) -> None:
        machine = ready(make)
        machine.launch(work(3, ONE, LOSS_SLOTS))
        fake.calls.clear()
        machine.close()
        machine.close()
        names = fake.names()
        assert names[0] == "synchronise"
        assert [names.count(n) for n in ("destroy stream", "destroy event", "unload")] == [2, 5, 1]

    def test_comes_with_the_last_reference(self, fake: FakeCuda) -> None:
        machine = CudaMachine(2)
        fake.calls.clear()
        del machine
        gc.collect()
        assert fake.names().count("destroy stream") == 2

    def test_in_a_forked_child_does_nothing(self, make: Make, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
        machine = ready(make)
        machine.launch(work(3, ONE, LOSS_SLOTS))
        fake.calls.clear()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            machine.close()
        assert fake.calls == []
        assert not machine.is_open


class TestPatience:
    def test_is_ten_seconds_or_longer_under_a_sanitizer_unless_the_environment_says_otherwise(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("VPPS_PATIENCE", raising=False)
        assert make(1)._parameters[0].patience == 10_000_000_000
        for sanitizer in ("NV_SANITIZER_INJECTION_PORT_BASE", "CUDA_INJECTION64_PATH"):
            with monkeypatch.context() as under:
                under.setenv(sanitizer, "1111")
                assert make(1)._parameters[0].patience == 600_000_000_000
                under.setenv("VPPS_PATIENCE", "0.5")
                assert make(1)._parameters[0].patience == 500_000_000
        monkeypatch.setenv("VPPS_PATIENCE", "0.5")
        assert make(1)._parameters[0].patience == 500_000_000
        assert make(1, patience=7)._parameters[0].patience == 7

    @pytest.mark.parametrize("text", ["long", "-1", "nan", "1e12"])
    def test_is_a_number_of_seconds(self, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setenv("VPPS_PATIENCE", text)
        with pytest.raises(HandleError, match=f"VPPS_PATIENCE={text}: expected a number of seconds, or 0 for no limit"):
            CudaMachine(1)
