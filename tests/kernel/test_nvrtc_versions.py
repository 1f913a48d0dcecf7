"""Every NVRTC that users have compiles the kernels and keeps their weights in registers.

scripts/test installs them next to the environment's own NVRTC. Each version compiles in a separate process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.versions import PARTS, PRECISIONS
from tests.nvrtc import COMPILE_ALL, needs_nvrtc
from tests.processes import finish, start
from vpps.kernel.libnvrtc import library
from vpps.kernel.resources import Resources, check_resources

pytestmark = [pytest.mark.nvrtc, needs_nvrtc]

OWN = "the environment's"
VERSIONS = ("13.0", OWN, "12")  # 13.0 is in PyTorch's packages for CUDA 13; 12 only runs on request
ARCHS = ("sm_75", "sm_90", "sm_100") if COMPILE_ALL else ("sm_90",)
INSTRUCTION_CACHE = 128 * 1024  # bytes per multiprocessor in a data centre GPU
OTHERS = ("two groups", "four groups", "published", "in chunks")
MOST_SECONDS = 1800  # limit per process; only a hang reaches it


def folder_of(version: str) -> Path:
    """Folder in which scripts/test installs an NVRTC. Skips the test if it is missing."""
    folder = Path(os.environ.get("VPPS_TEST_NVRTC", Path(sys.prefix) / "nvrtc")) / version
    if not folder.is_dir():
        pytest.skip(f"there is no NVRTC {version} in {folder}: scripts/test puts it there (VPPS_TEST_ARCHS=all: all)")
    return folder


def compiled(version: str, *archs: str) -> dict[str, Any]:
    """The report that a process with that NVRTC prints on its kernels."""
    own = os.environ.get("PYTHONPATH", "")
    path = own if version == OWN else os.pathsep.join(filter(None, [str(folder_of(version)), own]))
    code = f"from tests.kernel.versions import main; main({list(archs)!r})"
    status, out, err = finish(start(code, {"PYTHONPATH": path}), MOST_SECONDS)
    assert status == 0, err
    said: dict[str, Any] = json.loads(out)
    return said


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("version", VERSIONS if COMPILE_ALL else VERSIONS[:2])
def test_compiles_every_kernel_without_spilling(version: str, arch: str) -> None:
    said = compiled(version, arch)
    if version != OWN:  # PYTHONPATH comes before the environment
        assert Path(said["path"]).is_relative_to(folder_of(version))
    expected = library().version if version == OWN else version
    trees = [f"Tree-LSTM in {precision}" for precision in ("float32", *PRECISIONS * (arch != "sm_75"))]
    names = ("smallest", *trees, *(f"part {k} of everything" for k in range(PARTS)), *["everything"] * COMPILE_ALL)
    assert set(said["kernels"]) == {f"{name} on {arch}" for name in (*names, *OTHERS)}
    for name, facts in said["kernels"].items():
        found = Resources(**facts["resources"])
        assert found.compiler.removeprefix("NVRTC ").startswith(expected)
        assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0), name
        assert (found.cached_registers > 0) == name.startswith(OTHERS[2:])
        if name.startswith("Tree-LSTM"):
            assert found.code_bytes <= INSTRUCTION_CACHE
        if found.cached_registers and (not expected.startswith("12") or arch == "sm_100"):
            assert found.cached_registers <= facts["live"] <= found.registers <= 255
        check_resources(found)
