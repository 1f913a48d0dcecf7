"""`vpps-train` under mpiexec: any number of processes learns the same as one, and only one prints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import safe_open

from tests.cli.program import contents
from tests.cli.test_train import ENVIRONMENT, FLAGS
from vpps.cli.ranks import warnings_once
from vpps.cli.saved_run import best_of

pytest.importorskip("mpi4py")
MPIEXEC = Path(sys.executable).with_name("mpiexec")
MAIN = [sys.executable, "-c", "from vpps.cli.train import main; main()"]
DIFFERING = """
from vpps.cli import loop, train

def epoch(task, *rest, right=loop._epoch):
    loss = right(task, *rest)
    if not rest[-1].is_first:
        for p in task.model:
            p.assign(p.host + 1)
    return loss

loop._epoch = epoch
train.main()
"""
"""A program whose ranks have different weights after an epoch."""
FEW = [*FLAGS, "--batch-size", "9", "--shards", "6"]  # the last batch is one tree: five shards are empty

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(not MPIEXEC.exists(), reason="needs MPI: pip install vpps[mpi]")]


def vpps_train(ranks: int, *arguments: str | Path, main: str = MAIN[-1]) -> subprocess.CompletedProcess[str]:
    """Run with that many processes; 0: one process without mpiexec."""
    launcher = [str(MPIEXEC), "-n", str(ranks)] if ranks else []
    command = [*launcher, sys.executable, "-c", main, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False)


def said(ranks: int, *arguments: str | Path) -> list[str]:
    """Return the lines, without the speed, of a run that must succeed."""
    result = vpps_train(ranks, *arguments)
    assert result.returncode == 0, result.stderr
    return [re.sub(r"  \d+ examples/s", "", line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("task, numbers", [("tree-lstm", (2, 3)), ("nmt", (3,)), ("bilstm-char-tagger", (2,))])
def test_any_number_of_processes_learns_and_says_the_same(task: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    options = [*FEW, "--epochs", "2", "--checkpoint"]
    alone = said(0, task, *options, tmp_path / "0")
    assert len(alone) == 3
    for ranks in numbers:
        path = tmp_path / str(ranks)
        assert said(ranks, task, *options, path) == alone
        assert contents(path) == contents(tmp_path / "0")
        assert contents(best_of(path)) == contents(best_of(tmp_path / "0"))


def test_resumed_by_another_number_of_processes_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    uninterrupted = said(0, "tree-lstm", *FEW, "--epochs", "2", "--checkpoint", whole)
    said(2, "tree-lstm", *FEW, "--epochs", "1", "--checkpoint", parts)
    resumed = said(3, "tree-lstm", "--epochs", "2", "--checkpoint", parts, "--resume")  # FEW comes from the checkpoint
    assert resumed == [uninterrupted[0], uninterrupted[2]]
    assert contents(whole) == contents(parts)


def test_all_stop_early_together(tmp_path: Path) -> None:
    lines = said(
        2, "tree-lstm", *FLAGS, "--lr", "1e-9", "--patience", "2", "--epochs", "20", "--checkpoint", tmp_path / "run"
    )
    assert lines[-1].startswith("no better dev root accuracy for 2 epochs")
    with safe_open(tmp_path / "run", framework="numpy") as file:
        assert json.loads(file.metadata()["user.vpps-train"])["epoch"] == len(lines) - 2


def test_no_checkpoint_is_written_of_weights_that_differ(tmp_path: Path) -> None:
    result = vpps_train(2, "tree-lstm", *FLAGS, "--epochs", "1", "--checkpoint", tmp_path / "run", main=DIFFERING)
    assert result.returncode == 1
    assert "is not like the others in its weights, after step 4" in result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, message, status",
    [
        (["--epochs", "x"], "Invalid value for '--epochs'", 2),
        (["--resume"], "Invalid value for --resume", 2),
        (["--autotune"], "--autotune tries configurations on whole batches", 1),
        (["--timeout", "0"], "init(timeout=0.0): expected seconds", 1),
        (["--shards", "3"], "2 ranks cannot have as many shards each", 1),
        (["--data", "/no/such/folder"], "/no/such/folder: cannot be read", 1),
    ],
)
def test_errors_are_sentences_that_one_rank_says(arguments: list[str], message: str, status: int) -> None:
    result = vpps_train(2, "tree-lstm", *arguments)
    assert result.returncode == status
    assert result.stderr.count(message) == 1
    assert "Traceback" not in result.stderr


def test_usage_that_is_wrong_for_one_rank_alone_is_said() -> None:
    result = vpps_train(1, "tree-lstm", *FLAGS, ":", "-n", "1", *MAIN, "tree-lstm", "--epochs", "x")
    assert result.returncode != 0
    assert result.stderr.count("Invalid value for '--epochs'") == 2  # and the other process gives its reason to end
    assert re.search(r"rank 1 of 2 \(.*\) has failed: Invalid value for '--epochs'", result.stderr)


def test_steps_that_all_ranks_leave_out_are_warned_of_once() -> None:
    result = vpps_train(2, "tree-lstm", *FLAGS, "--optimizer", "sgd", "--lr", "1e38", "--epochs", "1")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("the step is left out") == 1


def test_warnings_come_from_the_first_rank_that_has_them() -> None:
    world: Any = SimpleNamespace(rank=1, gather=lambda own: [["all"], own, ["all", "last"]])

    def warned(fails: bool) -> list[str]:
        with warnings.catch_warnings(record=True) as given, suppress(ValueError), warnings_once(world):
            for text in ("all", "mine"):
                warnings.warn(text, stacklevel=1)
            if fails:
                raise ValueError
        return [str(warning.message) for warning in given]

    assert warned(fails=False) == ["mine"]
    assert warned(fails=True) == ["all", "mine"]
