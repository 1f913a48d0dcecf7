"""Names behind the numbers of graphs (words, classes, kinds) as JSON, for checkpoints and saved networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vpps.data import GraphSet, Vocabulary
from vpps.errors import CheckpointError

MOST_KEPT = 1 << 20
"""Exclusive limit on children and classes in a checkpoint. A larger number is damage and would cause an allocation."""


def names_of(graphs: GraphSet) -> dict[str, Any]:
    """Return the vocabularies, class names and kinds of a set, and its arity, as JSON types."""
    return {
        "vocabularies": {column: list(words.words) for column, words in graphs.vocabularies.items()},
        "classes": {column: list(names) for column, names in graphs.classes.items()},
        "kinds": list(graphs.kinds),
        "arity": graphs.arity,
    }


def set_kept(state: Mapping[str, Any], name: str) -> GraphSet:
    """Return a set of one vertex, the `like` of readers, from a result of `names_of`.

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
