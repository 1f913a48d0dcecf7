"""bench/learning.py: its verdicts, and one run at a small scale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from learning import SETUPS, Run, noise_of, summary

from vpps.data import synthetic_treebank
from vpps.zoo.tasks import TASKS

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, str(ROOT / "bench" / "learning.py")]


def runs(ours: list[float], peers: list[float], first: float = 0.0, lower_is_better: bool = False) -> list[Run]:
    """Of accuracies, or of perplexities, with a constant answer's score of 0.5."""
    return [
        Run("task", seed, lower_is_better, 0.5, first, [a], [b], {"score": a}, {"score": b})
        for seed, (a, b) in enumerate(zip(ours, peers, strict=True))
    ]


@pytest.mark.host
class TestVerdict:
    def test_noise_is_the_half_width_of_the_difference_of_means(self) -> None:
        # Deviations 1 and 1, three seeds: t(4) sqrt(2 / 3).
        assert noise_of([1, 2, 3], [4, 5, 6]) == pytest.approx(2.78 * (2 / 3) ** 0.5)

    @pytest.mark.parametrize(
        "ours, peers, verdict",
        [
            ([0.80, 0.82, 0.81], [0.82, 0.80, 0.82], "equal"),
            ([0.60, 0.62, 0.61], [0.82, 0.80, 0.82], "worse"),
            ([0.90, 0.91, 0.92], [0.82, 0.80, 0.82], "better"),
            ([0.40, 0.91, 0.92], [0.82, 0.80, 0.82], "not learned"),
        ],
    )
    def test_of_three_seeds(self, ours: list[float], peers: list[float], verdict: str) -> None:
        assert summary(runs(ours, peers))["verdict"] == verdict

    def test_lower_perplexity_is_better(self) -> None:
        assert summary(runs([0.2, 0.21], [0.4, 0.41], lower_is_better=True))["verdict"] == "better"
        assert summary(runs([0.6, 0.21], [0.4, 0.41], lower_is_better=True))["verdict"] == "not learned"

    def test_first_losses_that_differ_are_said_first(self) -> None:
        assert summary(runs([0.9, 0.9], [0.9, 0.9], first=2e-4))["verdict"] == "the first losses differ"
        assert summary(runs([0.9, 0.9], [0.9, 0.9], first=float("nan")))["verdict"] == "the first losses differ"

    def test_one_seed_tells_nothing(self) -> None:
        assert summary(runs([0.9], [0.9]))["verdict"] == "one seed tells nothing"


@pytest.mark.host
def test_setups_are_of_tasks() -> None:
    for name, setup in SETUPS.items():
        TASKS[name].settings_type(**setup.settings)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "precision, tolerance",
    [pytest.param("float32", 1e-4, marks=pytest.mark.frameworks("torch")), pytest.param("bf16", 1e-2)],
)
def test_lines_and_table(precision: str, tolerance: float, tmp_path: Path) -> None:
    bank = synthetic_treebank(300, 60)
    (tmp_path / "sst").mkdir()
    for name, trees in (("train.txt", bank.train), ("dev.txt", bank.dev)):
        (tmp_path / "sst" / name).write_text("".join(f"{tree}\n" for tree in trees))
    arguments = ["--tasks", "tree-lstm", "--data", str(tmp_path), "--hidden", "24", "--epochs", "8", "--seeds", "1,2"]
    arguments += ["--precision", precision]
    environment = os.environ | {"VPPS_VERIFY": "0"}  # other tests verify scripts; these are hundreds
    command = [*PROGRAM, *arguments]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["case"] for line in lines] == ["tree-lstm seed=1", "tree-lstm seed=2", "tree-lstm"]
    assert lines[2]["verdict"] in ("equal", "better")
    assert 0 < lines[2]["first_loss_difference"] <= tolerance
    assert lines[2]["value"] > lines[2]["baseline"]
    assert lines[0]["losses"][1] < lines[0]["losses"][0]
    (tmp_path / "lines.jsonl").write_text(run.stdout)
    made = subprocess.run(
        [*PROGRAM, "--table", str(tmp_path / "lines.jsonl")], capture_output=True, text=True, check=True
    )
    head, rule, row = made.stdout.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row.startswith("| tree-lstm | sst, 300 x 8 | dev root accuracy |")
