"""Hooks of hatchling: render the long description; compile the planner, the recorder, and for a wheel the cpu kernels.

VPPS_WHEEL_TARGET: zig's name of another platform to build a wheel for, such as aarch64-linux-gnu.2.17.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

TARGET = os.environ.get("VPPS_WHEEL_TARGET", "")
COMPILER = "ziglang>=0.15"


def _answers(name: str) -> bool:
    """True if a compiler works; on macOS it may be a stub that asks to install the developer tools."""
    return bool(shutil.which(name)) and not subprocess.run([name, "--version"], capture_output=True).returncode


def describe(root: Path, urls: dict[str, str]) -> str:
    """Return the long description for the package index: PYPI.md.in with addresses and the first program."""
    program = (root / "docs/programs/quickstart.py").read_text(encoding="utf-8").rstrip()
    return Template((root / "PYPI.md.in").read_text(encoding="utf-8")).substitute(urls, program=program)


class Describing(MetadataHookInterface):
    """Called by hatchling for each wheel and sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["readme"] = {
            "content-type": "text/markdown", "text": describe(Path(self.root), metadata["urls"]),
        }  # fmt: skip


class Compiling(BuildHookInterface[Any]):
    """Called by hatchling for each wheel, including that of an editable installation."""

    def dependencies(self) -> list[str]:
        """Require a compiler from PyPI if there is none."""
        named = shlex.split(os.environ.get("CXX", ""))[:1]
        there = any(map(shutil.which, named)) or any(map(_answers, ("g++", "clang++")))
        return [] if there and not TARGET else [COMPILER]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)
        from vpps import installation

        if version == "editable":
            installation.build_for_checkout()
            return
        self.folder = Path(tempfile.mkdtemp())
        try:
            files = installation.build(self.folder, kernels=True, target=TARGET)
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        build_data["force_include"] |= {str(path): f"vpps/prebuilt/{path.name}" for path in files}
        build_data["pure_python"] = False
        build_data["infer_tag"] = not TARGET
        if TARGET:
            machine, _, libc = TARGET.partition("-linux-gnu.")
            python = f"cp{sys.version_info.major}{sys.version_info.minor}"
            build_data["tag"] = f"{python}-{python}-manylinux_{libc.replace('.', '_')}_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self.folder)
