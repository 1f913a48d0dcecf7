"""`vpps-cache`: once through its entry point, then its commands one by one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.kernel.cache.builders import copy, key_named, name_of
from tests.kernel.cache.test_eviction import theirs_in
from tests.nvrtc import needs_nvrtc
from vpps.cli.cache import app
from vpps.kernel.cache import Label, cached, entries

pytestmark = pytest.mark.host

MAIN = [sys.executable, "-c", "from vpps.cli.cache import main; main()"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a cache of three entries, one without a readable record and one used 40 days ago."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VPPS_CACHE_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cached(key_named("new"), ".so", "source", copy, label=Label("cpu kernel", "avx2", "g++ 12"))
    old = cached(key_named("old"), ".cubin", "source", copy, Label("cubin", "sm_90", "NVRTC 13"))
    os.utime(old.with_suffix(".json"), (0, time.time() - 40 * 86400))
    bad = cached(key_named("bad"), ".so", "source", copy, label=Label("tails", "2 programs"))
    bad.with_suffix(".json").write_text('{\n "format": 1')
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def keys(folder: Path) -> list[str]:
    return sorted(name_of(path.name) for path in (folder / "kernels").iterdir())


class TestList:
    def test_works_as_a_command_in_a_pipe(self, folder: Path) -> None:
        done = subprocess.run([*MAIN, "list"], capture_output=True, text=True, check=False, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        summary, header, _, *lines = done.stdout.splitlines()
        size = sum(path.stat().st_size for path in (folder / "kernels").glob("*/*"))
        assert summary == f"{folder}: 3 entries, {size} B of 1024 MiB"
        assert header.split() == "kind made for compiler size last used".split()
        assert {line.split("  ")[0]: line.split()[-1] for line in lines} == {
            "unknown": "s",
            "cpu kernel": "s",
            "cubin": "d",
        }
        assert " ".join(lines[-1].split()[:4]) == "cubin sm_90 NVRTC 13"

    def test_of_nothing(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_CACHE_DIR", str(folder / "empty"))
        monkeypatch.setenv("VPPS_CACHE_SIZE", "0")
        assert run("list").stdout == f"{folder / 'empty'}: 0 entries, 0 B\n"
        assert not (folder / "empty").exists()

    def test_of_a_wrong_limit_is_one_sentence(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_CACHE_SIZE", "much")
        done = run("list")
        assert (done.exit_code, done.stderr) == (
            1, "vpps-cache: VPPS_CACHE_SIZE=much: expected a size such as 500M or 2G, or 0 for no limit\n",
        )  # fmt: skip


class TestClear:
    def test_removes_entries_and_what_killed_processes_left(self, folder: Path) -> None:
        left = folder / f"kernels/vpps-build-{7:016x}"
        left.mkdir()
        os.utime(left, (0, 0))
        assert run("clear").stdout.startswith("removed 3 entries, ")
        assert keys(folder) == []

    def test_leaves_what_vpps_did_not_make(self, folder: Path) -> None:
        theirs = [*theirs_in(folder / "kernels"), folder / "tuning.json"]
        theirs[-1].write_text("{}")
        assert run("clear").stdout.startswith("removed 3 entries")
        assert all(path.exists() for path in theirs)

    def test_leaves_alone_what_cannot_be_trusted(self, folder: Path) -> None:
        folder.chmod(0o777)
        assert run("clear").stdout.startswith("removed 0 entries")
        assert keys(folder) == ["bad", "new", "old"]

    def test_says_that_the_cache_is_read_only(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entries, "discard", lambda folder: False)
        assert "is " + str(folder / "kernels") + " read-only?" in run("clear").stderr


@pytest.fixture
def compiler(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a fast compiler whose output is not a library."""
    script = tmp_path / "compiler"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "swift 1.0"; exit; fi\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'echo x > "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", shlex.quote(str(script)))
    monkeypatch.setenv("VPPS_RECORDER", "python")


class TestWarm:
    def test_compiles_what_a_target_needs(self, folder: Path, compiler: None) -> None:
        done = run("warm", "--target", "cpu")
        (line,) = done.stdout.splitlines()
        assert line.startswith("cpu kernel: compiled in ")
        (found,) = [line for line in run("list").stdout.splitlines() if "swift 1.0" in line]
        assert found.startswith("cpu kernel")
        assert "was there" in run("warm", "--target", "cpu").stdout

    def test_compiles_the_kernel_of_a_model(
        self, folder: Path, compiler: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VPPS_PASSES", "all")  # only tails make a cpu kernel depend on its model
        done = run("warm", "tree-lstm", "--hidden", "8", "--target", "cpu", "--batch-size", "2")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines()[-1].startswith("cpu kernel of tree-lstm: compiled in")

    @needs_nvrtc
    @pytest.mark.nvrtc
    def test_compiles_for_a_gpu_that_is_not_there(self, folder: Path, compiler: None) -> None:
        done = run("warm", "tree-fc", "--hidden", "8", "--target", "cuda", "--arch", "sm_90", "--vps", "2")
        assert done.exit_code == 0, done.output
        (cubin,) = [path for path in folder.rglob("*.cubin") if path.stem != key_named("old")]
        assert cubin.read_bytes()[:4] == b"\x7fELF"

    def test_of_a_gpu_without_a_model_says_what_is_missing(self, folder: Path, compiler: None) -> None:
        assert "name a task or module:function" in run("warm", "--arch", "sm_90").stdout

    @pytest.mark.parametrize(
        "arguments, words",
        [
            (["tree-lstn"], "'tree-lstn' is not a task"),
            (["tree-lstm", "--arch", "gfx90a"], "sm_ and digits"),
            (["no_such:thing"], "No module named"),
            (["--hidden", "8"], "--hidden"),
        ],
        ids=str,
    )
    def test_of_bad_input_is_one_sentence(self, folder: Path, compiler: None, arguments: list[str], words: str) -> None:
        done = run("warm", *arguments)
        assert done.exit_code in (1, 2)
        assert words in done.stderr
        assert "Traceback" not in done.output

    def test_without_a_compiler_is_one_sentence(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        done = run("warm", "--target", "cpu")
        assert done.exit_code == 1
        assert "CXX=no-such-compiler: no such program" in done.stderr
