"""`vpps-cache`: through its entry point once, its commands one by one."""

from __future__ import annotations

import json
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
from vpps.config import VARIABLES
from vpps.kernel.cache import Label, cached

pytestmark = pytest.mark.host

MAIN = [sys.executable, "-c", "from vpps.cli.cache import main; main()"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of three entries, one of them damaged, and one used 40 days ago."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VPPS_CACHE_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cached(key_named("new"), ".so", "source", copy, label=Label("cpu kernel", "avx2", "g++ 12"))
    old = cached(key_named("old"), ".cubin", "source", copy, ".cu", Label("cubin", "sm_90", "NVRTC 13"))
    os.utime(old.with_suffix(".json"), (0, time.time() - 40 * 86400))
    cached(key_named("bad"), ".so", "source", copy, label=Label("tails", "2 programs")).write_bytes(b"binary of Source")
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def keys(folder: Path) -> list[str]:
    return sorted(name_of(path.name) for path in (folder / "kernels").iterdir())


def test_works_as_a_command_in_a_pipe(folder: Path) -> None:
    done = subprocess.run([*MAIN, "list"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    header, *lines = done.stdout.splitlines()
    assert header.split() == "key kind made for compiler size made last used".split()
    assert [name_of(line.split()[0]) for line in lines] == ["bad", "new", "old"]


class TestList:
    def test_tells_what_entries_are(self, folder: Path) -> None:
        lines = {name_of(line.split()[0]): line for line in run("list").stdout.splitlines()[1:]}
        for word in ("cpu kernel", "avx2", "g++ 12", " B"):
            assert word in lines["new"]
        assert "40 d" in lines["old"]
        assert f"damaged: {key_named('bad')}.so has other" in lines["bad"]

    def test_as_json(self, folder: Path) -> None:
        found = {name_of(item["key"]): item for item in json.loads(run("list", "--json").stdout)}
        assert found["old"]["kind"] == "cubin"
        assert found["old"]["made_for"] == "sm_90"
        assert found["new"]["damage"] is None
        assert Path(found["new"]["path"]).read_bytes() == b"binary of source"
        assert found["new"]["bytes"] == sum(path.stat().st_size for path in Path(found["new"]["path"]).parent.iterdir())
        assert "other contents" in found["bad"]["damage"]

    def test_of_a_record_that_cannot_be_read(self, folder: Path) -> None:
        key = key_named("new")
        (folder / f"kernels/{key}/{key}.json").write_text('{"format": 1')
        (new,) = [item for item in json.loads(run("list", "--json").stdout) if item["key"] == key]
        assert (new["kind"], new["damage"]) == ("unknown", "its record is illegible")

    def test_of_nothing(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_CACHE_DIR", str(folder / "empty"))
        assert run("list").stdout == f"no compiled kernels in {folder / 'empty'}\n"
        assert run("list", "--json").stdout == "[]\n"
        assert not (folder / "empty").exists()


class TestStat:
    def test_says_that_the_directory_cannot_be_made(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "file").write_text("")
        monkeypatch.setenv("VPPS_CACHE_DIR", "/proc/nope/cache" if sys.platform == "linux" else str(folder / "file/in"))
        assert "it cannot be " in run("stat").stdout
        monkeypatch.setenv("VPPS_CACHE_DIR", str(folder / "new/one"))
        assert "cannot" not in run("stat").stdout
        assert not (folder / "new").exists()

    def test_tells_where_and_how_much(self, folder: Path) -> None:
        out = run("stat").stdout
        for words in (
            str(folder),
            "3, cpu kernel: 1, cubin: 1, tails: 1",
            "of 1.07 GB",
        ):
            assert words in out

    def test_as_json(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_CACHE_SIZE", "2M")
        found = json.loads(run("stat", "--json").stdout)
        assert (found["entries"], found["damaged"]) == (3, 1)
        assert found["limit"] == 2 * 2**20
        assert found["bytes"] == sum(path.stat().st_size for path in (folder / "kernels").glob("*/*"))
        assert list(found["variables"]) == [variable.name for variable in VARIABLES]

    def test_says_why_the_directory_is_not_used(self, folder: Path) -> None:
        folder.chmod(0o777)
        found = json.loads(run("stat", "--json").stdout)
        assert "plant" in found["refused"]
        assert (found["entries"], found["in_use"]) == (0, [])

    def test_of_a_wrong_limit_is_one_sentence(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_CACHE_SIZE", "much")
        done = run("stat")
        assert done.exit_code == 1
        assert done.stderr == (
            "vpps-cache: VPPS_CACHE_SIZE=much: expected a size such as 500M or 2G, or 0 for no limit\n"
        )


class TestClear:
    @pytest.mark.parametrize(
        "options, left",
        [
            ([], []),
            (["--damaged"], ["new", "old"]),
            (["--older-than", "30"], ["bad", "new"]),
            (["--older-than", "41"], ["bad", "new", "old"]),
            (["--older-than", "30", "--damaged"], ["bad", "new", "old"]),
        ],
        ids=str,
    )
    def test_removes_entries(self, folder: Path, options: list[str], left: list[str]) -> None:
        done = run("clear", *options)
        assert done.stdout.startswith(f"removed {3 - len(left)} of 3 entries, ")
        assert keys(folder) == left

    def test_removes_what_killed_processes_left(self, folder: Path) -> None:
        left = folder / f"kernels/vpps-build-{7:016x}"
        left.mkdir()
        os.utime(left, (0, 0))
        run("clear")
        assert keys(folder) == []

    def test_leaves_what_vpps_did_not_make(self, folder: Path) -> None:
        theirs = [*theirs_in(folder / "kernels"), folder / "tuning.json"]
        theirs[-1].write_text("{}")
        assert run("clear").stdout.startswith("removed 3 of 3 entries")
        assert all(path.exists() for path in theirs)
        assert json.loads(run("stat", "--json").stdout)["entries"] == 0

    def test_leaves_alone_what_cannot_be_trusted(self, folder: Path) -> None:
        folder.chmod(0o777)
        assert run("clear").stdout.startswith("removed 0 of 0 entries")
        assert keys(folder) == ["bad", "new", "old"]


@pytest.fixture
def compiler(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast one; what it writes is no library."""
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
        found = [item for item in json.loads(run("list", "--json").stdout) if item["compiler"] == "swift 1.0"]
        assert [item["kind"] for item in found] == ["cpu kernel"]
        assert "was there" in run("warm", "--target", "cpu").stdout

    def test_compiles_the_kernel_of_a_model(
        self, folder: Path, compiler: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VPPS_PASSES", "all")  # tails are what a cpu kernel has of its model
        done = run("warm", "tree-lstm", "--hidden", "8", "--target", "cpu", "--batch-size", "2")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines()[-1].startswith("cpu kernel of tree-lstm: compiled in")

    @needs_nvrtc
    @pytest.mark.nvrtc
    def test_compiles_for_a_gpu_that_is_not_there(self, folder: Path, compiler: None) -> None:
        done = run("warm", "tree-fc", "--hidden", "8", "--target", "cuda", "--arch", "sm_90", "--vps", "2")
        assert done.exit_code == 0, done.output
        (cubin,) = [
            i for i in json.loads(run("list", "--json").stdout) if i["kind"] == "cubin" and i["key"] != key_named("old")
        ]
        assert cubin["made_for"].startswith("sm_90")
        assert Path(cubin["path"]).read_bytes()[:4] == b"\x7fELF"

    def test_of_a_gpu_without_a_model_says_what_is_missing(self, folder: Path, compiler: None) -> None:
        assert "name a task or module:function" in run("warm", "--arch", "sm_90").stdout

    @pytest.mark.parametrize(
        "arguments, words",
        [
            (["tree-lstn"], "'tree-lstn' is no task"),
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


@pytest.mark.parametrize("command", [[], ["list"], ["stat"], ["clear"], ["warm"]], ids=str)
def test_help_shows_examples(command: list[str]) -> None:
    done = run(*command, "--help")
    assert done.exit_code == 0
    assert "vpps-cache" in done.stdout if command else "warm" in done.stdout
    if command:
        assert "Examples" in done.stdout
