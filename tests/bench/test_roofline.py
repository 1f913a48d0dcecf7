"""bench/roofline.py at a small scale: its floors follow from the computed operations."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.programs import lines_of

pytestmark = pytest.mark.cpu

TWO_LAYERS = """
import numpy as np
import vpps

def build(batch_size):
    model = vpps.Model(seed=1)
    W, b = model.parameter("W", (32, 32)), model.parameter("b", (32,))

    @vpps.cell
    def layer(x):
        return vpps.tanh(W @ x + b)

    def batch():
        graph = vpps.Graph()
        rows = [layer(layer(graph.input(np.ones(32)))) for _ in range(batch_size)]
        return graph, vpps.sum([vpps.sum(row) for row in rows])

    return model, [batch() for _ in range(2)]
"""


def test_roofline_counts_products_and_adds_floors_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(TWO_LAYERS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    options = ("--batch-sizes", "4", "--batches", "2", "--rounds", "2", "--vps", "2", "--peaks", "0.1,20,50,0.5")
    *parts, launch = lines_of("roofline.py", "own:build", *options)
    names = [line["case"].split()[0] for line in parts]
    assert names == ["forward", "backward", "gradients", "update", "waiting"]
    peaks = launch["peaks"]
    assert min(peaks.values()) > 0
    assert launch["barriers"] >= 3
    *phases, waiting = parts
    products = 2 * 4 * 2 * 32 * 32  # two layers of four vertices, each with a backward
    assert [line["flops"] for line in phases] == [products, products, products, 0]
    assert phases[2]["moved"] >= 3 * 4 * 32 * 32  # the matrix, read and written, and its transpose
    assert phases[3]["moved"] == 3 * 4 * 32  # the bias, read and written, and its gradient
    for line in phases:
        memory = line["moved"] / peaks["far"] + max(0, line["asked"] - line["moved"]) / peaks["near"]
        assert line["peer_value"] == pytest.approx(1e6 * max(line["flops"] / peaks["flops"], memory), rel=0.01)
    assert waiting["peer_value"] == pytest.approx(1e6 * launch["barriers"] * peaks["barrier"], rel=0.01)
    for of in ("value", "peer_value"):
        assert launch[of] == pytest.approx(sum(line[of] for line in parts), rel=0.01)
