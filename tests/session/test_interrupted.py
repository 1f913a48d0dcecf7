"""Signal handlers, callbacks, threads and finalisers that use a model in the middle of a call."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import vpps
from vpps.errors import HandleError

N = 4
WHERE = pytest.mark.parametrize("target", ["cpu", "simt"])


class Training:
    """Steps of a small model; some steps accumulate, and one is not finite."""

    def __init__(self, target: str, **options: Any) -> None:
        self.model = vpps.Model(seed=1)
        self.W = self.model.parameter("W", (N, N))
        self.E = self.model.lookup("E", (5, N))
        self.handle = vpps.Handle(self.model, vpps.Adam(lr=0.1), target=target, vps=2, **options)
        self.done = 0
        self.infinite = 3

    def loss(self, factor: float = 1.0) -> tuple[vpps.Graph, vpps.Expression]:
        g = vpps.Graph()
        x = vpps.tanh(self.W @ g.lookup(self.E, self.done % 5))
        return g, factor * vpps.sum(vpps.square(self.W @ x))

    def step(self) -> None:
        self.done += 1
        self.handle.fb(*self.loss(np.inf if self.done == self.infinite else 1.0), accumulate=self.done == 4)


def state(model: vpps.Model, path: Path) -> tuple[Any, ...]:
    """Return the contents of a checkpoint, in comparable parts."""
    model.save(path)
    read = vpps.Model.load(path)
    found = read.optimizer_state
    moments = {} if found is None else found.moments
    calls = 0 if read.accumulated is None else read.accumulated.calls
    averages = {} if read.averages is None else read.averages.values
    arrays = [read.numpy(), averages, *(moments[name] for name in sorted(moments))]
    return read.step, calls, *(a[name].tobytes() for a in arrays for name in sorted(a))


def at_points(work: Callable[[], object], handler: Callable[[], None], every: int) -> int:
    """Call a handler, as Python does for a signal, after every `every` function calls and returns."""
    met = 0

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal met
        met += 1
        if met % every == 0 and argument is not sys.setprofile:
            handler()

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return met


@WHERE
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_handler_sees_the_last_whole_step(target: str, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    with Training(target, ema=0.9).handle:
        pass
    alone, losses = Training(target, ema=0.9), [np.nan]
    states = [state(alone.model, file)]
    for _ in range(6):
        alone.step()
        losses.append(alone.handle.sync_get_latest_loss())
        states.append(state(alone.model, file))
    alone.handle.close()

    t = Training(target, ema=0.9)
    seen = 0

    def handler() -> None:
        nonlocal seen
        seen += 1
        whole = slice(t.done - 1, t.done + 1)
        assert any(np.array_equal(t.handle.sync_get_latest_loss(), x, equal_nan=True) for x in losses[whole])
        assert state(t.model, file) in states[whole]
        assert t.model.numpy()["W"].tobytes() == vpps.Model.load(file).numpy()["W"].tobytes()

    for k in range(6):
        at_points(t.step, handler, (397 if target == "cpu" else 797) + k)
    t.handle.sync_get_latest_loss()
    assert state(t.model, file) == states[-1]
    assert t.handle.skipped == 1
    t.handle.close()
    assert seen > 6


def test_a_handler_may_read_what_save_is_writing(tmp_path: Path) -> None:
    t = Training("cpu")
    t.step()
    at_points(lambda: t.model.save(tmp_path / "a"), lambda: t.model.save(tmp_path / "b"), 11)
    assert (
        vpps.Model.load(tmp_path / "a").numpy()["W"].tobytes() == vpps.Model.load(tmp_path / "b").numpy()["W"].tobytes()
    )
    t.handle.close()


@pytest.mark.parametrize("what", ["forward", "gradients", "close", "fb", "explain", "assign", "other"])
def test_a_schedule_is_refused_what_computes(what: str) -> None:
    t = Training("cpu")
    other = vpps.Handle(t.model, train=False, target="cpu", vps=1)
    g, loss = t.loss()
    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: t.handle.forward(g, [loss]),
        "gradients": lambda: t.handle.gradients(g, loss),
        "close": t.handle.close,
        "fb": lambda: t.handle.fb(g, loss),
        "explain": t.handle.explain,
        "assign": lambda: t.W.assign(np.zeros((N, N))),
        "other": lambda: other.forward(g, [loss]),
    }

    seen: list[float] = []

    def rate(step: int) -> float:  # reading is allowed
        seen.append(float(np.abs(t.model.numpy()["W"]).sum()) + t.handle.skipped)
        if len(seen) == 2:
            calls[what]()
        return 0.1

    t.infinite = 0
    t.handle.optimizer = vpps.Adam(lr=rate)
    t.step()
    with pytest.raises(HandleError, match=r"called by a signal handler or callback .* while fb runs"):
        t.step()
    t.step()
    assert len(set(seen)) == t.model.step == 2
    other.close()
    t.handle.close()


def test_restoring_cannot_be_looked_into(tmp_path: Path) -> None:
    t = Training("cpu")
    t.step()
    t.model.save(tmp_path / "a")
    said: list[str] = []

    def handler() -> None:
        try:
            t.model.numpy()
        except HandleError as error:
            said.append(str(error))

    at_points(lambda: t.model.restore(tmp_path / "a"), handler, 1)
    assert said
    assert "while restore runs" in said[0]
    t.handle.close()


@pytest.mark.parametrize("cyclic", [False, True])
def test_a_handle_is_collected_within_a_call_of_its_model(cyclic: bool) -> None:
    """The garbage collector can run at any point: here while the model is read, and while another thread runs."""
    t = Training("cpu")
    t.step()
    if cyclic:
        t.cycle = t  # type: ignore[attr-defined]
    model = t.model

    class Collects(dict[str, str]):
        def items(self) -> Any:
            nonlocal t
            del t
            gc.collect()
            assert model.step == 1
            return super().items()

    model.metadata = Collects()
    thread = threading.Thread(target=lambda: model._serialised(Path("unused")))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    with vpps.Handle(model, target="cpu", vps=1) as h:  # the former handle is closed
        assert h.skipped == 0
    assert model.optimizer_state is not None


@WHERE
def test_one_trains_one_evaluates_one_saves(target: str, tmp_path: Path) -> None:
    """All matrices are equal at every step, because their gradients are."""
    model = vpps.Model(seed=1)
    matrices = [model.parameter(f"A{i}", (40, 40), init=1.0) for i in range(6)]
    x0, stop, errors = np.ones(40, np.float32), threading.Event(), []

    def graph() -> tuple[vpps.Graph, list[vpps.Expression]]:
        g = vpps.Graph()
        x = g.input(x0)
        return g, [vpps.sum(p @ x) for p in matrices]

    def evaluate() -> None:
        with vpps.Handle(model, train=False, target=target, vps=1) as h:
            while not stop.is_set():
                assert len({float(v) for v in h.forward(*graph())}) == 1

    def save() -> None:
        while not stop.is_set():
            model.save(tmp_path / "a")
            assert len({a.tobytes() for a in vpps.Model.load(tmp_path / "a").numpy().values()}) == 1

    def show() -> None:
        while not stop.is_set():
            assert len({a.tobytes() for a in model.numpy().values()}) == 1

    def noting(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(repr(error))
            stop.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=noting, args=[work]) for work in (evaluate, save, show)]
    try:
        with vpps.Handle(model, vpps.SGD(lr=1.0), target=target, vps=1) as h:
            for thread in threads:
                thread.start()
            for _ in range(100 if target == "cpu" else 6):
                g, found = graph()
                h.fb(g, vpps.sum(found))
            stop.set()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors


EXITING = """
import atexit, sys, threading
import vpps
m = vpps.Model(seed=1); W = m.parameter("W", (8, 8))
h = vpps.Handle(m, vpps.Adam(lr=.01), vps=2, target=sys.argv[1])
def loss():
    g = vpps.Graph(); x = g.input([1.0] * 8)
    for _ in range(30): x = vpps.tanh(W @ x)
    return g, vpps.sum(x)
