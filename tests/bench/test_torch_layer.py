"""bench/torch_layer.py at a small scale: every program computes the same, and the lines pair them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.programs import lines_of

pytestmark = [pytest.mark.cpu, pytest.mark.frameworks("torch")]
TINY = ("--hidden", "16", "--limit", "12", "--passes", "1")


@pytest.mark.parametrize("loss", ["nodes", "roots"])
def test_every_pair_has_a_line(trees_file: Path, loss: str) -> None:
    lines = lines_of("torch_layer.py", "--trees", str(trees_file), "--batch-sizes", "1,5", "--loss", loss, *TINY)
    pairs = [(line["program"], line["peer"]) for line in lines if line["case"].startswith("batch=5")]
    peers = ["torch level-batched manual", "torch level-batched autograd"]
    assert pairs == [(name, peer) for name in ("vpps", "mixed", "mixed-torch-adam") for peer in ["vpps", *peers]][1:]
    for line in lines:
        assert line["loss"] == pytest.approx(line["peer_loss"], rel=1e-3)
        assert line["ratio"] > 0


def test_sharing_has_a_line_for_every_way_of_waiting(trees_file: Path) -> None:
    lines = lines_of("torch_layer.py", "--trees", str(trees_file), "--batch-sizes", "5", "--sharing", *TINY)
    assert [line["case"].partition("threads=")[2].partition(" ")[2] for line in lines] == [
        "torch threads=2", "torch threads=2 OMP_WAIT_POLICY=passive", "torch threads=1",
    ]  # fmt: skip
