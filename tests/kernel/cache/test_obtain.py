"""Binaries by key: built once, found again, and rebuilt if they do not load."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.kernel.cache.builders import copy, copy_with_facts, names, refuse
from vpps.errors import CompileError
from vpps.kernel.cache import BinaryRequest, Label, cached, key_of, loaded, obtain, read_binary

pytestmark = pytest.mark.host

REQUEST = BinaryRequest("key", ".bin", "source", copy_with_facts, ".cu", Label("cubin", "sm_90", "NVRTC 13"))
REFUSED = BinaryRequest("key", ".bin", "source", refuse, ".cu")


class TestBuild:
    def test_happens_once_per_key_and_keeps_binary_source_and_record(self, folder: Path) -> None:
        binary = obtain(REQUEST).binary
        assert binary == folder / "kernels/key/key.bin"
        assert binary.read_bytes() == b"binary of source"
        assert binary.with_suffix(".cu").read_text() == "source"
        assert json.loads(binary.with_suffix(".json").read_text())["label"] == asdict(REQUEST.label)
        assert names(folder) == ["key.bin", "key.cu", "key.json"]
        assert obtain(REFUSED).binary == binary
        assert cached("other", ".bin", "other source", copy) != binary

    @pytest.mark.parametrize("failure", [CompileError("no"), KeyboardInterrupt(), RuntimeError()], ids=repr)
    def test_that_fails_leaves_nothing_behind_and_can_be_repeated(
        self, folder: Path, temporary: Path, failure: BaseException
    ) -> None:
        def fail(text: Path, binary: Path) -> None:
            binary.write_bytes(b"half of a bin")
            raise failure

        with pytest.raises(type(failure)):
            cached("key", ".so", "source", fail)
        assert names(folder) == names(temporary) == []
        assert cached("key", ".so", "source", copy).read_bytes() == b"binary of source"


def test_facts_are_told_whenever_the_binary_is_used(folder: Path) -> None:
    facts = {"registers": 168, "warnings": ["line 7: unused"]}
    assert obtain(REQUEST).facts == facts
    assert obtain(REFUSED).facts == facts
    assert obtain(REFUSED).label == REQUEST.label


HARM: Mapping[str, Callable[[Path], object]] = {
    "record cut": lambda folder: (folder / "key.json").write_text('{\n "format": 1,'),
    "record a list": lambda folder: (folder / "key.json").write_text("[]"),
    "record no text": lambda folder: (folder / "key.json").write_bytes(b"\xff\xfe"),
    "record of another version": lambda folder: (folder / "key.json").write_text('{\n "format": 0}'),
    "record gone": lambda folder: (folder / "key.json").unlink(),
    "a file instead": lambda folder: (folder.rename(folder.with_name("x")), folder.touch()),
    "dangling link": lambda folder: (folder.rename(folder.with_name("x")), folder.symlink_to("y")),
    "nothing": lambda folder: folder.rename(folder.with_name("x")),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_an_entry_that_cannot_be_read_is_made_anew(folder: Path, harm: Callable[[Path], object]) -> None:
    entry = obtain(REQUEST)
    harm(entry.binary.parent)
    assert obtain(REQUEST) == entry
    assert entry.binary.read_bytes() == b"binary of source"
    assert obtain(REFUSED) == entry


@pytest.mark.parametrize("error", [OSError("no library"), ImportError("no module")], ids=repr)
@pytest.mark.parametrize("fails", [1, 2])
def test_what_cannot_be_loaded_is_made_anew_once(folder: Path, fails: int, error: Exception) -> None:
    """A second failure is an error, and the entry is removed."""
    binary, attempts = obtain(REQUEST).binary, []

    def load(path: Path) -> bytes:
        attempts.append(path)
        if len(attempts) <= fails:
            raise error
        return path.read_bytes()

    if fails == 1:
        assert loaded(binary, load) == b"binary of source"
    else:
        with pytest.raises(CompileError, match=rf"removed from the cache \({error}\).*CXX.*noexec, set VPPS_CACHE_DIR"):
            loaded(binary, load)
        assert names(folder) == []
    assert len(attempts) == 2


def test_what_was_removed_meanwhile_is_made_anew(folder: Path) -> None:
    binary = obtain(REQUEST).binary
    binary.parent.rename(folder / "gone")
    assert read_binary(binary) == b"binary of source"


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
