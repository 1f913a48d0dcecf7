"""Which directory: the one asked for, if it can be trusted and written, else another one, and why."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from tests.kernel.cache.builders import copy, names, refuse
from tests.processes import run
from vpps.config import cache_dir
from vpps.errors import CompileError
from vpps.kernel.cache import cached, places

pytestmark = pytest.mark.host

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
NOT_AS_ROOT = pytest.mark.skipif(os.getuid() == 0, reason="root can write to any directory")


def elsewhere(temporary: Path, caplog: pytest.LogCaptureFixture, *words: str) -> Path:
    """A kernel is made, outside the cache, found again there, and one warning says why."""
    binary = cached("key", ".so", "source", copy)
    assert binary.read_bytes() == b"binary of source"
    assert binary.is_relative_to(temporary)
    assert cached("key", ".so", "source", refuse) == binary
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for word in (*words, "VPPS_CACHE_DIR"):
        assert word in warning
    return binary


class TestDirectory:
    @pytest.mark.parametrize("umask", [0, 0o022, 0o077])
    def test_is_created_for_the_user_alone(self, folder: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            binary = cached("key", ".so", "source", copy)
        finally:
            os.umask(before)
        for made in (folder, binary.parent.parent, binary.parent):
            assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0

    @pytest.mark.parametrize("mode", [0o755, 0o700], ids=oct)
    def test_that_others_can_read_is_used(self, folder: Path, mode: int) -> None:
        folder.mkdir()
        folder.chmod(mode)
        assert cached("key", ".so", "source", copy).is_relative_to(folder)

    def test_given_relative_to_the_working_directory_gives_an_absolute_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The loader of libraries would look for a bare name elsewhere."""
        tmp_path.chmod(0o700)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("VPPS_CACHE_DIR", ".")
        assert cached("key", ".so", "source", copy) == tmp_path / "kernels/key/key.so"

    def test_may_be_a_link_to_another_disk(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "disk")
        cached("key", ".so", "source", copy)
        assert names(tmp_path / "disk") == ["key.cpp", "key.json", "key.so"]

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


