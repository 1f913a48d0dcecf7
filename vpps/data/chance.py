"""Choices by chance that are the same on every machine and under every Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def pick(rng: random.Random, choices: Sequence[T]) -> T:
    """One of them, each equally likely."""
    # Of all the methods of Random, Python promises for random() alone that its numbers never change.
    return choices[int(rng.random() * len(choices))]
