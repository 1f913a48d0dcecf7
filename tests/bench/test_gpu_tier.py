"""The gpu tier without a GPU: its cases are what they say on an H200, and it runs on an imaginary GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.test_slots import CASES, Sentiment
from vpps.arrangement import arrangements, matrices_of
from vpps.plan.onchip import known_device
from vpps.runtime.driver import Properties

ROOT = Path(__file__).parents[2]
SOME = [
    "test_machine.py::test_memory_is_shared_with_other_libraries",
    "test_training.py::test_training_follows_the_reference",
    "test_training.py::test_a_stopped_launch_is_an_error_in_the_users_words_and_the_handle_works_on",
    "test_slots.py::test_gradients_and_training[small]",
]


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


@pytest.mark.simt
def test_some_of_it_runs_on_an_imaginary_gpu() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/runtime/imaginary"), str(ROOT)])}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"tests/gpu/{test}" for test in SOME)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    torch = importlib.util.find_spec("torch") is not None  # one of them exchanges arrays with it
    assert ("5 passed" if torch else "4 passed, 1 skipped") in done.stdout
