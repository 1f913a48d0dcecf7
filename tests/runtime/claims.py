"""Claims about a machine that launches on a GPU, real or simulated."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
from vpps.kernel.render import render_cuda
from vpps.kernel.resources import Kernel
from vpps.kernel.simt_compiler import build_simt
from vpps.kernel.spec import KernelSpec
from vpps.placement.distribution import FIRST_FREE, LOSS_SLOTS, ONE
from vpps.runtime.cuda import CudaMachine
from vpps.runtime.machine import Failure
from vpps.script.encode import barrier, encode, plain
from vpps.script.instructions import HEADER_WORDS, MAGIC

Words = NDArray[np.uint32]
Make = Callable[..., CudaMachine]  # takes CudaMachine's arguments; closes the machine at the end

SPEC = KernelSpec(frozenset({"end", "signal", "wait", "loss"}))
END = plain(encode("end", 0, 0))
UNKNOWN = plain([0xFFFF, 5, 0, 0, 0])


def emulated(folder: Path) -> Callable[[KernelSpec, str], Kernel]:
    """Return a compiler for a simulated GPU that writes to this folder; all kernels have the instructions of SPEC."""

    def build(spec: KernelSpec, arch: str) -> Kernel:
        assert arch == "sm_90"
        binary = folder / "kernel.so"
        shutil.copy(build_simt(render_cuda(SPEC), races=True), binary)
        return Kernel(f"// knows {', '.join(sorted(spec.instructions))}", binary, SPEC.chip.shared_bytes)

    return build


def script(*streams: Words) -> Words:
    """Return a script with a stream for every virtual processor."""
    starts, parts, position = [], [], HEADER_WORDS + len(streams)
    for stream in streams:
        starts.append(position)
        parts.append(stream)
        position += len(stream)
    return np.concatenate([plain([MAGIC, len(streams), 1, position, *starts]), *parts])


def barriers(vps: int, n: int) -> Words:
    """Return a stream of barriers among all virtual processors."""
    return np.concatenate([plain([]), *(barrier(target=vps * (k + 1)) for k in range(n))])


def work(vps: int, source: int, slot: int, n: int = 2) -> Words:
    """Return barriers, and an instruction that reports the float at `source` as the loss in `slot`."""
    loss = plain(encode("loss", 0, 0, source=source, slot=slot))
    return script(*[np.concatenate([barriers(vps, n), loss, END])] * vps)


def stuck(vps: int, target: int = 99) -> Words:
    """Make virtual processor 0 wait for signals that never come, after the others have ended."""
    wait = plain(encode("wait", 0, 0, counter=1, target=target))
    return script(np.concatenate([wait, END]), *[END] * (vps - 1))


def ready(make: Make, vps: int = 3, **options: int) -> CudaMachine:
    """Return a machine with a kernel and a pool."""
    machine = make(vps, **options)
    machine.specialise(SPEC)
    machine.reserve(FIRST_FREE + 8, 0)
    machine.pool[:] = 0
    machine.pool[ONE] = 1
    return machine


class MachineClaims:
    """Base class with claims. Subclasses have a fixture `make`, and the number of launches in a long run."""

    consecutive = 10_000

    def test_launches_follow_each_other_with_clean_counters(self, make: Make) -> None:
        machine = ready(make)
        scripts = [work(3, FIRST_FREE, LOSS_SLOTS + parity) for parity in (0, 1)]
        for k in range(self.consecutive):
            machine.pool[FIRST_FREE] = k
            machine.launch(scripts[k & 1])
            assert machine.wait() is None
            assert machine.pool[LOSS_SLOTS + (k & 1)] == k
        assert machine.launches == self.consecutive

    def test_scripts_of_all_sizes_follow_each_other(self, make: Make) -> None:
        machine = ready(make)
        for n in (1, 40_000, 2, 90_000, 90_000, 3):
            large = np.concatenate([work(3, ONE, LOSS_SLOTS), np.zeros(n, np.uint32)])
            machine.pool[LOSS_SLOTS] = 0
            machine.launch(large)
            assert machine.wait() is None
            assert machine.pool[LOSS_SLOTS] == 1

    def test_a_script_may_travel_while_the_launch_before_runs(self, make: Make) -> None:
        machine = ready(make)
        scripts = [work(3, FIRST_FREE + k, LOSS_SLOTS, n=30 + k) for k in range(8)]
        machine.pool[FIRST_FREE : FIRST_FREE + 8] = np.arange(8)
        machine.stage(scripts[0])
        for k in range(8):
            machine.launch(scripts[k])
            if k < 7:
                machine.stage(scripts[k + 1] if k % 3 else scripts[0])  # every third launch runs a different script
            assert machine.wait() is None
            assert machine.pool[LOSS_SLOTS] == k

    def test_an_unknown_instruction_ends_the_launch_and_the_machine_works_on(self, make: Make) -> None:
        machine = ready(make)
        bad = script(np.concatenate([barriers(3, 1), UNKNOWN]), *[np.concatenate([barriers(3, 2), END])] * 2)
        position = HEADER_WORDS + 3 + len(barriers(3, 1))
        for _ in range(3):
            machine.launch(bad)
            assert machine.wait() == Failure(f"the kernel stopped at word {position} of its script: {{0}}", (position,))
            for _ in range(2):
                machine.launch(work(3, ONE, LOSS_SLOTS))
                assert machine.wait() is None

    def test_a_wait_for_nobody_ends_by_the_clock_and_the_machine_works_on(self, make: Make) -> None:
        machine = ready(make, patience=200_000_000)
        for _ in range(2):
            machine.launch(stuck(3))
            failure = machine.wait()
            assert failure is not None
            assert failure.positions == (HEADER_WORDS + 3,)
            words = failure.message.format("the end of cell 'read'")
            assert words.startswith("virtual processor 0 waited longer than 0.2 s at the end of cell 'read'")
            assert "1-2 had reached the end" in words
            machine.launch(work(3, ONE, LOSS_SLOTS))
            assert machine.wait() is None

    def test_a_launch_may_be_put_behind_another_one(self, make: Make) -> None:
        machine = ready(make)
        machine.pool[FIRST_FREE : FIRST_FREE + 8] = np.arange(8)
        scripts = [work(3, FIRST_FREE + k % 8, LOSS_SLOTS + (k & 1), n=1 + k % 5) for k in range(40)]
        machine.launch(scripts[0])
        for k in range(1, 40):
            machine.stage(scripts[k])
            machine.launch(scripts[k])
            assert machine.wait() is None
            assert machine.loss(LOSS_SLOTS + (k - 1 & 1)) == (k - 1) % 8
        assert machine.wait(39) is None, "it has been waited for"
        assert machine.loss(LOSS_SLOTS) == 38 % 8
        assert machine.wait(40) is None
        assert machine.loss(LOSS_SLOTS + 1) == machine.pool[LOSS_SLOTS + 1] == 39 % 8
        assert machine.launches == 40

    def test_a_third_launch_is_refused(self, make: Make) -> None:
        machine = ready(make)
        for _ in range(2):
            machine.launch(work(3, ONE, LOSS_SLOTS, n=500))
        with pytest.raises(vpps.HandleError, match="while two others are in flight"):
            machine.launch(work(3, ONE, LOSS_SLOTS))
        assert machine.wait() is None
        assert machine.wait() is None
        assert machine.launches == 2

    @pytest.mark.parametrize("before", [0, 1])
    def test_a_launch_behind_one_that_is_stopped_never_began(self, make: Make, before: int) -> None:
        machine = ready(make, patience=200_000_000)
        for _ in range(before):
            machine.launch(work(3, ONE, LOSS_SLOTS))
            assert machine.wait() is None
        for bad in (stuck(3), script(UNKNOWN, END, END)):
            number = machine.launches + 1
            machine.pool[LOSS_SLOTS : LOSS_SLOTS + 2] = 0
            machine.launch(bad)
            machine.launch(work(3, ONE, LOSS_SLOTS))
            failure = machine.wait()
            assert failure is not None
            assert failure.positions == (HEADER_WORDS + 3,)
            assert machine.launches == number
            assert machine.wait() is None
            assert not machine.pool[LOSS_SLOTS : LOSS_SLOTS + 2].any(), "it did nothing"
            for _ in range(2):
                machine.launch(work(3, ONE, LOSS_SLOTS + 1))
                machine.launch(work(3, ONE, LOSS_SLOTS))
                assert machine.wait() is None
                assert machine.wait() is None
                assert machine.loss(LOSS_SLOTS) == machine.loss(LOSS_SLOTS + 1) == 1

    def test_the_pool_grows_and_keeps_what_it_holds(self, make: Make) -> None:
        machine = ready(make)
        machine.reserve(100, 0)
        machine.pool[:100] = np.arange(100)
        assert machine.pool.address % 64 == 0
        machine.reserve(100_000, 50)
        assert len(machine.pool) == 100_000
        assert machine.pool.nbytes == 400_000
        assert np.array_equal(machine.pool[:50], np.arange(50))
        assert not machine.pool[50:].any()
        pool = machine.pool
        machine.reserve(10, 0)
        assert machine.pool is pool
        machine.pool[FIRST_FREE] = 5
        machine.launch(work(3, FIRST_FREE, LOSS_SLOTS))
        assert machine.wait() is None
        assert machine.pool[LOSS_SLOTS] == 5

    def test_the_pool_reads_and_writes_like_an_array(self, make: Make) -> None:
        machine = ready(make)
        machine.reserve(64, 0)
        witness = np.zeros(64, np.float32)
        for place, values in (
            (slice(0, 64), 2.5),
            (slice(3, 9), np.arange(6)),
            (7, -1),
            (slice(60, None), np.nan),
            (slice(20, 20), []),
            (slice(32, 40), np.arange(16, dtype=np.float32)[::2]),
            (-1, 3),
        ):
            machine.pool[place] = values
            witness[place] = values
            assert np.array_equal(machine.pool[:], witness, equal_nan=True)
        assert machine.pool[7] == -1
        assert machine.pool[20:20].shape == (0,)
        with pytest.raises(IndexError):
            machine.pool[64]
        with pytest.raises(IndexError):
            machine.pool[::2]
        with pytest.raises(ValueError):
            machine.pool[0:4] = np.zeros(3)

    def test_two_machines_run_at_once(self, make: Make) -> None:
        machines = [ready(make) for _ in range(2)]
        for k in range(20):
            for m, machine in enumerate(machines):
                machine.pool[FIRST_FREE] = 10 * k + m
                machine.launch(work(3, FIRST_FREE, LOSS_SLOTS + (k & 1), n=20))
            for m, machine in enumerate(machines):
                assert machine.wait() is None
                assert machine.pool[LOSS_SLOTS + (k & 1)] == 10 * k + m

    def test_any_thread_may_use_it(self, make: Make) -> None:
        machine = ready(make)
        found: list[float] = []

        def run() -> None:
            machine.launch(work(3, ONE, LOSS_SLOTS))
            machine.wait()
            found.append(float(machine.pool[LOSS_SLOTS]))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert found == [1.0]

    def test_closing_waits_for_the_launch_and_may_be_repeated(self, make: Make) -> None:
        machine = ready(make)
        assert machine.is_open
        machine.launch(work(3, ONE, LOSS_SLOTS, n=500))
        machine.close()
        machine.close()
        assert not machine.is_open
        assert machine.wait() is None
        assert len(machine.pool) == 0
