"""The cache of compiled kernels: private, atomic, safe for processes that build at the same time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import finish, start
from vpps.config import cache_dir
from vpps.errors import CompileError
from vpps.kernel.cache import cached, key_of, write_atomically

pytestmark = pytest.mark.host


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that does not exist yet."""
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def copy(text: Path, binary: Path) -> None:
    """Stands for a compiler."""
    binary.write_bytes(b"binary of " + text.read_bytes())


def refuse(text: Path, binary: Path) -> None:
    raise AssertionError("nothing should be built")


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


class TestBuild:
    def test_keeps_binary_and_source_side_by_side(self, folder: Path) -> None:
        binary = cached("key", ".so", "source", copy)
        assert binary == folder / "key.so"
        assert binary.read_bytes() == b"binary of source"
        assert (folder / "key.cpp").read_text() == "source"
        assert names(folder) == ["key.cpp", "key.so"]

    def test_happens_once_per_key(self, folder: Path) -> None:
        first = cached("key", ".so", "source", copy)
        assert cached("key", ".so", "source", refuse) == first
        assert cached("other", ".so", "other source", copy) != first

    @pytest.mark.parametrize("failure", [CompileError("no"), KeyboardInterrupt(), RuntimeError()], ids=repr)
    def test_that_fails_leaves_nothing_behind_and_can_be_repeated(self, folder: Path, failure: BaseException) -> None:
        def fail(text: Path, binary: Path) -> None:
            binary.write_bytes(b"half of a bin")
            raise failure

        with pytest.raises(type(failure)):
            cached("key", ".so", "source", fail)
        assert names(folder) == []
        assert cached("key", ".so", "source", copy).read_bytes() == b"binary of source"

    def test_that_makes_nothing_is_an_error(self, folder: Path) -> None:
        with pytest.raises(CompileError, match=r"key\.so"):
            cached("key", ".so", "source", lambda text, binary: None)
        assert names(folder) == []

    @pytest.mark.parametrize("function", ["os.replace", "tempfile.TemporaryDirectory", "os.fsync"])
    def test_on_a_full_disk_is_an_error(self, folder: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
        def fail(*arguments: object, **options: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(function, fail)
        with pytest.raises(CompileError, match=r"No space left on device.*VPPS_CACHE_DIR") as caught:
            cached("key", ".so", "source", copy)
        assert str(folder) in str(caught.value)
        assert names(folder) == []

    def test_in_several_processes_at_once_succeeds_in_all(self, folder: Path) -> None:
        code = """
            import time
            from pathlib import Path
            from vpps.kernel.cache import cached

            def build(text, binary):
                for part in range(20):  # slow enough to overlap with the others
                    with binary.open("ab") as f:
                        f.write(b"part ")
                    time.sleep(0.005)

            print(cached("key", ".so", "source", build).read_text())
        """
        for status, out, err in map(finish, [start(code) for _ in range(4)]):
            assert (status, out, err) == (0, "part " * 20 + "\n", "")
        assert names(folder) == ["key.cpp", "key.so"]


def copy_with_notes(text: Path, binary: Path) -> None:
    """Stands for a compiler that writes two files."""
    copy(text, binary)
    binary.with_suffix(".json").write_text("notes")


def with_notes(build: Callable[[Path, Path], None], usable: Callable[[Path], bool] = Path.is_file) -> Path:
    return cached("key", ".bin", "source", build, source_suffix=".cu", companions=(".json",), usable=usable)


class TestCompanions:
    def test_are_kept_beside_the_binary(self, folder: Path) -> None:
        assert with_notes(copy_with_notes) == folder / "key.bin"
        assert (folder / "key.json").read_text() == "notes"
        assert names(folder) == ["key.bin", "key.cu", "key.json"]
        assert with_notes(refuse) == folder / "key.bin"

    def test_that_are_not_made_are_an_error(self, folder: Path) -> None:
        with pytest.raises(CompileError, match=r"key\.json"):
            with_notes(copy)
        assert names(folder) == []

    def test_are_built_anew_with_a_binary_that_the_caller_refuses(self, folder: Path) -> None:
        def usable(binary: Path) -> bool:
            return binary.is_file() and binary.with_suffix(".json").read_text() == "notes"

        binary = with_notes(copy_with_notes, usable)
        binary.with_suffix(".json").write_text("scribbles")
        assert with_notes(refuse) == binary
        assert with_notes(copy_with_notes, usable) == binary
        assert with_notes(refuse, usable) == binary

    def test_can_be_replaced(self, folder: Path) -> None:
        notes = with_notes(copy_with_notes).with_suffix(".json")
        write_atomically(notes, "more notes")
        assert notes.read_text() == "more notes"
        assert names(folder) == ["key.bin", "key.cu", "key.json"]

    def test_stay_as_they_are_on_a_full_disk(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        notes = with_notes(copy_with_notes).with_suffix(".json")
        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(CompileError, match=r"key\.json.*No space left on device.*VPPS_CACHE_DIR"):
            write_atomically(notes, "more notes")
        assert notes.read_text() == "notes"
        assert names(folder) == ["key.bin", "key.cu", "key.json"]


class TestFolder:
    @pytest.mark.parametrize("umask", [0, 0o022, 0o077])
    def test_is_created_for_the_user_alone(self, folder: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            cached("key", ".so", "source", copy)
        finally:
            os.umask(before)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777], ids=oct)
    def test_that_others_can_write_is_refused(self, folder: Path, mode: int) -> None:
        folder.mkdir()
        folder.chmod(mode)
        with pytest.raises(CompileError, match=r"plant.*chmod 700.*VPPS_CACHE_DIR") as caught:
            cached("key", ".so", "source", refuse)
        assert str(folder) in str(caught.value)
        assert names(folder) == []
        folder.chmod(0o700)
        assert cached("key", ".so", "source", copy).is_file()

    def test_that_others_can_write_is_refused_even_if_it_has_the_binary(self, folder: Path) -> None:
        cached("key", ".so", "source", copy)
        folder.chmod(0o777)
        with pytest.raises(CompileError, match="plant"):
            cached("key", ".so", "source", refuse)

    @pytest.mark.parametrize("mode", [0o755, 0o700], ids=oct)
    def test_that_others_can_read_is_used(self, folder: Path, mode: int) -> None:
        folder.mkdir()
        folder.chmod(mode)
        assert cached("key", ".so", "source", copy).is_file()

    def test_of_another_user_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir(mode=0o700)
        monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
        with pytest.raises(CompileError, match=r"another user.*VPPS_CACHE_DIR"):
            cached("key", ".so", "source", refuse)

    @pytest.mark.parametrize("place", ["file", "file/below"])
    def test_that_cannot_be_created_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / place))
        with pytest.raises(CompileError, match="cannot be created") as caught:
            cached("key", ".so", "source", refuse)
        assert str(tmp_path / place) in str(caught.value)

    def test_given_relative_to_the_working_directory_gives_an_absolute_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The loader of libraries would look for a bare name elsewhere."""
        tmp_path.chmod(0o700)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("VPPS_CACHE_DIR", ".")
        assert cached("key", ".so", "source", copy) == tmp_path / "key.so"

    @pytest.mark.parametrize(
        "variables, expected",
        [
            ({"VPPS_CACHE_DIR": "/a/b"}, "/a/b"),
            ({"VPPS_CACHE_DIR": "~/kernels"}, "/home/me/kernels"),
            ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/vpps"),
            ({"VPPS_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/xdg"}, "/a/b"),
            ({}, "/home/me/.cache/vpps"),
        ],
    )
    def test_comes_from_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
    ) -> None:
        for name in ("VPPS_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", "/home/me")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert cache_dir() == Path(expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts[::-1],
        lambda parts: [*parts, ""],
        lambda parts: ["".join(parts)],
        lambda parts: [parts[0] + parts[1][0], parts[1][1:]],
        lambda parts: [parts[0], parts[1] + " "],
    ],
    ids=["order", "another part", "joined", "moved boundary", "white space"],
)
def test_a_key_depends_on_every_part(change: Callable[[list[str]], list[str]]) -> None:
    parts = ["source", "flags"]
    assert key_of(*parts) == key_of(*parts)
    assert key_of(*parts) != key_of(*change(parts))
