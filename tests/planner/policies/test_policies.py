"""Policies on graphs of cells: the same numbers whatever the order; what is learned is kept; what is decided is found
again."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import vpps
from tests.comparison import assert_agrees_with_reference
from vpps.compiler.cost import Costs, StepLoad, costs_on
from vpps.errors import GraphError, HandleError
from vpps.placement.distribution import Distribution
from vpps.planner.native.automaton import Automaton, LearningSettings
from vpps.planner.native.stages import stages as stages_of
from vpps.planner.native.typed_graphs import TypedGraph, batches
from vpps.planner.planner import Planner
from vpps.planner.policies import POLICIES, Knowledge, policy_named
from vpps.planner.policies.auto import Auto, Decision
from vpps.record.topology import Topology
from vpps.tuning.automata import AutomatonFiles

E = vpps.Expression
WIDTH = 8


class Net:
    """Trees of two kinds of inner nodes with an output at each, and a chain of a cell alone beside them."""

    def __init__(self) -> None:
        self.model = vpps.Model(seed=1)
        words = self.model.lookup("words", (5, WIDTH), init="normal")
        W, U, V = (self.model.parameter(name, (WIDTH, 2 * WIDTH)) for name in ("W", "U", "V"))

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
        """A graph; which kind of inner node it begins with depends on the seed."""
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tuning database that handles use."""
    monkeypatch.setenv("VPPS_TUNING", "1")
    monkeypatch.setattr("vpps.tuning.files.cache_dir", lambda: tmp_path)
    return tmp_path / "tuning"


def planner(net: Net, policy: str, knowledge: Knowledge | None = None) -> Planner:
    distribution = Distribution(net.model, 2, 32, 0, train=True)
    return Planner(distribution, policy_named(policy, knowledge))


def stages(net: Net, made: Planner, graph: vpps.Graph) -> tuple[Topology, list[np.ndarray]]:
    topology = Topology(graph)
    return topology, stages_of(topology, made.batching, partial(made.cells.load_of, topology))


def test_names() -> None:
    known = ", ".join(POLICIES)
    with pytest.raises(GraphError, match=f"'narrowest'; known are {known}"):
        policy_named("narrowest")
    with pytest.raises(HandleError, match=f"expected one of {known}"):
        vpps.Handle(vpps.Model(), policy="narrowest", target="cpu")


@pytest.mark.cpu
@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_those_of_the_reference(net: Net, policy: str) -> None:
    graph, loss = net.graph(1)
    assert_agrees_with_reference(net.model, graph, loss, vp_counts=(2,), policy=policy)


@pytest.mark.cpu
def test_what_was_learned_is_used_by_the_next_handle(net: Net, folder: Path) -> None:
    graph, loss = net.graph(1)
    with vpps.Handle(net.model, policy="fsm", target="cpu", vps=1) as handle:
        handle.gradients(graph, loss)
        assert "learned in" in handle.explain()
    (path,) = folder.glob("machine-*.json")
    kept = json.loads(path.read_text())
    assert sorted(kept["names"]) == ["first", "second"]
    with vpps.Handle(net.model, policy="fsm", target="cpu", vps=1, train=False) as handle:
        handle.forward(graph, [loss])  # the same recurrence, though cells go without unread outputs
        assert "as kept in the tuning database" in handle.explain()
    assert list(folder.glob("machine-*.json")) == [path]


@pytest.mark.host
@pytest.mark.parametrize("policy", POLICIES)
def test_every_vertex_comes_after_what_it_reads(net: Net, policy: str) -> None:
    topology, found = stages(net, planner(net, policy), net.graph(2)[0])
    whole = TypedGraph.of(topology)
    stage = np.concatenate(found)
    assert (stage[whole.producers] < stage[whole.readers]).all()


@pytest.mark.host
def test_only_recurrences_of_several_cells_are_ordered_in_another_way(net: Net) -> None:
    """Of a chain of one cell, and of what is on no cycle, there is nothing to choose."""
    graph, _ = net.graph(3, inner=False)
    _, usual = stages(net, planner(net, "sinks-last"), graph)
    for policy in ("sufficient", "critical", "fsm", "auto"):
        made = planner(net, policy)
        _, found = stages(net, made, graph)
        assert all((a == b).all() for a, b in zip(usual, found, strict=True))
        assert made.batching.describe() == []


