"""Eviction: the least recently used entries are removed first, and entries that may be in use are kept."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.cache.builders import copy, key_named, name_of, names, refuse
from vpps.errors import CompileError
from vpps.kernel.cache import cached, eviction, read_binary

pytestmark = pytest.mark.host

KILO = "x" * 1000  # source; an entry is twice this size, plus its record


def store(key: str, hours: float = 0.0) -> Path:
    """Store an entry of more than 2000 bytes, last used `hours` hours ago."""
    binary = cached(key_named(key), ".so", KILO, copy)
    if hours:
        moment = time.time() - 3600 * hours
        os.utime(binary.with_suffix(".json"), (moment, moment))
    return binary


def keys(folder: Path) -> list[str]:
    return sorted(name_of(Path(name).stem) for name in names(folder) if name.endswith(".so"))


def test_the_limit_is_a_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid size is an error before anything is compiled."""
    sizes = {"": 2**30, "0": 0, "4096": 4096, "500M": 500 * 2**20, "500 MB": 500 * 2**20, "2g": 2**31}
    for text, expected in (sizes | {"1.5GiB": 3 * 2**29, ".5k": 512, "1T": 2**40}).items():
        monkeypatch.setenv("VPPS_CACHE_SIZE", text)
        assert eviction.limit() == expected
    for text in ("much", "-1", "1X", "M", "1,5G", "nan"):
        monkeypatch.setenv("VPPS_CACHE_SIZE", text)
        with pytest.raises(CompileError, match=r"VPPS_CACHE_SIZE=.*500M or 2G"):
            cached("key", ".so", "source", refuse)


class TestEviction:
    @pytest.fixture(autouse=True)
    def entries(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Four entries; two and a half fit into the limit."""
        for key, hours in (("third", 3), ("first", 5), ("fourth", 2), ("second", 4)):
            store(key, hours)
        monkeypatch.setenv("VPPS_CACHE_SIZE", "5k")

    def test_takes_what_was_used_longest_ago(self, folder: Path) -> None:
        store("new")
        assert keys(folder) == ["fourth", "new"]

    @pytest.mark.parametrize("use", [lambda binary: None, read_binary], ids=["found", "loaded"])
    def test_knows_when_an_entry_was_used(self, folder: Path, use: Callable[[Path], object]) -> None:
        use(cached(key_named("first"), ".so", KILO, refuse))
        store("new")
        assert keys(folder) == ["first", "new"]

    def test_leaves_what_was_just_used_and_what_was_just_stored(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process may be about to load them."""
        monkeypatch.setenv("VPPS_CACHE_SIZE", "1")
        cached(key_named("second"), ".so", KILO, refuse)
        store("new")
        assert keys(folder) == ["new", "second"]

    def test_happens_only_where_there_is_a_limit(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VPPS_CACHE_SIZE", "0")
        store("new")
        assert len(keys(folder)) == 5

    def test_takes_what_cannot_be_read_when_its_turn_comes(self, folder: Path) -> None:
        first = folder / "kernels" / key_named("first")
        (first / f"{first.name}.json").write_text('{\n "format": 1, "key')
        os.utime(first / f"{first.name}.json", (0, 0))
        store("new")
        assert keys(folder) == ["fourth", "new"]

    def test_does_no_harm_to_what_is_found_and_evicted_at_once(self, folder: Path) -> None:
        binary = cached(key_named("third"), ".so", KILO, copy)
        os.utime(binary.with_suffix(".json"), (0, 0))
        store("new")
        assert not binary.exists()
        assert read_binary(binary) == b"binary of " + KILO.encode()


class TestLeftovers:
    @pytest.mark.parametrize("works", [False, True])
    def test_of_killed_processes_go_and_of_those_that_work_stay(self, folder: Path, works: bool) -> None:
        """There are three scratch folders, one without a lock and one a second old, and an entry's lock."""
        store("old")
        left = [folder / "kernels" / f"vpps-build-{k:016x}" for k in range(3)]
        lock = folder / "kernels" / (key_named("some") + ".lock")
        for place, age in zip(left, (100, time.time(), 1), strict=True):
            place.mkdir(parents=True)
            (place / "half.so").write_text("half")
            if place is not left[1]:
                (place / ".lock").touch()
            os.utime(place, (time.time() - age,) * 2)
        lock.touch()
        os.utime(lock, (0, 0))
        with (left[0] / ".lock").open("r+") as one, lock.open("r+") as other:
            if works:
                for file in (one, other):
                    fcntl.flock(file, fcntl.LOCK_EX)
            store("new")
            assert [path.exists() for path in (*left, lock)] == [works, False, True, works]
        store("newer")
        assert [path.exists() for path in (*left, lock)] == [False, False, True, False]

    def test_of_others_stay(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """VPPS_CACHE_DIR is a project's folder, in which a folder `kernels` already exists."""
        store("old", 5)
        theirs = theirs_in(folder / "kernels")
        monkeypatch.setenv("VPPS_CACHE_SIZE", "1")
        store("new")
        assert keys(folder) == ["new"]
        assert all(path.exists() for path in theirs)


def theirs_in(kernels: Path) -> list[Path]:
    """Another program's old files."""
    digest, other, third = "0123456789abcdef" * 2, "f" * 32, "e" * 32
    texts = {
        "gemm/gemm.cu": "years of work", "Makefile": "all:", "Cargo.lock": "lock", "uv.lock": "",
        "build-release/a.o": "", "build-0123456789abcdef/a.o": "", "vpps-build-notes/a.txt": "",
        f"{digest}/data.bin": "", f"{digest}.lock": "held by others", f"{other}/{other}.json": '{"of": "others"}',
        f"{third}": "a file",
        f"{'d' * 32}/{'d' * 32}.json": '{\n "format": 1}', f"{'d' * 32}/notes.txt": "mine",
    }  # fmt: skip
    for name, text in texts.items():
        (kernels / name).parent.mkdir(parents=True, exist_ok=True)
        (kernels / name).write_text(text)
    (kernels / ("c" * 32)).symlink_to(kernels / "gemm")
    for path in [*kernels.rglob("*")]:
        if path.name not in (f"{key_named('old')}.json", key_named("old")):
            os.utime(path, (0, 0), follow_symlinks=False)
    return [kernels / name for name in (*texts, "c" * 32)]
