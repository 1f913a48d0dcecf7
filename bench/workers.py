"""Starts the processes of contenders.py and sends them requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple


class ProgramForm(NamedTuple):
    """A program that can be measured.

    Attributes:
        kind: one of `contenders.KINDS`.
        process: name of the process; forms of one name share it.
        shown: its name in results.
        tuned: True if not as shipped: with MKL told to use AVX-512, or compiled for this machine.
    """

    kind: str
    process: str
    shown: str
    tuned: bool = False


MKL_AVX512, NATIVE_DYNET = "torch-avx512", "dynet-native"  # processes that need preparation before they start


FORMS = {
    "vpps": ProgramForm("vpps", "vpps", "vpps"),
    "torch": ProgramForm("torch", "torch", "PyTorch"),
    "torch-avx512": ProgramForm("torch", MKL_AVX512, "PyTorch, MKL AVX-512", tuned=True),
    "torch-per-node": ProgramForm("torch", "torch", "PyTorch per node"),
    "dynet-agenda": ProgramForm("dynet", "dynet", "DyNet agenda"),
    "dynet-depth": ProgramForm("dynet", "dynet", "DyNet depth"),
    "dynet-native-agenda": ProgramForm("dynet", NATIVE_DYNET, "DyNet agenda, -march=native", tuned=True),
    "dynet-native-depth": ProgramForm("dynet", NATIVE_DYNET, "DyNet depth, -march=native", tuned=True),
}


class WorkerError(Exception):
    """Raised if a contender fails to answer a request."""


class Worker:
    """A contender's process; `ask` waits for its answer."""

    def __init__(self, preload: Path | None = None, packages: Path | None = None) -> None:
        """Start the process. preload: a library to load first; packages: the first folder to search for modules."""
        program = Path(__file__).with_name("contenders.py")
        # OpenMP reads it when torch is loaded: spinning threads would take the timed contender's cores.
        environment = {"OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1", **os.environ}
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        if packages is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of `contenders.Server` and return its result.

        Raises:
            WorkerError: the method failed, or the process died.
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
        """Stop the contender's process."""
        self._process.communicate()
