"""`scripts/count_lines` prints what there is and fails beyond what the change log allows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.host

CHANGELOG = "# Changelog\n\n## 0.2.0\n\n{}\n\n- Something.\n\n## 0.1.0\n\nLines: code 1, kernels 1,000\n"


def count(tree: Path, line: str) -> tuple[int, list[str], str]:
    """Exit code, words of the table's lines and messages, for a tree with that line in the latest entry."""
    (tree / "CHANGELOG.md").write_text(CHANGELOG.format(line))
    script = [sys.executable, str(ROOT / "scripts/count_lines"), str(tree)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    return done.returncode, [" ".join(row.split()) for row in done.stdout.splitlines()], done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, n in (
        ("code/a.py", 2),
        ("code/deep/b.py", 3),
        ("code/c.h", 4),
        ("code/data.json", 9),
        ("kernels/k.cuh", 1200),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n" * n)
    return tmp_path


def test_a_tree_within_its_budget(tree: Path) -> None:
    table = ["C++ CUDA Python all allowed", "code 4 0 5 9 10", "kernels 0 1,200 0 1,200 1,200"]
    assert count(tree, "Lines: code 10, kernels 1,200") == (0, table, "")


def test_a_tree_beyond_its_budget(tree: Path) -> None:
    status, table, message = count(tree, "Lines: code 10, kernels 1,199")
    assert (status, len(table), message) == (1, 3, "more lines than CHANGELOG.md allows: kernels\n")


def test_an_entry_without_a_budget(tree: Path) -> None:
    status, _, message = count(tree, "Smaller.")
    assert status == 1
    assert message.startswith("CHANGELOG.md: the latest entry has no line such as `Lines: ")
