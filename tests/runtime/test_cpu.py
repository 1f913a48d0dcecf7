"""The cpu target as a guest of the operating system: signals, forks, threads, exits."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import Classifier, new, same_bits
from tests.processes import finish, run, start
from vpps.placement.distribution import FIRST_FREE
from vpps.runtime.cores import default_vps, usable_cores
from vpps.runtime.cpu import CpuMachine
from vpps.script.encode import encode, plain
from vpps.script.instructions import MAGIC

pytestmark = pytest.mark.cpu

TASKS = Path("/proc/self/task")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")

# A training loop whose launches take so long that a signal nearly always arrives in one.
LONG_LAUNCHES = """
    import vpps
    from tests.classifier import new, same_bits

    H = 512
    model = vpps.Model(seed=1)
    W = model.parameter("W", (H, H), init="orthogonal")
    step = vpps.cell(lambda h: vpps.tanh(W @ h))
    handle = vpps.Handle(model, vps=2, verify=False)
    graph = vpps.Graph()
    h = graph.input([0.1] * H)
    for _ in range(1200):
        h = step(h)
    loss = vpps.sum(h)

    def train_for_ever():
        while True:
            handle.fb(graph, loss)
            print("running", flush=True)
            handle.sync_get_latest_loss()
"""


class TestCtrlC:
    def test_ends_a_program_that_does_not_catch_it(self) -> None:
        process = start(LONG_LAUNCHES + "    train_for_ever()")
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        status, _, err = finish(process)
        assert status in (-signal.SIGINT, 130)
        assert err.rstrip().endswith("KeyboardInterrupt")

    def test_leaves_a_handle_that_works_on(self) -> None:
        """The launch that it interrupted counts: the weights are those of an undisturbed run of as many steps."""
        after = """
    try:
        train_for_ever()
    except KeyboardInterrupt:
        pass
    steps = model.step
    interrupted = model.numpy()
    handle.fb(graph, loss)
    print("next loss", handle.sync_get_latest_loss())
    handle.close()

    W.assign(vpps.Model(seed=1).parameter("W", (H, H), init="orthogonal").numpy())
    with vpps.Handle(model, vps=2, verify=False) as handle:
        for _ in range(steps):
            handle.fb(graph, loss)
        assert same_bits(model.numpy(), interrupted), steps
    print("equal")
"""
        process = start(LONG_LAUNCHES + after)
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        status, out, err = finish(process)
        assert status == 0, err
        assert out.rstrip().endswith("equal")

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no interval timers")
    def test_at_any_moment_leaves_a_handle_that_works_on(self) -> None:
        run(
            """
            import random, signal
            import vpps
            from tests.classifier import new, same_bits

            def interrupt(*unused):
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, interrupt)
            rng = random.Random(1)
            net, witness = new(), new()
            batches = [net.batch(seed, sentences=10) for seed in range(5)]
            with vpps.Handle(net.model, vps=2, verify=False) as handle:
                net.train(handle, range(1))
                for turn in range(300):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 4e-3))
                        for graph, loss in batches:
                            handle.fb(graph, loss)
                            if turn % 3 == 0:
                                handle.forward(graph, [loss])
                            if turn % 5 == 0:
                                handle.gradients(graph, loss)
                            if turn % 7 == 0:
                                net.model.numpy()
                        signal.setitimer(signal.ITIMER_REAL, 0)
                    except KeyboardInterrupt:
                        pass
                for p in net.model:
                    p.assign(witness.model[p.name].numpy())
                losses = net.train(handle, range(4))
                weights = net.model.numpy()
            with vpps.Handle(witness.model, vps=2) as other:
                assert witness.train(other, range(4)) == losses
            assert same_bits(witness.model.numpy(), weights)
            """
        )


@needs_fork
class TestFork:
    def test_a_child_may_not_use_the_parents_handle_but_may_make_its_own(self) -> None:
        out = run(
            """
            import os
            import vpps
            from tests.classifier import new, same_bits

            net = new()
            handle = vpps.Handle(net.model, vps=2)
            losses = net.train(handle, range(2))
            graph, loss = net.batch(2)
            weights = net.model.numpy()

            child = os.fork()
            if not child:
                uses = (
                    lambda: handle.fb(graph, loss),
                    lambda: handle.forward(graph, [loss]),
                    lambda: handle.gradients(graph, loss),
                    lambda: handle.value(loss),
                    handle.sync_get_latest_loss,
                )
                for use in uses:
                    try:
                        use()
                    except vpps.HandleError as error:
                        for word in ("parent", "forked child", "handle of its own"):
                            assert word in str(error), error
                    else:
                        raise AssertionError("the child used the parent's handle")
                assert same_bits(net.model.numpy(), weights)
                with vpps.Handle(net.model, vps=2) as own:
                    own.fb(graph, loss)
                    print("child", own.sync_get_latest_loss(), flush=True)
                handle.close()
                raise SystemExit(0)
            assert os.waitpid(child, 0)[1] == 0
            handle.fb(graph, loss)
            print("parent", handle.sync_get_latest_loss())
            """
        )
        child, parent = (line.split() for line in out.splitlines())
        assert (child[0], parent[0]) == ("child", "parent")
        assert child[1] == parent[1]

    def test_a_child_forked_during_a_launch_exits_and_says_where_the_weights_are(self) -> None:
        run(
            LONG_LAUNCHES
            + """
    import os

    handle.fb(graph, loss)
    child = os.fork()
    if not child:
        try:
            model.numpy()
        except vpps.HandleError as error:
            assert "before forking" in str(error), error
        else:
            raise AssertionError("the child has weights that were still being computed")
        raise SystemExit(0)
    assert os.waitpid(child, 0)[1] == 0
    handle.fb(graph, loss)
    assert handle.sync_get_latest_loss() == handle.sync_get_latest_loss()
