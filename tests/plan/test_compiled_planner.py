"""The compiled planner writes, word for word, the script that NumPy writes, and says the same of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

import vpps
from tests.classifier import new
from tests.fuzz import graphs
from tests.graph import bulk_models
from tests.plan import golden, launches, test_used_rows
from tests.plan.memory_maps import assert_same_map
from tests.plan.passes import test_streaming
from tests.plan.policies.test_policies import Net
from tests.simt import models
from vpps.ops.philox import LaunchKey
from vpps.plan.build import NumpyPlan
from vpps.plan.distribution import Distribution, Held
from vpps.plan.group_vertices import DEALT_ONE_BY_ONE
from vpps.plan.grouping import Grouping
from vpps.plan.native.planner import CompiledPlanner
from vpps.plan.passes import Passes, streaming
from vpps.plan.plan import Plan
from vpps.plan.planner import Planner
from vpps.plan.policies import POLICIES, Knowledge, policy_named
from vpps.plan.policies.learning import Settings
from vpps.plan.policies.machine import Encoding
from vpps.plan.row_order import LAYOUTS, READERS, RECORDED
from vpps.plan.update import Averaging, Update
from vpps.plan.writer import spans

pytestmark = pytest.mark.cpu

KEY = LaunchKey(0xDEADBEEF, 7)
RULES: list[vpps.Optimizer] = [
    vpps.SGD(lr=0.1),
    vpps.Adam(lr=lambda update: 0.1 / update, groups={"E*": {"lr": 0.01}, "W*": {"weight_decay": 0.1}}),
]


def planners(
    model: vpps.Model,
    vps: int,
    rule: vpps.Optimizer,
    policy: str = "sinks-last",
    averages: bool = False,
    passes: Passes | None = None,
    layout: str = RECORDED,
    schedule: str = "vector",
) -> tuple[Planner, CompiledPlanner]:
    """One in NumPy, and a compiled one; they share what the policy learns and decides."""
    distribution = Distribution(model, vps, 32, len(rule.moments), train=True, accumulates=True, averages=averages)
    return pair_of(distribution, policy, passes, layout, schedule)


def pair_of(
    distribution: Distribution,
    policy: str = "sinks-last",
    passes: Passes | None = None,
    layout: str = RECORDED,
    schedule: str = "vector",
) -> tuple[Planner, CompiledPlanner]:
    settings = Settings(Encoding(phases=20), trials=3, check_every=1)  # so that other graphs have unknown states
    how = distribution, policy_named(policy, Knowledge(settings=settings)), schedule, passes, layout
    return Planner(*how), CompiledPlanner(*how)


def planners_in_groups(
    it: launches.Example,
    groups: int,
    rule: vpps.Optimizer,
    policy: str = "sinks-last",
    averages: bool = False,
    passes: Passes | None = None,
    layout: str = RECORDED,
) -> tuple[Planner, CompiledPlanner]:
    """The same for groups of virtual processors, with weights on the chip."""
    passes = passes or Passes()
    configuration = launches.Configuration("simt", groups, False, "vector", policy, layout)
    return pair_of(launches.distribution_of(it, configuration, rule, averages, passes), policy, passes, layout)


def assert_same(plan: Plan, in_numpy: Plan) -> None:
    """All that a launch and the user may learn of a plan is the same."""
    assert not isinstance(plan, NumpyPlan)
    assert isinstance(in_numpy, NumpyPlan)
    assert len(plan.script) == len(in_numpy.script)
    different = np.flatnonzero(plan.script != in_numpy.script)
    assert not len(different), f"word {different[0]} of {len(plan.script)}"
    assert np.array_equal(plan.addresses, in_numpy.addresses)
    for name in ("pool_floats", "loss_slot", "n_barriers", "touched", "instructions", "tails", "sequel"):
        assert getattr(plan, name) == getattr(in_numpy, name), name
    if in_numpy.grouping is None:
        assert plan.grouping is None
    else:
        for found, expected in zip(attributes(plan.grouping), attributes(in_numpy.grouping), strict=True):
            assert np.array_equal(found, expected)
    assert list(plan.tables) == list(in_numpy.tables)
    for table, used in in_numpy.tables.items():
        mine = plan.tables[table]
        assert np.array_equal(mine.rows, used.rows)
        assert mine.rows.dtype == used.rows.dtype
        assert (mine.gradient, mine.offsets, mine.numbers, mine.idle) == (
            used.gradient, used.offsets, used.numbers, used.idle,
        )  # fmt: skip
    assert_same_map(plan, in_numpy)
    assert plan.held.dense == in_numpy.held.dense
    assert plan.held.rows.keys() == in_numpy.held.rows.keys()
    assert all(np.array_equal(plan.held.rows[p], rows) for p, rows in in_numpy.held.rows.items())
    assert_same_account(plan, in_numpy)


def assert_same_account(plan: Plan, in_numpy: NumpyPlan) -> None:
    """Who made which word, lists, periods, and memory that was taken for the whole launch."""
    account, build = plan.account, in_numpy.make_layout.__self__
    assert np.array_equal(account.lists, spans(build.writer.lists))
    assert np.array_equal(account.memory, spans(build.writer.memory))
    assert account.periods.tolist() == [list(period) for period in build.writer.periods]
    streams = account.streams(in_numpy.blocks)
    assert [(start, stream.words) for start, stream in streams] == [(at, s.words) for at, s in in_numpy.streams]
    for (_, mine), (_, theirs) in zip(streams, in_numpy.streams, strict=True):
        for found, expected in zip(mine.sections, theirs.sections, strict=True):
            assert found[:1] + found[4:] == expected[:1] + expected[4:]
            assert found.block is expected.block
            assert type(found.first) is type(expected.first)
            assert np.array_equal(found.first, expected.first)
            if expected.group is None:
                assert found.group is None
            else:
                assert found.group is not None
                assert np.array_equal(found.group.template.constant, expected.group.template.constant)
                assert [at for at, _ in found.group.starts] == [at for at, _ in expected.group.starts]


class Both(CompiledPlanner):
    """Plans twice, in NumPy, too, and compares."""

    def plan_forward(self, *how: Any, **more: Any) -> Plan:
        """See Planner."""
        return self._same(super().plan_forward(*how, **more), Planner.plan_forward(self, *how, **more))

    def plan_training(self, *how: Any, **more: Any) -> Plan:
        """See Planner."""
        return self._same(super().plan_training(*how, **more), Planner.plan_training(self, *how, **more))

    def _same(self, plan: Plan, in_numpy: Plan) -> Plan:
        assert_same(plan, in_numpy)
        return plan


def attributes(grouping: Grouping | None) -> list[Any]:
    """Of a grouping, one after the other."""
    assert grouping is not None
    numbers = grouping.first_own, grouping.first_joining, grouping.n_components
    return [*numbers, grouping.work, *grouping.groups, *grouping.stages]


def check_training(
    pair: tuple[Planner, CompiledPlanner],
    graph: vpps.Graph,
    loss: vpps.Expression,
    rule: vpps.Optimizer,
    averaging: Averaging | None = None,
) -> None:
    """Every kind of training step: with and without an update, clipped, accumulated, over what is held."""

    def check(clip_norm: float | None = None, updates: bool = True, **more: Any) -> Plan:
        made = [
            p.plan_training(graph, loss, Update(rule, 9, 5, clip_norm, averaging) if updates else None, 1, **more)
            for p in pair
        ]
        assert_same(made[1], made[0])
        return made[1]

    check()
    check(clip_norm=0.5, key=KEY)
    check(updates=False)
    held = check(updates=False, keep=True, key=KEY).held
    tables = {table: np.union1d(rows, [0, table.shape[0] - 1]) for table, rows in held.rows.items()}
    more = Held(held.dense, tables)
    check(updates=False, keep=True, held=more)
    check(held=more)
    check(clip_norm=2.0, held=Held(frozenset(list(held.dense)[1:]), tables))


def check_inference(pair: tuple[Planner, CompiledPlanner], graph: vpps.Graph, wanted: list[vpps.Expression]) -> None:
    for some in (wanted, wanted[:1], wanted[1::2] or wanted):
        in_numpy, compiled = (p.plan_forward(graph, some) for p in pair)
        assert_same(compiled, in_numpy)


@pytest.mark.parametrize("passes", test_used_rows.PASSES)
@pytest.mark.parametrize("averages", [False, True])
def test_rows_without_a_gradient(passes: Passes, averages: bool) -> None:
    """Lookups of every fate, in cells as a whole and in parts."""
    net = test_used_rows.Net(vpps.Model(seed=1))
    averaging = Averaging(0.9, lambda p, rows: np.ones(len(rows), np.float32)) if averages else None
    pair = planners(net.model, 2, RULES[1], averages=averages, passes=passes)
    for read in (False, True):
        check_training(pair, *net.batch(read), RULES[1], averaging)


@pytest.mark.parametrize("part", range(10))
def test_random_graphs(part: int) -> None:
    for number in range(10 * part, 10 * part + 10):
        random = Random(number)
        model, graph, used, loss = graphs.draw(random).build()
        policy, layout = random.choice(list(POLICIES)), random.choice(LAYOUTS)
        vps, rule, averages = random.choice([1, 2, 3]), random.choice(RULES), number % 2 == 1
        pair = planners(model, vps, rule, policy, averages=averages, layout=layout)
        check_training(pair, graph, loss, rule, Averaging(0.9, factors) if averages else None)
        check_inference(pair, graph, used)
        again = graph.call(vpps.cell(lambda x: vpps.tanh(x)), used[0])  # not all of the graph leads to a loss
        check_training(
            pair, graph, vpps.sum(again) + vpps.sum(used[-1]), rule, Averaging(0.9, factors) if averages else None
        )


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("groups", [2, 4])
def test_random_graphs_in_groups(groups: int, part: int) -> None:
    for number in range(200 + 6 * part, 206 + 6 * part):
        random = Random(f"{number} {groups}")
        model, graph, used, loss = graphs.draw(random).build()
        it = launches.Example(model, graph, loss, used)
        policy, layout = random.choice(list(POLICIES)), random.choice(LAYOUTS)
        passes = Passes(fusion=random.random() < 0.5, lazy_batching=random.random() < 0.8)
        rule, averages = random.choice(RULES), number % 2 == 1
        pair = planners_in_groups(it, groups, rule, policy, averages, passes, layout)
        check_training(pair, it.graph, it.loss, rule, Averaging(0.9, factors) if averages else None)
        check_inference(pair, it.graph, it.wanted)


def factors(table: vpps.Parameter, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Different ones for all rows."""
    found: np.ndarray[Any, Any] = (1 / (1 + rows)).astype(np.float32)
    return found


