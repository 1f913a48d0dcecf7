"""A binary by its key: made once, found again, made anew where it is damaged."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.kernel.cache.builders import copy, copy_with_facts, names, refuse
from vpps.errors import CompileError
from vpps.kernel.cache import BinaryRequest, Label, cached, entries, keep_facts, key_of, loaded, obtain, read_binary

pytestmark = pytest.mark.host

REQUEST = BinaryRequest("key", ".bin", "source", copy_with_facts, ".cu", Label("cubin", "sm_90", "NVRTC 13"))
REFUSED = BinaryRequest("key", ".bin", "source", refuse, ".cu")


class TestBuild:
    def test_keeps_binary_and_source_side_by_side(self, folder: Path) -> None:
        binary = cached("key", ".so", "source", copy)
        assert binary == folder / "kernels/key/key.so"
        assert binary.read_bytes() == b"binary of source"
        assert binary.with_suffix(".cpp").read_text() == "source"
        assert names(folder) == ["key.cpp", "key.json", "key.so"]

    def test_keeps_a_record_of_what_it_is(self, folder: Path) -> None:
        binary = obtain(REQUEST).binary
        record = json.loads(binary.with_suffix(".json").read_text())
        assert record["label"] == {"kind": "cubin", "made_for": "sm_90", "compiler": "NVRTC 13"}
        assert record["files"]["key.bin"]["size"] == len("binary of source")
        assert set(record["files"]) == {"key.bin", "key.cu"}
        assert record["facts"] == {"registers": 168, "warnings": ["line 7: unused"]}

    def test_happens_once_per_key(self, folder: Path) -> None:
        first = cached("key", ".so", "source", copy)
        assert cached("key", ".so", "source", refuse) == first
        assert cached("other", ".so", "other source", copy) != first

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
        assert names(temporary) == []

    def test_that_makes_nothing_is_an_error(self, folder: Path) -> None:
        calls = []
        with pytest.raises(CompileError, match=r"key\.so"):
            cached("key", ".so", "source", lambda text, binary: calls.append(text))
        assert names(folder) == []
        assert len(calls) == 1

    def test_facts_are_told_whenever_the_binary_is_used(self, folder: Path) -> None:
        facts = {"registers": 168, "warnings": ["line 7: unused"]}
        assert obtain(REQUEST).record.facts == facts
        assert obtain(REFUSED).record.facts == facts

    def test_facts_can_be_replaced(self, folder: Path) -> None:
        binary = obtain(REQUEST).binary
        keep_facts(binary, {"registers": 64})
        assert obtain(REFUSED).record.facts == {"registers": 64}
        assert names(folder) == ["key.bin", "key.cu", "key.json"]

    def test_facts_of_an_entry_that_is_gone_are_forgotten(self, folder: Path) -> None:
        binary = obtain(REQUEST).binary
        binary.parent.rename(folder / "elsewhere")
        keep_facts(binary, {"registers": 64})
        assert obtain(REQUEST).record.facts["registers"] == 168


def flip(path: Path, bit: int = 0) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 << bit
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


HARM: Mapping[str, Callable[[Path], object]] = {
    "binary flipped": lambda binary: flip(binary),
    "binary cut": lambda binary: cut(binary),
    "binary empty": lambda binary: binary.write_bytes(b""),
    "binary longer": lambda binary: binary.write_bytes(binary.read_bytes() + b"\0"),
    "binary gone": lambda binary: binary.unlink(),
    "binary a folder": lambda binary: (binary.unlink(), binary.mkdir()),
    "source flipped": lambda binary: flip(binary.with_suffix(".cu")),
    "source gone": lambda binary: binary.with_suffix(".cu").unlink(),
    "record cut": lambda binary: cut(binary.with_suffix(".json")),
    "record empty": lambda binary: binary.with_suffix(".json").write_text(""),
    "record a list": lambda binary: binary.with_suffix(".json").write_text("[]"),
    "record no text": lambda binary: binary.with_suffix(".json").write_bytes(b"\xff\xfe"),
    "record no object": lambda binary: binary.with_suffix(".json").write_text('{"sha256": 1}'),
    "record gone": lambda binary: binary.with_suffix(".json").unlink(),
    "fact changed": lambda binary: binary.with_suffix(".json").write_text(
        binary.with_suffix(".json").read_text().replace("168", "160")
    ),
    "a file instead": lambda binary: (binary.parent.rename(binary.parent.parent / "x"), binary.parent.touch()),
    "empty folder": lambda binary: (binary.parent.rename(binary.parent.parent / "x"), binary.parent.mkdir()),
    "dangling link": lambda binary: (binary.parent.rename(binary.parent.parent / "x"), binary.parent.symlink_to("y")),
}


class TestDamage:
    @pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
    def test_is_seen_and_the_binary_made_anew(
        self, folder: Path, harm: Callable[[Path], object], caplog: pytest.LogCaptureFixture
    ) -> None:
        binary = obtain(REQUEST).binary
        harm(binary)
        again = obtain(REQUEST)
        assert again.binary == binary
        assert binary.read_bytes() == b"binary of source"
        assert binary.with_suffix(".cu").read_text() == "source"
        assert again.record.facts["registers"] == 168
        if harm is not HARM["dangling link"]:  # which counts as gone
            assert [r.levelno for r in caplog.records] == [logging.WARNING]
            assert "damaged" in caplog.text
        assert obtain(REFUSED).binary == binary

    def test_of_any_bit_of_the_record_is_seen(self, folder: Path) -> None:
        """What is flipped may still be JSON, and may even say the same, but never anything else."""
        record = obtain(REQUEST).record
        text = record.as_text().encode()
        harmless = 0
        for place in range(len(text) * 8):
            changed = bytearray(text)
            changed[place // 8] ^= 1 << place % 8
            try:
                found = entries.Record.from_text(changed.decode())
            except (entries.DamagedError, UnicodeDecodeError):
                continue
            harmless += 1
            assert found == record
        assert harmless < 0.1 * len(text)  # of white space

    def test_of_an_entry_that_has_the_name_of_another_is_seen(self, folder: Path) -> None:
        cached("other", ".so", "other source", copy).parent.rename(folder / "kernels/key")
        assert cached("key", ".so", "source", copy).read_bytes() == b"binary of source"

    def test_that_keeps_size_and_times_is_seen_by_the_next_process(self, folder: Path) -> None:
        """Within a process it is looked for again only where the file was touched."""
        binary = obtain(REQUEST).binary
        before = binary.stat()
        flip(binary)
        os.utime(binary, ns=(before.st_atime_ns, before.st_mtime_ns))
        obtain(REQUEST)
        assert binary.read_bytes() == b"binary of source"


class TestLoading:
    def test_gives_what_was_stored(self, folder: Path) -> None:
        assert read_binary(cached("key", ".so", "source", copy)) == b"binary of source"

    @pytest.mark.parametrize("harm", ["binary flipped", "binary cut", "binary gone", "record gone", "empty folder"])
    def test_of_what_was_damaged_meanwhile_makes_it_anew(self, folder: Path, harm: str) -> None:
        binary = obtain(REQUEST).binary
        HARM[harm](binary)
        assert read_binary(binary) == b"binary of source"

    def test_of_what_was_removed_meanwhile_makes_it_anew(self, folder: Path) -> None:
        binary = obtain(REQUEST).binary
        binary.parent.rename(folder / "gone")
        assert read_binary(binary) == b"binary of source"

    @pytest.mark.parametrize("error", [OSError("no library"), ImportError("no module")], ids=repr)
    def test_that_fails_makes_it_anew_once(self, folder: Path, error: Exception) -> None:
        binary = obtain(REQUEST).binary
        attempts = []

        def load(path: Path) -> bytes:
            attempts.append(path)
            if len(attempts) == 1:
                raise error
            return path.read_bytes()

        assert loaded(binary, load) == b"binary of source"
        assert len(attempts) == 2

    def test_that_fails_again_is_an_error_and_the_entry_goes(self, folder: Path) -> None:
        binary = obtain(REQUEST).binary

        def load(path: Path) -> bytes:
            raise OSError("wrong ELF class")

        with pytest.raises(CompileError, match=r"removed from the cache \(wrong ELF class\).*CXX"):
            loaded(binary, load)
        assert names(folder) == []


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
