"""`vpps-train` says that it compiles, on standard error: its output stays what programs read."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.program import epochs, vpps_train
from vpps.cli.console import telling_of_compiling
from vpps.kernel.cache import Label, watchers
from vpps.planner.native import library

TINY = {"hidden": 8, "limit": 8, "epochs": 1}


@pytest.mark.host
def test_the_first_run_on_a_machine_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library.library()  # this process has the planner
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo 1.0; exit 0; fi\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", shlex.quote(str(compiler)))
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VPPS_RECORDER", "python")
    code, out, err = vpps_train("tree-fc", target="cpu", **TINY)
    assert code == 1
    assert err.splitlines()[0] == "compiling the kernel, once: about 10 s"
    assert "rejected the kernel source" in err
    assert len(out.splitlines()) == 1  # the heading
    assert watchers == []


@pytest.mark.host
@pytest.mark.parametrize(
    "kinds, line",
    [
        (["recorder", "cpu kernel", "tails"], "compiling the kernel, once: about 10 s\n"),
        (["planner", "cpu kernel", "tails"], "compiling the planner, once: about 20 s\n"),
        (["tails"], "compiling code for this network, once: a few seconds\n"),
        (["cubin"], "compiling the kernel, once: up to a minute\n"),
    ],
)
def test_one_line_is_enough(kinds: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with telling_of_compiling():
        for kind in kinds:
            for watcher in watchers:
                watcher(Label(kind))
    assert capsys.readouterr() == ("", line)


@pytest.mark.cpu
def test_nothing_is_said_where_all_is_in_the_cache() -> None:
    assert len(epochs("tree-fc", target="cpu", **TINY)) == 1
    code, _, err = vpps_train("tree-fc", target="cpu", **TINY)
    assert (code, err) == (0, "")
