"""Converts matrices per child, "U_1" and "U_2", to the peers' single matrix "U" of all children, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]


def _whole(names: Iterable[str]) -> dict[str, list[str]]:
    """Group the names that are parts of one parameter, in order; other names form groups of one."""
    known, found = set(names), dict[str, list[str]]()
    for name in names:
        numbered = re.fullmatch(r"(.+)_\d+", name)
        found.setdefault(numbered[1] if numbered and f"{numbered[1]}_1" in known else name, []).append(name)
    return found


def joined(arrays: Arrays) -> Arrays:
    """Join the parts of parameters, as the peers need them."""
    return {
        whole: np.concatenate([arrays[part] for part in parts], -1) if len(parts) > 1 else arrays[parts[0]]
        for whole, parts in _whole(arrays).items()
    }


def parted(arrays: Mapping[str, NDArray[np.float32]], names: Iterable[str]) -> Arrays:
    """Split the arrays that `joined` put together by these names; leave other arrays unchanged."""
    parts_of, found = _whole(list(names)), Arrays()
    for whole, array in arrays.items():
        parts = parts_of.get(whole, [whole])
        found |= zip(parts, np.split(array, len(parts), -1) if len(parts) > 1 else [array], strict=True)
    return found
