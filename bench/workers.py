"""Starts the processes of contenders.py and asks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple


class FormOf(NamedTuple):
    """A program that can be measured.

    Attributes:
        kind: of `contenders.KINDS`.
        process: forms of one name share a process.
        shown: how results call it.
        tuned: not as it is shipped: MKL told to use AVX-512, or compiled for this machine.
    """

    kind: str
    process: str
    shown: str
    tuned: bool = False


MKL_AVX512, NATIVE_DYNET = "torch-avx512", "dynet-native"  # processes that need something before they start


FORMS = {
    "vpps": FormOf("vpps", "vpps", "vpps"),
    "torch": FormOf("torch", "torch", "PyTorch"),
    "torch-avx512": FormOf("torch", MKL_AVX512, "PyTorch, MKL AVX-512", tuned=True),
    "torch-per-node": FormOf("torch", "torch", "PyTorch per node"),
    "dynet-agenda": FormOf("dynet", "dynet", "DyNet agenda"),
    "dynet-depth": FormOf("dynet", "dynet", "DyNet depth"),
    "dynet-native-agenda": FormOf("dynet", NATIVE_DYNET, "DyNet agenda, -march=native", tuned=True),
    "dynet-native-depth": FormOf("dynet", NATIVE_DYNET, "DyNet depth, -march=native", tuned=True),
}


class WorkerError(Exception):
    """A contender could not do what it was asked to."""


class Worker:
    """A process; `ask` waits for it."""

    def __init__(self, preload: Path | None = None, packages: Path | None = None) -> None:
        """preload: a library to load before all others; packages: a folder where to look for modules first."""
        program = Path(__file__).with_name("contenders.py")
        # Read by OpenMP when torch is loaded: waiting threads that spin steal the cores of whoever is being timed.
        environment = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        if packages is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, method: str, **arguments: Any) -> Any:
        """The result of a method of `contenders.Server`.

        Raises:
            WorkerError: it failed, or the process died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps({"do": method, **arguments}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"its process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
