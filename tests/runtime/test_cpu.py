"""Machines of the cpu target: threads, stopped launches, pools."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.classifier import Classifier, new, same_bits
from vpps.placement.distribution import FIRST_FREE
from vpps.runtime.cores import default_vps, usable_cores
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import encode, plain
from vpps.script.instructions import MAGIC

pytestmark = pytest.mark.cpu

TASKS = Path("/proc/self/task")


def n_threads(expected: int | None = None) -> int:
    """Return the threads of this process. Waits for the expected number, as ended threads are listed for a while."""
    gc.collect()  # handles from other tests
    deadline = time.monotonic() + 5
    while (n := len(list(TASKS.iterdir()))) != expected and expected is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    return n


class TestThreads:
    @pytest.mark.skipif(not TASKS.exists(), reason="the system does not list threads")
    @pytest.mark.parametrize("ending", ["close", "with", "del", "exception"])
    def test_end_with_the_handle(self, ending: str) -> None:
        net = new()
        before = n_threads()
        handle = vpps.Handle(net.model, vps=5)
        assert n_threads(before + 5) == before + 5
        handle.fb(*net.batch(1))
        match ending:
            case "close":
                handle.close()
            case "with":
                with handle:
                    handle.fb(*net.batch(2))
            case "del":
                del handle
            case "exception":
                with pytest.raises(RuntimeError), handle:
                    raise RuntimeError
        assert n_threads(before) == before

    @pytest.mark.skipif(not TASKS.exists(), reason="the system does not list threads")
    def test_do_not_begin_for_a_handle_that_failed(self) -> None:
        net = new()
        before = n_threads()
        with vpps.Handle(net.model, vps=2), pytest.raises(vpps.HandleError):
            vpps.Handle(net.model, vps=2)
        assert n_threads(before) == before

    @pytest.mark.parametrize(
        "state", ["fresh", "after fb", "after a refused call", "after a stopped launch", "after an announcement"]
    )
    def test_use_no_processor_while_idle(self, state: str) -> None:
        net = new()
        with vpps.Handle(net.model, vps=2 if state == "after an announcement" else 4) as handle:
            if state != "fresh":
                net.train(handle, range(2))
            if state == "after a refused call":
                with pytest.raises(vpps.GraphError):
                    handle.fb(vpps.Graph(), net.batch(1)[1])
            if state == "after a stopped launch":
                stop_next_launch(handle)
                handle.fb(*net.batch(3))
                with pytest.raises(vpps.KernelError):
                    handle.sync_get_latest_loss()
            if state == "after an announcement":
                machine = handle._engine.machine
                machine.expect()
                time.sleep(0.01)  # longer than a thread spins
                machine.expect()
                net.train(handle, range(2, 4))
            before = time.process_time()
            time.sleep(0.5)
            assert time.process_time() - before < 0.1  # one spinning thread would use 0.5

    def test_default_to_what_suits_the_cores(self) -> None:
        model = vpps.Model()
        with vpps.Handle(model) as handle, vpps.Handle(model, train=False) as inference:
            assert handle.vps == default_vps(usable_cores(), overlapped=True)
            assert inference.vps == usable_cores()

    def test_of_two_handles_run_at_the_same_time(self) -> None:
        together, alone = [new(1), new(2)], [new(1), new(2)]
        with vpps.Handle(together[0].model, vps=3) as first, vpps.Handle(together[1].model, vps=2) as second:
            for seed in range(5):
                first.fb(*together[0].batch(seed))
                second.fb(*together[1].batch(seed))
        for net in alone:
            with vpps.Handle(net.model) as handle:
                net.train(handle, range(5))
        for a, b in zip(together, alone, strict=True):
            assert same_bits(a.model.numpy(), b.model.numpy())

    def test_of_python_may_each_have_a_handle(self) -> None:
        nets, alone = [new(k) for k in range(3)], [new(k) for k in range(3)]
        failures: list[BaseException] = []

        def work(net: Classifier) -> None:
            try:
                with vpps.Handle(net.model, vps=2) as handle:
                    net.train(handle, range(4))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=[net]) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        for a, b in zip(nets, alone, strict=True):
            work(b)
            assert same_bits(a.model.numpy(), b.model.numpy())


def stop_next_launch(handle: vpps.Handle) -> None:
    """Put an unknown opcode into the first instruction of `read` in a handle's next script."""
    machine = handle._engine.machine
    launch = machine.launch

    def damaged(script: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
        assert handle._engine.plan is not None
        start, stream = handle._engine.plan.streams[0]
        read = next(s for s in stream.sections if s.block is not None and s.block.arrays.cell.name.endswith(".read"))
        position = start + read.start
        script = script.copy()  # the original may already be in transfer
        script[position] = 0xFFFF
        machine.launch = launch  # type: ignore[method-assign]
        launch(script)

    machine.launch = damaged  # type: ignore[method-assign]


class TestStoppedLaunch:
    @pytest.mark.parametrize("vps", [1, 2, 5])
    def test_is_an_error_in_the_users_words_and_the_handle_works_on(self, vps: int) -> None:
        net, witness = new(), new()
        with vpps.Handle(net.model, vps=vps) as handle, vpps.Handle(witness.model) as other:
            stop_next_launch(handle)
            handle.fb(*net.batch(1))
            with pytest.raises(vpps.KernelError, match=r"cell .\w+\.read., op '\S+'.*, from call \d+"):
                handle.sync_get_latest_loss()
            for p in net.model:
                p.assign(witness.model[p.name].numpy())
            assert net.train(handle, range(3)) == witness.train(other, range(3))
        assert same_bits(net.model.numpy(), witness.model.numpy())

    def test_by_one_virtual_processor_stops_those_that_wait_for_it(self) -> None:
        machine = CpuMachine(3)
        machine.reserve(FIRST_FREE, 0)
        header = plain([MAGIC, 3, 1, 0, 7, 12, 12])
        bad = plain([0xFFFF, 5, 0, 0, 0])
        waits = plain(encode("wait", 0, 0, counter=0, target=99))
        end = plain(encode("end", 0, 0))
        for _ in range(3):
            machine.launch(np.concatenate([header, bad, waits, end]))
            assert machine.wait().positions == (7,)
            machine.launch(np.concatenate([plain([MAGIC, 3, 1, 0, 7, 7, 7]), end]))
            assert machine.wait() is None
        machine.close()
        machine.close()


class TestPool:
    def test_is_aligned_and_keeps_what_it_holds_as_it_grows(self) -> None:
        machine = CpuMachine(1)
        machine.reserve(100, 0)
        machine.pool[:100] = np.arange(100)
        machine.reserve(1000, 50)
        assert machine.pool.ctypes.data % 64 == 0
        assert len(machine.pool) >= 1000
        assert np.array_equal(machine.pool[:50], np.arange(50))
        assert not machine.pool[50:].any()
        pool = machine.pool
        machine.reserve(10, 0)
        assert machine.pool is pool
        machine.close()

    def test_that_the_system_cannot_give_is_an_error(self) -> None:
        machine = CpuMachine(1)
        with pytest.raises(vpps.CapacityError, match="smaller batches"):
            machine.reserve(2**60, 0)
        machine.close()
