"""The file of a `GraphSet`: safetensors, so that any program can read it, mapped into memory array by array.

Arrays by name: `vertex_offsets`; `children`, or `child_offsets` and `child_indices`; `levels`; where needed `kind` and
`order`; `column/NAME` and `graph_column/NAME`; `vocabulary/NAME/text` and `vocabulary/NAME/offsets`, the words in
UTF-8 one after the other. `vertex_offsets` begins at 0; `GraphArrays` says what the rest means. The metadata has one
key, `vpps.graphs`: JSON with the version of this format, the names of kinds and classes, and a CRC-32 per array.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from vpps.data.grapharrays import GraphArrays
from vpps.data.graphset import GraphSet
from vpps.data.topology import running_sum
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError
from vpps.files import replacing

FORMAT = 1
_KEY = "vpps.graphs"
_COLUMN, _GRAPH_COLUMN, _VOCABULARY = "column/", "graph_column/", "vocabulary/"
_TYPES = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64, "F32": np.float32}
_FIELDS = {
    "vertex_offsets": np.int64, "children": np.int32, "child_offsets": np.int64, "child_indices": np.int32,
    "kind": np.int8, "levels": np.int32, "order": np.int32,
}  # fmt: skip


def save(graphs: GraphSet, path: Path) -> None:
    """See `GraphSet.save`."""
    from safetensors.numpy import save_file

    whole = graphs if _is_whole(graphs) else graphs.subset(np.arange(len(graphs)))
    a = whole.arrays
    arrays: dict[str, NDArray[Any]] = {k: x for k in _FIELDS if (x := getattr(a, k)) is not None}
    arrays |= {_COLUMN + name: x for name, x in a.columns.items()}
    arrays |= {_GRAPH_COLUMN + name: x for name, x in a.graph_columns.items()}
    for name, vocabulary in whole.vocabularies.items():
        words = [word.encode() for word in vocabulary.words]
        arrays[f"{_VOCABULARY}{name}/text"] = np.frombuffer(b"".join(words), np.uint8)
        arrays[f"{_VOCABULARY}{name}/offsets"] = running_sum(np.array([len(word) for word in words], np.int64))
    description = {
        "format": FORMAT,
        "kinds": whole.kinds,
        "classes": whole.classes,
        "vocabularies": list(whole.vocabularies),
        "columns": list(a.columns),  # a safetensors file has an order of its own
        "graph_columns": list(a.graph_columns),
        "crc32": {name: _checksum(x) for name, x in arrays.items()},
    }
    try:
        with replacing(path) as scratch:
            save_file(arrays, scratch, {_KEY: json.dumps(description)})
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error})") from error


def load(path: Path, verify: bool) -> GraphSet:
    """See `GraphSet.load`."""
    data, header, begin = _map(path)
    try:
        description = json.loads(header.pop("__metadata__")[_KEY])
        version = description["format"]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path}: holds no graphs: a safetensors file that GraphSet.save did not write") from None
    if version != FORMAT:
        raise DataError(
            f"{path}: written by another version of vpps (format {version}, not {FORMAT}): convert the data again"
        )
    try:
        arrays = {name: _array(data, begin, entry) for name, entry in header.items()}
        if verify:
            for name, crc32 in description["crc32"].items():
                if _checksum(arrays[name]) != crc32:
                    raise ValueError(f"the checksum of {name} differs from that of its contents")
        vocabularies = {name: _vocabulary(arrays, name) for name in description["vocabularies"]}
        held = GraphArrays(
            **{name: _of_type(arrays.get(name), name, kind) for name, kind in _FIELDS.items()},
            columns={name: arrays[_COLUMN + name] for name in description["columns"]},
            graph_columns={name: arrays[_GRAPH_COLUMN + name] for name in description["graph_columns"]},
        )
        _check(held)
        classes = {name: tuple(names) for name, names in description["classes"].items()}
        return GraphSet.from_arrays(held, tuple(description["kinds"]), vocabularies, classes, path)
    except (KeyError, TypeError, ValueError, AttributeError, DataError) as error:
        raise DataError(f"{path}: damaged: {error}") from error


def _map(path: Path) -> tuple[NDArray[np.uint8], dict[str, Any], int]:
    """The bytes of a safetensors file, its header, and where the arrays begin."""

    def foreign(why: str) -> NoReturn:
        raise DataError(f"{path}: no file of graphs, or a truncated one: {why}")

    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < 8:
                foreign("it has fewer than 8 bytes")
            # The mapping outlives the file's descriptor, and lives as long as an array that shows a part of it.
            data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    if begin > len(data):
        foreign("it does not begin with the header of a safetensors file")
    try:
        header = json.loads(data[8:begin].tobytes())
        end = max((int(x["data_offsets"][1]) for k, x in header.items() if k != "__metadata__"), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        foreign("it does not begin with the header of a safetensors file")
    if begin + end != len(data):
        foreign(f"it should have {begin + end} bytes and has {len(data)}")
    return data, header, begin


def _array(data: NDArray[np.uint8], begin: int, entry: dict[str, Any]) -> NDArray[Any]:
    """An array of the file, not read yet."""
    first, last = entry["data_offsets"]
    kind = np.dtype(_TYPES[entry["dtype"]])
    shape = tuple(entry["shape"])
    if not 0 <= first <= last or last - first != math.prod(shape) * kind.itemsize or (begin + first) % kind.itemsize:
        raise ValueError(f"bytes {first} to {last} are no {kind} of shape {shape}")
    return data[begin + first : begin + last].view(kind).reshape(shape)


def _of_type(array: NDArray[Any] | None, name: str, kind: type[Any]) -> Any:
    if array is not None and array.dtype != kind:
        raise ValueError(f"{name} is of {array.dtype}")
    return array


def _check(a: GraphArrays) -> None:
    """Raises ValueError where shapes contradict each other. Of what the arrays hold only offsets of graphs are read."""
    offsets = a.vertex_offsets
    if offsets is None or offsets.ndim != 1 or len(offsets) < 2 or offsets[0] or (np.diff(offsets) < 1).any():
        raise ValueError("vertex_offsets do not rise from 0")
    n = int(offsets[-1])
    lists = (a.child_offsets, a.child_indices)
    right = (
        a.levels is not None
        and (a.children is None) == (lists[0] is not None) == (lists[1] is not None)
        and (a.children is None or (a.children.ndim == 2 and len(a.children) == n))
        and (a.child_offsets is None or a.child_offsets.shape == (n + 1,))
        and (a.child_indices is None or a.child_indices.ndim == 1)
        and all(x is None or x.shape == (n,) for x in (a.levels, a.kind, a.order))
        and all(len(x) == n for x in a.columns.values())
        and all(len(x) == len(offsets) - 1 for x in a.graph_columns.values())
    )
    if not right:
        raise ValueError(f"arrays are missing or do not fit {len(offsets) - 1} graphs of {n} vertices")


def _vocabulary(arrays: dict[str, NDArray[Any]], name: str) -> Vocabulary:
    text = arrays[f"{_VOCABULARY}{name}/text"].tobytes()
    offsets = arrays[f"{_VOCABULARY}{name}/offsets"].tolist()
    return Vocabulary([text[a:b].decode() for a, b in pairwise(offsets)])


def _is_whole(graphs: GraphSet) -> bool:
    """Whether the arrays hold these graphs and nothing else: not so for a part that shares memory."""
    offsets = graphs.arrays.vertex_offsets
    return int(offsets[0]) == 0 and int(offsets[-1]) == len(graphs.arrays.levels)


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)
