"""Policies on graphs of cells: equal numbers in any order; a learned policy works in every handle that receives it."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from tests.planner.launches import policy_for
from tests.processes import run
from vpps.compiler.passes import Passes
from vpps.errors import HandleError
from vpps.model.learned_policy import ENCODINGS, Automaton, LearnedPolicy
from vpps.placement.distribution import Distribution
from vpps.planner import policies
from vpps.planner.native.policy_table import POLICIES
from vpps.planner.native.typed_graphs import Learned, LearningSettings, TypedGraph
from vpps.planner.planner import Planner
from vpps.planner.policies import NAMED
from vpps.record.topology import Topology

E = vpps.Expression
WIDTH = 8


class Net:
    """Trees with two kinds of inner nodes and an output at each node, and a separate chain of one cell."""

    def __init__(self, names: str = "WUV") -> None:
        self.model = vpps.Model(seed=1)
        words = self.model.lookup("words", (5, WIDTH), init="normal")
        W, U, V = (self.model.parameter(name, (WIDTH, 2 * WIDTH)) for name in names)

        @vpps.cell
        def leaf(word):
            return vpps.tanh(vpps.lookup(words, word))

        @vpps.cell
        def first(x, y):
            return vpps.tanh(W @ vpps.concat([x, y]))

        @vpps.cell
        def second(x, y):
            return vpps.tanh(U @ vpps.concat([x, y]))

        @vpps.cell
        def output(x):
            return vpps.sum(vpps.square(x))

        @vpps.cell
        def step(x, before):
            return vpps.tanh(V @ vpps.concat([x, before]))

        self.leaf, self.inner, self.output, self.step = leaf, (first, second), output, step

    def graph(self, seed: int, trees: int = 3, leaves: int = 6, inner: bool = True) -> tuple[vpps.Graph, E]:
        """Return a graph; the seed determines its first kind of inner node."""
        graph, rng, losses = vpps.Graph(), np.random.default_rng(seed), []
        for _ in range(trees):
            nodes = [graph.call(self.leaf, int(rng.integers(5))) for _ in range(leaves)]
            state = nodes[0]
            for x in nodes[1:]:
                state = graph.call(self.step, x, state)
            losses.append(graph.call(self.output, state))
            while inner and len(nodes) > 1:
                at = int(rng.integers(len(nodes) - 1))
                nodes[at : at + 2] = [graph.call(self.inner[int(rng.integers(2))], *nodes[at : at + 2])]
                losses.append(graph.call(self.output, nodes[at]))
        return graph, vpps.sum(losses)


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


def stages(net: Net, policy: str | LearnedPolicy, graph: vpps.Graph, loss: E) -> list[np.ndarray]:
    """Return every vertex's stage, by block."""
    passes = Passes(fusion=False, lazy_batching=False)
    planner = Planner(Distribution(net.model, 2, 32, 0, train=True), policy, passes=passes)
    blocks = {b.arrays.block: b for b in planner.plan_forward(graph, [loss]).blocks}
    found = []
    for b in map(blocks.__getitem__, graph.blocks.values()):
        of_block = np.zeros(len(b.order), np.int64)
        of_block[b.order] = np.repeat(b.step_stage, b.count[:, 0])
        found.append(of_block)
    return found