NETWORKS: dict[str, Callable[[], models.Network]] = {
    "tree-lstm": models.tree_lstm,
    "dropout": partial(models.tree_lstm, dropout=0.3),
    "tagger": models.tagger,
    "child-sum": models.child_sum,
    "attention": models.attention,
    "mv-rnn": models.mv_rnn,
}


@pytest.mark.parametrize("vps", [1, 2, 5])
@pytest.mark.parametrize("policy", ["sinks-last", "depth"])
@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network: str, policy: str, vps: int) -> None:
    net = NETWORKS[network]()
    for passes in (Passes(), Passes(lazy_batching=False), Passes(alignment=False)):
        for seed, layout in ((1, RECORDED), (2, READERS)):
            pair = planners(net.model, vps, RULES[1], policy, passes=passes, layout=layout)
            graph, loss = net.batch(seed)
            check_training(pair, graph, loss, RULES[1])
            check_inference(pair, graph, [loss])


@pytest.mark.parametrize("vps", [1, 3, 7])
@pytest.mark.parametrize("network", NETWORKS)
def test_exclusive_scripts(network: str, vps: int) -> None:
    net = NETWORKS[network]()
    for passes, policy, layout in (
        (Passes(), "sinks-last", READERS),
        (Passes(lazy_batching=False, fusion=False), "depth", RECORDED),
    ):
        pair = planners(net.model, vps, RULES[1], policy, True, passes, layout, "paper")
        graph, loss = net.batch(1)
        check_training(pair, graph, loss, RULES[1], Averaging(0.9, factors))
        check_inference(pair, graph, [loss])


