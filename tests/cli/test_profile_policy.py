"""`vpps-profile --policy`: machines are learned, shown, kept, and listed by `vpps-cache`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.caches import cache_with_kernels
from vpps.cli import cache, profile

pytestmark = pytest.mark.host

SMALL = ("--policy", "--target", "cpu", "--batch-size", "2", "--hidden", "8", "--embedding", "8", "--limit", "8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the tuning database."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("VPPS_CACHE_DIR", str(cache_with_kernels(tmp_path)))
    return tmp_path / "tuning"


def run(*arguments: str) -> Result:
    found = CliRunner().invoke(profile.app, arguments)
    assert (found.exit_code, found.stderr) == (0, "")
    return found


def test_learns_keeps_and_lists(folder: Path) -> None:
    title, headings, line, kept = run("lattice-gru", *SMALL).stdout.splitlines()
    assert title.startswith("lattice-gru limit=8 hidden=8 embedding=8, batches of 2, training")
    assert "trials" in headings
    assert "lower bound" in headings
    assert {"LatticeGRU.character", "LatticeGRU.word"} <= set(line.replace(",", " ").split())
    assert kept.startswith("kept for handles with policy fsm, and auto. Undo it:")
    (path,) = folder.glob("machine-*.json")
    listed = CliRunner().invoke(cache.app, ["list", "--tuning"]).stdout
    assert listed.splitlines()[0].split("  ")[0] == "machine for batches of"
    assert "LatticeGRU.character" in listed
    (found,) = json.loads(CliRunner().invoke(cache.app, ["list", "--tuning", "--json"]).stdout)
    assert found["path"] == str(path)
    path.write_text("{}")
    assert "damaged, or of another version" in CliRunner().invoke(cache.app, ["list", "--tuning"]).stdout


def test_is_json_for_programs_and_keeps_nothing_where_told_so(folder: Path) -> None:
    (found,) = json.loads(run("lattice-gru", *SMALL, "--json", "--no-store").stdout)["recurrences"]
    assert found["lower_bound"] <= found["batches"]
    assert found["lower_bound"] <= min(found["sufficient"], found["critical"])
    assert found["states"] > 0
    assert found["path"] == ""
    assert not folder.exists()


def test_says_where_there_is_nothing_to_learn(folder: Path) -> None:
    assert "no recurrence of several cells" in run("tree-lstm", *SMALL).stdout
    assert not folder.exists()


def test_means_nothing_with_axes() -> None:
    found = CliRunner().invoke(profile.app, ["tree-lstm", "--policy", "--axes", "vps"])
    assert found.exit_code == 1
    assert "--axes means nothing with --policy" in found.stderr
