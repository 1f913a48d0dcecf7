"""All GPU code runs on a simulated GPU: every stage of gpu_check and every program at its smallest size, to the end. So
no line runs for the first time on a real GPU, where time is limited.

If the emulator finds a race or a missing fence in a kernel, the program fails. Times mean nothing here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import pytest
from gpu_check import record
from gpu_check.stages import STAGES, steps

from tests.gpu.test_slots import CASES, Sentiment
from tests.runtime.fake_cuda import RELEASE
from vpps.compiler.arrangement import arrangements, matrices_of
from vpps.placement.onchip import known_device
from vpps.runtime.driver import Properties

ROOT = Path(__file__).parents[2]
IMAGINARY, STAND_INS = "tests/runtime/imaginary", "tests/bench/stand_ins"
TREES = "(3 (2 It) (4 (2 works) (2 .)))\n(1 (2 No) (2 .))\n(2 (2 (2 a) (3 b)) (2 c))\n(2 word)\n"
SENTENCES = "It|X works|Y .|Z\nNo|X .|Z\na|X b|Y c|Z\nfour|X words|Y in|Z one|X\n"


def dry_run(out: Path, only: str, *options: str, checkout: Path = ROOT, paths: str = "") -> list[dict[str, Any]]:
    """Run stages of the check and return its lines."""
    data = out.parent / "data"
    for name, text in (("sst/train.txt", TREES), ("wikiner/en.txt", SENTENCES)):
        (data / name).parent.mkdir(parents=True)
        (data / name).write_text(text)
    given = {
        "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, [str(checkout / IMAGINARY), paths])),
        "PATH": f"{checkout / STAND_INS / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    # Steps run as for users, without these tests' settings.
    own = {k: v for k, v in os.environ.items() if k == "VPPS_CACHE_DIR" or not k.startswith(("VPPS_", "PYTEST_"))}
    command = [checkout / "scripts/gpu_check", "--smallest", "--out", out, "--data", data, "--only", only, *options]
    done = subprocess.run(command, env=own | given, capture_output=True, text=True, check=False, cwd=out.parent)
    assert done.returncode in (0, 1), done.stderr
    return list(record.read(out / record.RESULTS))


def failures(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the "end" lines of failed steps."""
    return [line for line in lines if line.get("event") == "end" and line["state"] != "ok"]


def plain_checkout(folder: Path) -> Path:
    """Return a copy of the files without git."""
    for name in ("bench", "scripts", "templates", "tests", "vpps", "pyproject.toml"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


# A few stages; each starts a process that reports the device.
PLAIN, TESTS = "contact", "tests"
BESIDE_PYTORCH = "products,timelines,peers,precisions,sanitizer,endurance,long"
CALLS = PLAIN, BESIDE_PYTORCH, TESTS


def assert_complete(lines: list[dict[str, Any]], only: str, commit: Any) -> None:
    """Check that every step has ended and has results, and that every result names its versions."""
    planned = {"versions"} | {step.name for step in steps(True, 1) if step.stage in only.split(",")}
    results = [line for line in lines if "event" not in line]
    assert {line["step_name"] for line in lines if line.get("event") == "end"} == planned
    assert {line["step_name"] for line in results} == planned
    for line in results:
        assert (line["device"], line["cuda"], line["nvrtc"], line["driver"]) == ("Imaginary 1", 13000, "13.0", RELEASE)
        assert line["commit"] == commit
        assert line["machine"]["microarchitecture"]
        assert line["time"]


@pytest.mark.simt
def test_first_stages_run_to_their_end_in_a_plain_checkout_without_git(tmp_path: Path) -> None:
    lines = dry_run(tmp_path / "out", PLAIN, "--commit", "abc", checkout=plain_checkout(tmp_path / "checkout"))
    assert failures(lines) == []
    assert_complete(lines, PLAIN, "abc")


@pytest.mark.simt
def test_tests_run_to_their_end(tmp_path: Path) -> None:
    lines = dry_run(tmp_path / "out", TESTS)
    assert failures(lines) == []
    assert_complete(lines, TESTS, harness.commit())
    outcomes = [line["outcome"] for line in lines if "test" in line]
    torch = importlib.util.find_spec("torch") is not None  # one of the tests exchanges arrays with PyTorch
    assert outcomes.count("passed") == len(outcomes) - (not torch)
    assert len(outcomes) >= 4


@pytest.mark.simt
def test_the_rest_runs_to_its_end_and_pytorch_up_to_the_first_call_that_needs_a_device(tmp_path: Path) -> None:
    """If that call fails, all earlier measurements are kept."""
    lines = dry_run(tmp_path / "out", BESIDE_PYTORCH, paths=str(ROOT / STAND_INS / "python"))
    assert [line["stage"] for line in failures(lines)] == ["peers", "peers", "precisions"]
    assert_complete(lines, BESIDE_PYTORCH, harness.commit())
    log = (tmp_path / "out" / record.LOG).read_text()
    for peer in ("autograd", "graphs", "manual", "pernode", "cudnn", "graph"):
        assert f": {peer}: failed, see above" in log
    assert log.count("RuntimeError: this needs a device: torch.tensor(..., device='cuda')") == 7


@pytest.mark.host
def test_the_calls_are_all_stages() -> None:
    assert sorted(",".join(CALLS).split(",")) == sorted(STAGES)


@pytest.mark.host
@pytest.mark.parametrize("name", CASES)
def test_cases_of_weights_on_the_chip_are_what_they_say(name: str) -> None:
    case, device = CASES[name], known_device("H200")
    gpu = Properties("H200", "sm_90", device.sms, device.shared_per_block, 13000, device.l2_bytes)
    net = Sentiment(case.hidden, case.hidden)
    graph, _ = net.batch(1)
    vps = case.vps(gpu)
    best = next(arrangements(matrices_of(dict.fromkeys(graph.blocks)), device, vps, case.options, train=True))
    assert best.onchip is not None
    assert case.holds(best.onchip)
