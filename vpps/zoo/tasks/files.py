"""Where the data of a task lies, and what of it a checkpoint keeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vpps.data import GraphSet, Vocabulary
from vpps.data.lines import hold_out
from vpps.errors import CheckpointError, DataError

Source = str | PathLike[str]
Graphs = TypeVar("Graphs")
MOST_KEPT = 1 << 20
"""Fewer children of a vertex, or classes, than this a checkpoint may name: more is damage, and would be allocated."""


def train_and_dev(data: Path) -> tuple[Source, Source]:
    """Sources for readers: `train.txt` and `dev.txt` of a folder; or a file, or the only one of a folder, with the last
    tenth of its lines for dev.

    Raises:
        DataError: the folder has neither, or may not be read.
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


def read_both(
    read: Callable[..., Graphs], data: tuple[Any, Any], like: Graphs | None, *, min_count: int, **options: Any
) -> tuple[Graphs, Graphs]:
    """Train and dev set, what a reader makes of two sources: the latter with the names of the former."""
    train = read(data[0], like=like, min_count=min_count if like is None else None, **options)
    return train, read(data[1], like=train, **options)


def listed(folder: Path) -> list[Path]:
    """What a folder holds, in order. Raises DataError."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from None


def names_of(graphs: GraphSet) -> dict[str, Any]:
    """What the numbers of a set stand for, and its arity, as JSON types."""
    return {
        "vocabularies": {column: list(words.words) for column, words in graphs.vocabularies.items()},
        "classes": {column: list(names) for column, names in graphs.classes.items()},
        "kinds": list(graphs.kinds),
        "arity": graphs.arity,
    }


def set_kept(state: Mapping[str, Any] | None, name: str = "names") -> GraphSet | None:
    """`set_with_names` of an item of a task's state, None in a fresh run. Raises CheckpointError."""
    return None if state is None else set_with_names(kept(state, name))


def set_with_names(names: Any) -> GraphSet:
    """A set of one vertex that readers take as `like`, from what `names_of` returned.

    Raises:
        CheckpointError: that never returned this, so it is of a damaged checkpoint.
    """
    if not _are_names(names):
        raise CheckpointError("damaged: the names of what the network knows are missing or wrong")
    arity = names["arity"]
    children = (np.zeros(2, np.int32), np.zeros(0, np.int32)) if arity is None else np.full((1, arity), -1, np.int32)
    columns = {column: np.zeros(1, np.int32) for column in {**names["vocabularies"], **names["classes"]}}
    return GraphSet(
        [1], children, kind=np.zeros(1, np.int8) if len(names["kinds"]) > 1 else None, kinds=names["kinds"],
        columns=columns,
        vocabularies={column: Vocabulary(words) for column, words in names["vocabularies"].items()},
        classes=names["classes"],
    )  # fmt: skip


def kept(state: Mapping[str, Any], name: str) -> Any:
    """An item of a task's state. Raises CheckpointError: there is none."""
    if name not in state:
        raise CheckpointError(f"damaged: {name!r} is missing")
    return state[name]


def kept_count(state: Mapping[str, Any], name: str, least: int = 1) -> int:
    """The same, of what is counted. Raises CheckpointError."""
    count = kept(state, name)
    if type(count) is not int or not least <= count < MOST_KEPT:
        raise CheckpointError(f"damaged: {name!r} is {count!r}")
    return count


def _are_names(names: Any) -> bool:
    """Whether `names_of` may have returned this."""
    if not isinstance(names, Mapping) or names.keys() != {"vocabularies", "classes", "kinds", "arity"}:
        return False
    arity, by_column = names["arity"], (names["vocabularies"], names["classes"])
    return (
        (arity is None or (type(arity) is int and 0 <= arity < MOST_KEPT))
        and all(isinstance(columns, Mapping) for columns in by_column)
        and all(
            map(_are_strings, (names["kinds"], *(strings for columns in by_column for strings in columns.values())))
        )
    )


def _are_strings(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, str) for item in items)
