"""Reads UTF-8 text line by line, plain or gzip-compressed; error messages give file, line and column.

Only spaces and tabs separate words; a no-break space is part of its word.
"""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from os import PathLike, fspath

from vpps.errors import DataError
from vpps.values import as_path

SHORT_LINE = 1 << 27
"""Bytes that a line may have in any file; some corpora are one line."""
EXPANSION = 32
"""Limit of longer lines, in file sizes: gzip shrinks text to about a tenth, but zeros to a thousandth."""

words_in = re.compile(r"[^ \t]+").findall
"""The words of a line."""


@dataclass(frozen=True)
class LinePart:
    """Lines `first` to `end - 1` of a file, from 0; `end=None` means all the rest. Readers accept it as a path.

    Raises:
        DataError: `first` is negative, or `end` is not greater than `first`.
    """

    path: str | PathLike[str]
    first: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        if self.first < 0 or (self.end is not None and self.end <= self.first):
            raise DataError(f"{self.path}: no file has lines {self.first} to {self.end}, counted from 0")

    def __fspath__(self) -> str:
        return fspath(self.path)

    def __str__(self) -> str:
        return str(self.path)


def hold_out(path: str | PathLike[str], fraction: float = 0.1) -> tuple[LinePart, LinePart]:
    """Splits off the last `fraction` of a file's lines for development. Blank lines count, except at the file's end.

    Raises:
        DataError: the file cannot be read, or has too few lines for both parts.
    """
    n = max((number for number, text in read_lines(path) if text.strip()), default=0)
    cut = n - round(fraction * n)
    if not 0 < cut < n:
        raise DataError(f"{path}: {n} lines are too few to hold out {fraction:.0%} of them")
    return LinePart(path, 0, cut), LinePart(path, cut)


def read_lines(path: str | PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yields every line's number, from 1, and its text without the line end. Decompresses `.gz` files.

    Args:
        path: a file, or a `LinePart` of one.

    Raises:
        DataError: the file cannot be read or decompressed, or a line is not UTF-8 or too long for its file.
    """
    if isinstance(path, LinePart):
        yield from islice(read_lines(path.path), path.first, path.end)
        return
    number = 1
    where = as_path(path, "read", DataError)
    try:
        with gzip.open(where, "rb") if where.name.endswith(".gz") else open(where, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            longest = max(SHORT_LINE, EXPANSION * size)
            while line := file.readline(longest + 1):
                if len(line) > longest:
                    raise DataError(
                        f"{path}:{number}: the line is longer than {longest} bytes, but the file has only {size}: "
                        "expected text in lines; if it really is one line of text, decompress the file first"
                    )
                yield number, _decoded(line, f"{path}:{number}").rstrip("\r\n")
                number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}:{number}: cannot be decompressed: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _decoded(line: bytes, source: str) -> str:
    line = line.removeprefix(codecs.BOM_UTF8)  # before decoding, so that columns match those in an editor
    try:
        text = line.decode()
        if "\0" in text:  # probably UTF-16; UTF-8 text has no zero bytes
            raise UnicodeDecodeError("utf-8", line, line.index(0), line.index(0) + 1, "a byte of zeros")
        return text
    except UnicodeDecodeError as error:
        column, byte = len(line[: error.start].decode()) + 1, line[error.start]
        raise DataError(f"{source}:{column}: expected UTF-8 text, found byte {byte:#x}") from None
