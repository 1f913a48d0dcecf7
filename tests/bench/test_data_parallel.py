"""bench/data_parallel.py at a small scale: ranks compute what one process does, and a model of cost finds its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_parallel_cost import HOSTS, predict

from tests.bench.programs import lines_of

pytestmark = pytest.mark.cpu


def test_ranks_are_beside_one_process(trees_file: Path) -> None:
    pytest.importorskip("mpi4py")
    (line,) = lines_of(
        "data_parallel.py",
        "--trees",
        str(trees_file),
        "--limit",
        "12",
        "--passes",
        "1",
        "--rounds",
        "1",
        "--cases",
        "2",
    )
    assert line["case"] == "batch=64 hidden=64 embedding=64 ranks=2 vps=1"
    assert line["peer"] == "one process, 2 virtual processors"
    assert 0 < line["exchange"] < 1
    assert line["sent"] > 4 * 64 * 64
    assert all(seconds > 0 for seconds in line["parts"].values())


def test_a_model_of_cost_finds_what_lines_were_made_with(tmp_path: Path) -> None:
    message, copying, delay, host = 2e-5, 1e-10, 5e-5, 0.01
    lines = []
    for hidden in (64, 256):
        dense = 4 * (3 * hidden * (hidden + 1) + 5 * hidden * (2 * hidden + 1) + 5 * (hidden + 1))
        for gbit in (1, 10):
            sent, exchanges = dense + 1000.0, 6
            sending = 5 * (delay + message) + sent * (8 / (gbit * 1e9) + copying)
            lines.append(
                {
                    "case": f"batch=64 hidden={hidden} embedding={hidden} hosts=2 vps=1 link={gbit}Gbit/s "
                    "delay=50us transport=mpi",
                    "parts": {"host": host, "waiting": 0.001, "sending": sending}, "sent": sent, "exchanges": exchanges,
                }
            )  # fmt: skip
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    found = predict(file)
    assert len(found) == 4
    for line, prediction in zip(lines, found, strict=True):
        assert prediction["fit"]["message"] == pytest.approx(message)
        assert prediction["fit"]["copying"] == pytest.approx(copying)
        assert prediction["hosts"] == list(HOSTS)
        step = sum(line["parts"].values())
        assert prediction["values"][0] == pytest.approx(64 / step, rel=1e-3)
        assert prediction["efficiency"] == sorted(prediction["efficiency"], reverse=True)
