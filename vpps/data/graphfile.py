"""File format of a `GraphSet`: safetensors, so that any program can read it.

The arrays are `vertex_offsets`; `children`, or `child_offsets` and `child_indices`; `levels`; `kind` and `order` if
needed; `column/NAME`, `edge_column/NAME` and `graph_column/NAME`; and `vocabulary/NAME/text` and
`vocabulary/NAME/offsets`, the concatenated words in UTF-8. `vertex_offsets` begins at 0; `GraphArrays` describes the
other arrays. The metadata has two keys. `vpps.graphs` is JSON with the version of this format, the names of kinds and
classes, and a CRC-32 per array, over its type and shape (such as `int32(5, 2)`) and then its bytes. `vpps.crc32` is the
CRC-32 of that JSON in decimal.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vpps.data.grapharrays import GraphArrays, check_contents, check_names, frozen, names_of
from vpps.data.vocabulary import Vocabulary
from vpps.errors import DataError
from vpps.files import HeaderError, read_header, replacing
from vpps.record.ranges import running_sum

if TYPE_CHECKING:
    from vpps.data.graphset import GraphSet

FORMAT, WITHOUT_EDGE_COLUMNS = 3, 2
"""Format versions. Sets without edge columns use the second, so that earlier versions of vpps can read them."""
_KEY, _KEY_CRC32 = "vpps.graphs", "vpps.crc32"
_VOCABULARY = "vocabulary/"
_COLUMNS = {"columns": "column/", "graph_columns": "graph_column/", "edge_columns": "edge_column/"}
_TYPES = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64, "F32": np.float32}
_FIELDS = {
    "vertex_offsets": np.int64, "children": np.int32, "child_offsets": np.int64, "child_indices": np.int32,
    "kind": np.int8, "levels": np.int32, "order": np.int32,
}  # fmt: skip
MOST_IN_MEMORY = 1 << 30
"""Largest file, in bytes, that is read into memory."""
_REMEDY = "copy the file again, or convert the data again (vpps-data convert)"
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)
"""Exceptions that the use of JSON with an unexpected structure can raise."""


def save(graphs: GraphSet, path: Path) -> None:
    """Writes a set to a file; see `GraphSet.save`."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    offsets = graphs.arrays.vertex_offsets
    shares = offsets[0] or offsets[-1] != len(graphs.arrays.levels)  # the set is a view of a larger one
    whole = graphs.subset(np.arange(len(graphs))) if shares else graphs
    a = whole.arrays
    arrays: dict[str, NDArray[Any]] = {k: x for k in _FIELDS if (x := getattr(a, k)) is not None}
    columns = {sort: getattr(a, sort) for sort in _COLUMNS if sort != "edge_columns" or a.edge_columns}
    for sort, of_sort in columns.items():
        arrays |= {_COLUMNS[sort] + name: x for name, x in of_sort.items()}
    for name, vocabulary in whole.vocabularies.items():
        try:
            words = [word.encode() for word in vocabulary.words]
        except UnicodeEncodeError as error:
            raise DataError(
                f"{path}: the word {error.object!r} for {name!r} is not text: half a surrogate pair"
            ) from None
        arrays[f"{_VOCABULARY}{name}/text"] = np.frombuffer(b"".join(words), np.uint8)
        arrays[f"{_VOCABULARY}{name}/offsets"] = running_sum(np.array([len(word) for word in words], np.int64))
    description = {
        "format": FORMAT if a.edge_columns else WITHOUT_EDGE_COLUMNS,
        "kinds": whole.kinds,
        "classes": whole.classes,
        "vocabularies": list(whole.vocabularies),
        **{sort: list(of_sort) for sort, of_sort in columns.items()},  # safetensors does not preserve the order
        "crc32": {name: _checksum(x) for name, x in arrays.items()},
    }
    text = json.dumps(description)
    try:
        with replacing(path) as scratch:
            save_file(arrays, scratch, {_KEY: text, _KEY_CRC32: str(zlib.crc32(text.encode()))})
    except (OSError, SafetensorError, UnicodeEncodeError) as error:  # safetensors has its own error for a full disk
        raise DataError(f"{path}: cannot be written ({error})") from error


