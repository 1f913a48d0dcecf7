"""Makes a case smaller as long as it fails in the same way. Cases are data: dataclasses, tuples, ints, floats, bools,
bytes, None. Named tuples and dataclasses keep their fields; all other tuples can become shorter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


def minimise(case: T, fails: Callable[[T], bool], seconds: float) -> T:
    """Return a smaller case for which `fails` gives the same answer, found greedily within the time."""
    end = time.monotonic() + seconds
    begin = 0  # index of the last smaller case: earlier variants are likely to pass again
    while True:
        for place, smaller in enumerate(variants(case)):
            if time.monotonic() > end:
                return case
            if place >= begin and fails(smaller):
                case, begin = smaller, max(place, 1)
                break
        else:
            if not begin:
                return case
            begin = 0


def variants(x: Any) -> Iterator[Any]:
    """Yield smaller values, the smallest first."""
    if isinstance(x, bool):
        if x:
            yield False
    elif isinstance(x, int):
        yield from dict.fromkeys(n for n in (0, 1, x // 10, x // 2, x - 1) if abs(n) < abs(x))
    elif isinstance(x, (bytes, tuple)) and not hasattr(x, "_fields"):
        size = len(x)
        while size:
            for begin in range(0, len(x), size):
                yield x[:begin] + x[begin + size :]
            size //= 2
        if isinstance(x, tuple):
            for i, element in enumerate(x):
                for smaller in variants(element):
                    yield (*x[:i], smaller, *x[i + 1 :])
    elif hasattr(x, "_fields"):
        for name in x._fields:
            for smaller in variants(getattr(x, name)):
                yield x._replace(**{name: smaller})
    elif is_dataclass(x) and not isinstance(x, type):
        for field in fields(x):
            for smaller in variants(getattr(x, field.name)):
                yield replace(x, **{field.name: smaller})