@pytest.mark.host
class TestFsm:
    def test_is_learned_once_whatever_was_recorded_first(self, net: Net) -> None:
        made = planner(net, "fsm", Knowledge(settings=LearningSettings(trials=20)))
        firsts = set()
        for seed in range(6):
            topology, _ = stages(net, made, net.graph(seed)[0])
            firsts.add(next(b.cell.name for b in topology.blocks if b.cell.name in ("first", "second")))
        assert firsts == {"first", "second"}
        knowledge = made.batching.knowledge
        assert len(knowledge.automata) == len(knowledge.learned) == 1

    def test_unseen_states_are_counted_and_told(self, net: Net) -> None:
        knowledge = Knowledge(settings=LearningSettings(trials=20))
        made, graph = planner(net, "fsm", knowledge), net.graph(1)[0]
        stages(net, made, graph)
        ((digests, machine),) = knowledge.automata.items()
        assert list(knowledge.unseen.values()) == [0]
        knowledge.automata[digests] = Automaton(machine.encoding, {})
        stages(net, made, graph)
        (steps,) = knowledge.unseen.values()
        assert steps > 0
        (sentence,) = made.batching.describe()
        assert f"; {steps} steps so far began in a state that it does not know" in sentence

    @pytest.mark.parametrize(
        "content", ["", "{}", '{"format": 2}', "other cells", "no number", "endless phases", "[" * 100_000]
    )
    def test_what_is_damaged_or_of_others_is_learned_anew(
        self, net: Net, folder: Path, caplog: pytest.LogCaptureFixture, content: str
    ) -> None:
        def learned() -> Knowledge:
            made = planner(net, "fsm", Knowledge(kept=AutomatonFiles(), settings=LearningSettings(trials=20)))
            stages(net, made, net.graph(1)[0])
            return made.batching.knowledge

        assert len(learned().learned) == 1
        assert not learned().learned
        (path,) = folder.glob("machine-*.json")
        good = path.read_text()
        changes = {
            "other cells": (json.loads(good)["cells"][0], "0" * 16),
            "no number": ('"lower_bound": ', '"lower_bound": 1e999'),
            "endless phases": ('"phases": 1', f'"phases": {10**30}'),
        }
        wrong = good.replace(*changes[content]) if content in changes else content
        assert wrong != good
        path.write_text(wrong)
        with caplog.at_level(logging.INFO):
            assert len(learned().learned) == 1
        other_version = content == '{"format": 2}'
        assert f"{'of another version of vpps' if other_version else 'damaged'} and not used" in caplog.text
        assert json.loads(path.read_text())["machine"] == json.loads(good)["machine"]
        path.chmod(0o666)
        assert len(learned().learned) == 1

    def test_nothing_is_kept_or_looked_up_where_tuning_is_off(
        self, net: Net, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        knowledge = Knowledge(kept=AutomatonFiles(), settings=LearningSettings(trials=20))
        monkeypatch.setenv("VPPS_TUNING", "off")
        stages(net, planner(net, "fsm", knowledge), net.graph(1)[0])
        assert len(knowledge.learned) == 1
        assert not folder.exists()

    def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(
        self, net: Net, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.write_text("a file is in the way")
        knowledge = Knowledge(kept=AutomatonFiles(), settings=LearningSettings(trials=20))
        stages(net, planner(net, "fsm", knowledge), net.graph(1)[0])
        assert len(knowledge.learned) == 1
        assert "what was learned about batches is not kept" in caplog.text


@pytest.mark.host
class TestAuto:
    def decided(self, net: Net, costs: Costs, graph: vpps.Graph) -> Auto:
        made = planner(net, "auto", Knowledge(costs))
        stages(net, made, graph)
        assert isinstance(made.batching, Auto)
        return made.batching

    def test_weighs_barriers_against_the_width_of_steps(self, net: Net) -> None:
        graph, _ = net.graph(1, trees=8)
        many_barriers = self.decided(net, Costs(barrier=1.0, speed=1e11, fixed=1, vps=1), graph)
        slow_steps = self.decided(net, Costs(barrier=1e-12, speed=1e9, fixed=100, vps=1), graph)
        little_to_gain = self.decided(net, Costs(barrier=1e-12, speed=1e9, fixed=0.01, vps=1), graph)
        for auto in (many_barriers, slow_steps, little_to_gain):
            ((_, decision),) = auto.decisions.items()
            assert list(decision.seconds) == ["sinks-last", "critical"]
            if auto is not little_to_gain:
                assert decision.seconds[decision.policy] == min(decision.seconds.values())
        assert [d.policy for d in little_to_gain.decisions.values()] == ["sinks-last"]
        assert min(decision.seconds.values()) < decision.seconds["sinks-last"]
        assert [d.policy for d in many_barriers.decisions.values()] == ["sinks-last"]
        assert [d.policy for d in slow_steps.decisions.values()] != ["sinks-last"]

    def test_decides_once_for_graphs_of_a_size(self, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
        made = planner(net, "auto")
        asked = 0

        def load_of(topology: Topology, number: int) -> StepLoad:
            nonlocal asked
            asked += 1
            return StepLoad(1.0, 1)

        monkeypatch.setattr(made.cells, "load_of", load_of)
        graph = net.graph(1)[0]
        for _ in range(3):
            stages(net, made, graph)
        assert asked == 2  # cells of the recurrence
        stages(net, made, net.graph(1, trees=12)[0])
        assert asked == 4
        assert len(made.batching.describe()) == 2

    @pytest.mark.parametrize(
        "usual, then", [("sinks-last", "sinks-last"), ("critical", "critical"), ("fsm", "critical")]
    )
    def test_is_as_usual_after_many_decisions(
        self, net: Net, monkeypatch: pytest.MonkeyPatch, usual: str, then: str
    ) -> None:
        """Else models of many cells, of which each batch has others, would wait for one with every batch."""
        monkeypatch.setattr("vpps.planner.policies.auto.MOST_WEIGHED", 1)
        made, graph = planner(net, "auto"), net.graph(1, trees=8)[0]
        assert isinstance(made.batching, Auto)
        made.batching.decisions[(), 1] = Decision(usual, {})
        _, found = stages(net, made, graph)
        _, expected = stages(net, planner(net, then), graph)
        assert all((a == b).all() for a, b in zip(found, expected, strict=True))
        assert len(made.batching.decisions) == 1
        assert not made.batching.knowledge.learned

    def test_uses_a_machine_that_is_known(self, net: Net) -> None:
        knowledge = Knowledge(settings=LearningSettings(trials=20))
        graph, _ = net.graph(1)
        stages(net, planner(net, "fsm", knowledge), graph)
        made = planner(net, "auto", knowledge)
        stages(net, made, graph)
        assert isinstance(made.batching, Auto)
        assert [list(d.seconds) for d in made.batching.decisions.values()] == [["sinks-last", "critical", "fsm"]]


@pytest.mark.host
class TestCosts:
    def seconds(self, *vertices: tuple[int, int]) -> float:
        """Of vertices, each of a type and a level, that read all of lower levels."""
        types, levels = np.array(vertices).T
        edges = [(v, w) for v, (_, low) in enumerate(vertices) for w, (_, high) in enumerate(vertices) if low < high]
        producers, readers = np.array(edges, np.int64).reshape(-1, 2).T
        costs = Costs(barrier=2.0, speed=3.0, fixed=1, vps=2).of([StepLoad(6.0, 1), StepLoad(3.0, 2)])
        return batches(TypedGraph(types, levels, producers, readers, 2), "sinks-last", costs=costs).seconds

    def test_every_step_takes_a_vertex_more(self) -> None:
        barrier = 2.0
        assert self.seconds((0, 0)) == 2 * 6.0 / (2 * 3.0) + barrier
        assert self.seconds(*[(0, 0)] * 10) == 11 * 6.0 / (2 * 3.0) + barrier

    def test_steps_of_a_stage_share_its_barriers(self) -> None:
        assert self.seconds((0, 0), (1, 0), (0, 1)) == 2.0 + 1.0 + 2.0 + 2.0 * (2 + 1)
        assert self.seconds((0, 0), (1, 1), (0, 0)) == 3.0 + 1.0 + 2.0 * (1 + 2)

    def test_a_gpu_has_dearer_barriers(self) -> None:
        assert costs_on("cuda", 132).barrier > costs_on("cpu", 2).barrier
        assert costs_on("simt", 4) == costs_on("cuda", 4)
