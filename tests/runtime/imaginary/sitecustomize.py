"""If its folder is on PYTHONPATH, this gives every Python process the simulated GPU of tests/runtime/fake_cuda.py. The
gpu tier and scripts/gpu_check then run without a GPU, if emulated kernels are fast enough.

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
gpu.attributes["MULTIPROCESSOR_COUNT"] = 8  # the tier uses seven virtual processors


def complain() -> None:
    """Make a process fail if the emulator has findings when it ends."""
    if gpu.findings:
        print(*gpu.findings, sep="\n", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(70)  # the only way to change the status of an exiting process


atexit.register(complain)
