"""`vpps-train`, run as a user would, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.processes import HEED_CTRL_C
from vpps.cli.saved_run import best_of
from vpps.data import synthetic_treebank
from vpps.model.optim import OPTIMIZERS

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
SMALL = ["--hidden", "16", "--embedding", "16", "--limit", "64", "--lr", "0.01"]
ENVIRONMENT = {**os.environ, "COLUMNS": "200"}
EPOCH = re.compile(
    r"epoch (?P<epoch>\d+)/\d+  loss (?P<loss>\d+\.\d{4}) per (?P<unit>\w+)"
    r"  dev root accuracy (?P<root>[01]\.\d{3})  all nodes (?P<nodes>[01]\.\d{3})  \d+ examples/s"
)


def vpps_train(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*MAIN, *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


def epochs(*arguments: str | Path) -> list[dict[str, str]]:
    """What the lines say that a successful run prints, one dict per epoch; speed aside."""
    result = vpps_train("tree-lstm", *arguments)
    assert result.returncode == 0, result.stderr
    return [match.groupdict() for line in result.stdout.splitlines() if (match := EPOCH.fullmatch(line))]


def contents(checkpoint: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Metadata and bytes of every array; their order in the file does not matter."""
    with safe_open(checkpoint, framework="numpy") as file:
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118


@pytest.fixture
def treebank(tmp_path: Path) -> Path:
    """A folder of 60 and 20 trees, as --data takes it."""
    bank = synthetic_treebank(60, 20, seed=9)
    for name, trees in (("train.txt", bank.train), ("dev.txt", bank.dev)):
        (tmp_path / name).write_text("".join(f"{tree}\n" for tree in trees))
    return tmp_path


@pytest.mark.host
class TestUsage:
    def test_help_lists_the_tasks(self) -> None:
        result = vpps_train("--help")
        assert result.returncode == 0
        assert "tree-lstm" in result.stdout

    @pytest.mark.parametrize(
        "option", ["--data", "--epochs", "--batch-size", "--optimizer", "--checkpoint", "--resume"]
    )
    def test_help_of_a_task_names_its_options(self, option: str) -> None:
        assert option in vpps_train("tree-lstm", "--help").stdout

    @pytest.mark.parametrize(
        "arguments, message",
        [
            (["--epochs", "0"], "--epochs"),
            (["--optimizer", "lion"], "lion"),
            (["--resume"], "--checkpoint"),
            (["--checkpoint", "/no/such/folder/run"], "no folder /no/such/folder"),
        ],
    )
    def test_wrong_usage_exits_with_2(self, arguments: list[str], message: str) -> None:
        result = vpps_train("tree-lstm", *arguments)
        assert result.returncode == 2
        assert message in result.stderr

    def test_missing_data_is_one_sentence_and_exit_code_1(self, tmp_path: Path) -> None:
        result = vpps_train("tree-lstm", "--data", tmp_path)
        assert result.returncode == 1
        assert (
            result.stderr == f"vpps-train: {tmp_path}: expected train.txt and dev.txt, or one text file, found none\n"
        )

    def test_malformed_data_is_located(self, treebank: Path) -> None:
        (treebank / "dev.txt").write_text("(3 (2 a) b)\n")
        result = vpps_train("tree-lstm", "--data", treebank)
        assert result.returncode == 1
        assert "dev.txt:1:10: expected" in result.stderr
        assert "Traceback" not in result.stderr

    def test_missing_checkpoint_is_one_sentence_and_exit_code_1(self, tmp_path: Path) -> None:
        result = vpps_train("tree-lstm", "--checkpoint", tmp_path / "none", "--resume")
        assert result.returncode == 1
        assert "none" in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.cpu
