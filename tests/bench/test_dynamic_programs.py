"""The benches in the form of the Cavs paper's figures, at a small scale."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import tree_fc
from tree_fc import WORDS, complete_trees

from tests.bench.programs import lines_of, run_bench

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
    monkeypatch.setattr(tree_fc, "time", SimpleNamespace(perf_counter_ns=lambda: contender.now))
    split = tree_fc.split_pass(contender, [[1, 2, 3], [4, 5, 6]])
    assert split == pytest.approx((host * 1e-9, computed * 1e-9))
    measured = tree_fc.Measured([1.0], [split.host], [split.computation])
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


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_figures_are_drawn_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = map(json.dumps, lines_of("tree_fc.py", "--quick", "--contenders", "vpps"))
    path.write_text("\n".join(lines), encoding="utf-8")
    run = run_bench("plot.py", str(path))
    assert run.returncode == 0, run.stderr
    assert path.with_suffix(".svg").read_text(encoding="utf-8").count("<path") > 10
