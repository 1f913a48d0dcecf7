"""Groups of virtual processors on simt: any number of groups gives the reference's results, without races.

tests/simt/test_training.py trains with weights anywhere on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import vpps
from tests.comparison import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from vpps.errors import HandleError
from vpps.placement.onchip import ChipOptions, known_device
from vpps.planner.grouping import Grouping
from vpps.reference import Reference, weights_of
from vpps.runtime.machine import MachineRequest, make_machine
from vpps.runtime.simt import SimtMachine

pytestmark = pytest.mark.usefixtures("roomy_kernels")
WIDTH, CLASSES, WORDS = 8, 3, 6
GROUPS = (2, 4)  # tests/simt/test_slots.py tests a single group

E = vpps.Expression
Recipe = Callable[["Net", vpps.Graph], list[E]]


class Net:
    """A model with the cells of trees, chains and attention."""

    def __init__(self, width: int = WIDTH) -> None:
        self.model = vpps.Model(seed=5)
        self.words = self.model.lookup("E", (WORDS, width), init="normal")
        U = self.model.parameter("U", (2 * width, 2 * width))
        b = self.model.parameter("b", (2 * width,), init="normal")
        W = self.model.parameter("W", (CLASSES, width))

        @vpps.cell
        def node(left: E, right: E) -> E:
            gate, update = vpps.split(U @ vpps.concat([left, right]) + b, 2)
            return vpps.sigmoid(gate) * vpps.tanh(update)

        @vpps.cell
        def loss(state: E, label: int) -> E:
            return vpps.cross_entropy(W @ state, label)

        @vpps.cell(elements={"memory": (width,)})
        def attend(query: E, memory: list[E]) -> E:
            weights = vpps.softmax(vpps.each(lambda key: vpps.dot(key, query), memory))
            return vpps.sum(vpps.each(lambda weight, key: weight * key, weights, memory))

        self.node, self.loss, self.attend = node, loss, attend

    def leaves(self, graph: vpps.Graph, *words: int) -> list[E]:
        return [graph.lookup(self.words, word % WORDS) for word in words]


def chain(net: Net, graph: vpps.Graph, state: E, words: Sequence[int]) -> E:
    for word in words:
        state = net.node(state, *net.leaves(graph, word))
    return state


def trees(net: Net, graph: vpps.Graph) -> list[E]:
    """Record seven trees of different sizes, with a loss at every node."""
    losses = []
    for size in range(1, 8):
        nodes = net.leaves(graph, *range(size, 2 * size))
        losses.extend(net.loss(leaf, 0) for leaf in nodes)
        while len(nodes) > 1:
            nodes[:2] = [net.node(*nodes[:2])]
            losses.append(net.loss(nodes[0], size % CLASSES))
    return losses


def chains(net: Net, graph: vpps.Graph, start: E | None = None) -> list[E]:
    """Record sequences that begin with one shared state, which is computed before them."""
    start = graph.zeros(WIDTH) if start is None else start
    return [net.loss(chain(net, graph, start, range(k, k + length)), 1) for k, length in enumerate((3, 1, 4, 2, 5))]


def shared_start(net: Net, graph: vpps.Graph) -> list[E]:
    """Record chains that begin with a learned state, whose gradient comes from all groups."""
    return chains(net, graph, *net.leaves(graph, 2))


def two_memories(net: Net, graph: vpps.Graph) -> list[E]:
    """Record five queries; queries that read the same memory are connected."""
    losses = []
    for queries in (2, 3):
        memory = [net.node(*net.leaves(graph, k, k + 1)) for k in range(4)]
        for k in range(queries):
            query = net.node(*net.leaves(graph, k, queries))
            losses.append(net.loss(net.attend(query, memory[: 4 - k]), k))
    return losses


def one_component(net: Net, graph: vpps.Graph) -> list[E]:
    """Record fewer components than groups."""
    state = chain(net, graph, *net.leaves(graph, 0), [1, 2, 3])
    return [net.loss(state, 0), net.loss(net.node(state, state), 2)]


def leaves_alone(net: Net, graph: vpps.Graph) -> list[E]:
    """Record leaves, each with a loss and no other connections."""
    return [net.loss(leaf, 2) for leaf in net.leaves(graph, 0, 1, 2, 3, 3, 3)]


RECIPES: tuple[Recipe, ...] = (trees, chains, shared_start, two_memories, one_component, leaves_alone)


def scalar_loss(losses: Sequence[E]) -> E:
    """Join groups by a sum, by a product of losses, and by a scale."""
    return vpps.sum(losses) * 0.5 + losses[0] * losses[-1]


class Trained:
    """A net and its handle on simt."""

    def __init__(self, groups: int) -> None:
        self.net = Net()
        self.groups = groups
        self.handle = vpps.Handle(self.net.model, target="simt", vps=4, onchip=ChipOptions(groups=groups))
        graph = vpps.Graph()  # has every instruction: one kernel for all tests
        self.handle.gradients(graph, scalar_loss([*chains(self.net, graph), *two_memories(self.net, graph)]))

    @property
    def machine(self) -> SimtMachine:
        machine = self.handle._engine.machine
        assert isinstance(machine, SimtMachine)
        return machine

    @property
    def grouping(self) -> Grouping:
        plan = self.handle._engine.plan
        assert plan is not None
        assert plan.grouping is not None
        return plan.grouping

    def check(self, graph: vpps.Graph, losses: Sequence[E], values: Sequence[E]) -> dict[str, NDArray[np.float32]]:
        """Check loss, gradients and values against the reference, in training and inference; returns the gradients."""
        loss = scalar_loss(losses)
        reference = Reference(graph, weights_of(self.net.model))
        expected_loss, expected = float(reference.value(loss)), reference.backward(loss)
        got, gradients = self.handle.gradients(graph, loss)
        assert got == pytest.approx(expected_loss, rel=FORWARD_TOLERANCE)
        for name, g in gradients.items():
            assert relative_error(g, expected[name]) <= GRADIENT_TOLERANCE, name
        kept = [self.handle.value(e) for e in [*values, loss]]
        again = self.handle.forward(graph, [*values, loss])
        for e, value, inferred in zip([*values, loss], kept, again, strict=True):
            assert relative_error(value, reference.value(e)) <= FORWARD_TOLERANCE
            assert value.tobytes() == inferred.tobytes()
        return gradients


@pytest.fixture(scope="module", params=GROUPS, ids=lambda n: f"{n}-groups")
def trained(request: pytest.FixtureRequest) -> Iterator[Trained]:
    made = Trained(request.param)
    with made.handle:
        yield made


@pytest.mark.simt
@pytest.mark.parametrize("recipe", RECIPES)
def test_results_are_those_of_the_reference(trained: Trained, recipe: Recipe) -> None:
    graph = vpps.Graph()
    losses = recipe(trained.net, graph)
    trained.check(graph, losses, losses)


@pytest.mark.simt
def test_the_blocks_of_all_groups_are_explained(trained: Trained) -> None:
    text = trained.handle.explain()
    assert "one per step; 4 blocks of 256 threads" in text
    blocks = {1: "4 blocks", 2: "2 blocks", 4: "1 block"}[trained.groups]
    assert f"{blocks} on 4 multiprocessors" in text


@pytest.mark.simt
@pytest.mark.parametrize("recipe", [trees, shared_start])
def test_any_order_of_threads_gives_the_same_bits_without_a_race(trained: Trained, recipe: Recipe) -> None:
    graph = vpps.Graph()
    losses = recipe(trained.net, graph)
    found = []
    for seed in range(5):
        trained.machine.seed = seed
        found.append(trained.check(graph, losses, losses[:1]))
    trained.machine.seed = 0
    for name, g in found[0].items():
        assert all(np.array_equal(g, other[name]) for other in found[1:]), name


calls = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 99), min_size=6, max_size=6)), min_size=1, max_size=12
)


@pytest.mark.simt
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(calls, min_size=1, max_size=6), crossing=st.lists(st.integers(0, 99), max_size=4), late=calls)
def test_random_graphs_agree_with_the_reference(
    trained: Trained, parts: list[list[tuple[int, list[int]]]], crossing: list[int], late: list[tuple[int, list[int]]]
) -> None:
    """DAGs that are connected only by shared sources and by values that cross over."""
    net, graph = trained.net, vpps.Graph()
    everywhere = [graph.zeros(WIDTH), *net.leaves(graph, 1)]
    everything: list[E] = []
    losses: list[E] = []

    def grow(stock: list[E], drawn: list[tuple[int, list[int]]]) -> None:
        for kind, numbers in drawn:
            a, b = (stock[i % len(stock)] for i in numbers[:2])
            if kind < 2:
                stock.append(net.node(a, b))
            elif kind == 2:
                memory = [stock[i % len(stock)] for i in numbers[2 : 2 + numbers[5] % 4]]
                stock.append(net.attend(a, memory))
            else:
                losses.append(net.loss(a, numbers[0] % CLASSES))
        losses.append(net.loss(stock[-1], 0))

    for number, drawn in enumerate(parts):
        stock = [*everywhere, *net.leaves(graph, number, number + 1)]
        grow(stock, drawn)
        everything.extend(stock[2:])
    if crossing:
        grow([everything[i % len(everything)] for i in crossing], late)
    trained.check(graph, losses, [*everything[::3], losses[0]])


@pytest.mark.simt
def test_the_work_of_trees_is_dealt_evenly(trained: Trained) -> None:
    graph = vpps.Graph()
    trained.handle.gradients(graph, scalar_loss(trees(trained.net, graph)))
    work = trained.grouping.work
    assert work.max() <= 1.5 * work.mean()
    assert trained.grouping.first_own == 0  # leaves belong to their trees


@pytest.mark.simt
def test_a_model_without_matrices_has_groups() -> None:
    """The model's kernel must support groups before any matrix is used."""
    graph = vpps.Graph()
    x = graph.input(np.arange(3.0))
    with vpps.Handle(vpps.Model(), target="simt", vps=2, onchip=ChipOptions(groups=2), train=False) as handle:
        x, y = handle.forward(graph, [x, 2 * x])
    assert (x.tolist(), y.tolist()) == ([0, 1, 2], [0, 2, 4])


