"""bench/workloads.py at a small scale, what it does about contenders that fail, and what is made of its lines."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import edbatch
import pytest
import table
import workload_figures
import workload_lines
import workloads
from workers import FORMS, Worker, WorkerError

from tests.bench.programs import lines_of, run_bench

SMALL = ("--synthetic", "--hidden", "16", "--limit", "12", "--passes", "2", "--seconds", "0.01")


@pytest.mark.cpu
@pytest.mark.frameworks("torch")
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_vpps_beside_pytorch(mode: str) -> None:
    lines = lines_of(
        "workloads.py",
        *SMALL,
        "--tasks",
        "tree-lstm",
        "--mode",
        mode,
        "--batch-sizes",
        "1,5",
        "--contenders",
        "vpps,torch,torch-per-node",
    )
    assert [line["peer"] for line in lines] == ["PyTorch", "PyTorch per node"] * 2
    assert [workload_lines.words_of(line)["batch"] for line in lines] == ["1", "1", "5", "5"]
    for line in lines:
        assert line["program"] == "vpps"
        assert line["ratios"][0] <= line["ratio"] <= line["ratios"][1]
        assert line["value"] > 0
        assert 0 < line["gemm"] < 1000
        assert 0 < line["peer_gemm"] < 1000


@pytest.mark.cpu
def test_memory_is_what_training_adds() -> None:
    (line,) = lines_of(
        "workloads.py",
        *SMALL,
        "--tasks",
        "tree-lstm",
        "--memory",
        "--batch-sizes",
        "4",
        "--contenders",
        "vpps",
        "--passes",
        "1",
    )
    assert line["unit"] == "MB"
    assert 0 < line["value"] < 200


@pytest.mark.host
def test_unknown_tasks_and_contenders_are_named() -> None:
    for arguments, words in (
        (("--tasks", "tree-lstm,gpt"), "unknown tasks: gpt"),
        (("--contenders", "vpps,chainer"), "unknown contenders: chainer"),
    ):
        run = run_bench("workloads.py", *arguments)
        assert run.returncode == 1
        assert words in run.stderr


class FakeWorker:
    """Answers as a contender's process would; `answers` has what differs, by form and method."""

    answers: dict[tuple[str, str], Any] = {}  # noqa: RUF012  set by each test
    kind = ""

    def __init__(self, *_: Any) -> None:
        pass

    def ask(self, method: str, **arguments: Any) -> Any:
        form = arguments.get("name") or arguments.get("form", {}).get("name") or arguments.get("kind", "")
        self.kind = arguments.get("kind", self.kind)
        answer = self.answers.get((form, method))
        if method == "run" and not isinstance(answer, Exception):
            return arguments["n"] * (answer or 0.01)
        if isinstance(answer, Exception):
            raise answer
        usual = {
            "start": {"description": "fake", "sizes": "hidden=4", "examples": 8, "largest_matrix": [4, 4]},
            "begin": [(4, 40), (4, 44)], "check": [[1.0], [0.5]], "product": 100.0, "version": None,
        }  # fmt: skip
        return usual[method] if answer is None else answer

    def close(self) -> None:
        pass


