"""Parts of text files."""

from __future__ import annotations

from pathlib import Path

import pytest

from vpps.data.lines import Part, hold_out, read_lines
from vpps.errors import DataError

pytestmark = pytest.mark.host


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes("".join(f"line {k}\r\n" for k in range(1, 21)).encode())
    return path


def test_a_part_keeps_the_numbers_of_its_lines(text: Path) -> None:
    assert list(read_lines(Part(text, 1, 3))) == [(2, "line 2"), (3, "line 3")]
    assert [number for number, _ in read_lines(Part(text, 18))] == [19, 20]
    assert str(Part(text, 1, 3)) == str(text)


@pytest.mark.parametrize("first, end", [(-1, None), (2, 1), (0, -1)])
def test_a_part_of_no_lines_is_refused(text: Path, first: int, end: int | None) -> None:
    with pytest.raises(DataError, match=r"text\.txt: there are no lines"):
        Part(text, first, end)


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
