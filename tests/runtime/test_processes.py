"""The cpu target, and cuda with a simulated GPU, in the operating system: signals, forks, exits."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.processes import finish, run, start

CPU = pytest.param("cpu", marks=pytest.mark.cpu)
TARGETS = [CPU, pytest.param("imaginary", marks=pytest.mark.simt)]  # and "cuda", a GPU: tests/gpu/test_training.py
targets = pytest.mark.parametrize("target", TARGETS)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")

# `graph` and `loss` take so long that a signal nearly always arrives in a step; on the simulated GPU nothing ends
# before the host waits.
PROCESS = """
import gc, multiprocessing, os, random, signal
import pytest
import vpps
from tests.classifier import new, same_bits
from tests.runtime import fake_cuda

TARGET = {target!r}
IMAGINARY = TARGET == "imaginary"
if IMAGINARY:
    fake = fake_cuda.install_with_kernels(pytest.MonkeyPatch())
net, witness = new(), new()

def opened(model, target="cuda" if IMAGINARY else TARGET):
    return vpps.Handle(model, target=target, vps=3, verify=False)

def long_step(steps=1200, H=512):
    model = vpps.Model(seed=1)
    W = model.parameter("W", (H, H), init="orthogonal")
    step = vpps.cell(lambda h: vpps.tanh(W @ h))
    graph = vpps.Graph()
    h = graph.input([0.1] * H)
    for _ in range(steps):
        h = step(h)
    return model, graph, vpps.sum(h)

def refused(use, words):
    try:
        use()
    except vpps.HandleError as error:
        assert words in str(error), error
    else:
        raise AssertionError("it was not refused")

model, graph, loss = long_step() if not IMAGINARY else (net.model, *net.batch(0))
"""
TRAIN_FOR_EVER = """
def train_for_ever():
    while True:
        handle.fb(graph, loss)
        print("running", flush=True)
        handle.sync_get_latest_loss()

handle = opened(model)
"""


def process(target: str, code: str) -> str:
    return PROCESS.replace("{target!r}", repr(target)) + code


def interrupted(target: str, code: str) -> subprocess.Popen[str]:
    """Start a process that trains and receives Ctrl-C."""
    begun = start(process(target, TRAIN_FOR_EVER + code))
    assert begun.stdout is not None
    assert begun.stdout.readline() == "running\n"
    begun.send_signal(signal.SIGINT)
    return begun


@pytest.mark.parametrize("target", [CPU])
def test_ctrl_c_ends_a_program_that_does_not_catch_it(target: str) -> None:
    status, _, err = finish(interrupted(target, "train_for_ever()"))
    assert status in (-signal.SIGINT, 130)
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("target", [CPU])
def test_ctrl_c_leaves_a_handle_that_works_on(target: str) -> None:
    """The interrupted launch counts: the weights equal those of an undisturbed run with the same number of steps."""
    status, out, err = finish(
        interrupted(
            target,
            """
try:
    train_for_ever()
except KeyboardInterrupt:
    pass
steps = model.step
weights = model.numpy()
handle.fb(graph, loss)
print("next loss", handle.sync_get_latest_loss())
handle.close()
undisturbed, graph, loss = long_step()
with opened(undisturbed) as handle:
    for _ in range(steps):
        handle.fb(graph, loss)
    assert same_bits(undisturbed.numpy(), weights), steps
print("equal")
""",
        )
    )
    assert status == 0, err
    assert out.rstrip().endswith("equal")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no interval timers")
@targets
def test_ctrl_c_at_any_moment_leaves_a_handle_that_works_on(target: str) -> None:
    """Ctrl-C comes before, between and after driver calls; only launches that have begun count."""
    run(
        process(
            target,
            """
