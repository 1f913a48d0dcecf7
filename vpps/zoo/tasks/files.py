"""Where the data of a task lies, and what of it a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from vpps.data import GraphSet, Vocabulary
from vpps.data.lines import hold_out
from vpps.errors import DataError

Source = str | PathLike[str]


def train_and_dev(data: Path) -> tuple[Source, Source]:
    """Sources for readers: `train.txt` and `dev.txt` of a folder; or a file, or the only one of a folder, with the last
    tenth of its lines for dev.

    Raises:
        DataError: the folder has neither.
    """
    if not data.is_dir():
        return hold_out(data)
    train, dev = data / "train.txt", data / "dev.txt"
    if train.exists() or dev.exists():
        return train, dev
    files = sorted(path for path in data.iterdir() if path.suffix in (".txt", ".gz"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise DataError(f"{data}: expected train.txt and dev.txt, or one text file, found {found}")
    return hold_out(files[0])


def names_of(graphs: GraphSet) -> dict[str, Any]:
    """What the numbers of a set stand for, and its arity, as JSON types."""
    return {
        "vocabularies": {column: list(words.words) for column, words in graphs.vocabularies.items()},
        "classes": {column: list(names) for column, names in graphs.classes.items()},
        "kinds": list(graphs.kinds),
        "arity": graphs.arity,
    }


def set_with_names(names: Mapping[str, Any]) -> GraphSet:
    """A set of one vertex that readers take as `like`, from what `names_of` returned."""
    arity = names["arity"]
    children = (np.zeros(2, np.int32), np.zeros(0, np.int32)) if arity is None else np.full((1, arity), -1, np.int32)
    columns = {column: np.zeros(1, np.int32) for column in {**names["vocabularies"], **names["classes"]}}
    return GraphSet(
        [1], children, kind=np.zeros(1, np.int8) if len(names["kinds"]) > 1 else None, kinds=names["kinds"],
        columns=columns,
        vocabularies={column: Vocabulary(words) for column, words in names["vocabularies"].items()},
        classes=names["classes"],
    )  # fmt: skip