@pytest.mark.parametrize("target, gemm, schedule", [(t, g, s) for t, n, g, s in launches.MACHINES if n == 1])
def test_targets(target: str, gemm: bool, schedule: str) -> None:
    """Where parameters lie as on a machine: in slots, in several tiers, with gradients by products of matrices."""
    products = 0
    for name in golden.NAMES[::4]:
        random = Random(f"{name} {schedule}")
        policy, layout = random.choice(list(POLICIES)), random.choice(LAYOUTS)
        c = launches.Configuration(target, 1, gemm, schedule, policy, layout)
        for plan in launches.plans(golden.example(name), c, random, Both):
            products += len(plan.sequel.products) if plan.sequel is not None else 0
    assert (products > 100) == gemm


@pytest.mark.parametrize("schedule", ["vector", "paper"])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_by_products_of_matrices(network: str, schedule: str) -> None:
    net = NETWORKS[network]()
    graph, loss = net.batch(1)
    c = launches.Configuration("simt", 1, True, schedule, "sinks-last", RECORDED)
    distribution = launches.distribution_of(
        launches.Example(net.model, graph, loss, [loss]), c, RULES[1], True, Passes()
    )
    how = distribution, c.policy, schedule, Passes(), c.layout
    pair = Planner(*how), CompiledPlanner(*how)
    check_training(pair, graph, loss, RULES[1], Averaging(0.9, factors))
    check_inference(pair, graph, [loss])
    plan = pair[1].plan_training(graph, loss, Update(RULES[1], 9, 5, None, Averaging(0.9, factors)), 1)
    assert plan.launches == 2


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_in_groups(network: str, groups: int) -> None:
    net = NETWORKS[network]()
    graph, loss = net.batch(1)
    it = launches.Example(net.model, graph, loss, [loss])
    for policy, passes, layout in (
        ("sinks-last", Passes(), RECORDED),
        ("depth", Passes(lazy_batching=False), READERS),
        ("agenda", Passes(alignment=False), READERS),
    ):
        pair = planners_in_groups(it, groups, RULES[1], policy, passes=passes, layout=layout)
        check_training(pair, graph, loss, RULES[1])
        check_inference(pair, graph, [loss])


