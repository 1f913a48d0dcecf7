"""The newcomer's path to its end: an own model, an own task and own data, with the options of `vpps-train`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("own_task.py")
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "VPPS_VERIFY": "0", "PYTHONPATH": str(ROOT)}


def circuit(rng: random.Random) -> dict[str, Any]:
    """Gates over inputs and gates before them, and what each of them gives."""
    gates: list[str] = []
    children: list[list[int]] = []
    values: list[bool] = []
    for k in range(rng.randrange(8, 16)):
        gate = rng.choice(["one", "zero"] if k < 3 else ["and", "or", "xor"])
        read = [] if k < 3 else rng.sample(range(max(0, k - 6), k), rng.randrange(2, 4))
        some = [values[child] for child in read]
        values.append({"one": True, "zero": False, "and": all(some), "or": any(some), "xor": sum(some) % 2 == 1}[gate])
        gates.append(gate)
        children.append(read)
    return {"children": children, "columns": {"gate": gates, "value": [str(value) for value in values]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which there is the data that the task looks for."""
    rng = random.Random(1)
    (tmp_path / "circuits").mkdir()
    for name, n in (("train", 600), ("dev", 100)):
        lines = [json.dumps(circuit(rng)) + "\n" for _ in range(n)]
        (tmp_path / "circuits" / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


@pytest.mark.cpu
def test_own_task_trains_learns_and_resumes(folder: Path) -> None:
    run = program(folder, "--epochs", "4", "--lr", "0.01", "--checkpoint", "run")
    assert run.returncode == 0, run.stderr
    heading, *lines = run.stdout.splitlines()
    assert heading.startswith(f"circuits on {folder / 'circuits'}: 600 train and 100 dev examples, ")
    accuracies = [float(line.split("dev accuracy ")[1].split()[0]) for line in lines]
    assert accuracies[-1] > max(0.7, accuracies[0])
    again = program(folder, "--epochs", "5", "--resume", "--checkpoint", "run")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[1].startswith("epoch 5/5")


@pytest.mark.host
def test_own_task_has_help_and_one_sentence_for_data_that_is_not_there(tmp_path: Path) -> None:
    page = program(tmp_path, "--help")
    assert page.returncode == 0
    assert "Train a network to compute what circuits compute." in page.stdout
    assert "Length of a gate's state." in page.stdout
    run = program(tmp_path)
    assert run.returncode == 1
    assert (
        run.stderr
        == f"own_task.py: {tmp_path / 'circuits' / 'train.jsonl'}: cannot be read: No such file or directory\n"
    )
