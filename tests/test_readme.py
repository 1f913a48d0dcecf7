"""What the README shows, runs."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vpps

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


PROGRAM, OF_BATCHES, OWN_TASK, PREDICTIONS, WORKLOAD = re.findall(
    r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE
)

# What the second program takes for granted: a file, a model, cells, a handle.
BEFORE = """
import subprocess, sys, vpps
CONVERT = "from vpps.cli.data import app; app()"
with open("train.txt", "w") as file:
    file.write("(3 (2 The) (4 (3 good) (2 one)))\\n(1 (2 The) (0 (1 bad) (2 (2 other) (2 one))))\\n")
subprocess.run([sys.executable, "-c", CONVERT, "convert", "trees", "train.txt", "train.graphs"], check=True)
model = vpps.Model(seed=1)
E, W, U = model.lookup("E", (9, 8)), model.parameter("W", (16, 8)), model.parameter("U", (16, 16))
Wo, bo = model.parameter("Wo", (5, 8)), model.parameter("bo", (5,))

@vpps.cell
def leaf(word):
    o, u = vpps.split(W @ vpps.lookup(E, word), 2)
    return vpps.tanh(u), vpps.sigmoid(o) * vpps.tanh(u)

@vpps.cell
def inner(c_left, h_left, c_right, h_right):
    o, u = vpps.split(U @ vpps.concat([h_left, h_right]), 2)
    c = vpps.tanh(u) + c_left + c_right
    return c, vpps.sigmoid(o) * vpps.tanh(c)

handle = vpps.Handle(model)
"""


@pytest.mark.cpu
def test_the_example_with_graphs_as_data_trains(tmp_path: Path) -> None:
    program = BEFORE + OF_BATCHES + "    assert 0 < handle.sync_get_latest_loss() < 30\nprint('trained', len(trees))\n"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "trained 2"


@pytest.mark.cpu
def test_the_example_trains(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    *losses, probabilities = run.stdout.splitlines()
    assert float(losses[-1].split()[1]) < 0.1 * float(losses[0].split()[1])
    assert probabilities.startswith("[1. ")


def write_expressions(path: Path, n: int, seed: int) -> None:
    """Sums and products of digits, a tree a line, and their values modulo 5."""
    rng = random.Random(seed)
    lines = []
    for _ in range(n):
        kind: list[str] = []
        children: list[list[int]] = []
        digits: list[int | None] = []
        signs: list[str | None] = []
        values: list[int] = []
        for _ in range(rng.randint(1, 4)):  # digits, then signs between the first and the next one
            kind, children = [*kind, "num"], [*children, []]
            digits, signs = [*digits, rng.randrange(10)], [*signs, None]
            values.append(digits[-1] or 0)
        top = 0
        for other in range(1, len(values)):
            sign = rng.choice("+*")
            kind, children = [*kind, "op"], [*children, [top, other]]
            digits, signs = [*digits, None], [*signs, sign]
            values.append(values[top] + values[other] if sign == "+" else values[top] * values[other])
            top = len(values) - 1
        columns = {"digit": digits, "op": signs}
        line = {"kind": kind, "children": children, "columns": columns, "graph": {"value": values[-1] % 5}}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.cpu
def test_the_own_model_trains_and_predicts(tmp_path: Path) -> None:
    def python(*arguments: str) -> str:
        run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        return run.stdout

    write_expressions(tmp_path / "train.jsonl", 600, seed=1)
    write_expressions(tmp_path / "dev.jsonl", 130, seed=2)
    convert = ["-c", "from vpps.cli.data import main; main()", "convert", "jsonl"]
    python(*convert, "train.jsonl", "train.graphs", "--fixed")
    python(*convert, "dev.jsonl", "dev.graphs", "--fixed", "--like", "train.graphs")
    (tmp_path / "calc.py").write_text(OWN_TASK, encoding="utf-8")
    lines = python("calc.py", "--data", ".", "--checkpoint", "my.run", "--patience", "3").splitlines()
    assert [float(line.split("dev accuracy ")[1].split()[0]) for line in lines[1:]][-1] > 0.3  # a fifth by chance
    shown = python("-c", "import vpps\nfrom calc import Calc\n" + PREDICTIONS)
    assert len(shown.splitlines()) >= 3  # of 130 expressions in batches of 64


@pytest.mark.host
def test_the_example_can_be_inspected(tmp_path: Path) -> None:
    before, handle, _ = PROGRAM.partition("with vpps.Handle")
    assert handle
    (tmp_path / "mytree.py").write_text(before + WORKLOAD, encoding="utf-8")
    command = [sys.executable, "-c", "from vpps.cli.inspect import main; main()", "plan", "mytree:batches"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "node" in run.stdout


@pytest.mark.host
def test_every_op_that_it_lists_exists() -> None:
    (listed,) = re.findall(r"- \*\*Ops\*\*:(.*?)Not yet", README, flags=re.DOTALL)
    names: list[str] = re.findall(r"`([a-z_]+)`", listed)
    assert len(names) > 30
    assert [n for n in names if not hasattr(vpps, n)] == []
