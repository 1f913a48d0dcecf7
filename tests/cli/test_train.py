"""`vpps-train` on trees: usage, training, checkpoints. Tests of the program's end use a separate process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from safetensors import safe_open

import vpps
from tests.cli.program import EPOCH, Epoch, contents, epochs, vpps_train
from tests.processes import HEED_CTRL_C
from vpps.cli import loop
from vpps.cli.saved_run import best_of
from vpps.data import synthetic_treebank
from vpps.model.optim import OPTIMIZERS
from vpps.runtime.cores import usable_cores
from vpps.runtime.machine import Machine
from vpps.tuning.candidates import counts

MAIN = [sys.executable, "-c", HEED_CTRL_C + "from vpps.cli.train import main; main()"]
KILLED_BEFORE_RENAMING = """
import os, signal
from vpps.cli.train import main

replace, left = os.replace, {}  # renamings until it is killed

def counted(old, new):
    global left
    if "parts" in str(new):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    replace(old, new)

os.replace = counted
main()
"""
SMALL: dict[str, Any] = {"hidden": 16, "embedding": 16, "limit": 64, "lr": 0.01}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
ENVIRONMENT = {**os.environ, "COLUMNS": "200", "VPPS_VERIFY": "0"}  # tests/zoo verifies scripts of every task


def run(*flags: str, **options: Any) -> tuple[int, str, str]:
    return vpps_train("tree-lstm", *flags, **options)


def train(*flags: str, **options: Any) -> list[Epoch]:
    return epochs("tree-lstm", *flags, **{"epochs": 1, **SMALL, **options})


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "VPPS_VERIFY"):
        monkeypatch.setenv(name, ENVIRONMENT[name])


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    """Make a folder of 60 and 20 trees, as --data takes it."""
    bank = synthetic_treebank(60, 20, seed=9)
    for name, trees in (("train.txt", bank.train), ("dev.txt", bank.dev)):
        (tmp_path / name).write_text("".join(f"{tree}\n" for tree in trees))
    return tmp_path


@pytest.mark.cpu
def test_a_terminal_shows_no_loss_before_one_is_known_and_no_speed_with_compiling_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, happened = StringIO(), []
    monkeypatch.setattr(loop, "plain_console", lambda quiet: Console(file=shown, force_terminal=True, width=120))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: happened.append("clock") or len(happened)))
    monkeypatch.setenv("VPPS_PASSES", "all")  # only tails make a cpu kernel depend on its model
    specialise = Machine.specialise
    monkeypatch.setattr(Machine, "specialise", lambda *a: happened.append("compile") or specialise(*a))
    code, _, err = run(epochs=1, batch_size=8, vps=1, **SMALL)
    assert code == 0, err
    assert happened == ["compile", "clock", "clock"]
    assert "0/8" in shown.getvalue()
    assert "nan" not in shown.getvalue()


@pytest.mark.host
class TestUsage:
    @pytest.mark.parametrize(
        "flags, message",
        [
            (["--epochs", "0"], "--epochs"),
            (["--optimizer", "lion"], "lion"),
            (["--resume"], "--checkpoint"),
            (["--checkpoint", "/no/such/folder/run"], "no folder /no/such/folder"),
        ],
    )
    def test_wrong_usage_exits_with_2(self, flags: list[str], message: str) -> None:
        code, _, err = run(*flags)
        assert code == 2
        assert message in err


@pytest.mark.cpu
class TestTraining:
    def test_output_to_a_pipe_is_plain(self) -> None:
        environment = {**ENVIRONMENT, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        command = [*MAIN, "tree-lstm", "--epochs", "1", *FLAGS]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert "\x1b" not in result.stdout
        assert "\r" not in result.stdout
        assert len(result.stdout.splitlines()) == 2
        assert " per node  dev root accuracy " in result.stdout

    @pytest.mark.parametrize("optimizer", [rule.name for rule in OPTIMIZERS])
    def test_every_optimizer_trains_from_files(self, treebank: Path, optimizer: str) -> None:
        size = {"hidden": 16, "embedding": 16}
        first, second = epochs("tree-lstm", data=treebank, epochs=2, optimizer=optimizer, **size)
        assert second.loss < first.loss

    def test_root_only_reports_loss_per_tree(self) -> None:
        _, out, _ = run("--root-only", epochs=1, **SMALL)
        found = re.search(r"loss (\d+\.\d{4}) per tree  dev", out)
        assert found
        assert float(found[1]) == pytest.approx(1.6, abs=0.2)  # ln 5: nothing has been learned yet

    def test_seed_decides_the_run(self) -> None:
        first, again, other = (train(seed=seed) for seed in (1, 1, 2))
        assert first == again != other

    def test_precision_decides_the_run(self, tmp_path: Path) -> None:
        losses, weights = [], set()
        for k, name in enumerate(("float32", "bf16", "bf16,tree_lstm/U=float32")):
            (line,) = train(precision=name, checkpoint=tmp_path / str(k))
            losses.append(line.loss)
            weights.add(tuple(contents(tmp_path / str(k))[1].values()))
        assert len(weights) == 3
        assert losses == pytest.approx([train()[0].loss] * 3, rel=0.01)

    def test_autotune_does_not_change_the_run_and_tells_what_it_found(self) -> None:
        plain, tuned = (run(*more, epochs=1, **SMALL)[1].splitlines() for more in ([], ["--autotune"]))
        first, second = (EPOCH.fullmatch(lines[1]) for lines in (plain, tuned))
        assert first
        assert second
        assert first.groups() == second.groups()
        assert tuned[2:] == [f"being tuned: {2 * len(counts(usable_cores()))} turns of 10 batches left"]


@pytest.mark.cpu
class TestCheckpoint:
    @pytest.mark.parametrize("renamings", [2, 4], ids=["first epoch", "second epoch"])
    def test_run_killed_between_two_files_goes_on_as_an_uninterrupted_one(self, renamings: int, tmp_path: Path) -> None:
        """The interruption leaves an epoch's files incomplete: after the first epoch, only the best model exists."""
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        train(checkpoint=whole, epochs=2, lr=0.1)
        with safe_open(best_of(whole), framework="numpy") as file:
            assert json.loads(file.metadata()["user.vpps-train"])["epoch"] == 2  # otherwise there is only one file
        program = KILLED_BEFORE_RENAMING.format(renamings)
        killed = subprocess.run(
            [sys.executable, "-c", program, "tree-lstm", "--checkpoint", parts, *FLAGS, "--lr", "0.1", "--epochs", "2"],
            capture_output=True, env=ENVIRONMENT, timeout=300, check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
        assert parts.exists() == (renamings > 2)
        run("--resume", checkpoint=parts)
        assert contents(whole) == contents(parts)
        assert contents(best_of(whole)) == contents(best_of(parts))

    def test_a_learned_policy_is_kept(self, tmp_path: Path) -> None:
        """A resumed run equals the uninterrupted run. The policy is learned once: other orders give other bits."""
        data = {"hidden": 8, "embedding": 8, "limit": 24}
        names = whole, parts, usual = [tmp_path / name for name in ("whole", "parts", "usual")]
        for path, policy, n in zip(names, ("fsm", "fsm", "sinks-last"), (2, 1, 2), strict=True):
            epochs("lattice-gru", policy=policy, checkpoint=path, epochs=n, **data)
        learned = vpps.Model.load(parts).learned_policy
        assert learned is not None
        assert set(learned.recurrences[0].cells) == {"LatticeGRU.character", "LatticeGRU.word"}
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr("vpps.cli.options.learn_policy")
            code, _, err = vpps_train("lattice-gru", "--resume", checkpoint=parts, epochs=2)
        assert code == 0, err
        assert contents(whole) == contents(parts)
        assert contents(whole)[1] != contents(usual)[1]

    def test_finished_run_says_so(self, tmp_path: Path) -> None:
        train(checkpoint=tmp_path / "run")
        code, out, _ = run("--resume", checkpoint=tmp_path / "run")
        assert code == 0
        assert "has finished epoch 1" in out

    def test_ctrl_c_exits_with_130_and_says_how_to_go_on(self, tmp_path: Path) -> None:
        command = [*MAIN, "tree-lstm", "--epochs", "100000", "--checkpoint", str(tmp_path / "run"), *FLAGS]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("epoch 1/"):
            assert line, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert re.fullmatch(
            r"vpps-train: interrupted after \d+ of 100000 epochs; continue with --resume --checkpoint .*run\n", errors
        )
