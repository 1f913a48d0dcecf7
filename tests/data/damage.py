"""Random damage to files of graphs; loading must refuse them or return the original content."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from vpps.data import GraphSet, Vocabulary
from vpps.errors import DataError

Arrays = dict[str, np.ndarray]
_VALUES = [
    0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**64, 10**400, 0.5, float("inf"), float("nan"), True, None, "",
    "kind", "I32", "F32", "I64", "U8", "\ud800", [], [1], [[]], ["a"], [0, 8], [3, 2], [-1, -5], {}, {"word": ["a"]},
]  # fmt: skip
_INTS = [0, 1, -1, -2, 2, 3, 7, 127, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**62]


def example(lists: bool = False) -> GraphSet:
    """Return three small graphs with every feature of a set; in the second, children are not numbered first."""
    table = np.array([[-1, -1], [-1, -1], [0, 1], [1, -1], [-1, -1], [-1, -1], [-1, 0], [1, 0]])
    role = np.arange(16).reshape(8, 2) % 3
    return GraphSet(
        [3, 2, 3],
        (np.concatenate([[0], (table >= 0).sum(1).cumsum()]), table[table >= 0]) if lists else table,
        kind=[0, 0, 1, 1, 0, 0, 1, 1],
        kinds=("leaf", "inner"),
        columns={
            "word": [1, 2, -1, -1, 0, 2, -1, -1], "tag": [0, 1, 1, 1, 0, 1, 0, 0], "x": np.arange(16).reshape(8, 2) / 4,
        },
        graph_columns={"y": [1.5, -2, 0.25]},
        edge_columns={"role": role[table >= 0] if lists else role},
        vocabularies={
            "word": Vocabulary(["<unk>", "naïve", "tab\tand\nline"]), "role": Vocabulary(["<unk>", "left", "right"])
        },
        classes={"tag": ("B", "O")},
    )  # fmt: skip


def opened(content: bytes) -> tuple[dict[str, Any], Arrays]:
    """Return a file's description and its arrays."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["vpps.graphs"]), load(content)


def sealed(description: dict[str, Any], arrays: Arrays) -> bytes:
    """Return a file with any description and arrays, and correct checksums."""
    if isinstance(description.get("crc32"), dict):
        sums = {k: zlib.crc32(x.tobytes(), zlib.crc32(f"{x.dtype}{x.shape}".encode())) for k, x in arrays.items()}
        description = {**description, "crc32": sums}
    text = json.dumps(description)
    return save(arrays, {"vpps.graphs": text, "vpps.crc32": str(zlib.crc32(text.encode()))})


def damaged(content: bytes, random: np.random.Generator) -> tuple[str, bytes]:
    """Return the kind of damage, and the damaged content."""
    how = _DAMAGES[int(random.integers(len(_DAMAGES)))]
    return how.__name__, how(content, random)


def outcome(path: Path, how: str, original: GraphSet) -> str:
    """Return the outcome of loading: "refused", "equal", or "another set", which only sealed damage can cause. Raises
    AssertionError for any other outcome; all exceptions except DataError propagate."""
    with suppress(DataError):
        GraphSet.load(path, verify=False)
    try:
        found = GraphSet.load(path)
    except DataError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.startswith(f"{path}: ")
        assert "again" in said
        return "refused"
    if content_of(found) == content_of(original):
        return "equal"
    assert how.startswith("sealed"), "other graphs, without an error"
    a = found.arrays
    remade = GraphSet(
        found.sizes, (a.child_offsets, a.child_indices) if a.children is None else a.children, kind=a.kind,
        kinds=found.kinds, columns=a.columns, graph_columns=a.graph_columns, edge_columns=a.edge_columns,
        vocabularies=found.vocabularies, classes=found.classes,
    )  # fmt: skip
    assert remade.arrays.levels.tolist() == a.levels.tolist()
    assert remade[:].order.tolist() == found[:].order.tolist() or a.order is not None
    found.stat()
    return "another set"


