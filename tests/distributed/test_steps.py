"""Steps with several shards, in a world of one process: the shards of each step, and refused calls."""

from __future__ import annotations

import textwrap
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vpps
import vpps.distributed
from tests.data.test_graphset import chains
from tests.distributed.test_world import in_a_thread
from tests.processes import run
from vpps.planner.plan import Plan
from vpps.planner.planner import Planner
from vpps.session.gradient_sum import GradientSum

pytestmark = pytest.mark.cpu

WIDTH = 8


class Net:
    """A matrix and a mask."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=2)
        self.W = self.model.parameter("W", (WIDTH, WIDTH))
        self.world = vpps.distributed.init("alone", shards=2)

    def handle(self) -> vpps.Handle:
        return vpps.Handle(self.model, vpps.SGD(0.1), target="cpu", vps=1, world=self.world)

    def loss(self, k: float) -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        h = self.W @ vpps.dropout(graph.input(np.cos(np.arange(WIDTH) + k).astype(np.float32)), 0.5)
        return graph, vpps.sum(h * h)

    def give(self, handle: vpps.Handle, shards: Iterable[float] = range(2), **how: bool) -> None:
        """Pass the shards' losses to `fb`."""
        for k in shards:
            handle.fb(*self.loss(k), **how)


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def handle(net: Net) -> Iterator[vpps.Handle]:
    with net.handle() as handle:
        yield handle


def test_shards_of_other_weights_are_forgotten(net: Net, handle: vpps.Handle, tmp_path: Path) -> None:
    net.model.save(tmp_path / "kept")
    handle.fb(*net.loss(0))
    net.W.assign(2 * net.W.host)
    with pytest.raises(vpps.HandleError, match=r"weights .* have changed since the first shards of this step"):
        handle.fb(*net.loss(1))
    handle.fb(*net.loss(0))
    net.model.restore(tmp_path / "kept")
    with pytest.raises(vpps.HandleError, match="are discarded, begin the step again"):
        handle.fb(*net.loss(1))
    handle.fb(*net.loss(0))
    handle.discard_accumulated()
    net.give(handle)
    assert net.model.step == 1
    assert np.array_equal(net.W.numpy(), one_by_one(range(2)))


def test_a_loop_that_was_left_within_a_step_is_noticed(net: Net, handle: vpps.Handle) -> None:
    """Otherwise all later steps would mix shards from two batches."""
    batches = chains(*[1] * 8).batches
    for _ in batches(4, world=net.world):
        handle.fb(*net.loss(0))
        break
    with pytest.raises(vpps.HandleError, match=r"loop over batches\(\) was left; these shards are discarded"):
        handle.fb(*net.loss(0))
    for k, _ in enumerate(batches(4, world=net.world)):  # left between steps
        handle.fb(*net.loss(k))
        if k == 1:
            break
    for _ in batches(4, world=net.world):
        handle.fb(*net.loss(0))
    assert net.model.step == 3


def test_what_does_not_fit_into_a_step_is_refused(net: Net, handle: vpps.Handle) -> None:
    handle.fb(*net.loss(0), accumulate=True)
    with pytest.raises(vpps.HandleError, match=r"fb: 1 of the 2 shards .* accumulate=False differs from these"):
        handle.fb(*net.loss(1))
    with pytest.raises(vpps.HandleError, match=r"apply: 1 of the 2 shards .* give fb the others first"):
        handle.apply({})
    with pytest.raises(vpps.HandleError, match=r"forward\(update=True\): this rank's weights"):
        handle.forward(net.loss(0)[0], [net.loss(0)[1]], update=True)
    handle.fb(*net.loss(1), accumulate=True)
    assert (net.model.step, handle.accumulated) == (0, 1)


def test_an_error_ends_the_step(net: Net, handle: vpps.Handle) -> None:
    handle.fb(*net.loss(0))
    with pytest.raises(vpps.GraphError):
        handle.fb(vpps.Graph(), net.loss(1)[1])
    handle.fb(*net.loss(1))
    assert net.model.step == 1  # the refused call did not count as a shard


@pytest.mark.parametrize("inputs", [False, True])
def test_no_shard_has_anything_to_learn(net: Net, handle: vpps.Handle, inputs: bool) -> None:
    """Inputs need no gradients, as without a world. No step has zero gradients: it would decay weights and moments."""

    def loss() -> tuple[vpps.Graph, vpps.Expression]:
        graph = vpps.Graph()
        return graph, vpps.sum(graph.input(np.ones(3), grad=inputs))

    handle.fb(*loss())
    with pytest.raises(vpps.NoGradientError, match="in no shard of any rank"):
        handle.fb(*loss())
    handle.fb(*loss())
    handle.fb(*net.loss(1))
    handle.sync_get_latest_loss()
    assert net.model.step == 1


