"""What Perfetto's own importer makes of a trace: every instruction, to the nanosecond, and nothing to complain of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vpps
from tests.report.browser import chromium
from tests.report.trace_processor import TraceProcessor, web_files
from vpps.cli.workload import load_workload
from vpps.engine.timeline import Timeline
from vpps.report.perfetto import write_perfetto

pytestmark = pytest.mark.cpu


def test_reads_a_tree_lstm_to_the_nanosecond(tmp_path: Path) -> None:
    web_files()
    found = tree_lstm_timelines()
    write_perfetto(tmp_path / "trace.json", found, "cpu")
    made = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ours = sorted((e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in made if e["ph"] == "X")
    with chromium() as browser:
        perfetto = TraceProcessor(browser, (tmp_path / "trace.json").read_bytes())
        wrong = perfetto.query("select name, value from stats where severity != 'info' and value > 0")
        assert wrong == []
        theirs = [(r["name"], r["ts"], r["dur"]) for r in perfetto.query("select name, ts, dur from slice")]
        assert sorted(theirs) == ours
        by_thread = perfetto.query(
            "select thread.name, sum(slice.dur) dur, max(slice.depth) depth from slice "
            "join thread_track on slice.track_id = thread_track.id join thread using(utid) group by thread.name"
        )
        whole = sum(t.end - t.start for t in found)
        covered = {r["name"]: r["dur"] for r in by_thread if r["name"] != "host"}
        assert covered == dict.fromkeys(("launches", "critical path", "VP 0", "VP 1", "VP 2"), whole)
        assert {r["depth"] for r in by_thread} == {0}  # nothing overlaps
        assert perfetto.query("select name from process where pid = 1") == [{"name": "vpps cpu"}]
        (arrows,) = perfetto.query("select count(*) n from flow")
        assert arrows["n"] == sum(e["ph"] == "s" for e in made)
        (said,) = perfetto.query(
            "select distinct args.display_value as said from slice join args using(arg_set_id) "
            "where slice.name like 'inner: % @ %' and slice.category = 'forward' and args.key = 'args.cell'"
        )
        assert said == {"said": "TreeLSTMSentiment.inner"}


def tree_lstm_timelines() -> list[Timeline]:
    """Two training steps of the zoo's Tree-LSTM."""
    workload = load_workload("tree-lstm", 8, ["--hidden", "32", "--embedding", "16"])
    found = []
    with vpps.Handle(workload.model, target="cpu", vps=3, timeline=True) as handle:
        for graph, loss in workload.first(2):
            handle.fb(graph, loss)
            found.append(handle.timeline())
    return found
