"""Every header in templates/ compiles by itself with the flags in compile_flags.txt, as an editor reads it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.kernel.headers import write
from vpps.kernel.host_compiler import compiler
from vpps.kernel.render import template_dir

pytestmark = pytest.mark.cpu

SHARED = ("*.cuh", "ops/*.cuh")
HEADERS = [
    (target, str(path.relative_to(template_dir())))
    for target, patterns in {"host": (*SHARED, "host/*"), "cuda": (*SHARED, "cuda/*h")}.items()
    for pattern in patterns
    for path in sorted(template_dir().glob(pattern))
]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("headers")
    write(folder)
    return folder


@pytest.mark.parametrize("target, header", HEADERS)
def test_a_header_compiles_alone(target: str, header: str, generated: Path) -> None:
    folder = template_dir() / ("cuda" if target == "cuda" else "")
    flags = re.sub(r"-I\S*build/headers", f"-I{generated}", (folder / "compile_flags.txt").read_text()).split()
    command = [*compiler(), *flags, "-w", "-fsyntax-only", str(template_dir() / header)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
