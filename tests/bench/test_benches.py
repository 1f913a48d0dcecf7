"""Every bench runs at a small scale and prints its lines; tables and figures can be made from them."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import pytest
from learning import SETUPS, Run, summary
from treelstm import compare_losses

from tests.bench.programs import brackets, lines_of, run_bench
from tests.nvrtc import needs_nvrtc
from vpps.data import synthetic_treebank
from vpps.zoo.tasks import TASKS

TORCH = [pytest.mark.cpu, pytest.mark.frameworks("torch")]
NVRTC = [pytest.mark.nvrtc, needs_nvrtc]
WORKLOADS = "workloads.py --synthetic --hidden 16 --limit 12 --passes 2 --seconds 0.01 --slowest 60 --tasks tree-lstm"
TINY = "--trees {trees} --hidden 16 --passes 1"
GPU = "--device cpu --hidden 24 --embedding 16 --passes 1"
DRAWN = importlib.util.find_spec("matplotlib") is not None

BENCHES: list[tuple[str, int, list[str], Any]] = [
    # command, number of lines, programs that read these lines, marks
    ("batching.py --synthetic --workload lattice-gru --learn-on 4 --batch 2 --mini-batches 1 --trials 50 --hidden 8 "
     "--policy depth,sinks-last,fsm-sort", 7,
     ["batching_table.py {lines}", "plot.py {lines}"], ()),
    ("compile.py --programs Tree-LSTM --rounds 1", 1, [], NVRTC),
    ("constants.py --steps 100 --hidden 8 --calls 2", 3, [], ()),
    ("data_parallel.py --trees {trees} --limit 12 --passes 1 --rounds 1 --cases 2", 1, [], ()),
    ("decoding.py --hidden 8 --rounds 1 --lengths 3,12", 2, [], ()),
    (f"gpu_lstm.py --sentences {{sentences}} {GPU} --seconds 0 --tokens 4,real --batch-sizes 3 --vps 2 --precision "
     "float32,bf16",
     10, [], TORCH),
    (f"gpu_step.py --trees {{trees}} {GPU} --batch-sizes 2", 2, [], ()),
    ("gpu_timelines.py --trees {trees} --device cpu --hidden 8 --embedding 8 --batch-sizes 1,3 --vps 2", 2, [], ()),
    (f"gpu_treelstm.py --trees {{odd}} {GPU} --seconds 0 --batch-sizes 1,3 --precision float32,bf16 --vps 2",
     20, [], TORCH),
    ("host_step.py --trees {trees} --batch-sizes 1,4 --hidden 8 --rounds 2 --shares", 12, [], ()),
    ("learning.py --tasks tree-lstm --data {data} --hidden 24 --epochs 8 --seeds 1,2 --precision bf16", 3,
     ["learning.py --table {lines}"], ()),
    ("matvec.py --precision bf16 --shapes 64x32 --vectors 3 --rounds 1", 4, [], ()),
    ("policies.py --synthetic --workload tree-lstm --batch-sizes 4 --hidden 8 --mini-batches 2 --rounds 2 --seconds "
     "0.001 --policy sinks-last,fsm --mode train", 3, ["policies_table.py {lines}"], ()),
    ("ragged.py --batch-sizes 3 --hidden 8 --passes 1 --mini-batches 2 --seconds 0", 25, [], TORCH),
    ("recording.py --trees {trees} --batch 5 --rounds 3", 14, [], ()),
    (f"torch_layer.py {TINY} --limit 12 --batch-sizes 1,5 --loss roots", 16, [], TORCH),
    (f"torch_layer.py {TINY} --limit 12 --batch-sizes 5 --sharing", 3, [], TORCH),
    ("tree_fc.py --quick --contenders vpps-bulk,vpps", 4, ["plot.py {lines}"], ()),
    ("tree_fc.py --trees {trees} --batch-sizes 1,5 --hidden 32 --passes 1 --contenders vpps-bulk,vpps", 4, [], ()),
    (f"treelstm.py {TINY} --precision bf16 --contenders vpps-bulk-bf16,vpps-bulk --batch-sizes 5", 1, [], ()),
    (f"{WORKLOADS} --mode train --batch-sizes 1,5 --contenders vpps,torch,torch-per-node", 4,
     ["table.py {lines}", "plot.py {lines} --figure ratios --mode train --out {lines}.svg"], TORCH),
    (f"{WORKLOADS} --memory --batch-sizes 4 --contenders vpps", 1, [], ()),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return data sets with a few sentences, including a one-word sentence and a chain."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(3)
    (folder / "trees.txt").write_text("\n".join(brackets(rng, rng.randrange(2, 12)) for _ in range(12)))
    odd = [brackets(rng, leaves) for leaves in (1, 2, 9, 5, 3, 12)] + [brackets(rng, 10, chain=True)]
    (folder / "odd.txt").write_text("\n".join(odd))
    lengths = 3, 1, 8, 5, 5, 9
    lines = (" ".join(f"w{rng.randrange(30)}|T{rng.randrange(4)}" for _ in range(length)) for length in lengths)
    (folder / "sentences.txt").write_text("\n".join(lines))
    bank = synthetic_treebank(300, 60)
    (folder / "sst").mkdir()
    for name, some in (("train.txt", bank.train), ("dev.txt", bank.dev)):
        (folder / "sst" / name).write_text("".join(f"{tree}\n" for tree in some))
    return {name: str(folder / f"{name}.txt") for name in ("trees", "odd", "sentences")} | {"data": str(folder)}


@pytest.mark.parametrize(
    "command, n_lines, programs",
    [pytest.param(*case, marks=marks or pytest.mark.cpu, id=case[0][:50]) for *case, marks in BENCHES],
)
def test_it_prints_its_lines(
    command: str, n_lines: int, programs: list[str], places: dict[str, str], tmp_path: Path
) -> None:
    if "data_parallel" in command:
        pytest.importorskip("mpi4py")
    lines = lines_of(*command.format(**places).split())
    assert len(lines) == n_lines
    for line in lines:
        assert line["bench"].startswith(Path(command.split()[0]).stem)
        assert line["case"]
        assert line["value"] >= 0
        assert line.get("peer_value", 1) > 0
        if "peer_loss" in line:
            assert line["peer_loss"] == pytest.approx(line["loss"], rel=1e-2)
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    for program in programs:
        if DRAWN or "plot.py" not in program:
            run = run_bench(*program.format(lines=path).split())
            assert run.returncode == 0, run.stderr


@pytest.mark.host
@pytest.mark.parametrize(
    "command, words",
    [
        ("batching.py --policy fsm", "unknown policies: fsm"),
        ("policies.py --workload gpt", "unknown workloads: gpt"),
        ("tree_fc.py --leaves 6", "--leaves 6: complete trees have 2, 4, 8 ... leaves"),
        ("treelstm.py --trees README.md --contenders vpps,chainer", "unknown contenders: chainer"),
        ("workloads.py --tasks tree-lstm,gpt", "unknown tasks: gpt"),
        ("workloads.py --contenders vpps,chainer", "unknown contenders: chainer"),
    ],
)
def test_unknown_names_are_named(command: str, words: str) -> None:
    run = run_bench(*command.split())
    assert run.returncode == 1
    assert words in run.stderr


@pytest.mark.host
@pytest.mark.parametrize("wrong", [2.001, float("nan")])
def test_programs_stop_where_losses_differ(wrong: float) -> None:
    compare_losses({"vpps": [3.0, 2.0], "peer": [3.0, 2.0]}, 1e-4)
    with pytest.raises(ArithmeticError, match="losses of batch 1 differ"):
        compare_losses({"vpps": [3.0, 2.0], "peer": [3.0, wrong]}, 1e-4)


@pytest.mark.host
@pytest.mark.parametrize(
    "ours, peers, first, lower, verdict",
    [
        ([0.80, 0.82, 0.81], [0.82, 0.80, 0.82], 0, False, "equal"),
        ([0.60, 0.62, 0.61], [0.82, 0.80, 0.82], 0, False, "worse"),
        ([0.90, 0.91, 0.92], [0.82, 0.80, 0.82], 0, False, "better"),
        ([0.40, 0.91, 0.92], [0.82, 0.80, 0.82], 0, False, "not learned"),
        ([0.20, 0.21], [0.40, 0.41], 0, True, "better"),
        ([0.60, 0.21], [0.40, 0.41], 0, True, "not learned"),
        ([0.90, 0.90], [0.90, 0.90], 2e-4, False, "the first losses differ"),
        ([0.90, 0.90], [0.90, 0.90], float("nan"), False, "the first losses differ"),
        ([0.90], [0.90], 0, False, "one seed tells nothing"),
    ],
)
def test_verdicts_of_learning(ours: list[float], peers: list[float], first: float, lower: bool, verdict: str) -> None:
    """Scores are accuracies or perplexities; a constant answer scores 0.5."""
    runs = [
        Run("task", seed, lower, 0.5, first, [a], [b], {"score": a}, {"score": b})
        for seed, (a, b) in enumerate(zip(ours, peers, strict=True))
    ]
    assert summary(runs)["verdict"] == verdict


@pytest.mark.host
def test_setups_of_learning_are_of_tasks() -> None:
    for name, setup in SETUPS.items():
        TASKS[name].settings_type(**setup.settings)