def same(found: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all((a == b).all() for a, b in zip(found, other, strict=True))


def n_batches(found: list[np.ndarray]) -> int:
    return sum(len(np.unique(of_block)) for of_block in found)


def test_names(net: Net) -> None:
    known = f"expected one of {', '.join(NAMED)}, or vpps.learn_policy\\(graph\\)"
    for name, hint in (("narrowest", ""), ("fsm", ".*policy=vpps.learn_policy"), ("auto", ".*leave policy out")):
        with pytest.raises(HandleError, match=f"policy='{name}': {known}{hint}"):
            vpps.Handle(net.model, policy=name, target="cpu")


@pytest.mark.cpu
@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_those_of_the_reference(net: Net, policy: str) -> None:
    """A learned policy comes from a different graph, so it does not know all states."""
    chosen = policy_for(policy, net.graph(7, trees=1)[0])
    assert_agrees_with_reference(net.model, *net.graph(1), vp_counts=(2,), policy=chosen)


@pytest.mark.host
@pytest.mark.parametrize("policy", POLICIES)
def test_every_vertex_comes_after_what_it_reads(net: Net, policy: str) -> None:
    graph, loss = net.graph(2)
    whole = TypedGraph.of(Topology(graph))
    stage = np.concatenate(stages(net, policy_for(policy, graph), graph, loss))
    assert (stage[whole.producers] < stage[whole.readers]).all()


@pytest.mark.host
def test_only_recurrences_of_several_cells_are_ordered_in_another_way(net: Net) -> None:
    """With a chain of one cell and acyclic vertices, there is no choice."""
    graph, loss = net.graph(3, inner=False)
    learned = vpps.learn_policy(graph)
    assert "nothing to choose" in repr(learned)
    usual = stages(net, "sinks-last", graph, loss)
    assert all(same(stages(net, policy, graph, loss), usual) for policy in ("sufficient", "critical", learned))


@pytest.mark.host
class TestLearnedPolicy:
    def test_is_the_same_whatever_was_recorded_first(self, net: Net) -> None:
        graphs = [net.graph(seed, trees=8) for seed in range(6)]
        firsts = {next(cell.name for cell in g.blocks if cell.name in ("first", "second")) for g, _ in graphs}
        assert firsts == {"first", "second"}
        learned = vpps.learn_policy((graph for graph, _ in graphs), trials=40)
        (known,) = learned.recurrences
        assert sorted(known.cells) == ["first", "second"]
        assert known.lower_bound <= known.batches
        assert re.fullmatch(
            r"<vpps\.LearnedPolicy: \w+, \w+: \d+ states; \d+ batches of the graph that .*, which has at least \d+>",
            repr(learned),
        )
        of_one = vpps.learn_policy(graphs[0][0], trials=40)
        assert known.batches >= of_one.recurrences[0].batches
        assert vpps.learn_policy(graphs[0][0], trials=40, seed=1) == of_one
        assert hash(of_one) == hash(pickle.loads(pickle.dumps(of_one)))

    def test_batches_as_it_has_learned(self, net: Net) -> None:
        graph, loss = net.graph(1, trees=8)
        learned = [vpps.learn_policy(graph, encoding=encoding) for encoding in ENCODINGS]
        found = [n_batches(stages(net, policy, graph, loss)) for policy in learned]
        others = 8  # leaves, outputs and their sum at once; 5 steps of the chain
        assert found == [policy.recurrences[0].batches + others for policy in learned]
        by_level, critical = (n_batches(stages(net, policy, graph, loss)) for policy in ("sinks-last", "critical"))
        assert found[ENCODINGS.index("critical")] <= critical < by_level

    def test_without_its_cells_is_critical(self, net: Net) -> None:
        graph, loss = net.graph(1, trees=8)
        unknown = vpps.learn_policy(Net("ABC").graph(1)[0])
        assert unknown.recurrences
        assert n_batches(stages(net, unknown, graph, loss)) == n_batches(stages(net, "critical", graph, loss))

    def test_serves_another_process(self, net: Net, tmp_path: Path) -> None:
        """Other programs were traced before in that process, and cells come in a different order."""
        graph, loss = net.graph(1)
        (tmp_path / "policy").write_bytes(pickle.dumps(vpps.learn_policy(graph)))
        found = run(f"""
            import pathlib, pickle
            import vpps
            from tests.planner.policies.test_policies import Net, n_batches, stages
            learned = pickle.loads(pathlib.Path({str(tmp_path / "policy")!r}).read_bytes())
            other, net = Net("ABC"), Net()
            other.graph(2)
            graph, loss = net.graph(1)
            assert learned == vpps.learn_policy(graph)
            print(n_batches(stages(net, learned, graph, loss)))
        """)
        assert int(found) == n_batches(stages(net, vpps.learn_policy(graph), graph, loss))

    def test_stays_with_the_model(self, tmp_path: Path) -> None:
        net = Net()
        graph, loss = net.graph(1)
        learned = vpps.learn_policy(graph)
        with vpps.Handle(net.model, policy=learned, target="cpu", vps=1, train=False) as handle:
            assert handle.policy is learned
        assert net.model.learned_policy is None
        with vpps.Handle(net.model, policy=learned, target="cpu", vps=1) as handle:
            handle.fb(graph, loss)
            net.model.save(tmp_path / "model")
        assert net.model.learned_policy is learned
        with vpps.Handle(net.model, target="cpu", vps=1):
            assert net.model.learned_policy is learned
        assert vpps.Model.load(tmp_path / "model").learned_policy == learned
        again = Net()
        again.model.restore(tmp_path / "model")
        assert again.model.learned_policy == learned
        with vpps.Handle(again.model, policy=again.model.learned_policy, target="cpu", vps=2) as handle:
            handle.fb(*again.graph(2))


@pytest.mark.host
@pytest.mark.parametrize(
    "given, options, words",
    [
        (None, {}, "learn_policy(None): expected a vpps.Graph, or several, with something recorded"),
        ("graph", {}, "expected a vpps.Graph"),
        ([], {}, "expected a vpps.Graph"),
        ([vpps.Graph()], {}, "with something recorded"),
        (..., {"encoding": "best"}, "learn_policy(encoding='best'): expected one of base, max, sort, critical"),
        (..., {"trials": -1}, "learn_policy(trials=-1): expected 0 or a positive int"),
        (..., {"trials": 1.5}, "learn_policy(trials=1.5)"),
        (..., {"seed": "1"}, "learn_policy(seed='1'): expected an int"),
    ],
)
def test_wrong_arguments_are_named(net: Net, given: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandleError, match=re.escape(words)):
        vpps.learn_policy(net.graph(1)[0] if given is ... else given, **options)


@pytest.mark.host
def test_of_large_graphs_there_are_few_trials(monkeypatch: pytest.MonkeyPatch, net: Net) -> None:
    """A thousand trials of a large graph would take minutes."""
    asked = []

    def learning(graph: TypedGraph, settings: LearningSettings) -> Learned:
        asked.append((graph.n, graph.n_types, settings.trials))
        return Learned(Automaton(settings.encoding, ()), 0, 0.0, 0, 0, 0)

    monkeypatch.setattr(policies, "learn", learning)
    graphs = [net.graph(1)[0], net.graph(1, trees=200)[0]]
    monkeypatch.setattr(policies, "MOST_WORK", 100_000)
    for graph in graphs:
        vpps.learn_policy(graph)
    vpps.learn_policy(graphs, trials=7)
    assert asked == [(15, 2, 1000), (1000, 2, 50), (1015, 2, 7)]