class TestTraining:
    def test_loss_falls_on_the_synthetic_treebank(self) -> None:
        lines = epochs("--epochs", "3", *SMALL)
        assert [line["epoch"] for line in lines] == ["1", "2", "3"]
        losses = [float(line["loss"]) for line in lines]
        assert losses[2] < losses[1] < losses[0]
        assert {line["unit"] for line in lines} == {"node"}

    def test_output_to_a_pipe_is_plain(self) -> None:
        environment = {**ENVIRONMENT, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        command = [*MAIN, "tree-lstm", "--epochs", "1", *SMALL]
        result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert "\x1b" not in result.stdout
        assert "\r" not in result.stdout
        assert len(result.stdout.splitlines()) == 2

    @pytest.mark.parametrize("optimizer", [rule.name for rule in OPTIMIZERS])
    def test_every_optimizer_trains_from_files(self, treebank: Path, optimizer: str) -> None:
        size = ("--hidden", "16", "--embedding", "16")
        lines = epochs("--data", treebank, "--epochs", "2", "--optimizer", optimizer, *size)
        assert float(lines[1]["loss"]) < float(lines[0]["loss"])

    def test_root_only_reports_loss_per_tree(self) -> None:
        (line,) = epochs("--epochs", "1", "--root-only", *SMALL)
        assert line["unit"] == "tree"
        assert float(line["loss"]) == pytest.approx(1.6, abs=0.2)  # ln 5: it has learned nothing yet

    def test_seed_decides_the_run(self) -> None:
        first, again, other = (epochs("--epochs", "1", "--seed", seed, *SMALL) for seed in ("1", "1", "2"))
        assert first == again != other

    def test_autotune_does_not_change_the_run_and_tells_what_it_found(self) -> None:
        plain, tuned = (vpps_train("tree-lstm", "--epochs", "1", *SMALL, *more) for more in ([], ["--autotune"]))
        assert tuned.returncode == 0, tuned.stderr
        first, second = (EPOCH.fullmatch(result.stdout.splitlines()[1]) for result in (plain, tuned))
        assert first
        assert second
        assert first.groupdict() == second.groupdict()
        (line,) = tuned.stdout.splitlines()[2:]
        assert re.fullmatch(
            r"(being tuned|tuned online): .* \(\d+( of up to \d+)? candidates? tried in 4 batches.*\)", line
        )

    def test_number_of_virtual_processors_does_not_change_the_run(self) -> None:
        one, three = (epochs("--epochs", "1", "--vps", vps, *SMALL) for vps in ("1", "3"))
        assert one == three


@pytest.mark.cpu
class TestCheckpoint:
    def test_resumed_run_equals_an_uninterrupted_one(self, tmp_path: Path) -> None:
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        uninterrupted = epochs("--epochs", "2", "--checkpoint", whole, *SMALL)
        epochs("--epochs", "1", "--checkpoint", parts, *SMALL)
        resumed = epochs("--epochs", "2", "--checkpoint", parts, "--resume")  # SMALL comes from the checkpoint
        assert resumed == uninterrupted[1:]
        assert contents(whole) == contents(parts)

    @pytest.mark.parametrize("renamings", [2, 4], ids=["first epoch", "second epoch"])
    def test_run_killed_between_two_files_goes_on_as_an_uninterrupted_one(self, renamings: int, tmp_path: Path) -> None:
        """With the files of an epoch half in place: of the first one there is the best model alone."""
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        improving = [*SMALL, "--lr", "0.1", "--epochs", "2"]
        epochs("--checkpoint", whole, *improving)
        with safe_open(best_of(whole), framework="numpy") as file:
            assert json.loads(file.metadata()["user.vpps-train"])["epoch"] == 2  # else there are no two files
        program = KILLED_BEFORE_RENAMING.format(renamings)
        killed = subprocess.run(
            [sys.executable, "-c", program, "tree-lstm", "--checkpoint", parts, *improving],
            capture_output=True, env=ENVIRONMENT, timeout=300, check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
        assert parts.exists() == (renamings > 2)
        vpps_train("tree-lstm", "--checkpoint", parts, "--resume")
        assert contents(whole) == contents(parts)
        assert contents(best_of(whole)) == contents(best_of(parts))

    def test_finished_run_says_so(self, tmp_path: Path) -> None:
        epochs("--epochs", "1", "--checkpoint", tmp_path / "run", *SMALL)
        result = vpps_train("tree-lstm", "--checkpoint", tmp_path / "run", "--resume")
        assert result.returncode == 0
        assert "has finished epoch 1" in result.stdout

    def test_checkpoint_is_not_overwritten_without_resume(self, tmp_path: Path) -> None:
        path = tmp_path / "run"
        path.write_text("precious")
        result = vpps_train("tree-lstm", "--checkpoint", path, *SMALL)
        assert result.returncode == 2
        assert path.read_text() == "precious"

    def test_model_of_another_size_is_refused(self, tmp_path: Path) -> None:
        epochs("--epochs", "1", "--checkpoint", tmp_path / "run", *SMALL)
        result = vpps_train("tree-lstm", "--checkpoint", tmp_path / "run", "--resume", "--hidden", "8")
        assert result.returncode == 2
        assert "was trained with 16" in result.stderr

    def test_damaged_checkpoint_is_one_sentence_and_exit_code_1(self, tmp_path: Path) -> None:
        (tmp_path / "run").write_bytes(b"\x08\0\0\0\0\0\0\0not json")
        result = vpps_train("tree-lstm", "--checkpoint", tmp_path / "run", "--resume")
        assert result.returncode == 1
        assert "Traceback" not in result.stderr

    def test_ctrl_c_exits_with_130_and_says_how_to_go_on(self, tmp_path: Path) -> None:
        command = [*MAIN, "tree-lstm", "--epochs", "100000", "--checkpoint", str(tmp_path / "run"), *SMALL]
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