Contents = tuple[GraphArrays, tuple[str, ...], dict[str, Vocabulary], dict[str, tuple[str, ...]]]


def load(path: Path, verify: bool) -> Contents:
    """Reads arrays, kinds, vocabularies and classes from a file; see `GraphSet.load`."""
    header, spans, content = _read(path)
    metadata = header["__metadata__"]
    try:
        description = json.loads(metadata[_KEY])
        version = description["format"]
    except _MALFORMED:
        raise DataError(f"{path}: damaged: its description cannot be read: {_REMEDY}") from None
    if version not in (WITHOUT_EDGE_COLUMNS, FORMAT):
        raise DataError(
            f"{path}: written by another version of vpps (format {version}, not {FORMAT}): convert the data again"
        )
    try:
        if verify and metadata[_KEY_CRC32] != str(zlib.crc32(metadata[_KEY].encode())):
            raise DataError("the checksum of the description differs from that of its contents")
        arrays = {name: _array(content, *span, header[name]) for name, span in spans.items()}
        return _contents(arrays, description, verify)
    except DataError as error:
        why = str(error)
    except _MALFORMED as error:
        why = f"its description is malformed ({type(error).__name__}: {error})"
    raise DataError(f"{path}: damaged: {why}: {_REMEDY}")


def _contents(arrays: dict[str, NDArray[Any]], description: dict[str, Any], verify: bool) -> Contents:
    """Builds and checks the contents of a set. Raises DataError, or one of `_MALFORMED`."""
    checksums = description["crc32"]
    if checksums.keys() != arrays.keys():
        raise DataError(f"the array {min(checksums.keys() ^ arrays.keys())} is missing or has no checksum")
    if verify:
        for name, crc32 in checksums.items():
            if _checksum(arrays[name]) != crc32:
                raise DataError(f"the checksum of {name} differs from that of its contents")
    kinds = names_of(description["kinds"], "kinds")
    classes = {name: names_of(names, name) for name, names in description["classes"].items()}
    vocabularies = {name: _vocabulary(arrays, name) for name in description["vocabularies"]}

    def columns(sort: str) -> dict[str, NDArray[Any]]:
        return {name: arrays[_COLUMNS[sort] + name] for name in description[sort]}

    held = GraphArrays(
        **{name: _of_type(arrays.get(name), name, kind) for name, kind in _FIELDS.items()},
        columns=columns("columns"),
        graph_columns=columns("graph_columns"),
        edge_columns=columns("edge_columns") if description["format"] == FORMAT else {},
    )
    _check_shapes(held)
    if verify:
        check_contents(held, kinds)
        check_names(held, vocabularies, classes)
    return held, kinds, vocabularies, classes


def _read(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, int]], bytes | NDArray[np.uint8]]:
    """Reads a graph file; returns its header, the byte ranges of its arrays, and its bytes. Raises DataError."""
    try:
        with open(path, "rb") as file:
            header, spans = read_header(file)
            if _KEY not in header.get("__metadata__", {}):
                raise DataError(
                    f"{path}: holds no graphs: a safetensors file that GraphSet.save did not write: {_REMEDY}"
                )
            file.seek(0)
            # Do not map the file itself: if another program truncates it later, the system kills this process.
            is_large = os.fstat(file.fileno()).st_size > MOST_IN_MEMORY
            return header, spans, _private_copy(file) if is_large else file.read()
    except HeaderError as error:
        raise DataError(f"{path}: not a file of graphs, or truncated: {error}: {_REMEDY}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _private_copy(file: BinaryIO) -> NDArray[np.uint8]:
    """Copies a file to an unnamed temporary file and maps the copy, which no other program can truncate.

    Raises:
        OSError: the temporary folder has too little space for the copy.
    """
    try:
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy, 1 << 24)
            copy.flush()
            return np.memmap(copy, np.uint8, "r")
    except OSError as error:
        raise OSError(
            error.errno,
            f"a file above {MOST_IN_MEMORY >> 30} GiB is copied to a temporary folder first ({error.strerror}): set "
            "TMPDIR to a folder with room for it",
        ) from error