"""
        )

    def test_data_loaders_that_fork_are_harmless(self) -> None:
        run(
            """
            import multiprocessing
            import vpps
            from tests.classifier import new, same_bits

            net, witness = new(), new()

            def load(seed):
                return seed * 2  # and the child's copy of the handle dies with it

            with vpps.Handle(net.model, vps=2) as handle, vpps.Handle(witness.model, vps=2) as other:
                handle.fb(*net.batch(100))
                with multiprocessing.get_context("fork").Pool(2) as pool:  # while the launch runs
                    for seed in pool.imap(load, range(6)):
                        handle.fb(*net.batch(seed))
                for seed in (100, 0, 2, 4, 6, 8, 10):
                    other.fb(*witness.batch(seed))
            assert same_bits(net.model.numpy(), witness.model.numpy())
            """
        )


class TestExit:
    @pytest.mark.parametrize(
        "end",
        ["", "raise SystemExit(0)", "del handle", "import gc; gc.collect()", "cycle = [handle]; cycle.append(cycle)"],
    )
    def test_without_close_during_a_launch_is_clean(self, end: str) -> None:
        status, _, err = finish(start(LONG_LAUNCHES + f"\n    handle.fb(graph, loss)\n    {end}"))
        assert (status, err) == (0, "")

    def test_by_an_exception_during_a_launch_shows_that_exception_only(self) -> None:
        status, _, err = finish(start(LONG_LAUNCHES + "\n    handle.fb(graph, loss)\n    1 / 0"))
        assert status == 1
        assert err.rstrip().endswith("ZeroDivisionError: division by zero")
        assert err.count("Traceback") == 1


def n_threads(expected: int | None = None) -> int:
    """Threads of this process; waits a while for the expected number, for an ended one is listed a little longer."""
    gc.collect()  # handles of other tests
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
                time.sleep(0.01)  # longer than anybody stays awake for it
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
    """Let the next script of a handle meet an opcode that does not exist, in the first instruction of `read`."""
    machine = handle._engine.machine
    launch = machine.launch

    def damaged(script: np.ndarray[tuple[int], np.dtype[np.uint32]], *continuation: Any) -> None:
        assert handle._engine.plan is not None
        start, stream = handle._engine.plan.streams[0]
        read = next(s for s in stream.sections if s.block is not None and s.block.arrays.cell.name.endswith(".read"))
        position = start + read.start
        script = script.copy()  # the other one may be on its way already
        script[position] = 0xFFFF
        machine.launch = launch  # type: ignore[method-assign]
        launch(script, *continuation)

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