@pytest.mark.parametrize("table", [False, True])
def test_sums_beyond_what_is_finite_are_a_step_that_is_left_out(net: Net, table: bool) -> None:
    """No other warning appears, not even NumPy's."""
    E = net.model.lookup("E", (2, WIDTH))
    with vpps.Handle(net.model, vpps.SGD(0.1), target="cpu", world=net.world, on_nonfinite="skip") as handle:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for value in (3e38, 3e38, np.inf, -np.inf):
                graph = vpps.Graph()
                x = graph.input(np.full(WIDTH, value, np.float32))
                handle.fb(graph, vpps.sum(x * (graph.lookup(E, 1) if table else net.W @ graph.input(np.ones(WIDTH)))))
        assert (handle.skipped, net.model.step) == (2, 2)


def test_values_are_gone_after_a_step(net: Net, handle: vpps.Handle) -> None:
    handle.fb(*net.loss(0))
    graph, loss = net.loss(1)
    handle.fb(graph, loss)
    with pytest.raises(vpps.GraphError, match=r"value: the latest launch was an update, .* ask forward"):
        handle.value(loss)


def test_a_handle_closes_within_a_step(net: Net) -> None:
    handle = net.handle()
    handle.fb(*net.loss(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="1 of the 2 shards of a step were given to fb"):
            handle.close()
    net.handle().close()  # closes the open handle


def test_a_world_of_one_is_any_threads(net: Net, handle: vpps.Handle) -> None:
    in_a_thread(lambda: net.give(handle))
    assert net.model.step == 1


# ---- work in parallel with the program


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Delay sums until this event is set."""
    free, sums = threading.Event(), GradientSum.__call__

    def late(self: GradientSum, *given: Any, **how: Any) -> Any:
        assert free.wait(20)
        return sums(self, *given, **how)

    monkeypatch.setattr(GradientSum, "__call__", late)
    yield free
    free.set()


def test_the_next_graph_is_planned_while_gradients_travel(
    net: Net, handle: vpps.Handle, held_up: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each graph is planned once: the plan is launched unless something has changed."""
    held_up.set()
    net.give(handle)  # all ranks know the new cells after this step
    handle.sync_get_latest_loss()
    held_up.clear()
    made, plan_training = list[vpps.Graph](), Planner.plan_training

    def noted(self: Planner, graph: vpps.Graph, *more: Any, **how: Any) -> Plan:
        plan = plan_training(self, graph, *more, **how)
        made.append(graph)
        if len(made) == 3:  # the first shard of the second step
            held_up.set()
        return plan

    monkeypatch.setattr(Planner, "plan_training", noted)
    given = [net.loss(k) for k in range(4)]
    for one in given:
        handle.fb(*one)
    assert made == [graph for graph, _ in given]
    assert np.array_equal(net.W.numpy(), one_by_one([0, 1, *range(4)]))


def test_what_was_planned_for_nothing_is_planned_again(net: Net, handle: vpps.Handle) -> None:
    """If the previous step is skipped, its update is not launched; a different seed gives different masks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.give(handle, (np.inf, 0, 1, 2, 3, 4))
    assert (net.model.step, handle.skipped) == (3, 1)
    assert np.array_equal(net.W.numpy(), one_by_one(range(1, 5), step=1))


def out_of_sums(*_: Any, **__: Any) -> Any:
    raise vpps.HandleError("no sums today")


def one_by_one(shards: Iterable[int], step: int = 0) -> NDArray[np.float32]:
    """Return the weights after earlier steps and these shards, waiting for each."""
    net = Net()
    net.model.step = step
    with net.handle() as handle:
        for k in shards:
            handle.fb(*net.loss(k))
            handle.sync_get_latest_loss()
    return net.W.numpy()


def test_a_step_is_made_as_things_were(net: Net, handle: vpps.Handle, held_up: threading.Event) -> None:
    """A step ignores changes that the program makes before the step's end."""
    net.give(handle)
    assert (net.model.step, handle.is_newer) == (1, True)
    assert isinstance(handle.optimizer, vpps.SGD)
    handle.optimizer.lr = 100.0
    held_up.set()
    assert np.array_equal(net.W.numpy(), one_by_one(range(2)))


def trace(net: Net, handle: vpps.Handle, path: Path) -> None:
    with handle.trace() as trace:
        net.give(handle, range(2, 4))
    assert len(trace.timelines) == 3  # two shards and the update


EVENTS: dict[str, Callable[[Net, vpps.Handle, Path], object]] = {
    "save": lambda net, _, path: net.model.save(path),
    "save in a thread": lambda net, _, path: in_a_thread(lambda: net.model.save(path)),
    "trace": trace,
    "close": lambda _, handle, __: handle.close(),
    "drop": lambda *_: None,  # only the step in progress still holds it
    "drop, and make another": lambda *_: None,
    "meet": lambda net, *_: net.world.barrier(),
    "evaluate": lambda net, handle, _: handle.forward((given := net.loss(7))[0], [given[1]]),
    "declare": lambda net, *_: net.model.parameter("later", (3,)),
}


@pytest.mark.parametrize("event", EVENTS)
def test_whatever_comes_waits_for_the_step(event: str, net: Net, tmp_path: Path, held_up: threading.Event) -> None:
    handle = net.handle()
    net.give(handle)
    threading.Timer(0.05, held_up.set).start()
    EVENTS[event](net, handle, tmp_path / "saved")
    del handle
    if "another" in event:
        net.handle().close()
    steps = 2 if event == "trace" else 1
    assert np.array_equal(net.W.numpy(), one_by_one(range(2 * steps)))
    assert net.model.step == steps
    if (tmp_path / "saved").exists():
        net.model.restore(tmp_path / "saved")
        assert (net.model.step, net.W.numpy().tolist()) == (1, one_by_one(range(2)).tolist())


@pytest.mark.parametrize("fails", [False, True])
def test_the_number_of_a_step_may_be_assigned_while_it_goes_on(
    net: Net, handle: vpps.Handle, held_up: threading.Event, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step continues from the assigned number; the current step keeps its number, which Adam uses."""
    if fails:
        monkeypatch.setattr(GradientSum, "__call__", out_of_sums)
    net.give(handle)
    net.model.step = 7
    held_up.set()
    with pytest.raises(vpps.HandleError) if fails else nullcontext():
        handle.sync_get_latest_loss()
    assert net.model.step == 7
    assert handle.skipped == 0


def test_a_trace_may_be_left_while_another_thread_ends_the_step(
    net: Net, handle: vpps.Handle, held_up: threading.Event
) -> None:
    """Both threads must lock in the same order; otherwise each holds the lock that the other needs."""
    thread = threading.Thread(target=net.W.numpy)
    held_up.set()
    net.give(handle)  # all ranks know the new cells after this step
    handle.sync_get_latest_loss()
    held_up.clear()
    with handle.trace() as trace:
        net.give(handle)
        thread.start()
        threading.Timer(0.05, held_up.set).start()
    thread.join(20)
    assert not thread.is_alive()
    assert len(trace.timelines) == 3


def test_a_wrong_loss_is_named_while_a_step_goes_on(net: Net, handle: vpps.Handle, held_up: threading.Event) -> None:
    net.give(handle)
    threading.Timer(0.05, held_up.set).start()
    with pytest.raises(vpps.GraphError, match=r"loss: .*3\.0"):
        handle.fb(net.loss(2)[0], 3.0)  # type: ignore[arg-type]


BEGUN = """
from tests.distributed.test_steps import Net
net = Net()
handle = net.handle()
net.give(handle)
"""


def test_a_program_may_end_while_a_step_goes_on() -> None:
    """The step's machine is closed only after the step."""
    assert run(BEGUN) == ""


def test_a_forked_child_does_not_wait_for_a_step() -> None:
    """The parent's thread does not exist in the child, whose view of the step is outdated."""
    children = """
    import os, vpps
    child = os.fork()
    if not child:
        for call in (net.model.pull_weights, net.W.numpy, lambda: vpps.Handle(net.model)):
            try:
                call()
            except vpps.HandleError as error:
                print(str(error)[:24], flush=True)
        assert net.world.aside(lambda: 3).result() == 3
        os._exit(0)
    print(os.waitpid(child, 0)[1])
    handle.close()
    """
    assert run(BEGUN + textwrap.dedent(children)) == 3 * "this process was forked \n" + "0\n"


def test_an_error_beside_the_program_is_the_next_calls(
    net: Net, handle: vpps.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised once. Training then continues as if the step had not begun."""
    with monkeypatch.context() as patch:
        patch.setattr(GradientSum, "__call__", out_of_sums)
        net.give(handle)
        with pytest.raises(vpps.HandleError, match="no sums today"):
            handle.fb(*net.loss(2))
    assert net.model.step == 0
    net.give(handle)
    assert np.array_equal(net.W.numpy(), one_by_one(range(2)))
