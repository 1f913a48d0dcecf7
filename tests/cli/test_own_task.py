"""The tutorial's last step: the task of docs/tutorial.md as a program, with the options of `vpps-train`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vpps.data import read_jsonl

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "VPPS_VERIFY": "0", "PYTHONPATH": str(ROOT)}


def program(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docs/programs" / name), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


@pytest.mark.cpu
def test_own_task_trains_learns_and_resumes(tmp_path: Path) -> None:
    assert program(tmp_path, "expressions.py").returncode == 0
    like = None
    for name in ("train", "dev"):
        like = read_jsonl(tmp_path / f"{name}.jsonl", lists=False, like=like)
        like.save(tmp_path / f"{name}.graphs")
    run = program(tmp_path, "calc.py", "--epochs", "3", "--lr", "0.01", "--checkpoint", "run")
    assert run.returncode == 0, run.stderr
    heading, *lines = run.stdout.splitlines()
    assert heading.startswith("calc on ")
    assert ": 2000 train and 200 dev examples, " in heading
    accuracies = [float(line.split("dev accuracy ")[1].split()[0]) for line in lines]
    assert accuracies[-1] > max(0.4, accuracies[0])
    again = program(tmp_path, "calc.py", "--epochs", "4", "--resume", "--checkpoint", "run")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[1].startswith("epoch 4/4")


@pytest.mark.host
def test_own_task_has_help_and_one_sentence_for_data_that_is_not_there(tmp_path: Path) -> None:
    page = program(tmp_path, "calc.py", "--help")
    assert page.returncode == 0
    for part in ("Train a calculator modulo 5.", "--data: A folder with train.graphs and dev.graphs.", "--checkpoint"):
        assert part in page.stdout
    run = program(tmp_path, "calc.py", "--data", "none")
    assert (run.returncode, run.stdout) == (1, "")
    (line,) = run.stderr.splitlines()
    assert line == f"calc.py: {tmp_path / 'none' / 'train.graphs'}: cannot be read: No such file or directory"
