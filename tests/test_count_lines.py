"""`scripts/count_lines` prints the numbers of lines and fails above their limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.host


@pytest.mark.parametrize("more", [False, True])
def test_lines_are_counted_by_language_and_compared_with_the_limit(tmp_path: Path, more: bool) -> None:
    for folder in ("vpps/nested", "templates", "tests", "bench", "docs", "scripts"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "vpps" / "nested" / "a.py").write_text("x = 1\n\n# why\n")
    (tmp_path / "vpps" / "b.cpp").write_text("int x;\n" * 1200)
    (tmp_path / "vpps" / "notes.md").write_text("not code\n")
    (tmp_path / "scripts" / "run").write_text("true\n" * (100_000 if more else 10))
    script = [sys.executable, str(ROOT / "scripts/count_lines"), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    rows = {row[0]: row[1:] for row in map(str.split, done.stdout.splitlines())}
    assert rows["C++"] == ["Python", "scripts", "all", "allowed"]
    assert rows["vpps"][:4] == ["1,200", "3", "0", "1,203"]
    assert (done.returncode, done.stderr) == ((1, "more lines than allowed: scripts\n") if more else (0, ""))
