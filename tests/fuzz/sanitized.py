"""Fuzzing with planner and recorder compiled for AddressSanitizer and UndefinedBehaviorSanitizer: both end the process
at the first finding. Needs g++ or clang++ with their runtime libraries."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vpps import installation
from vpps.graph import recorder
from vpps.kernel import prebuilt
from vpps.kernel.host_compiler import compiler
from vpps.planner.native import library as planner

FLAGS = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
RUNTIMES = ("libasan.so", "libubsan.so")


def begin(arguments: Sequence[str]) -> None:
    """Restart this process with sanitizers: the runtimes must be loaded before Python."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        asked = (subprocess.run([*compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
                 for name in RUNTIMES)  # fmt: skip
        environment = {
            **os.environ, "LD_PRELOAD": ":".join(done.stdout.strip() for done in asked), "VPPS_RECORDER": "compiled",
            "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1",
        }  # fmt: skip
        os.execve(sys.executable, [sys.executable, "-m", "tests.fuzz", *arguments], environment)
    planner.FLAGS = (*planner.FLAGS, *FLAGS)
    recorder.FLAGS = (*recorder.FLAGS, *FLAGS)
    prebuilt.FOLDER = Path(tempfile.mkdtemp(prefix="sanitized-"))
    atexit.register(shutil.rmtree, prebuilt.FOLDER)
    installation.build(prebuilt.FOLDER)
