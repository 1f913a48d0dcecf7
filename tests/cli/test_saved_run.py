"""The record of a run, saved with its weights: restored options, the best model, conditions to continue."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import vpps
from tests.cli.program import contents, epochs, vpps_train
from vpps import config
from vpps.cli.options import LEARNING_RATES
from vpps.cli.saved_run import best_of
from vpps.cli.train import about, command_of, load_run
from vpps.data import synthetic_treebank
from vpps.errors import CheckpointError, DataError, ModelError
from vpps.model.optim import OPTIMIZERS
from vpps.zoo.task import setting
from vpps.zoo.tasks import TASKS

TREE_LSTM = TASKS["tree-lstm"]

pytestmark = pytest.mark.cpu

SMALL = {"hidden": 8, "embedding": 8}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")  # tests/zoo verifies scripts of every task
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the path of a run's checkpoint."""
    return tmp_path / "run"


def train(*flags: str, **options: Any) -> list[Any]:
    return epochs("tree-lstm", *flags, **{"epochs": 1, "limit": 16, **SMALL, **options})


def kept(checkpoint: Path) -> dict[str, Any]:
    """Return the record of the run in a checkpoint."""
    found: dict[str, Any] = json.loads(vpps.Model.load(checkpoint).metadata["vpps-train"])
    return found


def write_treebank(folder: Path, seed: int) -> Path:
    """Write a folder for --data."""
    folder.mkdir()
    bank = synthetic_treebank(30, 10, seed=seed)
    for name, trees in (("train.txt", bank.train), ("dev.txt", bank.dev)):
        (folder / name).write_text("".join(f"{tree}\n" for tree in trees))
    return folder


class TestOptions:
    def test_of_all_types_come_back(self, tmp_path: Path, run: Path) -> None:
        data = write_treebank(tmp_path / "trees", seed=2)
        given = {"data": data, "lr": 0.02, "optimizer": "momentum", "vps": 2, "target": "cpu", "clip_norm": 3.0}
        given["precision"] = "bf16,tree_lstm/W=float32"
        train("--root-only", checkpoint=run, **given)
        before = kept(run)["settings"]
        (line,) = epochs("tree-lstm", "--resume", checkpoint=run, epochs=2, data=data)
        assert line.number == 2
        assert kept(run)["settings"] == before | {"epochs": 2, "vps": None}
        assert before["data"] == str(data)
        assert before["root_only"] is True
        assert before["limit"] == 16

    def test_data_may_be_another_on_resume_and_keeps_the_vocabulary(self, tmp_path: Path, run: Path) -> None:
        first, second = (write_treebank(tmp_path / f"trees{k}", seed=k) for k in (1, 2))
        train(checkpoint=run, data=first)
        words = kept(run)["state"]["names"]["vocabularies"]
        (line,) = epochs("tree-lstm", "--resume", checkpoint=run, epochs=2, data=second)
        assert line.number == 2
        assert kept(run)["settings"]["data"] == str(second)
        assert kept(run)["state"]["names"]["vocabularies"] == words

    def test_labels_beyond_the_limit_are_known_when_the_run_goes_on(self, tmp_path: Path, run: Path) -> None:
        data = write_treebank(tmp_path / "trees", seed=1)
        for name, tree in (("train.txt", "(9 a)"), ("dev.txt", "(0 a)")):
            (data / name).write_text("(1 (0 a) (1 b))\n" * 16 + tree)
        train(checkpoint=run, data=data)
        (line,) = epochs("tree-lstm", "--resume", checkpoint=run, epochs=2, data=data)
        assert line.number == 2

    def test_files_are_read_only_where_the_command_line_names_them(self, tmp_path: Path, run: Path) -> None:
        """A checkpoint may come from a stranger."""
        data = write_treebank(tmp_path / "trees", seed=1)
        train(checkpoint=run, data=data, timeout=7)
        (data / "train.txt").unlink()
        code, _, err = vpps_train("tree-lstm", "--resume", checkpoint=run, epochs=2)
        assert code == 2
        said = "".join(re.findall(r"[^\s│]", err))
        assert f"--data:{run}wastrainedwith{data}:namethefiletoread" in said

    def test_says_what_is_as_the_checkpoint_says(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "_quiet", None)
        monkeypatch.setenv("VPPS_LOG", "")
        train(checkpoint=run, timeout=7, vps=1)
        code, _, err = vpps_train("tree-lstm", "--resume", checkpoint=run, epochs=2)
        assert code == 0
        (said,) = [line for line in err.splitlines() if f"as {run} says: " in line]
        assert "--limit 16" in said
        assert "--timeout" not in said
        assert "--vps" not in said

    def test_learning_rate_is_that_of_the_optimizer(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TREE_LSTM, "training", {"lr": 0.123})
        rates: list[float | None] = []
        monkeypatch.setattr("vpps.cli.loop._optimizer", lambda options: rates.append(options.lr) or vpps.SGD(lr=0.1))
        app = typer.Typer()
        app.callback()(about)
        app.command("tree-lstm")(command_of(TREE_LSTM))
        monkeypatch.setattr("tests.cli.program.app", app)
        train()
        train(optimizer="adam")
        train(optimizer="sgd")
        train(optimizer="sgd", lr=0.5)
        assert rates == [0.123, 0.123, None, 0.5]
        _, out, _ = vpps_train("tree-lstm", "--help")
        assert "0.123; with another --optimizer" in out