class TestRefusal:
    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777], ids=oct)
    def test_of_one_that_others_can_write(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, mode: int
    ) -> None:
        folder.mkdir()
        folder.chmod(mode)
        elsewhere(temporary, caplog, str(folder), "plant", f"{mode:o}", "chmod")
        assert names(folder) == []
        folder.chmod(0o700)
        assert cached("key", ".so", "source", refuse).is_relative_to(folder)  # it came from the other place

    @pytest.mark.parametrize("which", [".", "kernels"])
    def test_even_if_it_has_the_binary(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, which: str
    ) -> None:
        planted = cached("key", ".so", "something evil", copy)
        (folder / which).chmod(0o777)
        assert elsewhere(temporary, caplog, "plant") != planted

    def test_of_one_in_a_place_that_others_can_write(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They could rename it, and put one of their own there."""
        shared = folder.with_name("shared")
        shared.mkdir()
        shared.chmod(0o777)
        monkeypatch.setenv("VPPS_CACHE_DIR", str(shared / "below/cache"))
        elsewhere(temporary, caplog, f"{shared} is writable by other users (mode 777)", f"chmod go-w {shared}")
        shared.chmod(0o1777)  # there everybody can rename only their own, as in /tmp
        assert cached("another key", ".so", "source", copy).is_relative_to(shared / "below")
        assert stat.S_IMODE((shared / "below").stat().st_mode) == 0o700

    @AS_ROOT
    def test_of_one_in_a_place_of_another_user(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = folder.with_name("theirs")
        (theirs / "mine").mkdir(parents=True, mode=0o700)
        os.chown(theirs, 12345, 12345)
        monkeypatch.setenv("VPPS_CACHE_DIR", str(theirs / "mine"))
        elsewhere(temporary, caplog, f"{theirs} belongs to another user (number 12345)")

    @AS_ROOT
    def test_of_one_in_a_place_of_somebody_outside_the_container(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Root outside has the same number there as any user."""
        theirs = folder.with_name("theirs")
        (theirs / "mine").mkdir(parents=True, mode=0o700)
        os.chown(theirs, 65534, 65534)
        monkeypatch.setattr(places, "_owner_of_all", lambda directory: 65534)
        monkeypatch.setenv("VPPS_CACHE_DIR", str(theirs / "mine"))
        elsewhere(temporary, caplog, f"{theirs} belongs to another user (number 65534)")

    @pytest.mark.parametrize("top, trusted", [("/", True), ("/home", True), ("/home/them", False)])
    def test_of_one_below_directories_of_somebody_outside(
        self, top: str, trusted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stat_of(path: Path) -> os.stat_result:
            owner = 65534 if str(path) in ("/", top) else os.getuid()
            return os.stat_result((0o40755, 0, 0, 2, owner, owner, 0, 0, 0, 0))

        monkeypatch.setattr(Path, "stat", stat_of)
        assert (places._why_replaceable(Path("/home/them/me/cache")) is None) == trusted

    @pytest.mark.parametrize(
        "members, others, trusted",
        [([], [], True), (["me"], [], True), (["me", "you"], [], False), ([], [("you", 501, 500)], False),
         ([], [("you", 501, 501)], True), ([], None, False)],
    )  # fmt: skip
    def test_a_group_is_of_nobody_else_if_nobody_has_it_as_the_first(
        self, members: list[str], others: list[tuple[str, int, int]] | None, trusted: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        """Those whom the group lists are not all. None: the system does not list its users."""
        users = [pwd.struct_passwd((n, "", u, g, "", "", "")) for n, u, g in [("me", 500, 500), *(others or [])]]
        monkeypatch.setattr(os, "getuid", lambda: 500)
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: users[0])
        monkeypatch.setattr(pwd, "getpwall", lambda: [] if others is None else users)
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("me", "", 500, members)))
        places._is_of_nobody_else.cache_clear()
        try:
            assert places._is_of_nobody_else(500) == trusted
        finally:
            places._is_of_nobody_else.cache_clear()

    @pytest.mark.parametrize("which", ["key.so", "key.json", "."])
    def test_of_an_entry_that_others_can_write(
        self, folder: Path, caplog: pytest.LogCaptureFixture, which: str
    ) -> None:
        """Whoever can change it can change what its record says of it."""
        planted = cached("key", ".so", "source", copy)
        (record,) = planted.parent.glob("*.json")
        path = {"key.so": planted, "key.json": record, ".": planted.parent}[which]
        path.chmod(0o777)
        made = []

        def make(text: Path, binary: Path) -> None:
            made.append(binary)
            copy(text, binary)

        assert cached("key", ".so", "source", make) == planted
        assert len(made) == 1
        assert "is writable by other users" in caplog.text
        assert stat.S_IMODE(path.stat().st_mode) & 0o022 == 0

    def test_of_one_of_another_user(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.mkdir(mode=0o700)
        real = places.why_refused
        monkeypatch.setattr(places, "why_refused", lambda d: "it belongs to another user" if d == folder else real(d))
        elsewhere(temporary, caplog, "another user")

    @AS_ROOT
    def test_of_one_that_was_given_to_another_user(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.mkdir(mode=0o700)
        os.chown(folder, 12345, 12345)
        elsewhere(temporary, caplog, "another user", "12345")

    @AS_ROOT
    def test_of_a_link_that_another_user_made(
        self, folder: Path, tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "mine").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "mine")
        os.chown(folder, 12345, 12345, follow_symlinks=False)
        elsewhere(temporary, caplog, "another user")

    @pytest.mark.parametrize("place, word", [("file", "no directory"), ("file/below", "cannot be read")])
    def test_of_a_file(
        self,
        tmp_path: Path,
        temporary: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
        word: str,
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / place))
        elsewhere(temporary, caplog, str(tmp_path / place), word)

    def test_of_a_link_to_nowhere(self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder.symlink_to(folder.parent / "nowhere")
        elsewhere(temporary, caplog, "link to nowhere")

    def test_of_a_link_to_a_directory_that_others_can_write(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        (tmp_path / "public").mkdir()
        (tmp_path / "public").chmod(0o777)
        folder.symlink_to(tmp_path / "public")
        elsewhere(temporary, caplog, "plant")

    @NOT_AS_ROOT
    def test_of_one_that_cannot_be_written(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.mkdir(mode=0o500)
        elsewhere(temporary, caplog, "cannot be created")

    def test_of_one_on_a_file_system_that_cannot_be_written(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def mkdir(path: Path, *arguments: object, **options: object) -> None:
            if path.is_relative_to(folder):
                raise OSError(errno.EROFS, "Read-only file system")
            real(path, *arguments, **options)

        real = Path.mkdir
        monkeypatch.setattr(Path, "mkdir", mkdir)
        elsewhere(temporary, caplog, "cannot be created", "Read-only")

    def test_is_told_once_by_a_process_and_nothing_stops(self, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o777)
        run(
            """
            import logging
            from vpps.kernel.cache import cached

            told = []
            logging.getLogger("vpps").addFilter(lambda record: told.append(record))
            logging.lastResort.emit = told.append
            from tests.kernel.cache.builders import copy
            for key in "abc":
                cached(key, ".so", key, copy)
            assert len(told) == 1, told
            """,
            {"VPPS_LOG": ""},
        )


class TestTemporary:
    @pytest.fixture(autouse=True)
    def refused(self, folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o777)

    def test_is_the_user_s_own_folder(self, temporary: Path) -> None:
        binary = cached("key", ".so", "source", copy)
        shared = temporary / f"vpps-{os.getuid()}"
        assert binary.is_relative_to(shared)
        assert stat.S_IMODE(shared.stat().st_mode) == 0o700

    def test_stands_for_one_directory(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A new cache is empty, whatever another one left in the temporary directory."""
        first = cached("key", ".so", "source", copy)
        (tmp_path / "other").touch()
        monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "other"))
        assert cached("key", ".so", "source", copy) != first

    @pytest.mark.parametrize("trap", ["file", "link", "public"])
    def test_is_refused_too_if_somebody_else_made_it(
        self, temporary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, trap: str
    ) -> None:
        shared = temporary / f"vpps-{os.getuid()}"
        if trap == "file":
            shared.touch()
        elif trap == "link":
            shared.symlink_to(tmp_path / "nowhere")
        else:
            shared.mkdir()
            shared.chmod(0o777)
        binary = cached("key", ".so", "source", copy)
        assert binary.is_relative_to(temporary)
        assert not binary.is_relative_to(shared)
        assert stat.S_IMODE(binary.parent.parent.stat().st_mode) == 0o700
        assert cached("key", ".so", "source", refuse) == binary
        assert {str(tmp_path / "cache") in r.getMessage() for r in caplog.records} == {True, False}

    def test_of_a_process_goes_with_it(self, temporary: Path) -> None:
        (temporary / f"vpps-{os.getuid()}").touch()
        made = run(
            """
            from tests.kernel.cache.builders import copy
            from vpps.kernel.cache import cached
            path = cached("key", ".so", "source", copy)
            print(path, path.is_file())
            """
        ).split()
        assert made[1] == "True"
        assert not Path(made[0]).exists()
        assert sorted(p.name for p in temporary.iterdir()) == [f"vpps-{os.getuid()}"]

    def test_that_is_missing_too_leaves_one_clear_error(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing" / "too"))
        (tmp_path / "missing").touch()
        with pytest.raises(CompileError, match=r"written nowhere.*VPPS_CACHE_DIR"):
            cached("key", ".so", "source", copy)
