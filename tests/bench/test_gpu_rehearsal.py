"""All that runs on a GPU runs on an imaginary one: every stage of gpu_check, every program at its smallest size, to its
end, so that no line of it is executed for the first time where time is short.

What the emulator finds in a kernel, a race or a missing fence, fails the program. Times mean nothing here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_check import record
from gpu_check.stages import QUESTIONS, STAGES, steps

from tests.gpu.test_slots import CASES, Sentiment
from vpps.arrangement import arrangements, matrices_of
from vpps.plan.onchip import known_device
from vpps.runtime.driver import Properties

ROOT = Path(__file__).parents[2]
IMAGINARY, STAND_INS = "tests/runtime/imaginary", "tests/bench/stand_ins"
TREES = "(3 (2 It) (4 (2 works) (2 .)))\n(1 (2 No) (2 .))\n(2 (2 (2 a) (3 b)) (2 c))\n(2 word)\n"
SENTENCES = "It|X works|Y .|Z\nNo|X .|Z\na|X b|Y c|Z\nfour|X words|Y in|Z one|X\n"


def rehearse(out: Path, stage: str, checkout: Path = ROOT, paths: str = "", *options: str) -> list[dict[str, Any]]:
    """Run one stage of the check; its lines, and those of the step that comes before all."""
    data = out.parent / "data"
    for name, text in (("sst/train.txt", TREES), ("wikiner/en.txt", SENTENCES)):
        (data / name).parent.mkdir(parents=True)
        (data / name).write_text(text)
    found = [str(checkout / IMAGINARY), *filter(None, [paths])]
    given = {
        "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(found),
        "PATH": f"{checkout / STAND_INS / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    # Nothing of what tests set: the steps run what users run.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("VPPS_", "PYTEST_"))}
    kept = {name: os.environ[name] for name in ("VPPS_CACHE_DIR",) if name in os.environ}
    command = [checkout / "scripts/gpu_check", "--smallest", "--out", out, "--data", data, "--only", stage, *options]
    done = subprocess.run(command, env=own | kept | given, capture_output=True, text=True, check=False, cwd=out.parent)
    assert done.returncode in (0, 1), done.stderr
    return list(record.read(out / record.RESULTS))


def failures(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ends of steps that did not end well."""
    return [line for line in lines if line.get("event") == "end" and line["state"] != "ok"]


@pytest.mark.simt
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "contact"])
def test_every_step_of_a_stage_runs_to_its_end(tmp_path: Path, stage: str) -> None:
    lines = rehearse(tmp_path / "out", stage)
    assert failures(lines) == []
    planned = {step.name for step in steps(True, 1) if step.stage == stage}
    ended = {line["step_name"] for line in lines if line.get("event") == "end" and line["stage"] == stage}
    assert ended == planned
    results = [line for line in lines if "event" not in line and line["stage"] == stage]
    assert {line["step_name"] for line in results} == planned
    for line in results:
        assert line["device"] == "Imaginary 1"
        assert line["cuda"] == "13.0"
        assert line["commit"]["id"] or not (ROOT / ".git").exists()
        assert {"driver", "nvrtc", "time"} <= line.keys()
        assert line["machine"]["microarchitecture"]
    if stage == "tests":
        outcomes = [line["outcome"] for line in results]
        torch = importlib.util.find_spec("torch") is not None  # one of them exchanges arrays with it
        assert outcomes.count("passed") == len(outcomes) - (not torch)
        assert len(outcomes) >= 6


@pytest.mark.simt
def test_the_first_stage_runs_in_a_plain_checkout_without_git(tmp_path: Path) -> None:
    """All that is there is a copy of the files."""
    checkout = tmp_path / "checkout"
    for name in ("bench", "scripts", "templates", "tests", "vpps"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    lines = rehearse(tmp_path / "out", "contact", checkout, "", "--commit", "abc")
    assert failures(lines) == []
    assert {line["commit"] for line in lines} == {"abc"}
    gradients, update = (next(line for line in lines if what in line.get("case", "")) for what in ("grad", "update"))
    assert max(gradients["errors"].values()) < 1e-5
    assert max(update["errors"].values()) < 1e-5


@pytest.mark.simt
def test_beside_pytorch_programs_run_up_to_the_first_call_that_needs_a_device(tmp_path: Path) -> None:
    """And what was measured before is not lost with them."""
    lines = rehearse(tmp_path / "out", "peers", paths=str(ROOT / STAND_INS / "python"))
    assert {line["step_name"].split()[0] for line in failures(lines)} == {"Tree-LSTM", "LSTM"}
    own = [line for line in lines if line.get("bench") in ("gpu_treelstm", "gpu_lstm")]
    assert [line["unit"] for line in own] == ["sentences/s", "sequences/s"]
    log = (tmp_path / "out" / record.LOG).read_text()
    for step, peers in (
        ("Tree-LSTM batch=2", ("autograd", "graphs", "manual", "pernode")),
        ("LSTM", ("cudnn", "graph")),
    ):
        for peer in peers:
            assert f"vpps beside {peer}: failed" in log, step
    assert log.count("RuntimeError: this needs a device: torch.tensor(..., device='cuda')") == 6


@pytest.mark.simt
@pytest.mark.parametrize(
    "program, statement, complaint",
    [
        ("barrier", "load_acquire(counter);", "unwritten fence"),
        ("matvec", "if (WARPS_PER_ROW == 1) __syncthreads();", "race"),
        ("outer", "__syncthreads(); // until all have read the vectors before", "race"),
    ],
)
def test_the_imaginary_gpu_notices_a_barrier_that_is_missing(program: str, statement: str, complaint: str) -> None:
    assert program in QUESTIONS
    environment = {
        **os.environ, "IMAGINARY_WITHOUT": statement,
        "PYTHONPATH": os.pathsep.join([str(ROOT / IMAGINARY), str(ROOT)]),
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "bench" / "gpu_micro" / f"{program}.py"), "--smallest"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f": {complaint}: " in run.stderr


@pytest.mark.host
@pytest.mark.parametrize("name", CASES)
def test_cases_of_weights_on_the_chip_are_what_they_say(name: str) -> None:
    case, device = CASES[name], known_device("H200")
    gpu = Properties("H200", "sm_90", device.sms, device.shared_per_block, 13000, device.shared_per_sm, device.l2_bytes)
    net = Sentiment(case.hidden, case.hidden)
    graph, _ = net.batch(1)
    vps = case.vps(gpu) // case.options.groups
    best = next(arrangements(matrices_of(dict.fromkeys(graph.blocks)), device, vps, case.options, train=True))
    assert best.onchip is not None
    assert case.holds(best.onchip)
