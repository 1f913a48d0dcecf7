"""Finds the data files of a task."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from vpps.data.lines import hold_out, read_lines
from vpps.data.readers.names import Source
from vpps.data.readers.sentences import check_parallel
from vpps.errors import DataError


def train_and_dev(data: Path) -> tuple[Source, Source]:
    """Return the train and dev data's sources: `train.txt` and `dev.txt` in a folder, or parts of one file, which is
    `data` or the folder's only text file. The last tenth of its lines is dev data.

    Raises:
        DataError: the folder has neither, or cannot be read.
    """
    if not os.path.isdir(data):
        return hold_out(data)
    train, dev = data / "train.txt", data / "dev.txt"
    if os.path.exists(train) or os.path.exists(dev):
        return train, dev
    files = [path for path in listed(data) if path.suffix in (".txt", ".gz")]
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise DataError(f"{data}: expected train.txt and dev.txt, or one text file, found {found}")
    return hold_out(files[0])


def listed(folder: Path) -> list[Path]:
    """Return the sorted paths in a folder. Raises DataError."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None


def folder_only(data: Path) -> tuple[Source, Source]:
    """Return `train.txt` and `dev.txt` in a folder. Raises DataError."""
    if not os.path.isdir(data):
        raise DataError(f"{data}: expected a folder with train.txt and dev.txt")
    return data / "train.txt", data / "dev.txt"


def parallel_files(folder: Path, source: str) -> tuple[tuple[Source, Source], tuple[Source, Source]]:
    """Return (source, target) for train and dev data: train.X, train.Y, dev.X and dev.Y in a folder, or its only pair
    of files whose names differ in their extensions. The last tenth of that pair's lines is dev data.

    Args:
        source: the extension X. Compressed files append `.gz` to it.

    Raises:
        DataError: the folder has neither, or the two files of the single pair differ in length.
    """
    if not os.path.isdir(folder):
        raise DataError(f"{folder}: expected a folder with a file per language, such as train.en and train.vi")
    by_name: dict[str, dict[str, Path]] = {}
    paths = listed(folder)
    for path in paths:
        name, _, language = path.name.removesuffix(".gz").rpartition(".")
        by_name.setdefault(name, {})[language] = path
    pairs: dict[str, tuple[Path, Path]] = {}
    for name, languages in by_name.items():
        others = [path for language, path in languages.items() if language != source]
        if source in languages and len(others) == 1:
            pairs[name] = languages[source], others[0]
    if "train" in pairs and "dev" in pairs:
        return pairs["train"], pairs["dev"]
    if len(pairs) != 1:
        found = ", ".join(path.name for path in paths) or "nothing"
        raise DataError(
            f"{folder}: expected train.{source} and dev.{source} with their translations, or one pair of files, found "
            f"{found}; set --source to the extension of the source files"
        )
    (first, second), *_ = pairs.values()
    n_first, n_second = (sum(1 for _ in read_lines(path)) for path in (first, second))
    check_parallel(first, n_first, second, n_second)
    train, dev = hold_out(first)
    return (train, replace(train, path=second)), (dev, replace(dev, path=second))