@pytest.mark.host
def test_a_machine_without_a_gpu_has_one_group() -> None:
    with pytest.raises(HandleError, match=r"groups=2.*'cpu' has one group.*'simt'"):
        make_machine("cpu", MachineRequest(2, ChipOptions(groups=2), train=True, timeline=False))


@pytest.mark.host
def test_the_default_number_of_virtual_processors_is_a_multiple_of_groups() -> None:
    for groups in (1, 2, 3, 5):
        with vpps.Handle(Net().model, target="simt", onchip=ChipOptions(groups=groups)) as handle:
            assert handle.vps >= groups
            assert handle.vps % groups == 0


@pytest.mark.simt
def test_the_number_of_groups_may_change_while_gradients_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that comes later leaves no room for two copies. Training goes on as with one group."""
    known = replace(known_device("RTX 3090"), shared_per_block=64 << 10)
    monkeypatch.setattr(SimtMachine, "device", property(lambda self: replace(known, sms=self.vps)))

    def trained(options: ChipOptions | None) -> tuple[list[int], list[NDArray[np.float32]]]:
        model, random, found = vpps.Model(seed=1), np.random.default_rng(0), []
        A, B = model.parameter("A", (40, 40)), model.parameter("B", (600, 40))
        cells = vpps.cell(lambda x: vpps.tanh(A @ x)), vpps.cell(lambda x: vpps.tanh(B @ x))
        with vpps.Handle(model, vpps.Adam(lr=0.01), target="simt", vps=2, onchip=options) as handle:
            for step in range(4):
                graph = vpps.Graph()
                ys = [vpps.sum(cells[k == 4 and step == 2](graph.input(random.normal(size=40)))) for k in range(5)]
                handle.fb(graph, vpps.sum(ys), accumulate=step % 2 == 0)
                found.append(handle._engine.arrangement.chip.groups)
        return found, [p.numpy() for p in model]

    groups, weights = trained(None)
    assert groups == [2, 2, 1, 1]
    assert all(map(partial(np.allclose, rtol=0, atol=1e-6), weights, trained(ChipOptions(groups=1))[1]))
