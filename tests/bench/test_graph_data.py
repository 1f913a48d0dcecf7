"""bench/graph_data.py at a small scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vpps.data import synthetic_treebank

pytestmark = pytest.mark.host

ROOT = Path(__file__).parents[2]


def test_prints_a_line_per_case(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("".join(f"{tree}\n" for tree in synthetic_treebank(20, 1).train))
    arguments = ["--trees", str(tmp_path / "trees.txt"), "--batch-sizes", "1,8", "--rounds", "2", "--vertices", "1000"]
    command = [sys.executable, str(ROOT / "bench" / "graph_data.py"), *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["case"] for line in lines] == ["convert", "load", "verify", "batch-1", "batch-8", "chain", "forest"]
    assert all(line["value"] > 0 for line in lines)
    assert {line["unit"] for line in lines} == {"s", "us"}
