"""Runs a bench as a user does, on generated trees."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_bench(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a bench to its end; returns the result, whatever the exit status."""
    command = [sys.executable, str(ROOT / "bench" / program), *arguments]
    environment = {**os.environ, "VPPS_VERIFY": "0"}  # users do not verify
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)


def lines_of(program: str, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    """Return the lines that a bench prints."""
    run = run_bench(program, *arguments)
    assert run.returncode == status, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def brackets(rng: random.Random, leaves: int, chain: bool = False) -> str:
    """Return a labelled binary tree in Penn brackets; in a chain, every left child is a leaf."""
    label = rng.randrange(5)
    if leaves == 1:
        return f"({label} word{rng.randrange(30)})"
    left = 1 if chain else rng.randrange(1, leaves)
    return f"({label} {brackets(rng, left)} {brackets(rng, leaves - left, chain)})"
