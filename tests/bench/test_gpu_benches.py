"""The benches of a GPU from their first line to their last, on an imaginary one that PyTorch does not see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vpps.data.synthetic import synthetic_treebank

pytestmark = pytest.mark.simt

ROOT = Path(__file__).parents[2]
SMALL = ["--hidden", "8", "--embedding", "8", "--limit", "2", "--passes", "1", "--batch-sizes", "2"]


@pytest.mark.parametrize(
    "program, arguments, unit",
    [
        ("gpu_step.py", [], "us/step"),
        ("gpu_treelstm.py", ["--tf32", "off"], "sentences/s"),
        ("gpu_lstm.py", ["--tf32", "off", "--tokens", "3"], "sequences/s"),
    ],
)
def test_a_bench_runs_without_peers(tmp_path: Path, program: str, arguments: list[str], unit: str) -> None:
    trees = synthetic_treebank(8, 1).train
    data = tmp_path / "data.txt"
    if program == "gpu_lstm.py":
        data.write_text("\n".join(" ".join(f"{token}|X" for token in tree.tokens) for tree in trees))
        arguments = ["--sentences", str(data), *arguments]
    else:
        data.write_text("\n".join(map(str, trees)))
        arguments = ["--trees", str(data), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/runtime/imaginary"), str(ROOT)])}
    command = [sys.executable, str(ROOT / "bench" / program), *SMALL, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["unit"] == unit
    assert lines[0]["value"] > 0
    assert lines[0]["gpu"]["name"] == "Imaginary 1"
    assert "vps=8" in lines[0]["case"] or "measuring vpps alone" in done.stderr