@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("schedule, groups", [("vector", 1), ("vector", 2), ("paper", 1)])
def test_words_of_messages(schedule: str, groups: int, gemm: bool) -> None:
    """At every position of the script."""
    net = models.tree_lstm()
    graph, loss = net.batch(1)
    c = launches.Configuration("simt", groups, gemm and groups == 1, schedule, "sinks-last", RECORDED)
    it = launches.Example(net.model, graph, loss, [loss])
    pair = pair_of(launches.distribution_of(it, c, RULES[1], False, Passes()), schedule=schedule)
    in_numpy, compiled = (p.plan_training(graph, loss, Update(RULES[1], 9, 5, 0.5), 0) for p in pair)
    for position in range(len(compiled.script)):
        assert compiled.origin(position) == in_numpy.origin(position)
    for start, stream in in_numpy.streams:
        for s in stream.sections:
            assert compiled.whereabouts(start + s.start) == in_numpy.whereabouts(start + s.start)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("name", bulk_models.NETWORKS)
def test_graphs_as_data_in_groups(name: str, groups: int) -> None:
    network = bulk_models.NETWORKS[name]
    model, made, p = network.make()
    graph = vpps.Graph()
    recorded = network.bulk(graph, made, p, network.data(np.random.default_rng(4), 9))
    it = launches.Example(model, graph, recorded.loss, [])
    pair = planners_in_groups(it, groups, RULES[0])
    check_training(pair, graph, recorded.loss, RULES[0])
    each = [v if isinstance(values, list) else values for values in recorded.values for v in values[:4]]
    check_inference(pair, graph, [recorded.loss, *each])


@pytest.mark.parametrize("groups", [2, 3, 7])
def test_more_unconnected_parts_than_are_dealt_one_by_one(groups: int) -> None:
    """In numbers of which a third of the work, and a seventh, is no binary fraction."""
    model = vpps.Model(seed=1)
    table, W = model.lookup("E", (9, 8)), model.parameter("W", (8, 8))
    step = vpps.cell(lambda x: vpps.tanh(W @ x))
    graph, losses, random = vpps.Graph(), [], Random(groups)
    for _ in range(DEALT_ONE_BY_ONE + 300):
        state = graph.lookup(table, random.randrange(9))
        for _ in range(random.randrange(4)):
            state = step(state)
        losses.append(vpps.sum(state))
    loss = vpps.sum(losses)
    pair = pair_of(Distribution(model, 2, 1, 0, train=True, groups=groups))
    in_numpy, compiled = (p.plan_training(graph, loss, Update(RULES[0], 1, 1, None), 0) for p in pair)
    assert_same(compiled, in_numpy)
    assert compiled.grouping is not None
    assert compiled.grouping.n_components > DEALT_ONE_BY_ONE
    check_inference(pair, graph, [loss, *losses[:20]])


