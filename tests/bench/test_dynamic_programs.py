"""The benches in the form of the Cavs paper's figures, at a small scale."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_share
import movement
import numpy as np
import pytest
from ablation import ABLATED, passes_of
from million import random_forest
from tree_fc import WORDS, complete_trees

import vpps
from tests.bench.programs import ROOT, lines_of, run_bench
from vpps.script.instructions import TABLE

pytestmark = pytest.mark.cpu

PEERS = [name for name, module in (("manual", "torch"), ("dynet", "dynet")) if importlib.util.find_spec(module)]
OURS = ["vpps-bulk", "vpps"]


@pytest.mark.parametrize("leaves", [2, 8, 64])
def test_complete_trees_have_all_leaves_at_one_depth(leaves: int) -> None:
    first, second = complete_trees(leaves, 2)
    assert first.words != second.words
    assert len(first.labels) == 2 * leaves - 1
    depths = {len(first.labels) - 1: 0}
    for node in reversed(range(len(first.labels))):  # post-order: parents after children
        if first.left[node] < 0:
            assert 0 <= first.words[node] < WORDS
            assert depths[node] == leaves.bit_length() - 1
        else:
            assert first.words[node] == -1
            assert first.left[node] < first.right[node] == node - 1
            depths[first.left[node]] = depths[first.right[node]] = depths[node] + 1


def test_a_random_forest_has_as_many_nodes_as_asked() -> None:
    trees = random_forest(1000)
    assert 1000 <= sum(map(len, trees)) < 1000 + 40
    for children in trees:
        below = children[children >= 0]
        assert sorted(below.tolist()) == list(range(len(children) - 1))  # everyone but the root has one parent
        assert (children < np.arange(len(children))[:, None]).all()


class Scripted:
    """A contender that takes so many nanoseconds for each part of a step, on a clock of its own."""

    def __init__(self, graph: int, plan: int, run: int) -> None:
        self.now, self.parts = 0, (graph, plan, run)
        self.ready = 0

    def step(self, batch: list[int]) -> None:
        self.run(self.graph(batch))

    def graph(self, batch: list[int]) -> list[int]:
        self.now += self.parts[0] * len(batch)
        return batch

    def run(self, graph: list[int]) -> None:
        self.ready = self.now = self.now + self.parts[1]
        self.now += self.parts[2]

    def loss(self) -> float:
        return 0.0


class Planning(Scripted):
    """One that tells when its plan was ready, as vpps does."""

    def planned(self) -> int:
        return self.ready


@pytest.mark.parametrize("kind, host, computed", [(Scripted, 30, 107), (Planning, 37, 100)])
def test_a_plan_belongs_to_the_host(
    kind: type[Scripted], host: int, computed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender = kind(10, 7, 100)
    monkeypatch.setattr(host_share, "time", SimpleNamespace(perf_counter_ns=lambda: contender.now))
    split = host_share.split_pass(contender, [[1, 2, 3], [4, 5, 6]])
    assert split == pytest.approx((host * 1e-9, computed * 1e-9))
    measured = host_share.Measured([1.0], [split.host], [split.computation])
    assert measured.shares == pytest.approx([host / (host + computed)])


@pytest.mark.frameworks
def test_tree_fc_takes_host_and_computation_apart() -> None:
    lines = lines_of("tree_fc.py", "--quick", "--contenders", ",".join(OURS + PEERS))
    assert len(lines) == 2 * len(OURS) * max(1, len(PEERS))
    for line in lines:
        for who in ("", "peer_") if PEERS else ("",):
            assert line[f"{who}host"] > 0
            assert line[f"{who}computation"] > 0
            assert 0 < line[f"{who}host_share"] < 1


def test_the_host_share_of_sentences_by_batch_size(trees_file: Path) -> None:
    arguments = ["--trees", str(trees_file), "--batch-sizes", "1,5", "--hidden", "32", "--passes", "1"]
    lines = lines_of("tree_fc.py", *arguments, "--contenders", ",".join(OURS))
    cases = [line["case"].split()[:2] for line in lines]
    assert cases == [["tree-lstm", "batch=1"]] * 2 + [["tree-lstm", "batch=5"]] * 2
    assert [line["program"] for line in lines] == OURS * 2
    assert len({line["loss"] for line in lines[:2]}) == 1


def test_trees_that_are_not_complete_are_refused() -> None:
    run = run_bench("tree_fc.py", "--leaves", "6")
    assert run.returncode != 0
    assert "--leaves 6: complete trees have 2, 4, 8 ... leaves" in run.stderr


def test_ablation_switches_one_pass_at_a_time() -> None:
    assert passes_of("all") == vpps.Passes()
    for name in ABLATED:
        assert [p for p in ABLATED if getattr(passes_of(name), p)] == [name]
        assert passes_of(name).common_subexpressions


def test_ablation_counts_barriers(trees_file: Path) -> None:
    lines = lines_of("ablation.py", "--quick", "--trees", str(trees_file), "--schedules", "vector")
    assert len(lines) == 2 * (len(ABLATED) + 2)
    for model in ("tree-lstm", "fixed-lstm"):
        barriers = {
            line["case"].rpartition("=")[2]: line["barriers"] for line in lines if f"model={model} " in line["case"]
        }
        assert barriers.keys() == {"none", *ABLATED, "all"}
        # Splitting cells for lazy batching may add a barrier or two; nothing else adds any.
        assert 0 < barriers["alignment"] <= barriers["none"]
        assert 0 < barriers["all"] <= barriers["lazy_batching"] <= barriers["none"] + 6


def test_movement_measures_training_and_inference(trees_file: Path) -> None:
    settings = ["--batch-sizes", "1,6", "--hidden", "32", "--passes", "1"]
    dynet = ["dynet"] if "dynet" in PEERS else []
    lines = lines_of("movement.py", "--trees", str(trees_file), *settings, "--contenders", ",".join(OURS + dynet))
    assert len(lines) == 2 * len(OURS) * 2
    assert lines[0]["case"].startswith("training batch=1 ")
    for line in lines:
        assert line["value"] == line["memory"]
        assert min(line["memory"], line["computation"], line["host"]) > 0
        if dynet:
            assert min(line["peer_value"], line["peer_computation"]) > 0


def test_movement_tells_memory_operations_from_computation() -> None:
    names = ["copy", "matvec", "gather_sum", "signal", "wait"]
    opcodes = [[i.name for i in TABLE].index(name) for name in names]
    records = np.zeros(6, [("position", np.int64), ("start", np.int64), ("end", np.int64)])
    records["position"] = np.arange(6)
    records["end"] = [1, 20, 300, 4_000, 50_000, 600_000]  # nanoseconds; the last is of a cell's own instruction
    plan = SimpleNamespace(script=np.array([*opcodes, len(TABLE) + 3]))
    timeline: Any = SimpleNamespace(plan=plan, records=records, lost=[0, 0], n_vps=2)
    assert movement.kernel_parts(timeline) == pytest.approx((301e-9 / 2, 600_020e-9 / 2))


def test_a_graph_is_measured_at_three_sizes() -> None:
    lines = lines_of("million.py", "--vertices", "2000", "--steps", "400", "--rounds", "1", "--shares")
    assert len(lines) == 2 * 2 * 3
    for line in lines:
        vertices = int(line["case"].split()[2].partition("=")[2])
        assert vertices <= line["vertices"] <= 1.2 * vertices + 2
        assert line["script"] > 0
        assert line["batch"] > 4 * 32 * vertices
    chain = lines[-1]
    assert chain["levels"] >= 400
    assert set(chain["growth"]) <= {"building", "planning", "encoding", "kernel"}
    by_form = [[line["loss"] for line in lines if f"form={form} " in line["case"]] for form in ("bulk", "calls")]
    assert by_form[0] == pytest.approx(by_form[1], rel=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
@pytest.mark.parametrize("program", ["tree_fc", "ablation"])
def test_figures_are_drawn_from_lines(program: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    if program == "tree_fc":
        lines = map(json.dumps, lines_of("tree_fc.py", "--quick", "--contenders", "vpps"))
        path.write_text("\n".join(lines), encoding="utf-8")
    else:  # it takes a minute to make such lines
        (results,) = (ROOT / "bench" / "results" / "cpu").glob("*-ablation.jsonl")
        shutil.copy(results, path)
    run = run_bench("plot.py", str(path))
    assert run.returncode == 0, run.stderr
    assert path.with_suffix(".svg").read_text(encoding="utf-8").count("<path") > 10
