"""Programs for a GPU, as far as a machine without one can tell: their kernels compile and keep registers in registers,
and the peers in PyTorch compute what vpps does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURES = "sm_80,sm_90,sm_100"
MICRO = sorted(
    path.name
    for path in (ROOT / "bench" / "gpu_micro").glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")  # the others are what they share
)


def lines_of(program: str, *arguments: str) -> list[dict[str, Any]]:
    """What a bench prints."""
    command = [sys.executable, str(ROOT / "bench" / program), *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.host
def test_every_question_has_its_program() -> None:
    assert MICRO == [
        "barrier.py", "groups.py", "interpreter.py", "launch.py", "matvec.py", "outer.py", "registers.py",
        "tensor_cores.py", "transposed.py",
    ]  # fmt: skip


@pytest.mark.nvrtc
@pytest.mark.parametrize("program", MICRO)
def test_kernels_compile_and_nothing_leaves_the_registers(program: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and NVRTC are not installed")
    lines = lines_of(f"gpu_micro/{program}", "--compile-only", "--arch", ARCHITECTURES)
    assert {line["case"].split()[-1] for line in lines} == set(ARCHITECTURES.split(","))
    assert [line["case"] for line in lines if line["stack"] or line["spills"]] == []
    assert all(0 < line["registers"] <= 255 for line in lines)


@pytest.mark.host
def test_without_a_device_a_program_says_so() -> None:
    if importlib.util.find_spec("cupy"):
        pytest.skip("CuPy is installed: there may be a device, and then the program runs")
    command = [sys.executable, str(ROOT / "bench" / "gpu_micro" / "barrier.py"), "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "this takes an NVIDIA GPU and CuPy" in run.stderr