def interrupt(*unused):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng = random.Random(1)
batches = [net.batch(seed, sentences=4 if IMAGINARY else 10) for seed in range(5)]
interrupted, most = 0, 4e-2 if IMAGINARY else 4e-3
with opened(net.model) as handle:
    net.train(handle, range(1))
    for turn in range(50 if IMAGINARY else 300):
        launched, step = handle._engine.machine.launches, net.model.step
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, most))
            for graph, loss in batches:
                handle.fb(graph, loss)
                if not IMAGINARY:
                    if turn % 3 == 0:
                        handle.forward(graph, [loss])
                    if turn % 5 == 0:
                        handle.gradients(graph, loss)
                    if turn % 7 == 0:
                        net.model.numpy()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        handle.sync_get_latest_loss()
        assert not IMAGINARY or handle._engine.machine.launches - launched == net.model.step - step
    assert interrupted > 10, interrupted
    for p in net.model:
        p.assign(witness.model[p.name].numpy())
    losses = net.train(handle, range(4))
    weights = net.model.numpy()
with opened(witness.model, "simt" if IMAGINARY else TARGET) as other:
    assert witness.train(other, range(4)) == losses
assert same_bits(witness.model.numpy(), weights)
assert not IMAGINARY or not fake.findings
""",
        )
    )


@needs_fork
@targets
def test_a_forked_child_may_not_use_the_parents_handle_but_may_make_its_own(target: str) -> None:
    out = run(
        process(
            target,
            """
handle = opened(net.model)
losses = net.train(handle, range(2))
graph, loss = net.batch(2)
weights = net.model.numpy()
child = os.fork()
if not child:
    for use in (
        lambda: handle.fb(graph, loss), lambda: handle.forward(graph, [loss]), lambda: handle.gradients(graph, loss),
        lambda: handle.value(loss), lambda: handle.device_value(loss), handle.sync_get_latest_loss,
    ):
        refused(use, "parent")
        refused(use, "forked child")
        refused(use, "handle of its own")
    assert same_bits(net.model.numpy(), weights)
    if IMAGINARY:
        refused(lambda: opened(net.model), "'spawn'")
    with vpps.Handle(net.model, vps=2) as own:  # "auto": there is no GPU for this process
        own.fb(graph, loss)
        print(own, own.sync_get_latest_loss() > 0, flush=True)
    handle.close()
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
handle.fb(graph, loss)
with opened(witness.model, "simt" if IMAGINARY else TARGET) as other:
    assert witness.train(other, range(3)) == losses + [handle.sync_get_latest_loss()]
""",
        ),
        {"VPPS_TARGET": "auto"},
    )
    assert out == "<vpps.Handle: cpu, 2 virtual processors> True\n"


@needs_fork
@targets
def test_a_child_forked_during_a_launch_exits_and_says_where_the_weights_are(target: str) -> None:
    run(
        process(
            target,
            """
handle = opened(model)
handle.fb(graph, loss)
child = os.fork()
if not child:
    refused(model.numpy, "before forking")
    raise SystemExit(0)
assert os.waitpid(child, 0)[1] == 0
handle.fb(graph, loss)
assert handle.sync_get_latest_loss() == handle.sync_get_latest_loss()
handle.close()
""",
        )
    )


@needs_fork
@pytest.mark.cpu
def test_data_loaders_that_fork_are_harmless() -> None:
    run(
        process(
            "cpu",
            """
def load(seed):
    return seed * 2  # and the child's copy of the handle dies with it

with opened(net.model) as handle, opened(witness.model) as other:
    handle.fb(*net.batch(100))
    with multiprocessing.get_context("fork").Pool(2) as pool:  # while the launch runs
        for seed in pool.imap(load, range(6)):
            handle.fb(*net.batch(seed))
    for seed in (100, 0, 2, 4, 6, 8, 10):
        other.fb(*witness.batch(seed))
assert same_bits(net.model.numpy(), witness.model.numpy())
""",
        )
    )


ENDS = "", "raise SystemExit(0)", "del handle", "gc.collect()", "cycle = [handle]; cycle.append(cycle)", "1 / 0"


@targets
@pytest.mark.parametrize("end", ENDS)
def test_an_end_without_close_during_a_launch_is_clean(target: str, end: str) -> None:
    status, _, err = finish(start(process(target, f"handle = opened(model)\nhandle.fb(graph, loss)\n{end}\n")))
    if end == "1 / 0":
        assert status == 1
        assert err.rstrip().endswith("ZeroDivisionError: division by zero")
        assert err.count("Traceback") == 1
    else:
        assert (status, err) == (0, "")
