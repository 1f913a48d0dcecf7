"""The cache directory: the configured one if it is trusted and writable; otherwise a fallback, with a warning."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.cache.builders import copy, names, refuse
from vpps.config import cache_dir
from vpps.errors import CompileError
from vpps.kernel.cache import Label, cached, places
from vpps.kernel.host_compiler import build_library
from vpps.kernel.prebuilt import HostLibrary

pytestmark = pytest.mark.host

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
NOT_AS_ROOT = pytest.mark.skipif(os.getuid() == 0, reason="root can write to any directory")


def elsewhere(temporary: Path, caplog: pytest.LogCaptureFixture, *words: str) -> Path:
    """Assert that a kernel is built outside the cache and found again there, and that one warning says why."""
    binary = cached("key", ".so", "source", copy)
    assert binary.read_bytes() == b"binary of source"
    assert binary.is_relative_to(temporary / f"vpps-{os.getuid()}")
    assert stat.S_IMODE((temporary / f"vpps-{os.getuid()}").stat().st_mode) == 0o700
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
    @pytest.mark.parametrize("given", [".", "link", "{}"])
    def test_may_be_relative_a_link_and_one_that_others_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, mode: int
    ) -> None:
        """The library loader searches bare names elsewhere."""
        disk = tmp_path / "disk"
        disk.mkdir()
        disk.chmod(mode)
        (disk / "link").symlink_to(".")
        monkeypatch.chdir(disk)
        monkeypatch.setenv("VPPS_CACHE_DIR", given.format(disk))
        binary = cached("key", ".so", "source", copy)
        assert binary.is_absolute()
        assert binary.resolve() == disk / "kernels/key/key.so"

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
    @pytest.mark.parametrize("which", [".", "kernels"])
    def test_of_one_that_others_can_write_even_if_it_has_the_binary(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, mode: int, which: str
    ) -> None:
        planted = cached("key", ".so", "something evil", copy)
        (folder / which).chmod(mode)
        assert elsewhere(temporary, caplog, str(folder), "plant", f"{mode:o}", "chmod") != planted

    @AS_ROOT
    @pytest.mark.parametrize("is_link", [False, True])
    def test_of_one_of_another_user(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture, is_link: bool
    ) -> None:
        if is_link:
            folder.with_name("mine").mkdir(mode=0o700)
            folder.symlink_to("mine")
        else:
            folder.mkdir(mode=0o700)
        os.chown(folder, 12345, 12345, follow_symlinks=False)
        elsewhere(temporary, caplog, "another user")

    def test_of_one_of_another_user_without_being_root(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir(mode=0o700)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert "another user" in (places.why_refused(folder) or "")

    @pytest.mark.parametrize("place", ["file", "file/below", "link"])
    def test_of_what_is_no_directory(
        self, tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
        place: str,
    ) -> None:  # fmt: skip
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to(tmp_path / "nowhere/at/all")
        monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / place))
        elsewhere(temporary, caplog, str(tmp_path / place))

    @NOT_AS_ROOT
    def test_of_one_that_cannot_be_written(
        self, folder: Path, temporary: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.mkdir(mode=0o500)
        elsewhere(temporary, caplog, "cannot be created")

    def test_of_the_temporary_one_too_is_one_clear_error(self, folder: Path, temporary: Path) -> None:
        folder.mkdir()
        for refused in (folder, temporary / f"vpps-{os.getuid()}"):
            refused.mkdir(exist_ok=True)
            refused.chmod(0o777)
        with pytest.raises(CompileError, match=r"kept nowhere.*VPPS_CACHE_DIR"):
            cached("key", ".so", "source", copy)


def raising(code: int, folder: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    """An operating-system function that fails for paths below a folder."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        given = options.get("dir") or (f"/proc/self/fd/{path}" if isinstance(path, int) else path)
        if Path(os.path.realpath(given)).is_relative_to(folder):
            raise OSError(code, os.strerror(code), str(given))
        return real(path, *arguments, **options)

    return call


LIBRARY = HostLibrary("library", "a library", "source", (), Label())


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Path, complaint: str) -> None:
    """Replace the compiler with a shell script that fails below a folder."""
    path = tmp_path / "compiler"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo 1.0; exit 0; fi\n'
        "for result; do :; done\n"
        f"case $result in {failing}/*) echo '{complaint}' >&2; exit 1;; esac\n"
        "printf library > $result\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


class TestWriting:
    """Writes fail, once at every call that can fail."""

    @pytest.mark.parametrize(
        "code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES], ids=errno.errorcode.get
    )
    @pytest.mark.parametrize("call", ["os.fsync", "os.rename", "os.mkdir", "os.open"])
    def test_that_fails_in_the_cache_leads_elsewhere(
        self, folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
        call: str, code: int,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(call, raising(code, folder, getattr(os, call.removeprefix("os."))))
        elsewhere(temporary, caplog, str(folder), os.strerror(code))
        monkeypatch.undo()
        assert [name for name in names(folder) if name.startswith("key.")] == []

    @pytest.mark.parametrize("call", ["os.fsync", "os.rename", "os.mkdir"])
    def test_that_fails_everywhere_is_one_error(
        self, folder: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        monkeypatch.setattr(call, raising(errno.ENOSPC, tmp_path, getattr(os, call.removeprefix("os."))))
        with pytest.raises(CompileError, match=r"nowhere.*VPPS_CACHE_DIR") as caught:
            cached("key", ".so", "source", copy)
        assert "\n" not in str(caught.value)
        monkeypatch.undo()
        assert names(temporary) == names(folder) == []

    @pytest.mark.parametrize("everywhere", [False, True])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
    def test_of_a_compiler_that_fails_is_done_in_another_directory(
        self, folder: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture, code: int, everywhere: bool,
    ) -> None:  # fmt: skip
        """If writing fails everywhere, one error names the disk."""
        complaint = f"ld: final link failed: {os.strerror(code)}"
        compiler(tmp_path, monkeypatch, tmp_path if everywhere else folder, complaint)
        if not everywhere:
            assert build_library(LIBRARY).is_relative_to(temporary)
            assert os.strerror(code) in caplog.text
            return
        with pytest.raises(CompileError, match=rf"kept nowhere.*{os.strerror(code)}.*VPPS_CACHE_DIR"):
            build_library(LIBRARY)
        assert names(temporary) == names(folder) == []
