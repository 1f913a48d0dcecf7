"""Libraries compiled at vpps's installation: finding them, and running without a compiler."""

from __future__ import annotations

import importlib
import os
import shutil
import threading
from pathlib import Path

import pytest

import vpps
from tests.processes import TIMEOUT, finish, start
from vpps import installation
from vpps.config import notice
from vpps.graph import recorder
from vpps.kernel import prebuilt
from vpps.kernel.cache import cached
from vpps.kernel.host_compiler import isas_of
from vpps.planner.native import library as planner

pytestmark = pytest.mark.cpu

obtain = importlib.import_module("vpps.kernel.cache.obtain")  # its function has the same name

TRAINING = """
    import os
    from pathlib import Path
    import vpps
    from tests.classifier import new
    from vpps.kernel import prebuilt, ziglang
    from vpps.config import cache_dir
    from vpps.kernel.cache import entries

    prebuilt.FOLDER = Path(os.environ["FOLDER"])
    ziglang.installed = lambda: None
    net = new()
    with vpps.Handle(net.model, vpps.Adam(), target="cpu", vps=2) as handle:
        print([loss.hex() for loss in net.train(handle, range(3))])
        with handle.trace() as trace:
            net.train(handle, range(1))
    assert trace.timelines[0].records.size
    assert vpps.specialize(net.model, net.batch(0), target="cpu").binary.parent == prebuilt.FOLDER
    print(len(list(entries.usages(cache_dir() / "kernels"))))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder of the libraries. Libraries put there are not compiled again."""
    own = prebuilt.FOLDER
    monkeypatch.setattr(installation, "build_library", lambda library: own / library.file_name)
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "prebuilt")
    return tmp_path / "prebuilt"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the contents of a wheel for this machine."""
    folder = tmp_path_factory.mktemp("prebuilt")
    installation.build(folder, kernels=True)
    return folder


class TestLibraries:
    def test_are_those_that_a_wheel_has(self, installed: Path) -> None:
        names = sorted(path.name.split("-")[0] for path in installed.iterdir())
        assert names == sorted([*["kernel"] * len(isas_of()), "planner", "recorder"])

    def test_are_compiled_once(self, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installation, "build_library", lambda library: pytest.fail(library.name))
        assert {*installation.build(installed, kernels=True)} == {*installed.iterdir()}

    def test_of_changed_sources_are_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert prebuilt.find(planner.described())
        monkeypatch.setattr(planner, "FLAGS", (*planner.FLAGS, "-DCHANGED"))
        assert not prebuilt.find(planner.described())
        with pytest.raises(vpps.CompileError, match=r"the planner was not .*changed since.*pip install -e \."):
            prebuilt.installed(planner.described())

    def test_go_when_the_next_come_but_for_those_of_other_pythons(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.mkdir()
        old = [f"{library.beginning}{'0' * 16}.so" for library in (planner.described(), recorder.described())]
        others = [f"recorder-cpython-399-x86_64-{'0' * 16}.so", f"planner-riscv64-{'0' * 16}.so"]
        for name in (*old, *others):
            (folder / name).touch()
        made = {path.name for path in installation.build(folder)}
        assert {path.name for path in folder.iterdir()} == made | {*others}

    def test_that_cannot_be_loaded_say_what_to_do(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        (folder / planner.described().file_name).write_text("no library")
        planner.library.cache_clear()
        with pytest.raises(vpps.CompileError, match=r"cannot be loaded .*install vpps again"):
            vpps.Handle(vpps.Model())
        installation.build(folder)
        planner.library.cache_clear()
        vpps.Handle(vpps.Model()).close()


class TestWithoutCompiler:
    def test_it_trains_to_the_same_bits_compiles_nothing_and_says_so_in_a_line(
        self, installed: Path, tmp_path: Path
    ) -> None:
        if not (shutil.which("g++") or shutil.which("clang++")):
            pytest.skip("there is no compiler on the PATH to compare with")
        found = []
        (tmp_path / "bin").mkdir()
        for name, path in (("with", os.environ["PATH"]), ("without", str(tmp_path / "bin"))):
            environment = {
                "FOLDER": str(installed), "PATH": path, "CXX": "", "VPPS_LOG": "", "VPPS_PASSES": "all",
                "VPPS_CACHE_DIR": str(tmp_path / name),
            }  # fmt: skip
            status, out, err = finish(start(TRAINING, environment))
            assert status == 0, err
            *losses, compiled = out.splitlines()
            lines = [line for line in err.splitlines() if "compiling, once" not in line]
            found.append((losses, int(compiled), len(lines)))
        assert found[0][0] == found[1][0]
        assert found[0][1] > 0
        assert found[1][1:] == (0, 1)
        assert lines[0].startswith("vpps: there is no C++ compiler, so elementwise operations")


@pytest.mark.parametrize("log, said", [("", "vpps: compiling, once for this machine: library\n"), ("error", "")])
def test_what_compiles_for_long_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, said: str
) -> None:
    given = threading.Event()
    monkeypatch.setattr(obtain, "NOTICEABLE", 0.0)
    monkeypatch.setattr(obtain, "notice", lambda text: (notice(text), given.set()))
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VPPS_LOG", log)
    notice.cache_clear()

    def build(text: Path, binary: Path) -> None:
        assert given.wait(TIMEOUT)
        binary.touch()

    for key in "ab":
        given.clear()
        cached(key, ".so", "source", build)
    assert capsys.readouterr().err == said
