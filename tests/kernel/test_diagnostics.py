"""Compiler errors are shown with the numbered lines that `vpps-inspect source` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import vpps
from vpps.kernel.cache import Label
from vpps.kernel.diagnostics import of_log, quoted
from vpps.kernel.host_compiler import FLAGS, build_library
from vpps.kernel.prebuilt import HostLibrary

SOURCE = "".join(f"int x{k};\n" for k in range(1, 21))
TEXT = Path("/cache/build-1/abc.cpp")


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("VPPS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.host
class TestQuotes:
    def test_lines_around_with_their_numbers(self) -> None:
        assert quoted([(7, "what is this")], SOURCE).splitlines() == [
            "line 7: what is this",
            "      5 | int x5;",
            "      6 | int x6;",
            ">     7 | int x7;",
            "      8 | int x8;",
            "      9 | int x9;",
        ]

    def test_ends_of_a_source_and_the_first_ones_only(self) -> None:
        assert quoted([(1, "first")], SOURCE).splitlines()[1] == ">     1 | int x1;"
        assert quoted([(20, "last")], SOURCE).splitlines()[-1] == ">    20 | int x20;"
        assert quoted([(99, "beyond")], SOURCE) == "line 99: beyond"
        text = quoted([(n, f"wrong {n}") for n in range(1, 9)], SOURCE)
        assert "wrong 3" in text
        assert "wrong 4" not in text
        assert text.endswith("and 5 more")


@pytest.mark.host
@pytest.mark.parametrize(
    "log, shown",
    [
        (
            f"{TEXT}: In function 'f':\n{TEXT}:3:5: error: no such thing\n{TEXT}:3:9: error: no such thing\n",
            quoted([(3, "no such thing")], SOURCE),
        ),
        ("words.h:3:5: error: no such thing\nnote: here\n", "words.h:3:5: error: no such thing"),
        (
            "/usr/bin/ld: abc.o: in function `f':\nabc.cpp:(.text+0x5): undefined reference to `g'\n",
            "abc.cpp:(.text+0x5): undefined reference to `g'",
        ),
        ("killed\n", "killed\n"),
    ],
    ids=["source", "other file", "linker", "blames nothing"],
)
def test_of_a_log_errors_are_shown(log: str, shown: str) -> None:
    assert of_log(log, SOURCE, TEXT) == shown


WRONG = "int right;\nint wrong = nothing_like_this;\nint also_right;\n"


@pytest.mark.cpu
def test_rejected_source_of_the_host_is_quoted(fresh_cache: Path) -> None:
    with pytest.raises(vpps.CompileError) as caught:
        build_library(HostLibrary("wrong", "the kernel source", WRONG, FLAGS, Label("library")))
    message = str(caught.value)
    assert "rejected the kernel source:\nline 2: " in message
    assert ">     2 | int wrong = nothing_like_this;\n      3 | int also_right;" in message
