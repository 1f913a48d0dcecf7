"""Programs for a GPU, as far as a machine without one can tell: the peers in PyTorch compute what vpps does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import datasets
import pytest
from gpu_step import Stopwatch, read_profile
from on_gpu import TOLERANCES, LossesDifferError
from treelstm import check_losses
from trees import read_trees

from tests.bench.programs import brackets, lines_of

# ---- peers in PyTorch: the programs stop with status 1 where losses differ, so that running them is the test


@pytest.fixture
def trees_file(tmp_path: Path) -> Path:
    """Trees of one word, of a few, and one that is a chain."""
    rng = random.Random(3)
    trees = [brackets(rng, leaves) for leaves in (1, 2, 9, 5, 3, 12)] + [brackets(rng, 10, chain=True)]
    path = tmp_path / "trees.txt"
    path.write_text("\n".join(trees), encoding="utf-8")
    return path


@pytest.fixture
def sentences_file(tmp_path: Path) -> Path:
    rng = random.Random(4)
    path = tmp_path / "sentences.txt"
    lengths = 3, 1, 8, 5, 5, 9
    lines = (" ".join(f"w{rng.randrange(30)}|T{rng.randrange(4)}" for _ in range(length)) for length in lengths)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.cpu
@pytest.mark.frameworks("torch")
def test_tree_lstms_of_all_programs_have_the_losses_of_vpps(trees_file: Path) -> None:
    lines = lines_of(
        "gpu_treelstm.py", "--trees", str(trees_file), "--device", "cpu", "--batch-sizes", "1,3", "--hidden", "24",
        "--embedding", "16", "--passes", "1", "--precision", "float32,bf16", "--vps", "2",
    )  # fmt: skip
    peers = [None, *(f"torch {name}" for name in ("autograd", "graphs", "manual", "pernode"))]
    assert [line.get("peer") for line in lines] == 4 * peers
    for line in [line for line in lines if "peer" in line]:
        assert line["peer_loss"] == pytest.approx(line["loss"], rel=TOLERANCES[line["case"].split("precision=")[1]])
        assert line.get("padding", 2) > 1  # rows of padding were there, and changed nothing


@pytest.mark.cpu
@pytest.mark.frameworks("torch")
def test_chain_lstms_have_the_losses_of_vpps(sentences_file: Path) -> None:
    lines = lines_of(
        "gpu_lstm.py", "--sentences", str(sentences_file), "--device", "cpu", "--tokens", "4,real", "--batch-sizes",
        "3", "--hidden", "24", "--embedding", "16", "--passes", "1", "--precision", "float32,bf16", "--vps", "2",
    )  # fmt: skip
    assert [line["case"].split()[0] for line in lines] == 2 * (3 * ["tokens=4"] + 2 * ["tokens=real"])
    for line in [line for line in lines if "peer" in line]:
        assert line["peer_loss"] == pytest.approx(line["loss"], rel=TOLERANCES[line["case"].split("precision=")[1]])


class _Losing:
    """A contender whose losses are given."""

    def __init__(self, *losses: float) -> None:
        self._losses = list(losses)

    def step(self, batch: Any) -> None:
        pass

    def loss(self) -> float:
        return self._losses.pop(0)


@pytest.mark.host
@pytest.mark.parametrize("wrong", [2.001, float("nan")])
def test_programs_stop_where_losses_differ(wrong: float) -> None:
    batches = {"vpps": [None, None], "peer": [None, None]}
    check_losses({"vpps": _Losing(3.0, 2.0), "peer": _Losing(3.0, 2.0)}, batches)
    with pytest.raises(LossesDifferError, match="losses of batch 1 differ"):
        check_losses({"vpps": _Losing(3.0, 2.0), "peer": _Losing(3.0, wrong)}, batches, 1e-4, LossesDifferError)


@pytest.mark.cpu
def test_parts_of_a_step_add_up(trees_file: Path) -> None:
    host, memory = lines_of(
        "gpu_step.py", "--trees", str(trees_file), "--device", "cpu", "--batch-sizes", "2", "--hidden", "24",
        "--embedding", "16", "--passes", "1",
    )  # fmt: skip
    busy = sum(host[part] for part in ("building", "planning", "copying", "launching", "other"))
    assert busy == pytest.approx(host["value"], rel=1e-2)
    assert busy + host["waiting"] == pytest.approx(host["step"], rel=1e-2)
    assert min(host[part] for part in ("building", "planning", "launching")) > 0
    floats = 24 * (3 * 16 + 5 * 2 * 24 + 5 + 3 + 5) + 5
    assert memory["modelled_read"] == pytest.approx(4e-6 * floats, abs=1e-3)
    assert not memory["measured"]


@pytest.mark.host
def test_a_part_does_not_count_what_is_inside_another() -> None:
    watch = Stopwatch()
    inner = watch.timed("copying", lambda: sum(range(20_000)))
    outer = watch.timed("launching", lambda: [inner() for _ in range(5)])
    outer()
    assert watch.seconds["copying"] > watch.seconds["launching"] > 0


@pytest.mark.host
def test_a_profile_is_read_by_metric() -> None:
    output = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","vpps_kernel","dram__bytes_read.sum","byte","3,414,016"
"0","7","vpps_kernel","dram__bytes_write.sum","byte","128"
"1","7","vpps_kernel","dram__bytes_read.sum","byte","64"
"1","7","vpps_kernel","dram__bytes_write.sum","byte","0"
"""
    assert read_profile(output) == {"read": [3414016.0, 64.0], "written": [128.0, 0.0]}
    assert read_profile("==ERROR== no permission") == {"read": [], "written": []}


@pytest.mark.host
def test_without_data_sets_there_is_synthetic_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VPPS_DATA", raising=False)
    monkeypatch.setattr(datasets, "_ROOT", tmp_path / "checkout")
    path = datasets.trees_file(None)
    trees, words = read_trees(path, 100)
    assert len(trees) == 100
    assert words > 10
    assert datasets.name_of(path) == "synthetic"
    assert all("|" in token for token in datasets.sentences_file(None).read_text("utf-8").split())
    (tmp_path / "shared/data/sst").mkdir(parents=True)
    real = tmp_path / "shared/data/sst/train.txt"
    real.write_text("(1 a)")
    assert datasets.trees_file(None) == real
    assert datasets.name_of(real) == "sst/train.txt"
