"""No process started by vpps runs code from the working directory, which may hold downloaded files."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

import vpps
from tests.processes import ROOT, run
from vpps.kernel import programs

pytestmark = pytest.mark.host

MODULES = ("vpps", "numpy", "random", "bisect", "heapq", "pickle", "ziglang", "jinja2", "sitecustomize", "venv", "pip")
PROGRAMS = ("g++", "clang++", "cc", "as", "ld", "sh", "zig", "objdump", "llvm-objdump", "nvdisasm", "python")

CHILDREN = {
    "vpps/kernel/host_compiler.py": "from vpps.kernel.host_compiler import compiler, compiler_version\n"
    "compiler_version(tuple(compiler()))",
    "vpps/kernel/processes.py": "import pathlib\n"
    "from vpps.kernel.host_compiler import compiler, run_compiler\n"
    "source, made = (pathlib.Path(os.environ['TMPDIR'], name) for name in ('a.cpp', 'a.so'))\n"
    "source.write_text('int f() { return 1; }')\n"
    "run_compiler(compiler(), [*compiler(), '-shared', '-fPIC', str(source), '-o', str(made)], 'it', source)",
    "vpps/report/listing.py": "import pathlib\n"
    "from vpps.report.listing import asm, nvdisasm\n"
    "with contextlib.suppress(vpps.CompileError):\n"
    "    asm(pathlib.Path(os.__file__))\n"
    "from vpps.kernel.ziglang import installed\n"
    "tools = str(nvdisasm()), *(installed() or ())\n"
    "assert not any(tool.startswith(os.getcwd()) for tool in tools), tools",
}
"""Code that starts every process of vpps, by file."""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Make a folder whose modules and programs leave a trace when they run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    code = f"open({str(folder / 'EXECUTED')!r}, 'a').write(__file__ + chr(10)); raise ImportError"
    for name in MODULES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(code)
        (folder / name / "__main__.py").write_text(code)
    for path in (*(folder / name for name in PROGRAMS), folder / "ziglang/zig"):
        path.write_text(f"#!/bin/sh\necho $0 >> {folder}/EXECUTED\nexit 1\n")
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize("child", CHILDREN)
def test_no_child_runs_code_of_the_working_directory(child: str, hostile: Path, tmp_path: Path) -> None:
    code = f"import contextlib, os, vpps\nos.chdir({str(hostile)!r})\n{CHILDREN[child]}"
    path = os.pathsep.join(["", ".", os.environ["PATH"], ""])
    # A child without its own path gets this process's path, with the folder in front.
    run(code, {"PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}", "TMPDIR": str(tmp_path), "CXX": ""})
    assert not (hostile / "EXECUTED").exists(), (hostile / "EXECUTED").read_text()


def test_no_other_file_starts_processes() -> None:
    """Add a new file to the table above; its child needs an environment from `programs.environment`."""
    found = set()
    for path in Path(vpps.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.run", "subprocess.Popen"):
                found.add(str(path.relative_to(ROOT)))
                assert "env" in {word.arg for word in node.keywords}, f"{path}:{node.lineno}"
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            assert not name.startswith(("os.exec", "os.spawn", "os.posix_spawn", "os.system", "os.popen")), path
    assert found == set(CHILDREN)


def test_scripts_start_modules_without_the_working_directory() -> None:
    """Scripts may run modules from the checkout, since they are in its root."""
    for path in (ROOT / "scripts").iterdir():
        for line in path.read_text().splitlines():
            for module in ("venv", "pip", "build", "twine", "auditwheel", "sphinx"):
                assert f" -m {module} " not in line or f" -P -m {module} " in line, (path, line)


def test_what_depends_on_the_working_directory_leaves_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(["", "/bin", ".", "bin", "/usr/bin", ""]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "/packages"]))
    found = programs.environment()
    assert (found["PATH"], found["PYTHONPATH"]) == (f"/bin{os.pathsep}/usr/bin", "/packages")
    assert programs.which("no-such-program") is None
    assert programs.which(sys.executable) == sys.executable
