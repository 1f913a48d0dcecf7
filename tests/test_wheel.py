"""An installed wheel works outside the checkout: templates and type marker are inside, and it trains."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu

ROOT = Path(__file__).parents[1]
PROGRAM = """
import vpps
assert not vpps.__file__.startswith({root!r}), vpps.__file__
model = vpps.Model(seed=1)
W = model.parameter("W", (4, 4))
with vpps.Handle(model, vpps.SGD(lr=0.01), vps=2) as handle:
    for _ in range(9):
        graph = vpps.Graph()
        loss = vpps.sum(vpps.square(W @ graph.input([1, 2, 3, 4])))
        handle.fb(graph, loss)
    print(handle.sync_get_latest_loss())
"""


def test_a_wheel_trains_outside_the_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    run = subprocess.run(build, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (wheel,) = (tmp_path / "dist").glob("vpps-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    assert "vpps/templates/kernel.cu.j2" in names
    assert "vpps/templates/ops/elementwise.cuh" in names
    assert "vpps/py.typed" in names
    assert not [n for n in names if n.startswith(("tests/", "bench/"))]
    env = os.environ | {"PYTHONPATH": str(site)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(root=str(ROOT))],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=env,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert 0 < float(run.stdout) < 1