def test_groups_that_have_nothing_to_do_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    net = new()
    graph = vpps.Graph()
    loss = vpps.sum(net.logits(graph, [1, 2, 3]))
    _, compiled = pair_of(Distribution(net.model, 2, 1, 0, train=True, groups=2))
    with caplog.at_level("INFO", logger="vpps"):
        plan = compiled.plan_training(graph, loss, None, 0)
    assert not isinstance(plan, NumpyPlan)
    assert "2 groups have 100%, 0% of the work of 1 unconnected parts" in caplog.text


@pytest.mark.parametrize("name", bulk_models.NETWORKS)
def test_graphs_as_data(name: str) -> None:
    """Rows, children in any order, and calls one by one beside them."""
    network = bulk_models.NETWORKS[name]
    model, made, p = network.make()
    data = network.data(np.random.default_rng(4), 5)
    pair = planners(model, 2, RULES[0])
    for record in (network.bulk, lambda *args: network.calls(bulk_models.OneByOne(args[0]), *args[1:])):
        graph = vpps.Graph()
        recorded = record(graph, made, p, data)
        check_training(pair, graph, recorded.loss, RULES[0])
        each = [v if isinstance(values, list) else values for values in recorded.values for v in values[:4]]
        check_inference(pair, graph, [recorded.loss, *each])
    graph = vpps.Graph()
    losses = [network.bulk(graph, made, p, data).loss]
    losses.append(network.calls(bulk_models.OneByOne(graph), made, p, data).loss)
    losses.append(network.bulk(graph, made, p, data).loss)
    check_training(pair, graph, vpps.sum(losses), RULES[0])


@pytest.mark.parametrize("policy", POLICIES)
def test_lattices(policy: str) -> None:
    network = bulk_models.NETWORKS["lattice"]
    model, made, p = network.make()
    pair = planners(model, 2, RULES[0], policy)
    for seed, n in ((4, 3), (5, 12)):
        graph = vpps.Graph()
        recorded = network.bulk(graph, made, p, network.data(np.random.default_rng(seed), n))
        check_training(pair, graph, recorded.loss, RULES[0])
        check_inference(pair, graph, [recorded.loss, *recorded.values])


@pytest.mark.parametrize("policy", POLICIES)
def test_recurrences_whose_cells_are_recorded_in_any_order(policy: str) -> None:
    net = Net()
    pair = planners(net.model, 2, RULES[0], policy)
    begun = set()
    for seed in range(1, 6):
        graph, loss = net.graph(seed)
        begun.add(next(cell.name for cell in graph.blocks if cell.name in ("first", "second")))
        check_training(pair, graph, loss, RULES[0])
        check_inference(pair, graph, [loss])
    assert len(begun) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_stages_of_inference_count_vertices_that_are_left_out(policy: str) -> None:
    """What only such a vertex reads has no value, but a level above what made it."""
    model = vpps.Model(seed=1)
    pair = planners(model, 1, RULES[0], policy, passes=Passes(fusion=False))

    @vpps.cell
    def same(v):
        return v

    @vpps.cell
    def step(v):
        state = vpps.tanh(v + v)
        return state, vpps.sigmoid(v) * v, state

    graph = vpps.Graph()
    x, y = graph.input(np.ones(3)), graph.input(np.ones(8))
    wanted = same(same(same(x)))
    first, _, _ = step(y)
    _, gated, second = step(first)
    step(second)  # not wanted, and nothing else reads the third output
    check_inference(pair, graph, [wanted, gated])


def test_states_that_a_machine_does_not_know_are_counted_once_per_plan() -> None:
    network = bulk_models.NETWORKS["lattice"]
    model, made, p = network.make()
    in_numpy, compiled = planners(model, 2, RULES[0], "fsm")
    knowledge = compiled.batching.knowledge
    counts = []
    for seed, n in ((4, 2), (5, 12), (5, 12)):
        graph = vpps.Graph()
        loss = network.bulk(graph, made, p, network.data(np.random.default_rng(seed), n)).loss
        for planner in (compiled, in_numpy):
            before = sum(knowledge.unseen.values())
            planner.plan_training(graph, loss, None, 0)
            counts.append(sum(knowledge.unseen.values()) - before)
    assert counts[::2] == counts[1::2]
    assert counts[2] > 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["tree-lstm", "child-sum", "seq2seq", "lattice"])
