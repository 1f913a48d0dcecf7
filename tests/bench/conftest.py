"""The programs in bench/ are scripts: they import each other by name."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.bench.programs import brackets

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))


@pytest.fixture
def trees_file(tmp_path: Path) -> Path:
    """A dozen trees, one a line."""
    rng = random.Random(2)
    path = tmp_path / "trees.txt"
    path.write_text("\n".join(brackets(rng, rng.randrange(2, 12)) for _ in range(12)), encoding="utf-8")
    return path
