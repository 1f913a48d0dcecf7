"""A task's data files, and the names from its data that a checkpoint stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vpps.data import GraphSet, Vocabulary
from vpps.data.lines import hold_out, read_lines
from vpps.data.readers.names import Source
from vpps.data.readers.sentences import check_parallel
from vpps.errors import CheckpointError, DataError

MOST_KEPT = 1 << 20
"""Exclusive limit on children and classes in a checkpoint. A larger number is damage and would cause an allocation."""


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


def names_of(graphs: GraphSet) -> dict[str, Any]:
    """Return the vocabularies, class names and kinds of a set, and its arity, as JSON types."""
    return {
        "vocabularies": {column: list(words.words) for column, words in graphs.vocabularies.items()},
        "classes": {column: list(names) for column, names in graphs.classes.items()},
        "kinds": list(graphs.kinds),
        "arity": graphs.arity,
    }


def set_kept(state: Mapping[str, Any], name: str) -> GraphSet:
    """Return a one-vertex set, to be the readers' `like`, from a result of `names_of`.

    Raises:
        CheckpointError: the state is not a result of `names_of`, so the checkpoint is damaged.
    """
    names = _kept(state, name)
    by_column: list[Any] = [names.get("vocabularies"), names.get("classes")] if isinstance(names, dict) else []
    arity = names.get("arity") if by_column else -1
    if (
        not all(isinstance(columns, dict) for columns in by_column)
        or not (arity is None or (type(arity) is int and 0 <= arity < MOST_KEPT))
        or not all(map(_are_strings, (names.get("kinds"), *(own for columns in by_column for own in columns.values()))))
    ):
        raise CheckpointError(f"damaged: {name!r}: the vocabularies, classes, kinds or arity are invalid")
    children = (np.zeros(2, np.int32), np.zeros(0, np.int32)) if arity is None else np.full((1, arity), -1, np.int32)
    vocabularies, classes = by_column
    return GraphSet(
        [1], children, kind=np.zeros(1, np.int8) if len(names["kinds"]) > 1 else None, kinds=names["kinds"],
        columns={column: np.zeros(1, np.int32) for column in {**vocabularies, **classes}},
        vocabularies={column: Vocabulary(words) for column, words in vocabularies.items()}, classes=classes,
    )  # fmt: skip


def count_kept(state: Mapping[str, Any], name: str, least: int) -> int:
    """Return a number from a task's state. Raises CheckpointError."""
    count = _kept(state, name)
    if type(count) is not int or not least <= count < MOST_KEPT:
        raise CheckpointError(f"damaged: {name!r} is {count!r}")
    return count


def _kept(state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        raise CheckpointError(f"damaged: {name!r} is missing")
    return state[name]


def _are_strings(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, str) for item in items)
