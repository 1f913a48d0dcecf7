"""Messages between ranks are data: they arrive unchanged, and are never executed."""

from __future__ import annotations

import ast
import json
import pickle
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vpps
from tests.distributed.test_world import Echo
from vpps.distributed.message import packed, unpacked
from vpps.distributed.transports import Messages
from vpps.distributed.world import HEADER, World

pytestmark = pytest.mark.host

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    "value",
    [
        None, True, -7, 10**40, 0.1, float("inf"), "Zürich \ud800", b"\x00\xff", [], (), {}, [1, (2.5, None), []],
        {"a": [1, 2], 3: {"b": ()}, (1, 2): None}, ["list", "array"], {"array": "<f4"},
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back_as_they_were(value: Any) -> None:
    assert repr(unpacked(packed(value))) == repr(value)


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3, 1)])
@pytest.mark.parametrize("element", ["bool", "int8", "uint64", ">i4", "float16", "float32", "complex64", "U3", "S2"])
def test_arrays_come_back_as_they_were(element: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(element)
    one_of_it = np.array(1).astype(element)[()]
    found, turned, number = unpacked(packed([array, array.T, one_of_it]))
    for one, other in ((found, array), (turned, array.T)):
        assert (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())
        assert one.flags.writeable
    assert (type(number), number) == (type(one_of_it), one_of_it)


@pytest.mark.parametrize(
    "value",
    [object(), {1}, Counter("a"), [len], np.array([None]), np.zeros(2, "i4,f4"), np.ma.array([1]), ENDLESS],
    ids=["object", "set", "Counter", "function", "objects", "structured", "masked", "endless"],
)
def test_anything_else_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(vpps.DistributedError, match="cannot be sent to the other ranks"):
        packed(value)


def sent(described: Any, raw: bytes = b"") -> bytes:
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text + raw


HOSTILE = {
    "nothing": b"", "short": sent(["bytes", 9]), "negative": sent(["bytes", -1], b"abc"), "more": sent(None, b"abc"),
    "header beyond its end": struct.pack("<Q", 1 << 62) + b"[]", "huge": sent(["array", "<f8", 1 << 60]),
    "huge and empty": sent(["array", "<f8", 1 << 60, 0, 1 << 60]),
    "negative shape": sent(["array", "<f8", -1], b"12345678"), "objects": sent(["array", "|O", 1], b"12345678"),
    "numpy's fields": sent(["array", "i4,O", 1], b"12345678"), "unknown kind": sent(["posix.system", "<f8"]),
    "no kind": sent([]), "kind is a list": sent([["list"]]), "object": sent({"a": 1}),
    "unhashable": sent(["dict", [["list"], 1]]), "no pair": sent(["dict", 1]), "deep": sent(b"[" * 100_000),
    "no text": sent(b"\xff\xfe"), "digits": sent(b"9" * 10_000),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_no_rank_has_written_is_an_error(data: bytes) -> None:
    with pytest.raises(vpps.DistributedError, match="another rank sent what vpps did not write"):
        unpacked(data)


class PickledCall:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.mkdir, (self.folder,)


@pytest.fixture
def unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent worlds that failed to start from aborting the test run at exit."""
    monkeypatch.setattr("vpps.distributed.world._OPEN", {})


class HostileRank(Echo):
    """A rank that answers every gathered value with a pickle."""

    def __init__(self, data: bytes) -> None:
        super().__init__(any_thread=False)
        self.data = np.frombuffer(data, np.uint8)

    def exchange(self, sends: Messages, receives: Messages, timeout: float) -> None:
        super().exchange(sends, receives, timeout) if sends[0][1].nbytes == HEADER.itemsize else None
        for (_, array), (_, own) in zip(receives, sends, strict=True):
            if own.nbytes == HEADER.itemsize:
                array.view(HEADER)["details"][0, 0] = len(self.data)
            else:
                array[...] = self.data


@pytest.mark.usefixtures("unfinished")
def test_a_pickle_of_another_rank_is_not_executed(tmp_path: Path) -> None:
    """Covers values that are exchanged while the world is created."""
    with pytest.raises(vpps.DistributedError, match="another rank sent what vpps did not write"):
        World(HostileRank(pickle.dumps(PickledCall(tmp_path / "executed"))), None, 9.0, 1, bind=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "introduced", [None, [], [[1, 2], 2, 1], [["host", "pid", [0]], 2, 1], [["host", 1, None], 2, 1]]
)
@pytest.mark.usefixtures("unfinished")
def test_a_rank_that_introduces_itself_wrongly_is_an_error(introduced: Any) -> None:
    with pytest.raises(vpps.DistributedError, match="sent an unknown introduction"):
        World(HostileRank(packed(introduced)), None, 9.0, 1, bind=False)


@pytest.mark.parametrize("room", ["distributed", "session"])
def test_no_module_that_ranks_use_can_unpickle(room: str) -> None:
    for path in (Path(vpps.__file__).parent / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {n.partition(".")[0] for n in names} & {"pickle", "marshal", "shelve", "dill"}, path
