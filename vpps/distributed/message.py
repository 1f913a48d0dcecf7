"""Serializes values as bytes. Ranks exchange only plain data: unpickling could run any code from the sender."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any

import numpy as np

from vpps.errors import DistributedError

_ELEMENTS = re.compile(r"[<>|]?(b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[SU]\d{1,9})")
"""Element types that are plain memory, as `numpy.dtype.str` spells them."""

_SIZE = struct.Struct("<Q")


def packed(value: Any) -> bytes:
    """Serialize a value: a JSON text that describes it, then the bytes of its arrays.

    Args:
        value: None, bool, int, float, str, bytes, NumPy arrays and numbers, and lists, tuples and dicts of these.

    Raises:
        DistributedError: the value is, or contains, something else.
    """
    raw: list[bytes] = []
    try:
        text = json.dumps(_described(value, raw)).encode()
    except (RecursionError, ValueError) as error:  # the value contains itself, or an int has thousands of digits
        raise DistributedError(f"gather: the value cannot be sent to the other ranks ({error})") from error
    return _SIZE.pack(len(text)) + text + b"".join(raw)


def unpacked(data: bytes) -> Any:
    """Deserialize the result of `packed`. Raises DistributedError for anything else."""
    try:
        (size,) = _SIZE.unpack_from(data)
        end = _SIZE.size + size
        raw = _Raw(data, end)
        value = _value(json.loads(data[_SIZE.size : end].decode()), raw)
        if raw.at != len(data):
            raise ValueError("more bytes came than were announced")
    except (ValueError, LookupError, TypeError, struct.error, RecursionError, OverflowError, MemoryError) as error:
        raise DistributedError(
            f"gather: another rank sent what vpps did not write ({error}); do all ranks have the same version of vpps?"
        ) from error
    return value


def _described(value: Any, raw: list[bytes]) -> Any:
    """Convert a value to JSON. A list stands for a structured value: its kind, then its contents. Scalars are JSON."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple):
        return [kind.__name__, *(_described(item, raw) for item in value)]
    if kind is dict:
        return ["dict", *([_described(key, raw), _described(item, raw)] for key, item in value.items())]
    if kind is bytes:
        raw.append(value)
        return ["bytes", len(value)]
    if (kind is np.ndarray or isinstance(value, np.generic)) and _ELEMENTS.fullmatch(value.dtype.str):
        raw.append(value.tobytes())
        return ["array" if kind is np.ndarray else "number", value.dtype.str, *value.shape]
    raise DistributedError(
        f"gather: a value of type {kind.__module__}.{kind.__qualname__} cannot be sent to the other ranks; give None, "
        "bool, int, float, str, bytes, NumPy arrays of numbers, or lists, tuples and dicts of these"
    )


class _Raw:
    """Reads the bytes of one array after the other."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = data, at

    def take(self, n: int) -> bytes:
        if not 0 <= n <= len(self._data) - self.at:
            raise ValueError("fewer bytes came than were announced")
        self.at += n
        return self._data[self.at - n : self.at]


def _value(described: Any, raw: _Raw) -> Any:
    if type(described) is not list:
        if type(described) is dict:
            raise ValueError("an object")
        return described
    kind, *items = described
    if kind == "list":
        return [_value(item, raw) for item in items]
    if kind == "tuple":
        return tuple([_value(item, raw) for item in items])
    if kind == "dict":
        return {_value(key, raw): _value(item, raw) for key, item in items}
    if kind == "bytes":
        (n,) = items
        return raw.take(n)
    dtype, *shape = items
    if kind not in ("array", "number") or not _ELEMENTS.fullmatch(dtype) or any(type(n) is not int for n in shape):
        raise ValueError(f"a {kind!r:.40} of {dtype!r:.40}")
    element = np.dtype(dtype)
    data = raw.take(element.itemsize * math.prod(shape))
    # numpy.frombuffer rejects an empty buffer, but an empty array may have a shape.
    array = np.frombuffer(data, element).reshape(shape).copy() if data else np.zeros(shape, element)
    return array[()] if kind == "number" else array
