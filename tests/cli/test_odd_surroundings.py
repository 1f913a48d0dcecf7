"""Odd options and environments: the answer is one sentence with the remedy, never a traceback, an abort or a hang."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import vpps
from tests.cli.program import epochs, vpps_train
from tests.kernel.cache.builders import copy
from tests.processes import run
from vpps.cli import cache, data, inspect, profile, train
from vpps.errors import CompileError, DataError
from vpps.kernel import host_compiler, processes
from vpps.kernel.cache import cached
from vpps.tuning.choices import Key, find
from vpps.zoo.tasks import TASKS
from vpps.zoo.tasks.files import listed

LONG = "x" * 300


@pytest.mark.host
class TestOptions:
    @pytest.mark.parametrize("name", ["tree-lstm", "nmt", "lattice-gru"])
    @pytest.mark.parametrize("path", ["x" * 5000, "x/" * 5000])
    def test_data_of_a_name_that_is_too_long(self, name: str, path: str) -> None:
        code, out, err = vpps_train(name, data=path)
        assert (code, out) == (1, "")
        assert err.startswith("vpps-train: /")
        assert len(err.splitlines()) == 1

    @pytest.mark.parametrize("hidden", [2**31, 2**63 - 1, 10**20 - 1])
    def test_sizes_beyond_all_memory(self, hidden: int) -> None:
        code, _, err = vpps_train("tree-lstm", hidden=hidden, limit=4)
        assert code == 1
        assert "a parameter may have fewer than 2**31" in err

    @pytest.mark.parametrize("leaves", [2**40, 2**63, 2**70])
    def test_trees_beyond_all_memory(self, leaves: int) -> None:
        code, _, err = vpps_train("tree-fc", leaves=leaves)
        assert code == 1
        assert "fewer than 2**31 vertices" in err

    def test_a_network_beyond_the_memory_there_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any) -> None:
            raise MemoryError("Unable to allocate 8 GiB")

        monkeypatch.setattr(TASKS["tree-lstm"], "make_network", full)
        code, _, err = vpps_train("tree-lstm", limit=4)
        assert (code, err.splitlines()) == (
            1, ["vpps-train: there is not enough memory (Unable to allocate 8 GiB): take a smaller network or batch"],
        )  # fmt: skip

    @pytest.mark.parametrize("resume", [(), ("--resume",)])
    def test_a_checkpoint_of_a_name_that_is_too_long(self, tmp_path: Path, resume: tuple[str, ...]) -> None:
        code, out, err = vpps_train("tree-lstm", *resume, checkpoint=tmp_path / LONG, hidden=4, limit=4, epochs=1)
        assert (code, out) == (2, "")  # before the first epoch
        assert "Filenametoolong" in "".join(err.split()).replace("│", "")  # in a box, the text can wrap anywhere

    def test_files_of_names_that_are_too_long(self, tmp_path: Path) -> None:
        for arguments in (["convert", "trees", LONG, LONG], ["stat", LONG]):
            found = CliRunner().invoke(data.app, arguments)
            assert found.exit_code == 1
            assert found.stderr.startswith("vpps-data: ")

    def test_a_folder_that_may_not_be_read(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def refused(path: Path) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "iterdir", refused)
        with pytest.raises(DataError, match="cannot be read: Permission denied"):
            listed(tmp_path)


@pytest.mark.host
def test_a_cache_folder_of_a_name_that_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / LONG))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cached("key", ".so", "source", copy).is_file()
    assert "File name too long" in caplog.text
    assert "set VPPS_CACHE_DIR" in caplog.text
    monkeypatch.delenv("VPPS_TUNING")
    assert find(Key("cpu", "model", True)) is None


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refused)


@pytest.mark.host
class TestLimits:
    def test_compilers_that_cannot_be_started_are_no_matter_of_the_cache(self, no_processes: None) -> None:
        for call in (
            lambda: processes.run(["g++"], {}),
            lambda: host_compiler.compiler_version((sys.executable, "-X", "of this test")),
        ):
            with pytest.raises(CompileError, match=r"cannot be started \(Resource temporarily .*ulimit -u"):
                call()


@pytest.mark.cpu
def test_more_virtual_processors_than_the_system_has_threads() -> None:
    assert len(epochs("tree-fc", epochs=1, limit=4, hidden=4, vps=1, target="cpu")) == 1  # the kernel is in the cache
    said = run(
        """
        import os, resource, sys
        if len(sys.argv) == 1:  # limits of stacks hold from the beginning of a process
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 29, 1 << 29))
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            os.execv(sys.executable, [sys.executable, "-c", open("/proc/self/cmdline").read().split("\\0")[2], "again"])
        import vpps
        model = vpps.Model(seed=1)
        model.parameter("W", (2, 2))
        try:
            vpps.Handle(model, target="cpu", vps=64)
        except vpps.HandleError as error:
            print(error)
        vpps.Handle(model, target="cpu", vps=1).close()
        """,
        {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert said.startswith("the system starts no 64 threads: choose fewer virtual processors with vps=")


@pytest.mark.host
@pytest.mark.parametrize("program", [cache, data, inspect, profile, train], ids=lambda program: program.__name__)
def test_every_program_says_its_version(program: ModuleType) -> None:
    found = CliRunner().invoke(program.app, ["--version"])
    assert (found.exit_code, found.stdout) == (0, f"vpps {vpps.__version__}\n")
