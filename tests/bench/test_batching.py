"""ED-Batch's networks as typed graphs, what policies make of them, and what bench/batching.py and policies.py print."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import batching
import batching_table
import edbatch_graphs
import fsm_learning
import numpy as np
import policies
import policies_table
import pytest
import table
from batching_whole import Learner, by, by_depth, encodings, parts_of, typed, within
from edbatch_graphs import Vertices

from vpps.data import GraphSet, draw_kinds, graphs_of_trees, synthetic_lattices, synthetic_treebank
from vpps.planner.native.automaton import LearningSettings
from vpps.planner.native.typed_graphs import lower_bound

ROOT = Path(__file__).parents[2]


def reads(graph: Vertices) -> Counter[tuple[str, str]]:
    """How many edges lead from one type to another."""
    ends = (graph.type_of[graph.producers].tolist(), graph.type_of[graph.readers].tolist())
    return Counter((graph.types[a], graph.types[b]) for a, b in zip(*ends, strict=True))


@pytest.fixture(scope="module")
def trees() -> GraphSet:
    return graphs_of_trees(synthetic_treebank(n_train=24, n_dev=1).train)


@pytest.fixture(scope="module")
def lattices() -> GraphSet:
    return synthetic_lattices(n_train=24, n_dev=1)[0]


@pytest.mark.host
def test_a_tree_of_two_leaves() -> None:
    tree = GraphSet([3], np.array([[-1, -1], [-1, -1], [0, 1]]), kind=[0, 0, 1], kinds=("leaf", "inner"))
    assert reads(edbatch_graphs.trees(tree[:])) == {
        ("leaf", "inner"): 2, ("leaf", "product"): 2, ("inner", "product"): 1, ("product", "loss"): 3,
        ("loss", "total"): 3,
    }  # fmt: skip
    assert reads(edbatch_graphs.matrix_trees(tree[:])) == {
        ("vector", "inner"): 2, ("matrix", "inner"): 2, ("vector", "product"): 2, ("inner", "product"): 1,
        ("product", "loss"): 3, ("loss", "total"): 3,
    }  # fmt: skip


@pytest.mark.host
def test_a_lattice_where_a_word_ends() -> None:
    """Two characters, a word from the beginning that ends with the second, and a third character."""
    children = [0, 1, 2, 4, 5], [-1, -1, 0, 1, 2]  # of a character, the word, the character with it, a character
    lattice = GraphSet([4], children, kind=[0, 1, 0, 0], kinds=("character", "word"))
    assert reads(edbatch_graphs.lattice_gru(lattice[:])) == {
        ("character", "character"): 1, ("character", "sum of 2"): 1, ("word", "sum of 2"): 1,
        ("sum of 2", "character"): 1, ("character", "product"): 2, ("sum of 2", "product"): 1,
        ("product", "loss"): 3, ("loss", "total"): 3,
    }  # fmt: skip
    of_lstm = reads(edbatch_graphs.lattice_lstm(lattice[:]))
    assert (of_lstm["word", "sum of 2"], of_lstm["sum of 2", "product"]) == (2, 1)


@pytest.mark.host
def test_chains_of_two_words() -> None:
    chain = GraphSet([2], np.array([[-1], [0]]))
    assert reads(edbatch_graphs.tagger(chain[:])) == {
        ("embedding", "forward"): 2, ("embedding", "backward"): 2, ("forward", "forward"): 1,
        ("backward", "backward"): 1, ("forward", "loss"): 2, ("backward", "loss"): 2, ("loss", "total"): 2,
    }  # fmt: skip
    pair = GraphSet([2], np.array([[-1], [0]]), kind=[0, 1], kinds=("source", "target"))
    assert reads(edbatch_graphs.translation(pair[:])) == {
        ("encoder", "decoder"): 1, ("decoder", "product"): 1, ("product", "loss"): 1, ("loss", "total"): 1,
    }  # fmt: skip


@pytest.mark.host
def test_trees_are_batched_at_the_bound_but_for_depth_and_agenda(trees: GraphSet) -> None:
    graph = typed(edbatch_graphs.trees(trees[:16]))
    bound = lower_bound(graph)
    assert bound == 1 + int(trees[:16].levels.max()) + 3
    learner = Learner(typed(edbatch_graphs.trees(trees[16:])), LearningSettings(trials=100))
    assert by("sufficient")(graph).batches == bound
    assert within(lambda part: by_depth)(graph).batches == bound
    assert learner.parts(encodings()["fsm-sort"])(graph) == (bound, by_depth(graph).stages, 0)
    assert by_depth(graph).batches > 1.5 * bound  # outputs of every level are a batch of their own
    assert by("agenda")(graph).batches > bound


@pytest.mark.host
def test_components_lose_nothing(lattices: GraphSet, trees: GraphSet) -> None:
    two_types = draw_kinds(trees, "inner", ["inner 1", "inner 2"])
    for graph in (
        typed(edbatch_graphs.trees(two_types[:16])),
        typed(edbatch_graphs.lattice_lstm(lattices[:16])),
    ):
        parts = list(parts_of(graph))
        assert sum(part.graph.n for part in parts) == graph.n
        assert sum(lower_bound(part.graph) for part in parts) == lower_bound(graph)
        assert max(len(part.types) for part in parts) >= 2
        assert [part.rank for part in parts] == sorted(part.rank for part in parts)
        assert lower_bound(graph) <= within(lambda part: by("sufficient"))(graph).batches <= by_depth(graph).batches


@pytest.mark.host
def test_a_machine_is_learned_once_and_counts_what_it_does_not_know(lattices: GraphSet) -> None:
    learner = Learner(typed(edbatch_graphs.lattice_gru(lattices[16:])), LearningSettings(trials=20))
    graph = typed(edbatch_graphs.lattice_gru(lattices[:16]))
    encoding = encodings()["fsm-sort-phase"]
    found = learner.whole(encoding)(graph)
    assert found == learner.whole(encoding)(graph)
    assert len(learner.learned) == 1
    assert lower_bound(graph) <= found.batches
    assert found.unseen > 0  # a larger graph, after so few trials


SMALL = ("--synthetic", "--batch", "2", "--mini-batches", "1", "--learn-on", "4", "--trials", "50", "--hidden", "8")


def printed(program: Any, arguments: list[str], monkeypatch: Any, capsys: Any) -> list[dict[str, Any]]:
    """The lines of a bench."""
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
    monkeypatch.setattr(program.harness, "confine", lambda cores: None)
    program.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.cpu
def test_batching_prints_a_line_per_granularity_and_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["--workload", "lattice-gru", "--policy", "depth,sinks-last,sufficient,fsm-sort", "--rounds", "1"]
    lines = printed(batching, [*SMALL, *arguments], monkeypatch, capsys)
    policies_of = {
        g: batching_table.policies_of(lines, g, "lattice-gru") for g in batching_table.granularities_of(lines)
    }
    assert list(policies_of["cells"]) == ["depth", "sinks-last", "sufficient", "fsm-sort"]
    assert list(policies_of["program"]) == [
        "depth", "sinks-last", "sufficient", "sufficient-within", "fsm-sort", "fsm-sort-within",
    ]  # fmt: skip
    for line in lines:
        assert all(batches >= bound for batches, bound in zip(line["all"], line["bounds"], strict=True))
        assert line["stages"] > 0
    assert policies_of["program"]["fsm-sort"]["states"] > policies_of["program"]["fsm-sort-within"]["states"] > 0
    sinks_last, depth = policies_of["cells"]["sinks-last"], policies_of["cells"]["depth"]
    assert sinks_last["value"] < depth["value"]
    assert sinks_last["barriers"] <= depth["barriers"]
    shown = batching_table.tables(lines)
    assert shown.count("| lattice-gru |") == 4
    if importlib.util.find_spec("matplotlib") is not None:
        path = tmp_path / "batching.jsonl"
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        command = [sys.executable, str(ROOT / "bench" / "plot.py"), str(path)]
        drawn = subprocess.run(command, capture_output=True, text=True, check=False)
        assert drawn.returncode == 0, drawn.stderr
        assert path.with_suffix(".svg").exists()


@pytest.mark.cpu
def test_policies_compares_auto_with_the_best(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")  # what is timed is what a user has
    monkeypatch.setenv("VPPS_TUNING", "0")  # the bench sets it, and here it is undone
    monkeypatch.setattr(policies, "LEARN_ON", 4)
    arguments = [
        "--synthetic", "--workload", "tree-lstm", "--batch-sizes", "4", "--hidden", "8", "--mini-batches", "2",
        "--rounds", "2", "--seconds", "0.001",
    ]  # fmt: skip
    chosen = ["--policy", "depth,sinks-last,auto"]
    lines = printed(policies, [*arguments, *chosen, "--mode", "train"], monkeypatch, capsys)
    assert [table.setting(line, "policy") for line in lines] == ["depth", "sinks-last", "auto"]
    auto = lines[-1]
    assert auto["same"] == ["sinks-last"]  # there is one recurrent cell, so nothing to choose
    assert auto["best"] in ("depth", "sinks-last")
    split = printed(policies, [*arguments, "--policy", "depth", "--mode", "infer", "--split"], monkeypatch, capsys)
    for line in split:
        parts = [line[part] for part in policies.PARTS]
        assert min(parts) > 0
    shown = policies_table.tables([*lines, *split])
    assert shown.count("| tree-lstm | 4 |") == 2


@pytest.mark.host
def test_unknown_names_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for program, arguments, words in (
        (batching, ["--policy", "fsm"], "unknown policies: fsm"),
        (policies, ["--workload", "gpt"], "unknown workloads: gpt"),
    ):
        with pytest.raises(SystemExit, match=words):
            program.parse_options(arguments)


@pytest.mark.cpu
def test_learning_prints_a_line_per_granularity(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workload", "lattice-gru", "--policy", "fsm-sort", "--learn-on", "4", "--trials", "20"]
    lines = printed(fsm_learning, ["--synthetic", *arguments, "--rounds", "1"], monkeypatch, capsys)
    assert [table.setting(line, "granularity") for line in lines] == ["program", "cells"]
    for line in lines:
        assert line["batches"] >= line["bound"]
        assert line["states"] > 0
    assert "paper_trials" in lines[0]["edbatch"]
    assert batching_table.tables(lines).count("| lattice-gru, ") == 2
