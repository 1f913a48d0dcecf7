"""The benches at a small scale: what they print, and that its parts add up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recording import CASES

from tests.bench.programs import lines_of, run_bench
from tests.nvrtc import needs_nvrtc

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


def test_unknown_contenders_are_named(trees_file: Path) -> None:
    run = run_bench("treelstm.py", "--trees", str(trees_file), "--contenders", "vpps,chainer")
    assert run.returncode != 0
    assert "unknown contenders: chainer" in run.stderr


def test_products_in_bf16_are_measured_beside_float32(trees_file: Path) -> None:
    (tree,) = lines_of(
        "treelstm.py", "--trees", str(trees_file), "--precision", "bf16", "--contenders", "vpps-bulk-bf16,vpps-bulk",
        "--batch-sizes", "5", "--hidden", "32", "--passes", "1",
    )  # fmt: skip
    assert (tree["program"], tree["peer"]) == ("vpps-bulk-bf16", "vpps-bulk in float32")
    assert 0 < abs(tree["loss"] - tree["peer_loss"]) < 1e-3 * tree["peer_loss"]
    _, *products = lines_of("matvec.py", "--precision", "bf16", "--shapes", "64x32", "--vectors", "3", "--rounds", "1")
    assert [line["case"].split()[0] for line in products] == ["matvec", "transposed", "outer"]
    assert all((line["precision"], line["peer"]) == ("bf16", "vpps in float32") for line in products)


def test_roofline_counts_products_and_adds_floors_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(TWO_LAYERS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    options = ("--batch-sizes", "4", "--batches", "2", "--rounds", "2", "--vps", "2")
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


@pytest.mark.nvrtc
@needs_nvrtc
def test_compile_prints_a_line_per_program() -> None:
    (line,) = lines_of("compile.py", "--programs", "Tree-LSTM", "--rounds", "1")
    assert line["case"] == "program=Tree-LSTM arch=sm_90"
    assert line["peer_value"] == pytest.approx(line["peer_compile"] + line["peer_load"])
    assert min(line["cached_cubin"], line["cached"], line["value"]) > 0
    assert line["nvrtc"] <= line["value"]


def test_decoding_gives_the_same_words_in_either_way() -> None:
    lines = lines_of("decoding.py", "--hidden", "8", "--rounds", "1", "--lengths", "3,12")
    assert [line["case"].split()[1] for line in lines] == ["length=3", "length=12"]
    assert all(min(line["value"], line["peer_value"]) > 0 and line["pool"] > 0 for line in lines)


def test_constants_that_change_grow_nothing() -> None:
    lines = lines_of("constants.py", "--steps", "300", "--hidden", "8", "--calls", "2")
    assert [line["case"].split()[0] for line in lines] == ["ops", "closure", "keyword"]
    assert all(line["value"] > 0 and line["grown"] < 5 for line in lines)


def test_recording_measures_every_case(trees_file: Path) -> None:
    lines = lines_of("recording.py", "--trees", str(trees_file), "--batch", "5", "--rounds", "3")
    assert [line["case"].split()[0] for line in lines] == 2 * [*CASES, "sum"]
    half = len(lines) // 2
    assert [line["recorder"] for line in lines[:half]] == half * ["python"]
    for line in lines:
        assert 0 < line["best"] <= line["value"]
        assert line["ms"] == pytest.approx(line["value"] * line["calls"] / 1e3, rel=0.05, abs=1e-3)
