"""Slices of text files, by line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from vpps.data import lines
from vpps.data.lines import LinePart, hold_out, read_lines
from vpps.errors import DataError

pytestmark = pytest.mark.host


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes("".join(f"line {k}\r\n" for k in range(1, 21)).encode())
    return path


def test_a_part_keeps_the_numbers_of_its_lines(text: Path) -> None:
    assert list(read_lines(LinePart(text, 1, 3))) == [(2, "line 2"), (3, "line 3")]
    assert [number for number, _ in read_lines(LinePart(text, 18))] == [19, 20]
    assert str(LinePart(text, 1, 3)) == str(text)


@pytest.mark.parametrize("first, end", [(-1, None), (2, 1), (0, -1)])
def test_a_part_of_no_lines_is_refused(text: Path, first: int, end: int | None) -> None:
    with pytest.raises(DataError, match=r"text\.txt: no file has lines"):
        LinePart(text, first, end)


@pytest.mark.parametrize(
    "content, place",
    [
        (b"\xef\xbb\xbfab\xff", r"1:3: expected UTF-8 text, found byte 0xff"),
        (b"\xef\xbb\xbf\xc3\xa9\xfe", r"1:2: expected UTF-8 text, found byte 0xfe"),
        (b"\xef\xbb\xbf\x80", r"1:1: expected UTF-8 text, found byte 0x80"),
        (b"a\n\xef\xbb\xbfb\n\xef\xbb\xff", r"3:1: expected UTF-8 text, found byte 0xef"),
    ],
)
def test_bytes_that_are_no_text_behind_a_mark_of_order_are_located(content: bytes, place: str, text: Path) -> None:
    text.write_bytes(content)
    with pytest.raises(DataError, match=rf"text\.txt:{place}"):
        list(read_lines(text))


def test_a_line_far_longer_than_its_compressed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "SHORT_LINE", 1000)
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"a b\n" + b"0" * 100_000))
    with pytest.raises(DataError, match=r"zeros\.gz:2: the line is longer than \d+ bytes, .*decompress the file first"):
        list(read_lines(path))
    plain = tmp_path / "plain"
    plain.write_bytes(b"0" * 100_000)
    assert len(next(read_lines(plain))[1]) == 100_000


WHOLE = gzip.compress(b"".join(b"line %d\n" % k for k in range(4000)), mtime=0)


@pytest.mark.parametrize("content", [WHOLE[:-10], WHOLE[:300], b"text\n", WHOLE[:30] + b"~" * 30], ids=len)
def test_damage_of_a_compressed_file_is_located(content: bytes, tmp_path: Path) -> None:
    path, seen = tmp_path / "cut.gz", 0
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cut\.gz:\d+: cannot be decompressed") as error:  # noqa: PT012
        for number, _ in read_lines(path):
            seen = number
    assert f":{seen + 1}: " in str(error.value)


@pytest.mark.parametrize("ending", ["", "\r\n", "\n \n\t\n\n\n\n"], ids=["none", "blank", "blanks"])
def test_blank_lines_at_the_end_are_not_what_is_held_out(text: Path, ending: str) -> None:
    with text.open("ab") as file:
        file.write(ending.encode())
    train, dev = hold_out(text)
    assert [line for _, line in read_lines(train)] == [f"line {k}" for k in range(1, 19)]
    assert [line.strip() for _, line in read_lines(dev)][:3] == ["line 19", "line 20", ""][: 2 + bool(ending)]


@pytest.mark.parametrize("lines", ["", "\n\n\n", "a\n" * 5 + "\n" * 20], ids=["none", "blank", "few"])
def test_too_few_lines_are_refused(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "short"
    path.write_text(lines)
    with pytest.raises(DataError, match=r"short: [05] lines are too few to hold out 10% of them"):
        hold_out(path)
