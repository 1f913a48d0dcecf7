"""A disk without room: kernels are made and used all the same, or one clear error says that they cannot be kept."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel.cache.builders import copy, names, refuse
from vpps.errors import CompileError
from vpps.kernel.cache import BinaryRequest, Label, cached, keep_facts, loaded, obtain, read_binary
from vpps.kernel.host_compiler import build_library
from vpps.kernel.prebuilt import HostLibrary

pytestmark = pytest.mark.host

SOURCE = "".join(f"{number:06d}" for number in range(20_000))  # 120 KB, as a kernel's


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """The cache on a disk of 160 KB."""
    folder.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=160k,mode=700", "vpps-test", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"mounting a small disk takes root's rights: {mounted.stderr.partition(chr(10))[0]}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class TestSmallDisk:
    def test_that_is_too_small_for_a_kernel(
        self, small_disk: Path, temporary: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        binary = cached("key", ".so", SOURCE, copy)
        assert read_binary(binary) == b"binary of " + SOURCE.encode()
        assert binary.is_relative_to(temporary)
        assert names(small_disk) == []
        assert "No space left on device" in caplog.text
        assert cached("key", ".so", SOURCE, refuse) == binary

    def test_that_fills_up(self, small_disk: Path, temporary: Path) -> None:
        half = SOURCE[: len(SOURCE) // 2]
        binaries = [cached(key, ".so", half, copy) for key in "abc"]
        assert [path.is_relative_to(small_disk) for path in binaries] == [True, False, False]
        assert all(read_binary(path) == b"binary of " + half.encode() for path in binaries)

    def test_that_is_full_to_the_last_byte(self, small_disk: Path, temporary: Path) -> None:
        with (small_disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        binary = cached("key", ".so", "source", copy)
        assert read_binary(binary) == b"binary of source"
        assert binary.is_relative_to(temporary)

    def test_that_became_read_only_still_serves_what_it_has(self, small_disk: Path, temporary: Path) -> None:
        there = cached("there", ".so", "source", copy)
        remount = ["mount", "-o", "remount,ro,size=160k", str(small_disk)]
        if subprocess.run(remount, capture_output=True, check=False).returncode:
            pytest.skip("the disk cannot be made read-only")
        assert read_binary(cached("there", ".so", "source", refuse)) == b"binary of source"
        assert cached("there", ".so", "source", refuse) == there
        assert cached("new", ".so", "source", copy).is_relative_to(temporary)

    def test_that_became_read_only_with_something_damaged(self, small_disk: Path, temporary: Path) -> None:
        cached("key", ".so", "source", copy).write_bytes(b"binary of Source")
        if subprocess.run(["mount", "-o", "remount,ro,size=160k", str(small_disk)], check=False).returncode:
            pytest.skip("the disk cannot be made read-only")
        binary = cached("key", ".so", "source", copy)
        assert read_binary(binary) == b"binary of source"
        assert binary.is_relative_to(temporary)


def raising(code: int, folder: Path, real: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the operating system that fails for what is below a folder."""

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        given = options.get("dir") or (f"/proc/self/fd/{path}" if isinstance(path, int) else path)
        if Path(os.path.realpath(given)).is_relative_to(folder):
            raise OSError(code, os.strerror(code), str(given))
        return real(path, *arguments, **options)

    return call


CODES = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES]


class TestWriting:
    """The same wherever mounting is not allowed, and for every call that may fail."""

    @pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
    @pytest.mark.parametrize("call", ["os.fsync", "os.rename", "os.mkdir", "os.open"])
    def test_that_fails_in_the_cache_leads_elsewhere(
        self, folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
    ) -> None:
        monkeypatch.setattr(call, raising(code, folder, getattr(os, call.removeprefix("os."))))
        binary = cached("key", ".so", "source", copy)
        assert binary.is_relative_to(temporary)
        assert read_binary(binary) == b"binary of source"
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

    def test_of_facts_that_fails_leaves_what_was_there(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        binary = cached("key", ".so", "source", lambda text, binary: {"registers": binary.write_bytes(b"x")})
        monkeypatch.setattr("os.fsync", raising(errno.ENOSPC, folder, os.fsync))
        keep_facts(binary, {"registers": 2})
        assert obtain(BinaryRequest("key", ".so", "source", refuse)).record.facts == {"registers": 1}

    def test_to_a_temporary_directory_that_is_full_is_done_in_the_cache(
        self, folder: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("os.mkdir", raising(errno.ENOSPC, temporary, os.mkdir))
        assert cached("key", ".so", "source", copy).is_relative_to(folder)

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO], ids=errno.errorcode.get)
    def test_of_a_compiler_that_fails_in_one_directory_is_done_in_another(
        self, folder: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture, code: int,
    ) -> None:  # fmt: skip
        compiler(tmp_path, monkeypatch, temporary, f"ld: final link failed: {os.strerror(code)}")
        assert read_binary(build_library(LIBRARY)) == b"library"
        assert os.strerror(code) in caplog.text
        assert f"compiled in {temporary}" in caplog.text

    def test_of_a_compiler_that_fails_everywhere_is_one_error_that_names_the_disk(
        self, folder: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compiler(tmp_path, monkeypatch, tmp_path, f"fatal error: error writing to file: {os.strerror(errno.ENOSPC)}")
        with pytest.raises(CompileError, match=r"nothing can be compiled.*No space left on device.*VPPS_CACHE_DIR"):
            build_library(LIBRARY)
        assert names(temporary) == names(folder) == []


LIBRARY = HostLibrary("library", "a library", "source", (), Label())


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: Path, complaint: str) -> None:
    """Make a shell script the compiler, which fails below a folder."""
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


@pytest.mark.skipif(not hasattr(os, "ST_NOEXEC"), reason="the system does not say how a file system is mounted")
class TestNoexec:
    """A file system from which libraries cannot be loaded, as hardened machines have for /home or /tmp."""

    @pytest.fixture
    def noexec(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
        def declare(*folders: Path) -> None:
            real = os.statvfs

            def statvfs(path: Any) -> Any:
                if any(Path(path).is_relative_to(folder) for folder in folders):
                    return SimpleNamespace(f_flag=os.ST_NOEXEC)
                return real(path)

            monkeypatch.setattr("os.statvfs", statvfs)

        return declare

    def test_gives_way_to_another_one(
        self, folder: Path, temporary: Path, noexec: Callable[..., None], caplog: pytest.LogCaptureFixture
    ) -> None:
        noexec(folder)
        binary = cached("key", ".so", "source", copy)
        assert binary.is_relative_to(temporary)
        assert "noexec" in caplog.text
        assert cached("key", ".so", "source", refuse) == binary

    def test_is_used_where_there_is_no_other_and_named_when_nothing_loads(
        self, folder: Path, tmp_path: Path, noexec: Callable[..., None]
    ) -> None:
        noexec(tmp_path)
        binary = cached("key", ".so", "source", copy)
        assert binary.is_relative_to(folder)
        assert read_binary(binary) == b"binary of source"  # as a cubin

        def load(path: Path) -> None:
            raise OSError("failed to map segment from shared object")

        with pytest.raises(
            CompileError, match=r"mounted noexec: set VPPS_CACHE_DIR to a directory of your own on anoth"
        ):
            loaded(binary, load)