def test_large_batches(name: str, layout: str) -> None:
    network = bulk_models.NETWORKS[name]
    model, made, p = network.make()
    graph = vpps.Graph()
    recorded = network.bulk(graph, made, p, network.data(np.random.default_rng(5), 150))
    pair = planners(model, 2, RULES[0], layout=layout)
    check_training(pair, graph, recorded.loss, RULES[0])
    check_inference(pair, graph, [recorded.loss, *recorded.values])


@pytest.mark.parametrize("chunk_rows", [1, 6, 13, 128])
def test_eager_work_between_levels(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "CHUNK_ROWS", chunk_rows)
    model, graph, loss = test_streaming.tagger()
    pair = planners(model, 2, RULES[0])
    check_training(pair, graph, loss, RULES[0])
    check_inference(pair, graph, [loss])
    assert any(b.pause for b in pair[1].plan_training(graph, loss, None, 0).blocks)


class TestPlan:
    """What of a plan is found when it is asked for."""

    def test_is_that_of_the_vertices_at_the_time(self) -> None:
        net = new()
        graph, loss = net.batch(1)
        _, compiled = planners(net.model, 2, RULES[0])
        plan = compiled.plan_training(graph, loss, None, 0)
        before = compiled.plan_training(graph, loss, None, 0)
        text = [before.origin(start) for start, _ in before.streams]
        vpps.sum(net.logits(graph, [1, 2, 3, 4, 5, 6, 7]))  # the graph grows
        assert [plan.origin(start) for start, _ in plan.streams] == text
        assert len(plan.blocks) == len(before.blocks)
        assert np.array_equal(plan.layout.memory, before.layout.memory)
        with pytest.raises(AttributeError, match="colour"):
            plan.colour  # type: ignore[attr-defined] # noqa: B018

    def test_memory_is_used_again_when_nobody_looks_at_it(self) -> None:
        net = new()
        _, compiled = planners(net.model, 2, RULES[0])
        batches = [net.batch(seed) for seed in range(6)]
        kept = [compiled.plan_training(*batch, None, 0) for batch in batches[:3]]
        words = [plan.script.copy() for plan in kept]
        places = {plan.script.ctypes.data for plan in kept}
        assert len(places) == 3
        part = kept.pop().script[7:9]  # as good as the whole
        later = [compiled.plan_training(*batch, None, 0).script.ctypes.data for batch in batches]
        assert not places & set(later)
        assert all(np.array_equal(plan.script, w) for plan, w in zip(kept, words, strict=False))
        del part
        again = {compiled.plan_training(*batch, None, 0).script.ctypes.data for batch in batches}
        assert again & places
        assert again <= places | set(later)


Call = tuple[int, int, int]
"""Of a vertex: its cell, and which output of which vertex it reads."""


@pytest.mark.parametrize(
    "policy, calls, wanted",
    [
        ("agenda", [(0, 0, 0), (1, 1, 1), (1, 0, 0), (1, 3, 0), (1, 2, 1), (0, 4, 1)], (4, 1)),
        (
            "critical",
            [(0, 0, 0), (0, 0, 1), (1, 2, 1), (0, 0, 0), (1, 0, 1), (0, 5, 1), (1, 5, 0)],
            (6, 7),
        ),
    ],
)
def test_inference_with_vertices_that_only_left_out_vertices_read(
    policy: str, calls: list[Call], wanted: tuple[int, int]
) -> None:
    """Policies see all vertices, with outputs that inference leaves out as nothing that runs reads them."""
    model, graph = vpps.Model(seed=1), vpps.Graph()
    W = model.parameter("W", (4, 4))
    made = [
        vpps.cell(lambda x: (vpps.tanh(W @ x), vpps.square(x))),
        vpps.cell(lambda x: (vpps.sigmoid(W @ x), vpps.tanh(x))),
    ]
    values = [[graph.input(np.ones(4))] * 2]
    for cell, read, output in calls:
        values.append(graph.call(made[cell], values[read][output]))
    in_numpy, compiled = planners(model, 1, RULES[0], policy)
    asked = [values[vertex][0] for vertex in wanted]
    assert_same(compiled.plan_forward(graph, asked), in_numpy.plan_forward(graph, asked))
