"""The page of timelines: complete in itself, and, in a real browser, drawn as recorded."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import vpps
from tests.inspection.browser import chromium
from tests.inspection.made import made_timeline, timelines
from vpps.inspection.page import page, page_data
from vpps.inspection.summary import summarise
from vpps.inspection.timeline import HOST_SPANS, Timeline
from vpps.inspection.trace import Trace

pytestmark = pytest.mark.host

MILLI = 10**6


def made() -> Trace:
    """Two launches of three virtual processors; the first one waits most for VP 1."""
    trace = Trace("cpu")
    first = made_timeline([[MILLI, 4 * MILLI, MILLI], [MILLI, MILLI, MILLI]], [0, 0, 0])
    second = made_timeline([[MILLI, 2 * MILLI, MILLI], [MILLI, MILLI, 3 * MILLI]], [0, 5000, 0], first.end + 100_000)
    trace.timelines += [first, second]
    return trace


def unpacked(data: dict[str, Any]) -> dict[str, Any]:
    """Columns of bars as arrays."""
    kinds = {"start": "<u4", "length": "<u4", "what": "<u4", "bytes": "<f8"}
    return {name: np.frombuffer(base64.b64decode(data[name]), kind) for name, kind in kinds.items()}


@given(timelines())
@settings(max_examples=30, deadline=None)
def test_has_a_row_for_the_host_and_every_virtual_processor(found: list[Timeline]) -> None:
    data = page_data(found, summarise(found, "cpu"))
    columns = unpacked(data)
    rows = [slice(a, b) for a, b in zip(data["first"], data["first"][1:], strict=False)]
    assert data["rows"] == ["host", *(f"VP {vp}" for vp in range(found[0].n_vps))]
    assert len(rows) == 1 + found[0].n_vps
    whole = sum(t.end - t.start for t in found)
    for row in rows[1:]:
        start, length = columns["start"][row].astype(np.int64), columns["length"][row].astype(np.int64)
        assert length.sum() == whole
        assert (start[1:] >= (start + length)[:-1]).all()
        assert (columns["what"][row] < len(data["activities"])).all()
    names = [data["activities"][k]["name"] for k in columns["what"][rows[0]]]
    assert names == list(HOST_SPANS) * len(found)
    assert json.loads(json.dumps(data)) == data


def test_of_long_traces_counts_in_larger_ticks() -> None:
    day = 24 * 3600 * 10**9
    found = [made_timeline([[MILLI]], [0]), made_timeline([[day]], [0], 10**15 + 2 * MILLI)]
    data = page_data(found, summarise(found, "cpu"))
    assert data["tick"] > 20_000
    assert int(unpacked(data)["length"].max()) * data["tick"] == pytest.approx(day, rel=1e-6)


def test_needs_nothing_else_and_nothing_ends_its_data_early() -> None:
    trace = made()
    text = page(trace.timelines, trace.summary(), "</script><b>&")
    assert text.count("<script") == text.count("</script>") == 2
    assert "<title>&lt;/script&gt;&lt;b&gt;&amp;</title>" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|https?://|@import""", text)


def test_of_no_launch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(vpps.HandleError, match="no launch was recorded"):
        Trace("cpu").write_html(tmp_path / "page.html")
    with pytest.raises(vpps.HandleError, match="there is no folder"):
        made().write_html(tmp_path / "nowhere" / "page.html")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


