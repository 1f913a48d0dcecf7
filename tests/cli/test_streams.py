"""Standard streams of all programs: closed, full, no longer read, or ASCII only."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.program import contents, epochs
from vpps.data import GraphSet, Vocabulary

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
SAYS = 'from vpps.cli.streams import run_program; run_program("p", lambda: exit(print("s\\xfc\\xdf") or 3))'
FULL = "standard output cannot be written: No space left on device"
RUN: dict[str, Any] = {"epochs": 2, "limit": 16, "hidden": 8, "embedding": 8, "target": "cpu", "vps": 1}


def in_a_shell(code: str, *arguments: str, redirected: str = "", **environment: str) -> tuple[int, str, str]:
    """Return a program's exit code, output and error output."""
    found = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirected}', "sh", sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, env={**os.environ, "VPPS_VERIFY": "0", **environment}, timeout=120,
    )  # fmt: skip
    return found.returncode, found.stdout, found.stderr


@pytest.mark.host
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_program_bears_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, function = SCRIPTS[name].partition(":")
    found = importlib.import_module(module)
    ran: list[Any] = []
    monkeypatch.setattr(found, "run_program", lambda *arguments: ran.append(arguments))
    getattr(found, function)()
    assert ran == [(name, found.app)]


@pytest.mark.host
@pytest.mark.parametrize(
    "redirected, found",
    [
        ("", (3, "süß\n", "")),
        (">/dev/full", (1, "", f"p: {FULL}\n")),
        (">/dev/full 2>&1", (1, "", "")),
        (">&-", (3, "", "")),
        ("2>&-", (3, "süß\n", "")),
        (">&- 2>&- <&-", (3, "", "")),
    ],
)
def test_what_a_program_cannot_say_makes_its_exit_code(redirected: str, found: tuple[int, str, str]) -> None:
    assert in_a_shell(SAYS, redirected=redirected, PYTHONUTF8="1") == found


@pytest.mark.host
def test_where_nobody_reads_on_a_program_ends_as_by_sigpipe() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        found = subprocess.run([sys.executable, "-c", SAYS], stdout=writes, stderr=subprocess.PIPE, timeout=120)
    finally:
        os.close(writes)
    assert (found.returncode, found.stderr) == (141, b"")


@pytest.mark.host
def test_a_file_opened_later_is_not_what_compilers_print_to() -> None:
    code = 'from vpps.cli.streams import run_program; run_program("p", lambda: exit(open("/dev/zero").fileno()))'
    status, _, _ = in_a_shell(code, redirected="<&- >&- 2>&-")
    assert status > 2


@pytest.mark.host
@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_ascii_shows_other_characters_as_escapes(tmp_path: Path, environment: dict[str, str]) -> None:
    given = {**environment, "PYTHONCOERCECLOCALE": "0"}
    words = Vocabulary(["<unk>"])
    graphs = GraphSet([1], np.array([[-1]]), columns={"süß": np.zeros(1, np.int32)}, vocabularies={"süß": words})
    graphs.save(tmp_path / "graphs")
    stat = "from vpps.cli.data import main; main()"
    status, out, err = in_a_shell(stat, "stat", str(tmp_path / "graphs"), **given)
    assert (status, err) == (0, "")
    assert out.isascii()
    assert "column s\\xfc\\xdf" in out
    status, out, err = in_a_shell(SAYS, **given)
    assert (status, out, err) == (3, "s\\xfc\\xdf\n", "")


TRAIN = "from vpps.cli.train import main; main()"
NOBODY_READS_EPOCHS = f"""
import os
from vpps.zoo.tasks import TASKS
reads, writes = os.pipe()
os.dup2(writes, 1), os.close(writes)
task = TASKS["tree-lstm"]
evaluate = task.evaluate
task.evaluate = lambda task, handle: os.close(reads) or evaluate(task, handle)
{TRAIN}
"""


@pytest.mark.cpu
@pytest.mark.parametrize(
    "code, redirected, status, left", [(TRAIN, ">&- 2>&-", 0, 0), (NOBODY_READS_EPOCHS, "", 141, 1)]
)
def test_a_training_run_keeps_what_it_has_learned(
    tmp_path: Path, code: str, redirected: str, status: int, left: int
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert len(epochs("tree-lstm", checkpoint=whole, **RUN)) == 2
    command = ("tree-lstm", *(f"--{name}={value}" for name, value in RUN.items()), f"--checkpoint={cut}")
    assert in_a_shell(code, *command, redirected=redirected) == (status, "", "")
    if left:
        assert len(epochs("tree-lstm", "--resume", checkpoint=cut, **RUN)) == left
    assert contents(cut)[1] == contents(whole)[1]
