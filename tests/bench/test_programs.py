"""The benches at a small scale: what they print, and that its parts add up."""

from __future__ import annotations

from pathlib import Path

import pytest
from autobatch import by_depth, matrix_reads, tree_lstm
from models import VppsTreeLstm
from recording import CASES
from treelstm import CLASSES, initial_weights
from trees import read_trees
from weight_bytes import dynet_bytes, vpps_bytes

from tests.bench.programs import lines_of, run_bench
from tests.nvrtc import needs_nvrtc

pytestmark = pytest.mark.cpu


def test_breakdown_adds_up_to_the_step(trees_file: Path) -> None:
    lines = lines_of(
        "breakdown.py", "--trees", str(trees_file), "--batch-sizes", "1,5", "--hidden", "32", "--embedding", "32",
        "--threads", "2", "--passes", "1",
    )  # fmt: skip
    assert [line["case"].split()[0] for line in lines] == ["batch=1", "batch=5"]
    for line in lines:
        assert sum(line["host"].values()) == pytest.approx(line["value"], rel=1e-3)
        assert sum(line["kernel"].values()) == pytest.approx(line["value"], rel=1e-3)
        for column, may_be_zero in (("host", {"launching"}), ("kernel", set())):
            for part, value in line[column].items():
                assert value > 0 or part in may_be_zero, (column, part)


def test_weights_are_read_level_by_level(trees_file: Path) -> None:
    """On a CPU: what DyNet's depth strategy reads, and of the output matrix the padding of its last panel and that
    leaves and inner nodes, two cells, multiply by it apart."""
    trees, words = read_trees(trees_file, 100)
    hidden = embedding = 64
    net = VppsTreeLstm(initial_weights(words, embedding, hidden), "sgd", 0.05, 1, timeline=True)
    panel = net.handle._engine.machine.panel
    padded = -(-CLASSES // panel) * panel
    more = 4 * (padded - CLASSES) * hidden + 4 * (padded + CLASSES) * hidden
    for batch in (trees[:1], trees[:5], trees):
        assert vpps_bytes(net, batch) == dynet_bytes(batch, "depth", hidden, embedding) + more
    net.close()
    reads = matrix_reads(graph := tree_lstm(trees), by_depth(graph))
    assert reads["Wi"] == reads["output"] == 2


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


def test_recording_measures_every_case(trees_file: Path) -> None:
    lines = lines_of("recording.py", "--trees", str(trees_file), "--batch", "5", "--rounds", "3")
    assert [line["case"].split()[0] for line in lines] == 2 * [*CASES, "sum"]
    half = len(lines) // 2
    assert [line["recorder"] for line in lines[:half]] == half * ["python"]
    for line in lines:
        assert 0 < line["best"] <= line["value"]
        assert line["ms"] == pytest.approx(line["value"] * line["calls"] / 1e3, rel=0.05, abs=1e-3)
