"""Text files line by line: UTF-8, plain or compressed by gzip, with errors that give file, line and column.

Only blanks and tabs separate words: a no-break space belongs to its word.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from os import PathLike, fspath

from vpps.errors import DataError

words_in = re.compile(r"[^ \t]+").findall
"""The words of a line."""


def read_lines(path: str | PathLike[str]) -> Iterator[tuple[int, str]]:
    """Every line with its number from 1, without its end. A name that ends in `.gz` is decompressed.

    Raises:
        DataError: the file cannot be read or decompressed, or a line is not UTF-8.
    """
    try:
        with gzip.open(path, "rb") if fspath(path).endswith(".gz") else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    text = line.decode("utf-8-sig")
                except UnicodeDecodeError as error:
                    column, byte = len(line[: error.start].decode()) + 1, line[error.start]
                    raise DataError(f"{path}:{number}:{column}: expected UTF-8 text, found byte {byte:#x}") from None
                yield number, text.rstrip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: cannot be decompressed: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