def run_with(
    answers: dict[tuple[str, str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[list[dict[str, Any]], str, int]:
    """Lines, diagnostics and exit status of two tasks with fake contenders."""
    monkeypatch.setattr(FakeWorker, "answers", answers)
    monkeypatch.setattr(workloads, "Worker", FakeWorker)
    monkeypatch.setattr(workloads.harness, "confine", lambda cores: None)
    arguments = "--tasks tree-lstm --contenders vpps,torch,torch-per-node --batch-sizes 4 --synthetic".split()
    monkeypatch.setattr(sys, "argv", ["workloads.py", *arguments])
    with pytest.raises(SystemExit) as exit_:
        workloads.main()
    printed = capsys.readouterr()
    return [json.loads(line) for line in printed.out.splitlines()], printed.err, int(exit_.value.code or 0)


@pytest.mark.host
def test_rates_are_of_examples_of_average_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _, status = run_with({("torch", "run"): 0.02}, monkeypatch, capsys)
    assert status == 0
    assert [line["peer"] for line in lines] == ["PyTorch", "PyTorch per node"]
    # Mini-batches of 40 and 44 vertices in turn, 10.5 per example: 15 in 0.15 s, and 8 in 0.16 s.
    assert lines[0]["value"] == pytest.approx((8 * 40 + 7 * 44) / 10.5 / 0.15, rel=1e-3)
    assert lines[0]["peer_value"] == pytest.approx((4 * 40 + 4 * 44) / 10.5 / 0.16, rel=1e-3)
    assert lines[1]["ratio"] == 1


@pytest.mark.host
@pytest.mark.parametrize(
    "answer, words",
    [
        (("torch", "check", [[1.0], [0.51]]), "PyTorch: batch 4: mini-batch 1 differs by 2.0e-02"),
        (("torch", "check", [[1.0], [math.nan]]), "PyTorch: batch 4: mini-batch 1 differs by nan"),
        (("torch", "check", [[1.0], [0.5, 0.5]]), "mini-batch 1 has 2 numbers, expected 1"),
        (("torch", "begin", WorkerError("KeyError: 'tree-lstm'")), "PyTorch: batch 4: KeyError: 'tree-lstm'"),
        (("torch", "run", WorkerError("its process ended with status 1")), "its process ended with status 1"),
    ],
)
def test_a_contender_that_fails_or_differs_is_left_out(
    answer: tuple[str, str, Any], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    form, method, result = answer
    lines, diagnostics, status = run_with({(form, method): result}, monkeypatch, capsys)
    assert status == 1
    assert words in diagnostics
    assert [line["peer"] for line in lines] == ["PyTorch per node"]


@pytest.mark.host
def test_a_process_that_cannot_start_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = WorkerError("ModuleNotFoundError: No module named 'torch'")
    lines, diagnostics, status = run_with({("torch", "start"): failure}, monkeypatch, capsys)
    assert status == 1
    assert "No module named 'torch'" in diagnostics
    assert [line.get("peer") for line in lines] == [None]


@pytest.mark.host
def test_a_process_that_dies_is_an_error() -> None:
    worker = Worker()
    with pytest.raises(WorkerError, match="KeyError: 'nobody'"):
        worker.ask("start", kind="nobody", task="tree-lstm", data=None, hidden=4, embedding=4, limit=4,
                   keep_memory=False, dynet_megabytes=1)  # fmt: skip
    worker._process.kill()
    worker._process.wait()
    with pytest.raises(WorkerError, match="its process ended with status -9"):
        worker.ask("version")
    worker.close()


def line(task: str, batch: int, peer: str, value: float, ratio: float, mode: str = "train", hidden: int = 256) -> str:
    return json.dumps(
        {
            "bench": "workloads", "program": "vpps", "value": value, "peer": peer, "peer_value": value / ratio,
            "ratio": ratio, "machine": {"cpu": "a CPU"}, "commit": {"id": "0123456789", "dirty": False},
            "case": f"task={task} mode={mode} batch={batch} hidden={hidden} cores=1 threads=1",
        }
    )  # fmt: skip


@pytest.fixture
def lines_file(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text(
        "\n".join(
            [
                line("tree-lstm", 1, "PyTorch", 1000, 9.0),  # measured again below
                line("tree-lstm", 1, "PyTorch", 1000, 4.0),
                line("tree-lstm", 1, "DyNet agenda", 1000, 2.5),
                line("tree-lstm", 1, "PyTorch, MKL AVX-512", 1000, 2.0),
                line("tree-lstm", 64, "PyTorch", 2000, 0.5),
                line("rvnn", 1, "PyTorch", 12.34, 3.0),
                line("tree-lstm", 64, "DyNet depth", 6000, 2.0, "infer", 128),
                line("tree-lstm", 64, "DyNet agenda", 6000, 3.0, "infer", 128),
            ]
        ),
        encoding="utf-8",
    )
    return path


@pytest.mark.host
def test_table_has_the_best_peer_as_shipped_and_the_strongest(lines_file: Path) -> None:
    cases = workload_lines.cases_of(workload_lines.read(lines_file))
    assert table.speed([case for case in cases if case.mode == "train"]).splitlines() == [
        "|  | 1 | 64 |",
        "| --- | ---: | ---: |",
        "| tree-lstm | 1,000 · 2.50 · 2.00 | 2,000 · 0.50 |",
        "| rvnn | 12.3 · 3.00 |  |",
    ]


@pytest.mark.host
def test_edbatch_compares_with_the_better_strategy_of_dynet(lines_file: Path) -> None:
    (found,) = edbatch.comparisons(workload_lines.cases_of(workload_lines.read(lines_file)))
    assert found["case"] == "task=tree-lstm hidden=128 batch=64"
    assert found["ratio"] == pytest.approx(6000 / 7397, rel=0.01)
    assert found["gain_here"] == 2
    assert found["gain_there"] == pytest.approx(7397 / 5152, rel=0.01)
    assert found["gain_ratio"] == pytest.approx(2 / (7397 / 5152), rel=0.01)
    assert edbatch.table([found]).splitlines()[2].startswith("| task=tree-lstm hidden=128 | 6,000 | 7,400 | 0.811 |")


@pytest.mark.host
@pytest.mark.parametrize("figure", workload_figures.FIGURES)
def test_every_figure_can_be_drawn(figure: str, lines_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need it")
    out = tmp_path / "figure.svg"
    mode = "infer" if figure == "edbatch" else "train"
    run = run_bench("plot.py", str(lines_file), "--figure", figure, "--mode", mode, "--out", str(out))
    assert run.returncode == 0, run.stderr
    assert "</svg>" in out.read_text(encoding="utf-8")


@pytest.mark.host
def test_colours_are_of_all_programs() -> None:
    assert set(workload_figures.COLOURS) == {form.shown for form in FORMS.values()}