inside = threading.Event()
def work():
    while True:
        g, l = loss()
        if sys.argv[2] == "fb": h.fb(g, l)
        elif sys.argv[2] == "forward": h.forward(g, [l])
        else: vpps.Handle(vpps.Model(), target=sys.argv[1], vps=2)
        inside.set()
threading.Thread(target=work, daemon=True).start()
inside.wait(60)
"""


@WHERE
@pytest.mark.parametrize("what", ["fb", "forward", "collected"])
def test_a_program_ends_while_a_daemon_thread_works(target: str, what: str) -> None:
    ended = subprocess.run([sys.executable, "-c", EXITING, target, what], capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


OUTLIVING = """
import sys, vpps
m = vpps.Model(seed=1); m.parameter("W", (4, 4))
vpps.errors.kept = vpps.Handle(m, vpps.SGD(lr=.1), target=sys.argv[1])
sys.kept = list(sys.modules.values())  # so Python empties modules in order, and vpps.errors late
"""


@WHERE
def test_a_handle_that_outlives_its_modules_says_nothing(target: str) -> None:
    ended = subprocess.run([sys.executable, "-c", OUTLIVING, target], capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_child_that_was_forked_within_a_step_is_refused_its_weights() -> None:
    t = Training("cpu")
    t.step()
    t.handle.sync_get_latest_loss()

    def forked() -> str:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                t.model.numpy()
                os.write(write, b"read")
            except BaseException as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read, "rb") as file:
            return file.read().decode()

    assert forked() == "read"
    said: list[str] = []
    t.handle.optimizer = vpps.Adam(lr=lambda step: said.append(forked()) or 0.1)  # type: ignore[func-returns-value]
    t.step()
    assert "forked while" in said[0]
    t.handle.close()
