"""Every `vpps-train` task, at a small size, through the command: messages and refusals, learning and resuming."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from tests.cli.program import contents, epochs, vpps_train
from vpps.cli.options import TrainOptions
from vpps.cli.train import app
from vpps.zoo.tasks import TASKS


class Small(NamedTuple):
    """A task small enough to be learned within seconds.

    Attributes:
        sizes: its settings, as options.
        training: options with which it beats any constant answer, on synthetic data.
        labels: column of the classes that it predicts.
        malformed: a line that the task's reader refuses; None if it accepts any text.
        files: contents of a data folder.
    """

    sizes: dict[str, Any]
    training: dict[str, Any]
    labels: str = "label"
    malformed: str | None = None
    files: tuple[str, ...] = ("train.txt", "dev.txt")


WORDS = {"hidden": 24, "embedding": 16}
PYRAMIDS = {"epochs": 3, "limit": 1000, "lr": 0.006}
PAIRS = ("train.en", "train.vi", "dev.en", "dev.vi")
TAGGER = Small(WORDS, {"epochs": 4, "limit": 200, "lr": 0.01}, labels="tag", malformed="a|O b")
TEXT = Small(WORDS, {"epochs": 3, "limit": 200, "lr": 0.01}, labels="next")
LATTICES = Small(WORDS, {"epochs": 4, "limit": 300, "lr": 0.01}, labels="tag", malformed="x")
TREES = Small(WORDS, {"epochs": 4, "limit": 400, "lr": 0.01}, malformed="(3 (2 a) b)")

SMALL = {
    "tree-lstm": TREES,
    "tree-lstm-child-sum": TREES,
    "tree-lstm-2type": TREES,
    "tree-gru": TREES,
    "rvnn": TREES._replace(  # sees only the labels of sentences
        sizes={**TREES.sizes, "mlp": 16}, training={"epochs": 3, "limit": 1000, "lr": 0.006}
    ),
    "mv-rnn": TREES._replace(sizes={"hidden": 8}),
    "td-rnn": TREES._replace(sizes={"hidden": 24, "mlp": 24}, training=PYRAMIDS),
    "td-lstm": TREES._replace(sizes=WORDS | {"mlp": 24}, training=PYRAMIDS),
    "tree-fc": Small({"hidden": 16, "leaves": 4}, {"epochs": 3, "limit": 1000, "lr": 0.005}, files=()),
    "bilstm-tagger": TAGGER,
    "bilstm-char-tagger": TAGGER._replace(sizes=WORDS | {"characters": 8}),
    "fixed-lstm": TEXT._replace(sizes=WORDS | {"steps": 12}),
    "var-lstm": TEXT,
    "nmt": Small(WORDS, {"epochs": 4, "limit": 600, "lr": 0.01}, labels="next", files=PAIRS),
    "lattice-lstm": LATTICES,
    "lattice-gru": LATTICES,
}

UNREADABLE = [
    (name, content, message)
    for name, small in SMALL.items()
    if small.files
    for content, message in (
        (b"\xff\xfe\x00binary\n" * 20, ":1:1: expected UTF-8 text"),
        (b"", ": expected "),
        *([(f"{small.malformed}\n".encode() * 20, f"{small.files[0]}:1:")] if small.malformed else []),
    )
]
"""Texts that a task's reader refuses, and its messages."""

every_task = pytest.mark.parametrize("name", list(TASKS))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPPS_VERIFY", "0")  # tests/zoo verifies scripts of every task
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.host
class TestUsage:
    def test_every_task_is_tested_here(self) -> None:
        assert SMALL.keys() == TASKS.keys()

    def test_help_of_the_program_lists_the_tasks(self) -> None:
        out = CliRunner().invoke(app, ["--help"]).stdout
        assert all(re.search(rf"^\W+{name} +Train ", out, re.MULTILINE) for name in TASKS)

    @every_task
    def test_help_names_settings_and_data(self, name: str) -> None:
        code, out, _ = vpps_train(name, "--help")
        assert code == 0
        for setting in (*fields(TASKS[name].settings_type), *fields(TrainOptions)):
            assert f"--{setting.name.replace('_', '-')}" in out
        words, page = (" ".join(text.split()) for text in (TASKS[name].data_help, out))
        assert words
        assert f"--data: {words}" in page
        assert "[bold]" not in page

    @every_task
    @pytest.mark.parametrize("folder, message", [("nowhere", "nowhere"), (".", "{folder}")])
    def test_missing_data_and_empty_folders_are_one_sentence(
        self, name: str, folder: str, message: str, tmp_path: Path
    ) -> None:
        assert_refused(name, tmp_path / folder, message.format(folder=tmp_path))

    @pytest.mark.parametrize("name, content, message", UNREADABLE)
    def test_data_that_cannot_be_read_is_one_sentence(
        self, name: str, content: bytes, message: str, tmp_path: Path
    ) -> None:
        for file in SMALL[name].files:
            (tmp_path / file).write_bytes(content)
        assert_refused(name, tmp_path, message)


def assert_refused(name: str, data: Path, message: str) -> None:
    """Assert that the command ends with status 1 and one line with the reason."""
    code, out, err = vpps_train(name, data=data)
    assert code == 1
    assert out == ""
    assert all(line.startswith("vpps-train: ") for line in err.splitlines())
    assert len(err.splitlines()) == 1 or "left out" in err  # each unreadable program is named in its own line
    assert message in err


@pytest.mark.cpu
class TestTraining:
    @every_task
    def test_learns_on_synthetic_data(self, name: str) -> None:
        from learning import baseline

        small, task = SMALL[name], TASKS[name]
        lines = epochs(name, **small.sizes, **small.training)
        assert [line.number for line in lines] == list(range(1, small.training["epochs"] + 1))
        losses = [line.loss for line in lines]
        assert losses[-1] < losses[1] < losses[0]
        limit = small.training["limit"]
        constant = baseline(task(task.settings_type(**small.sizes, limit=limit)), small.labels)
        score = next(iter(lines[-1].scores.values()))
        assert score < constant if task.lower_is_better else score > constant

    @every_task
    def test_resumed_run_equals_an_uninterrupted_one(self, name: str, tmp_path: Path) -> None:
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        uninterrupted = epochs(name, epochs=2, limit=24, checkpoint=whole, **SMALL[name].sizes)
        epochs(name, epochs=1, limit=24, checkpoint=parts, **SMALL[name].sizes)
        resumed = epochs(name, "--resume", epochs=2, checkpoint=parts)  # sizes come from the checkpoint
        assert resumed == uninterrupted[1:]
        assert contents(whole) == contents(parts)
