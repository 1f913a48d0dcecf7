"""In a folder of PYTHONPATH, this gives every Python process the imaginary GPU of tests/runtime/fake_cuda.py: the gpu
tier runs without a GPU, as far as emulated kernels are fast enough for it, and so does scripts/gpu_check.

    PYTHONPATH=tests/runtime/imaginary:. python -m pytest -m gpu tests/gpu/test_machine.py
"""

import atexit
import os
import sys
from types import SimpleNamespace

import pytest

from tests.runtime import fake_cuda
from vpps.kernel import libnvrtc

gpu = fake_cuda.install_with_kernels(pytest.MonkeyPatch())
libnvrtc.library = lambda: SimpleNamespace(version="13.0")  # type: ignore[assignment]
gpu.attributes["MULTIPROCESSOR_COUNT"] = 8  # the tier asks for seven virtual processors


def complain() -> None:
    """What the emulator has found fails a process that has come to its end."""
    if gpu.findings:
        print(*gpu.findings, sep="\n", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(70)  # the status of a process that exits is not to be changed otherwise


atexit.register(complain)
