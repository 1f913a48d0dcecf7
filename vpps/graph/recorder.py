"""Loads the recorder that was compiled when vpps was installed.

The recorder is optional: without Python's headers or its global lock at installation, Python code records graphs.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
import sys
import sysconfig
import threading
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from vpps.config import RECORDER, notice
from vpps.errors import CompileError, GraphError, HandleError
from vpps.graph.graph import Graph
from vpps.kernel.cache import Label, loaded
from vpps.kernel.prebuilt import HostLibrary, find, installed
from vpps.model.model import Lookup
from vpps.ops.operand import Expression, in_progress
from vpps.record import arrays, ranges, vertices
from vpps.record.cell import Cell
from vpps.record.native.interface import header

_log = logging.getLogger(__name__)

NAME = "vpps_recorder"
FILES = ("ints.h", "interface.h", "recorder.h", "map.h", "module.cpp")  # each file includes the earlier files
FLAGS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
# Python's header macros begin type tables; this code fills them in by name. macOS resolves Python's symbols on load.
MORE_FLAGS = ("-Wno-missing-field-initializers", *(("-undefined", "dynamic_lookup") * (sys.platform == "darwin")))

_lock = threading.Lock()
_tried = False


def source() -> str:
    """Return the recorder's source as one text."""
    folder = Path(__file__).parents[1] / "record" / "native"
    texts = [header() if name == "interface.h" else (folder / name).read_text(encoding="utf-8") for name in FILES]
    return "".join(
        line
        for text in texts
        for line in text.splitlines(keepends=True)
        if not line.startswith(('#include "', "#pragma"))
    )


def _is_supported() -> bool:
    return sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


def described(target: str = "") -> HostLibrary:
    """Describe the recorder's library for this Python and a target (`HostLibrary`).

    Raises:
        CompileError: this Python cannot use it.
    """
    if not _is_supported():
        raise CompileError("the compiled recorder needs CPython with its global lock")
    flags, headers = (*FLAGS, *MORE_FLAGS), (sysconfig.get_path("include"),)
    label = Label("recorder", f"{sys.implementation.name} {platform.python_version()}")
    return HostLibrary(
        f"recorder-{sys.implementation.cache_tag}", "the recorder", source(), flags, label, headers, target
    )


def load() -> ModuleType:
    """Load the compiled recorder. Raises CompileError."""
    return loaded(installed(described()), _module_of)


def _module_of(path: Path) -> ModuleType:
    loader = ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def use(module: ModuleType) -> None:
    """Use the module to record graphs that are created from now on. Existing graphs keep their recorder."""
    module.bind(Expression, in_progress, GraphError)
    for owner, name, argument in ((Cell, "__call__", ()), (Graph, "call", (Cell,)), (Graph, "lookup", (Lookup,))):
        setattr(owner, name, module.Method(getattr(owner, name), *argument))
    vertices.new_tape = module.Tape
    ranges.compiled = module.join
    arrays.addresses = module.addresses


def prepare() -> None:
    """Install the compiled recorder, once per process, unless VPPS_RECORDER says otherwise.

    Raises:
        HandleError: VPPS_RECORDER has an unknown value.
        CompileError: the recorder is required but unavailable.
    """
    global _tried
    chosen = RECORDER.get()
    if chosen not in ("auto", "python", "compiled"):
        raise HandleError(f"{RECORDER.name}={chosen}: expected auto, python or compiled")
    with _lock:
        in_use = vertices.new_tape is not vertices.Tape
        if chosen == "python" or in_use or (chosen == "auto" and (_tried or not _is_supported())):
            return
        try:
            use(load())
        except CompileError as error:
            _tried = True
            if chosen == "compiled":
                raise
            headers = "; install Python's headers if missing (Debian and Ubuntu: apt-get install python3-dev)"
            tail = "" if find(described()) else headers
            notice(f"graphs are recorded in Python, which takes five times as long: {error}{tail}")
