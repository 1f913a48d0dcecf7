"""What the README shows, runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vpps

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.cpu
def test_the_example_trains(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    *losses, probabilities = run.stdout.splitlines()
    assert float(losses[-1].split()[1]) < 0.1 * float(losses[0].split()[1])
    assert probabilities.startswith("[1. ")


@pytest.mark.host
def test_every_op_that_it_lists_exists() -> None:
    (listed,) = re.findall(r"- \*\*Ops\*\*:(.*?)Not yet", README, flags=re.DOTALL)
    names: list[str] = re.findall(r"`([a-z_]+)`", listed)
    assert len(names) > 30
    assert [n for n in names if not hasattr(vpps, n)] == []
