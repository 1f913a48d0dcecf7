"""The benches at a small scale: what they print, and that its parts add up."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from autobatch import by_depth, matrix_reads, tree_lstm
from models import VppsTreeLstm
from treelstm import CLASSES, initial_weights
from trees import read_trees
from weight_bytes import dynet_bytes, vpps_bytes

from tests.nvrtc import needs_nvrtc

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[2]


def brackets(rng: random.Random, leaves: int) -> str:
    """A labelled binary tree in Penn brackets."""
    label = rng.randrange(CLASSES)
    if leaves == 1:
        return f"({label} word{rng.randrange(30)})"
    left = rng.randrange(1, leaves)
    return f"({label} {brackets(rng, left)} {brackets(rng, leaves - left)})"


@pytest.fixture
def trees_file(tmp_path: Path) -> Path:
    rng = random.Random(2)
    path = tmp_path / "trees.txt"
    path.write_text("\n".join(brackets(rng, rng.randrange(2, 12)) for _ in range(12)), encoding="utf-8")
    return path


def lines_of(program: str, *arguments: str) -> list[dict[str, Any]]:
    """What a bench prints."""
    command = [sys.executable, str(ROOT / "bench" / program), *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_trace_cost_says_what_recording_takes_and_accounts_for() -> None:
    lines = lines_of("trace_cost.py", "--rounds", "1", "--batch-sizes", "2", "--hidden", "16", "--vps", "2")
    assert [line["case"].partition(",")[0] for line in lines] == ["step", "cpu time", "covered"]
    assert lines[2]["intervals"] == pytest.approx(1, abs=1e-6)
    assert 0 < lines[2]["value"] <= 1


def test_autotune_compares_what_was_found_with_fixed_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VPPS_PASSES", raising=False)
    found, best = lines_of("autotune.py", "--rounds", "1", "--batch-sizes", "2", "--hidden", "16", "--limit", "20")
    assert [line["case"].partition(",")[0] for line in (found, best)] == ["found", "best fixed"]
    assert best["peer_value"] <= best["value"] == found["value"]
    assert found["batches"] == 20 or found["done"]
    assert found["first_turn"] > 0


def test_breakdown_adds_up_to_the_step(trees_file: Path) -> None:
    lines = lines_of(
        "breakdown.py", "--trees", str(trees_file), "--batch-sizes", "1,5", "--hidden", "32", "--embedding", "32",
        "--threads", "2", "--passes", "1",
    )  # fmt: skip
    assert [line["case"].split()[0] for line in lines] == ["batch=1", "batch=5"]
    for line in lines:
        assert sum(line["host"].values()) == pytest.approx(line["value"], rel=1e-3)
        assert sum(line["kernel"].values()) == pytest.approx(line["value"], rel=1e-3)
        for column, may_be_zero in (("host", {"launching"}), ("kernel", set())):
            for part, value in line[column].items():
                assert value > 0 or part in may_be_zero, (column, part)


def test_weights_are_read_level_by_level(trees_file: Path) -> None:
    """On a CPU: what DyNet's depth strategy reads, and of the output matrix the padding of its last panel and that
    leaves and inner nodes, two cells, multiply by it apart."""
    trees, words = read_trees(trees_file, 100)
    hidden = embedding = 64
    net = VppsTreeLstm(initial_weights(words, embedding, hidden), "sgd", 0.05, 1, timeline=True)
    panel = net.handle._engine.machine.panel
    padded = -(-CLASSES // panel) * panel
    more = 4 * (padded - CLASSES) * hidden + 4 * (padded + CLASSES) * hidden
    for batch in (trees[:1], trees[:5], trees):
        assert vpps_bytes(net, batch) == dynet_bytes(batch, "depth", hidden, embedding) + more
    net.close()
    reads = matrix_reads(graph := tree_lstm(trees), by_depth(graph))
    assert reads["Wi"] == reads["output"] == 2


def test_planning_in_groups_deals_even_work(trees_file: Path) -> None:
    lines = lines_of(
        "planning.py", "--trees", str(trees_file), "--batch-sizes", "1,12", "--hidden", "32", "--groups", "1,3",
        "--times", "1", "--rounds", "1",
    )  # fmt: skip
    assert [line["case"].partition(" batch")[0] for line in lines] == ["plan, form=bulk"] * 8 + ["plan, form=cells"] * 8
    for of_form in (lines[:8], lines[8:]):
        (of_one, in_three), (one_group, three_groups) = of_form[:2], of_form[4:6]  # behind them products, paper
        assert [line["share"] for line in (of_one, in_three, one_group)] == [1, 1, 1]  # the first two of one tree
        assert 1 / 3 <= three_groups["share"] < 0.5
    assert all(line["value"] > 0 and line["peer_value"] > 0 for line in lines)


def test_memory_tells_training_from_importing(trees_file: Path) -> None:
    (line,) = lines_of(
        "memory.py", "--trees", str(trees_file), "--contenders", "vpps", "--batch-size", "4", "--batches", "2",
        "--hidden", "32", "--embedding", "32", "--rounds", "1",
    )  # fmt: skip
    assert line["unit"] == "MB"
    assert 10 < line["imported"] <= line["value"] < 1000


@pytest.mark.parametrize(
    "program, asked, words",
    [("treelstm.py", "vpps,chainer", "unknown contenders: chainer"), ("memory.py", "no", "unknown contenders: no")],
)
def test_unknown_contenders_are_named(trees_file: Path, program: str, asked: str, words: str) -> None:
    command = [sys.executable, str(ROOT / "bench" / program), "--trees", str(trees_file), "--contenders", asked]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert words in run.stderr


@pytest.mark.nvrtc
@needs_nvrtc
def test_compile_prints_a_line_per_program() -> None:
    (line,) = lines_of("compile.py", "--programs", "Tree-LSTM", "--rounds", "1")
    assert line["case"] == "program=Tree-LSTM arch=sm_90"
    assert line["peer_value"] == pytest.approx(line["peer_compile"] + line["peer_load"])
    assert 0 < line["cached_cubin"] < line["cached"] < line["value"]
    assert line["nvrtc"] <= line["value"]


def test_recording_measures_every_case(trees_file: Path) -> None:
    lines = lines_of("recording.py", "--trees", str(trees_file), "--batch", "5", "--rounds", "3")
    assert [line["case"].split()[0] for line in lines] == 2 * ["cells", "lists", "ops", "lookups", "sum"]
    assert [line["recorder"] for line in lines[:5]] == 5 * ["python"]
    for line in lines:
        assert 0 < line["best"] <= line["value"] < 1000
        assert line["ms"] == pytest.approx(line["value"] * line["calls"] / 1e3, rel=0.05, abs=1e-3)