def content_of(graphs: GraphSet) -> tuple[object, ...]:
    a = graphs.arrays
    parts = {name: getattr(a, name) for name in a.__slots__ if isinstance(getattr(a, name), np.ndarray)}
    arrays = {
        **parts,
        **{f"/{k}": x for k, x in a.columns.items()},
        **{f"//{k}": x for k, x in a.graph_columns.items()},
        **{f"///{k}": x for k, x in a.edge_columns.items()},
    }
    words = {name: vocabulary.words for name, vocabulary in graphs.vocabularies.items()}
    forms = {name: (x.dtype.str, x.shape, x.tobytes()) for name, x in arrays.items()}
    return forms, list(a.columns), graphs.kinds, dict(graphs.classes), words


def cut(content: bytes, random: np.random.Generator) -> bytes:
    return content[: random.integers(len(content))]


def overwritten(content: bytes, random: np.random.Generator) -> bytes:
    """Overwrite bits, bytes or a range of bytes, half of the time in the header."""
    end = len(content) if random.integers(2) else 8 + struct.unpack("<Q", content[:8])[0]
    begin, length = int(random.integers(end)), int(random.choice([1, 1, 4, 64]))
    flipped = bytes([content[begin] ^ 1 << int(random.integers(8))])
    fill = (bytes(length), b"\xff" * length, random.bytes(length), flipped)[random.integers(4)]
    return (content[:begin] + fill + content[begin + len(fill) :])[: len(content)]


def header(content: bytes, random: np.random.Generator) -> bytes:
    """Exchange two arrays' header entries, or change a value in the header or the description."""
    (length,) = struct.unpack("<Q", content[:8])
    found = json.loads(content[8 : 8 + length])
    first, second = random.choice(sorted(set(found) - {"__metadata__"}), 2, replace=False)
    how = random.integers(3)
    if how == 0:
        key = ("data_offsets", "shape", "dtype", None)[random.integers(4)]
        one, other = (found, found) if key is None else (found[first], found[second])
        a, b = (first, second) if key is None else (key, key)
        one[a], other[b] = other[b], one[a]
    elif how == 1 or "vpps.graphs" not in found["__metadata__"]:
        change(found, random)
    else:
        told = json.loads(found["__metadata__"]["vpps.graphs"])
        change(told, random)
        found["__metadata__"]["vpps.graphs"] = json.dumps(told)
    text = json.dumps(found).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def sealed_description(content: bytes, random: np.random.Generator) -> bytes:
    told, arrays = opened(content)
    change(told, random)
    return sealed(told, arrays)


def sealed_values(content: bytes, random: np.random.Generator) -> bytes:
    told, arrays = opened(content)
    name = random.choice(sorted(arrays))
    array = arrays[name] = arrays[name].copy()
    for place in random.integers(array.size, size=random.integers(1, 3)) if array.size else ():
        value = _INTS[random.integers(len(_INTS))] % 256**array.itemsize
        array.reshape(-1)[place] = np.frombuffer(value.to_bytes(array.itemsize, "little"), array.dtype)[0]
    return sealed(told, arrays)


def sealed_arrays(content: bytes, random: np.random.Generator) -> bytes:
    """Exchange two arrays, omit one, or change an array's type, shape or length."""
    told, arrays = opened(content)
    first, second = random.choice(sorted(arrays), 2, replace=False)
    array = arrays[first]
    match random.integers(6):
        case 0:
            arrays[first], arrays[second] = arrays[second], array
        case 1:
            del arrays[first]
        case 2:
            arrays[first] = array.astype(random.choice(["i1", "u1", "i4", "i8", "f4"]))
        case 3:
            arrays[first] = array.reshape(-1)[: random.integers(array.size + 1)]
        case 4:
            arrays[first] = array[..., None] if random.integers(2) else array.reshape(-1)
        case 5:
            arrays[first] = random.permutation(array)
    return sealed(told, arrays)


_DAMAGES = (cut, overwritten, overwritten, header, header, sealed_description, sealed_values, sealed_arrays)


def change(tree: Any, random: np.random.Generator) -> None:
    """Replace, remove or rename something in a JSON tree."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = keys[random.integers(len(keys))]
        below = tree[key]
        if not (isinstance(below, (dict, list)) and below and random.integers(4)):
            break
        tree = below
    match random.integers(4):
        case 0:
            del tree[key]
        case 1 if isinstance(tree, dict):
            tree[f"{key}x"] = tree.pop(key)
        case _:
            tree[key] = _VALUES[random.integers(len(_VALUES))]