def _array(content: bytes | NDArray[np.uint8], begin: int, end: int, entry: dict[str, Any]) -> NDArray[Any]:
    """Returns an array as a view of the file's bytes. Raises DataError."""
    kind, shape = np.dtype(_TYPES.get(str(entry.get("dtype")), np.void)), entry.get("shape")
    if (
        not isinstance(shape, list)
        or not all(type(x) is int and x >= 0 for x in shape)
        or end - begin != math.prod(shape) * kind.itemsize
        or kind == np.void
    ):
        raise DataError(f"bytes {begin} to {end} are not an array of {kind} of shape {shape}")
    if end > len(content):
        raise DataError("the file became shorter while it was read")
    found = np.ndarray(shape, kind, content, begin)
    return found if found.flags.aligned else frozen(found.copy())


def _of_type(array: NDArray[Any] | None, name: str, kind: type[Any]) -> Any:
    if array is not None and array.dtype != kind:
        raise DataError(f"{name} has the type {array.dtype}")
    return array


def _check_shapes(a: GraphArrays) -> None:
    """Raises DataError if shapes and types contradict each other. Reads only the graph offsets."""
    offsets = a.vertex_offsets
    if offsets is None or offsets.ndim != 1 or len(offsets) < 2 or offsets[0] or (offsets[1:] <= offsets[:-1]).any():
        raise DataError("vertex_offsets do not rise from 0")
    n = int(offsets[-1])
    lists = (a.child_offsets, a.child_indices)
    right = (
        a.levels is not None
        and (a.children is None) == (lists[0] is not None) == (lists[1] is not None)
        and (a.children is None or (a.children.ndim == 2 and len(a.children) == n and a.children.shape[1] > 0))
        and (a.child_offsets is None or a.child_offsets.shape == (n + 1,))
        and (a.child_indices is None or a.child_indices.ndim == 1)
        and all(x is None or x.shape == (n,) for x in (a.levels, a.kind, a.order))
        and all(x.ndim in (1, 2) and len(x) == n for x in a.columns.values())
        and all(x.ndim in (1, 2) and len(x) == len(offsets) - 1 for x in a.graph_columns.values())
        and all(_lines_up(x, a) for x in a.edge_columns.values())
        and all(x.dtype in (np.int32, np.float32) for x in a.all_columns().values())
        and len(a.all_columns()) == len(a.columns) + len(a.graph_columns) + len(a.edge_columns)
    )
    if not right:
        raise DataError(f"arrays are missing or do not fit {len(offsets) - 1} graphs of {n} vertices")


def _lines_up(column: NDArray[Any], a: GraphArrays) -> bool:
    """Returns True if a column has a value, or a row of values, per child."""
    entries = a.children if a.children is not None else a.child_indices
    assert entries is not None
    return column.ndim in (entries.ndim, entries.ndim + 1) and column.shape[: entries.ndim] == entries.shape


def _vocabulary(arrays: dict[str, NDArray[Any]], name: str) -> Vocabulary:
    text = arrays[f"{_VOCABULARY}{name}/text"].tobytes()
    offsets = arrays[f"{_VOCABULARY}{name}/offsets"]
    # Reject overlapping words: they could use memory quadratic in the file size.
    if offsets.ndim != 1 or offsets[0] or offsets[-1] != len(text) or (offsets[1:] < offsets[:-1]).any():
        raise DataError(f"the words of vocabulary {name!r} do not follow one another")
    return Vocabulary([text[a:b].decode() for a, b in pairwise(offsets.tolist())])


def _checksum(array: NDArray[Any]) -> int:
    form = f"{array.dtype}{array.shape}".encode()
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, zlib.crc32(form))
