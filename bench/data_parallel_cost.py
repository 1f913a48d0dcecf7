"""Predicts the step time of data-parallel training on many hosts, by a cost model fitted to data_parallel.py's lines.

    step     = alone + waiting + sending, with a rank of one virtual processor on every host, and the measured number of
               sentences each
    alone    = host + kernel + fetching + packing + adding + updating, as measured
    waiting  = as measured between two ranks
    sending  = exchanges * (delay + (N - 1) message) + bytes * (8 / rate + copying)
    bytes    = 2 (N - 1) / N * dense + (N - 1) * rows              that a rank sends

`message` and `copying`, seconds per message and per byte, are fitted to the lines between two hosts, by transport.
`residuals` are the residuals of the fit, relative to the measurements. The model leaves out three costs: the longer
wait of more ranks for the slowest, the serial addition of table rows from N ranks, and switches. In return, it counts
concurrent messages as if sent one after the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HOSTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
CLASSES = 5


class Line(NamedTuple):
    """A measured step between two hosts."""

    model: str
    transport: str
    rate: float  # bytes per second
    delay: float  # seconds
    sentences: float  # per step and rank
    dense: float  # bytes of gradients outside tables
    rows: float  # bytes of a rank's table rows
    exchanges: float  # without the one that waits
    alone: float
    waiting: float
    sending: float


def _read(path: Path) -> list[Line]:
    found = []
    for line in map(json.loads, path.read_text().splitlines()):
        case = dict(re.findall(r"(\w+)=([\w.]+?)(?:Gbit/s|us)?(?= |$)", line["case"]))
        if "hosts" in case:
            hidden, embedding = int(case["hidden"]), int(case["embedding"])
            dense = 4.0 * (3 * hidden * (embedding + 1) + 5 * hidden * (2 * hidden + 1) + CLASSES * (hidden + 1))
            parts = line["parts"]
            apart = parts["waiting"] + parts["sending"]
            found.append(
                Line(
                    line["case"].partition(" hosts")[0], case["transport"], float(case["link"]) * 1e9 / 8,
                    float(case["delay"]) * 1e-6, int(case["batch"]) / 2, dense, line["sent"] - dense,
                    line["exchanges"] - 1, sum(parts.values()) - apart, parts["waiting"], parts["sending"],
                )
            )  # fmt: skip
    return found


def _sent(line: Line, hosts: int) -> float:
    return 2 * (hosts - 1) / hosts * line.dense + (hosts - 1) * line.rows


def _sending(line: Line, hosts: int, message: float, copying: float) -> float:
    at_link = line.exchanges * line.delay + _sent(line, hosts) / line.rate
    return at_link + line.exchanges * (hosts - 1) * message + _sent(line, hosts) * copying


def _fit(lines: Sequence[Line]) -> tuple[float, float]:
    """Return the seconds per message and per copied byte, neither below 0. Fits relative errors, so that slow links do
    not dominate. Needs models of different sizes."""
    scale = np.array([1 / line.sending for line in lines])
    columns = np.array([[line.exchanges, _sent(line, 2)] for line in lines]) * scale[:, None]
    rest = np.array([line.sending - _sending(line, 2, 0.0, 0.0) for line in lines]) * scale
    fits = []
    for used in ([0, 1], [0], [1], []):
        found = np.zeros(2)
        found[used] = np.linalg.lstsq(columns[:, used], rest, rcond=None)[0]
        if found.min() >= 0:
            fits.append((float(np.sum((columns @ found - rest) ** 2)), *found.tolist()))
    _, message, copying = min(fits)
    return message, copying


def predict(path: Path) -> list[dict[str, Any]]:
    """Predict sentences per second and the share of linear scaling, by model, transport, link and number of hosts."""
    found = []
    lines = _read(path)
    for transport in sorted({line.transport for line in lines}):
        own = [line for line in lines if line.transport == transport]
        message, copying = _fit(own)
        residuals = [_sending(line, 2, message, copying) / line.sending - 1 for line in own]
        fit = {"message": message, "copying": copying, "residuals": [round(r, 3) for r in residuals]}
        for line in own:
            link = f"link={line.rate * 8e-9:g}Gbit/s delay={line.delay * 1e6:g}us"
            steps = [line.alone + line.waiting + _sending(line, n, message, copying) for n in HOSTS]
            found.append(
                {
                    "bench": "data_parallel", "prediction": True,
                    "case": f"{line.model} {link} transport={transport}",
                    "hosts": list(HOSTS), "unit": "sentences/s",
                    "values": [float(f"{n * line.sentences / step:.4g}") for n, step in zip(HOSTS, steps, strict=True)],
                    "efficiency": [round(line.alone / step, 3) for step in steps], "fit": fit,
                }
            )  # fmt: skip
    return found


def report(path: Path) -> None:
    """Print lines of predictions."""
    for line in predict(path):
        print(json.dumps(line))