class Shown:
    """A page in a browser. Errors of its script, and whatever it says to the console, end up in `said`."""

    def __init__(self, browser: Any, file: Path, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": 1300, "height": 800}, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.settle()

    def settle(self) -> None:
        """Until what was asked for is painted."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def drawn(self) -> dict[str, int]:
        """Bars that are in sight, and the time that is, in nanoseconds."""
        found = self.page.eval_on_selector("#canvas", "(canvas) => ({...canvas.dataset})")
        return {name: round(float(value)) for name, value in found.items()}

    def point_at(self, time: int, row: int) -> None:
        """Put the mouse on a time (nanoseconds) in a row."""
        x, y = self.page.evaluate(
            "([t, row]) => { const box = canvas.getBoundingClientRect();"
            "return [box.left + xOf(t / tick), box.top + yOf(row) + HEIGHT / 2]; }",
            [time, row],
        )
        self.page.mouse.move(x, y)
        self.settle()

    def colour_at(self, time: int, row: int) -> tuple[int, ...]:
        """What is painted there, red, green and blue."""
        found = self.page.evaluate(
            "([t, row]) => { const r = devicePixelRatio;"
            "return [...pen.getImageData(xOf(t / tick) * r, (yOf(row) + 4) * r, 1, 1).data]; }",
            [time, row],
        )
        return tuple(found[:3])

    def colour_of(self, kind: str) -> tuple[int, ...]:
        """What the legend says."""
        text = self.page.evaluate("(kind) => colours[kind]", kind)
        return tuple(int(text[k : k + 2], 16) for k in (1, 3, 5))


class TestInABrowser:
    @pytest.fixture
    def shown(self, browser: Any, tmp_path: Path) -> Shown:
        made().write_html(tmp_path / "page.html", "two launches")
        return Shown(browser, tmp_path / "page.html")

    def test_draws_all_of_it_and_asks_for_nothing(self, shown: Shown) -> None:
        trace = made()
        shown.page.get_by_role("button", name="whole").click()
        shown.settle()
        bars = sum(len(t.records) + len(t.idle()) + len(t.host) for t in trace.timelines)
        assert shown.drawn() == {
            "drawn": bars,
            "from": 0,
            "to": trace.timelines[1].end - trace.timelines[0].host[0].start,
        }
        assert shown.said == []
        assert [url for url in shown.asked if not url.startswith(("file:", "data:"))] == []
        assert shown.page.title() == "two launches"

    def test_begins_with_the_first_launch(self, shown: Shown) -> None:
        first = made().timelines[0]
        seen = shown.drawn()
        assert (seen["from"], seen["to"]) == (0, first.end - first.host[0].start)

    def test_explains_the_line_of_the_critical_path(self, shown: Shown) -> None:
        assert "critical path" in shown.page.locator("#legend").inner_text()
        line = shown.page.locator("#legend i.line").evaluate("(i) => getComputedStyle(i).backgroundColor")
        assert line == f"rgb{shown.colour_of('path')}"

    def test_calls_cells_without_their_class_where_that_is_clear(self, shown: Shown) -> None:
        found = shown.page.evaluate(
            "(names) => { summary.cells = names.map((name) => ({name})); return names.map(shortened); }",
            ["TreeLSTMSentiment.inner", "A.leaf", "B.leaf", "(load)"],
        )
        assert found == ["inner", "A.leaf", "B.leaf", "(load)"]

    def test_paints_work_in_the_colour_of_its_phase_and_waiting_in_another(self, shown: Shown) -> None:
        start = made().timelines[0].start - made().timelines[0].host[0].start
        assert shown.colour_at(start + 3 * MILLI, 2) == shown.colour_of("forward")
        assert shown.colour_at(start + 4 * MILLI + 500_000, 2) == shown.colour_of("gradients")
        assert shown.colour_at(start + 3 * MILLI, 1) in (shown.colour_of("waiting"), shown.colour_of("hatch"))

    def test_says_what_is_under_the_mouse(self, shown: Shown) -> None:
        start = made().timelines[0].start - made().timelines[0].host[0].start
        shown.point_at(start + 2 * MILLI, 2)
        text = shown.page.locator("#tip").inner_text()
        assert text.startswith("zero of 'p0'")
        assert "took\n4.000 ms" in text
        assert "phase\nforward" in text
        assert "rows × width\n4 × 8" in text
        shown.point_at(start + 3 * MILLI, 1)
        assert shown.page.locator("#tip").inner_text().startswith("wait at barrier 1")
        shown.page.mouse.move(5, 5)
        shown.settle()
        assert shown.page.locator("#tip").is_hidden()

    def test_zooms_about_the_mouse_and_moves(self, shown: Shown) -> None:
        before = shown.drawn()
        start = made().timelines[0].start - made().timelines[0].host[0].start
        shown.point_at(start + 2 * MILLI, 2)
        shown.page.mouse.wheel(0, -300)
        shown.settle()
        near = shown.drawn()
        assert near["to"] - near["from"] == pytest.approx((before["to"] - before["from"]) / np.e, rel=0.01)
        assert near["from"] < start + 2 * MILLI < near["to"]
        assert near["drawn"] <= before["drawn"]
        shown.page.mouse.down()
        shown.page.mouse.move(100, 200)
        shown.page.mouse.up()
        shown.settle()
        moved = shown.drawn()
        assert moved["from"] > near["from"]
        assert moved["to"] - moved["from"] == pytest.approx(near["to"] - near["from"], rel=1e-3)
        shown.page.locator("#canvas").press("Home")
        shown.settle()
        assert shown.drawn()["from"] == 0
        shown.page.get_by_role("button", name="next launch").click()
        shown.settle()
        assert shown.drawn()["from"] > 0

    def test_has_the_summary_and_shows_where_an_entry_is(self, shown: Shown) -> None:
        text = shown.page.locator("main").inner_text()
        for heading in ("Time of the virtual processors", "Critical path", "Most expensive cells", "What would help"):
            assert heading in text
        assert "VP 1 is waited for" in text
        start = made().timelines[0].start - made().timelines[0].host[0].start
        work = start + 3 * MILLI, 2
        row = shown.page.locator("#critical tr", has_text="zero of 'p1'")
        row.click()
        shown.settle()
        assert row.get_attribute("aria-selected") == "true"
        assert shown.colour_at(*work) != shown.colour_of("forward")  # faint: another one is meant
        row.click()
        shown.settle()
        assert shown.colour_at(*work) == shown.colour_of("forward")

    def test_is_dark_where_the_system_is(self, browser: Any, tmp_path: Path, shown: Shown) -> None:
        dark = Shown(browser, tmp_path / "page.html", "dark")
        assert sum(dark.colour_of("surface")) < 200 < 600 < sum(shown.colour_of("surface"))
        assert dark.said == []

    def test_draws_a_hundred_thousand_records(self, browser: Any, tmp_path: Path) -> None:
        trace = Trace("cuda")
        rng = np.random.default_rng(1)
        trace.timelines.append(made_timeline(rng.integers(500, 5000, (400, 132)).tolist(), [0] * 132))
        assert len(trace.timelines[0].records) > 100_000
        trace.write_html(tmp_path / "page.html")
        assert (tmp_path / "page.html").stat().st_size < 6_000_000
        shown = Shown(browser, tmp_path / "page.html")
        whole = shown.drawn()
        assert whole["drawn"] > 100_000
        shown.page.locator("#canvas").press("w")
        shown.settle()
        assert shown.drawn()["drawn"] < whole["drawn"]
        assert shown.said == []