class TestStopping:
    def test_patience_stops_and_the_best_is_kept(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scores = iter([0.2, 0.5, 0.3, 0.5, 0.4, 0.9])
        monkeypatch.setattr(TREE_LSTM, "evaluate", lambda task, handle: {"dev score": next(scores)})
        code, out, _ = vpps_train("tree-lstm", epochs=9, patience=3, limit=16, checkpoint=run, **SMALL)
        assert code == 0
        lines = out.splitlines()
        assert [line.split()[1] for line in lines[1:-1]] == ["1/9", "2/9", "3/9", "4/9", "5/9"]
        assert lines[-1] == f"no better dev score for 3 epochs: the best, 0.500, was epoch 2, kept in {best_of(run)}"
        assert kept(run)["epoch"] == 5
        assert kept(best_of(run))["epoch"] == 2
        # The model with the best score is kept.
        scores = iter([0.2, 0.5])
        train(epochs=2, checkpoint=run.with_name("two"))
        assert contents(best_of(run))[1] == contents(run.with_name("two"))[1]
        # A user who continues is told so, and can ask for more epochs.
        code, out, _ = vpps_train("tree-lstm", "--resume", checkpoint=run)
        assert (code, out.splitlines()[1]) == (
            0, f"{run} has no better score since epoch 2 of 5: ask for more with --patience",
        )  # fmt: skip
        scores = iter([0.9])
        code, out, _ = vpps_train("tree-lstm", "--resume", checkpoint=run, patience=4, epochs=6)
        assert code == 0
        assert kept(best_of(run))["epoch"] == 6

    def test_a_score_that_is_no_number_is_no_better(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scores = iter([math.nan, math.nan, 0.1, math.nan, math.nan])
        monkeypatch.setattr(TREE_LSTM, "evaluate", lambda task, handle: {"dev score": next(scores)})
        options = {"patience": 2, "limit": 16, **SMALL}
        code, out, _ = vpps_train("tree-lstm", epochs=9, checkpoint=run, **options)
        assert code == 0
        assert [line.split()[1] for line in out.splitlines()[1:-1]] == [f"{k}/9" for k in range(1, 6)]
        assert kept(run)["best"] == {"lower_is_better": False, "score": 0.1, "epoch": 3}
        monkeypatch.setattr(TREE_LSTM, "evaluate", lambda task, handle: {"dev score": math.nan})
        code, out, _ = vpps_train("tree-lstm", epochs=9, **options)
        assert len(out.splitlines()) == 5  # a heading, three epochs, the reason to stop

    def test_lower_is_better_where_the_task_says_so(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        scores = iter([9.0, 7.0, 8.0])
        monkeypatch.setattr(TREE_LSTM, "lower_is_better", True)
        monkeypatch.setattr(TREE_LSTM, "evaluate", lambda task, handle: {"perplexity": next(scores)})
        train(epochs=3, checkpoint=run)
        assert kept(run)["best"] == {"lower_is_better": True, "score": 7.0, "epoch": 2}
        assert kept(best_of(run))["epoch"] == 2


class TestRefusals:
    @pytest.mark.parametrize("name", ["run", "run.best"])
    def test_files_that_are_there_are_not_overwritten(self, run: Path, name: str) -> None:
        path = run.with_name(name)
        path.write_text("precious")
        code, _, err = vpps_train("tree-lstm", checkpoint=run)
        assert code == 2
        said = "".join(err.split()).replace("│", "")  # the text is in a box and can wrap anywhere
        assert f"{name}exists:add--resumetocontinueit,ormoveitaway" in said
        assert path.read_text() == "precious"

    @pytest.mark.parametrize("content", [None, b"\x08\0\0\0\0\0\0\0not json"])
    def test_missing_and_damaged_checkpoints_are_one_sentence(self, run: Path, content: bytes | None) -> None:
        if content is not None:
            run.write_bytes(content)
        code, out, err = vpps_train("tree-lstm", "--resume", checkpoint=run)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert str(run) in err

    def test_model_of_another_size_is_refused(self, run: Path) -> None:
        train(checkpoint=run)
        code, _, err = vpps_train("tree-lstm", "--resume", checkpoint=run, hidden=16)
        assert code == 2
        assert "was trained with 8" in err

    def test_folder_that_cannot_be_written_to_is_found_before_training(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.access", lambda path, mode: path != run.parent)
        code, out, err = vpps_train("tree-lstm", checkpoint=run)
        assert (code, out) == (2, "")
        assert "may not be written to" in err

    def test_checkpoint_of_another_version_is_one_sentence(self, run: Path) -> None:
        model = vpps.Model(seed=1)
        model.parameter("b", (3,))
        model.save(run, metadata={"vpps-train": json.dumps({"task": "tree-lstm", "epoch": 1})})
        code, _, err = vpps_train("tree-lstm", "--resume", checkpoint=run)
        assert code == 1
        assert "another version of vpps-train" in err

    def test_checkpoint_of_another_task_is_one_sentence(self, run: Path) -> None:
        train(checkpoint=run)
        code, _, err = vpps_train("tree-lstm-child-sum", "--resume", checkpoint=run)
        assert (code, err) == (
            1,
            f"vpps-train: {run}: is a run of `vpps-train tree-lstm`, not of tree-lstm-child-sum\n",
        )


def test_every_optimizer_has_a_learning_rate() -> None:
    assert LEARNING_RATES.keys() == {rule.name for rule in OPTIMIZERS}


class Depth(Enum):
    FLAT = "flat"
    DEEP = "deep"


@dataclass(frozen=True, kw_only=True)
class OwnSettings(TREE_LSTM.settings_type):
    """Settings of all types, as in a user's task; one is an ordinary field."""

    depth: Depth = setting(Depth.FLAT, "An Enum that is no text.", shapes_model=True)
    vectors: Path | None = setting(None, "A path that the model depends on.", shapes_model=True)
    layers: int = 2
    most: int = setting(None, "Of a type that its default is not of.", min=1)


class OwnTask(TREE_LSTM):
    """Train a network written by a user."""

    name = "own"
    settings_type = OwnSettings


class TestOwnTask:
    def test_settings_of_all_types_come_back(self, run: Path) -> None:
        program = typer.Typer()
        program.command()(command_of(OwnTask))
        small = [f"--{name}={value}" for name, value in {"epochs": 1, "limit": 8, **SMALL}.items()]
        given = ["--depth=deep", f"--vectors={run}.vectors", "--layers=3"]

        def trained(*arguments: str) -> Any:
            return CliRunner().invoke(program, [*arguments, f"--checkpoint={run}"])

        assert trained(*small, *given).exit_code == 0
        before = kept(run)["settings"]
        assert (before["depth"], before["vectors"], before["layers"]) == ("deep", f"{run}.vectors", 3)
        for epochs_, again in enumerate((given[1:2], given), start=2):  # the options stay the same when repeated
            found = trained("--resume", f"--epochs={epochs_}", *again)
            assert found.exit_code == 0, found.output
            assert kept(run)["settings"] == before | {"epochs": epochs_}
        assert "was trained with deep" in trained("--resume", "--depth=flat").output

    def test_setting_without_a_default_is_an_error_that_says_so(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Settings(TREE_LSTM.settings_type):
            layers: int

        class Task(TREE_LSTM):
            settings_type = Settings

        with pytest.raises(ModelError, match="setting 'layers' has no default; write layers: "):
            command_of(Task)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint of a one-epoch run, which several tests read."""
    path = tmp_path_factory.mktemp("forged") / "run"
    assert len(epochs("tree-lstm", epochs=1, limit=8, checkpoint=path, **SMALL)) == 1
    return path


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Return a copy in which the record of the run is changed or replaced by a text; the checksum is correct."""
    model = vpps.Model.load(checkpoint)
    run = json.loads(model.metadata["vpps-train"])
    text = change(run)
    forged = checkpoint.with_name("forged")
    model.save(forged, metadata={"vpps-train": text if isinstance(text, str) else json.dumps(run)})
    return forged


class TestForged:
    """The record of the run in a checkpoint is checked on reading: a one-sentence error names the file."""

    @pytest.mark.parametrize(
        "where, change",
        [
            *(([], text) for text in ("{", "[1]", "[" * 100_000)),
            *(([], change) for change in ({"task": 1}, {"epoch": -1}, {"epoch": True}, {"state": []}, {"state": {}})),
            *((["best"], change) for change in ({"score": "good"}, {"epoch": 7})),
            *((["settings"], change) for change in (
                {"hidden": -3}, {"hidden": "8"}, {"batch_size": 1.5}, {"lr": []}, {"clip_norm": math.nan},
                {"optimizer": {}}, {"target": "tpu"}, {"data": 3}, {"root_only": "no"},
            )),
            (["state"], {"n_classes": 2.5}),
            *((["state", "names"], change) for change in (
                {"arity": 1 << 40}, {"arity": None}, {"vocabularies": {"word": [1]}},
            )),
        ],
    )  # fmt: skip
    def test_is_one_sentence(self, checkpoint: Path, where: list[str], change: Any) -> None:
        forged = forge(
            checkpoint, lambda run: change if isinstance(change, str) else reduce(getitem, where, run).update(change)
        )
        code, out, err = vpps_train("tree-lstm", "--resume", checkpoint=forged)
        assert (code, out) == (1, "")
        assert err.startswith(f"vpps-train: {forged}: damaged: ")
        assert len(err.splitlines()) == 1

    @pytest.mark.parametrize("name", ["lattice-gru", "bilstm-char-tagger", "nmt", "td-rnn", "fixed-lstm"])
    def test_states_of_all_kinds_are_checked(self, name: str) -> None:
        task = TASKS[name]
        settings = task.settings_type(limit=2, **{"hidden": 2} if name == "td-rnn" else {"hidden": 2, "embedding": 2})
        state = json.loads(json.dumps(task(settings).state()))
        assert task(settings, state).model.n_weights  # unchanged
        for item in state:
            for wrong in (None, -1, 1 << 40, "x", [], {}, [{}], {"arity": 2}):
                with pytest.raises(CheckpointError, match="damaged: "):
                    task(settings, state | {item: wrong})
            with pytest.raises(CheckpointError, match="damaged: "):
                task(settings, {other: value for other, value in state.items() if other != item})

    def test_data_that_no_file_is_called_is_one_sentence(self, checkpoint: Path) -> None:
        for data in ("a\0b", "\ud800", "x" * 5000):
            forged = forge(checkpoint, lambda run, data=data: run["settings"].update(data=data))
            with pytest.raises(DataError):
                load_run(forged)


class TestLoadRun:
    def test_predicts_as_the_run_that_was_kept(self, run: Path) -> None:
        train(checkpoint=run, seed=5)
        task = load_run(run)
        with vpps.Handle(task.model, train=False) as handle:
            scores = task.scores(task.results(handle, task.dev))
        assert isinstance(task, TREE_LSTM)
        assert (task.settings.hidden, task.settings.seed) == (8, 5)
        assert scores["dev root accuracy"] == kept(run)["best"]["score"]

    @pytest.mark.parametrize("path", ["a\0b", "\ud800", b"run", None, "x" * 300])
    def test_of_what_is_no_file_is_refused(self, path: Any) -> None:
        with pytest.raises(CheckpointError):
            load_run(path)

    def test_of_another_task_is_refused(self, run: Path) -> None:
        train(checkpoint=run)
        with pytest.raises(CheckpointError, match="is a run of `vpps-train tree-lstm`, not of rvnn"):
            load_run(run, TASKS["rvnn"])
