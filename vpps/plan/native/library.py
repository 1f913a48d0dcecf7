"""The library of the compiled planner: compiled in the background, once per machine, and loaded when it is there.

It is optional. Until it is there, and where there is no compiler, NumPy plans.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from functools import cache
from pathlib import Path

from vpps.config import PLANNER
from vpps.errors import CompileError, HandleError
from vpps.kernel.cache import Label, load_library
from vpps.kernel.host_compiler import build_library
from vpps.kernel.processes import EndedError, in_background
from vpps.kernel.shared_types import bind
from vpps.plan.native import interface, policy_table

_log = logging.getLogger(__name__)

# Contraction is off so that the same machines are learned everywhere (learning.h). What classes need for RTTI is in a
# library that is not linked everywhere (kernel/ziglang.py).
FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
)
_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "([\w/]+\.h)"\n', re.MULTILINE)
_RENDERED = {"interface.h": interface.header, "policy_table.h": policy_table.header}


@cache
def source() -> str:
    """The planner's source in one piece: every header once, where it is included first."""
    included: set[str] = set()

    def text_of(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        text = _RENDERED[name]() if name in _RENDERED else (_FOLDER / name).read_text(encoding="utf-8")
        text = text.replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda found: text_of(found[1]), text)

    return text_of("planner.cpp")


def build() -> Path:
    """The compiled planner, from the cache if it is there.

    Raises:
        CompileError: no compiler, or it rejects the source.
    """
    return build_library(source(), "the planner's source", FLAGS, label=Label("planner"))


def _load(path: Path) -> ctypes.CDLL:
    lib = load_library(path)
    bind(lib, interface.FUNCTIONS)
    return lib


class _Loader:
    """Has the library compiled by a thread, at most once per process."""

    def __init__(self) -> None:
        self.library: ctypes.CDLL | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to compile and load, unless that was begun before."""
        with self._lock:
            if self._thread is None:
                try:
                    self._thread = in_background(self._run, "vpps-planner-compiler")
                except CompileError as error:
                    self._leave_out(error)

    def join(self) -> None:
        """Wait until it is there, or will not be."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self.library = _load(build())
        except EndedError as error:  # by Ctrl-C, or at the end of this process: the next one compiles it
            _log.debug("scripts are planned with NumPy: %s", error)
        except CompileError as error:
            self._leave_out(error)

    def _leave_out(self, error: CompileError) -> None:
        _log.warning("scripts are planned with NumPy: the compiled planner is not available (%s)", error)

    def load(self) -> ctypes.CDLL:
        """The library, compiled now if it must be. Raises CompileError."""
        self.join()
        with self._lock:
            if self.library is None:
                self.library = _load(build())
            return self.library


_loader = _Loader()


def choice() -> str:
    """What VPPS_PLANNER says: "auto", "numpy" or "compiled". Raises HandleError for anything else."""
    chosen = PLANNER.get()
    if chosen not in ("auto", "numpy", "compiled"):
        raise HandleError(f"{PLANNER.name}={chosen}: expected auto, numpy or compiled")
    return chosen


def prepare(wait: bool = False) -> None:
    """Begin to compile the planner, so that it is there when scripts are needed; wait for it if it is required.

    Args:
        wait: for it in any case.

    Raises:
        HandleError: VPPS_PLANNER is none of its values.
        CompileError: it is required and cannot be compiled.
    """
    chosen = choice()
    if chosen == "compiled":
        _loader.load()
    elif chosen == "auto":
        _loader.start()
        if wait:
            _loader.join()


def load() -> ctypes.CDLL:
    """The library, compiled now if it must be. Raises CompileError."""
    return _loader.load()


def library() -> ctypes.CDLL | None:
    """The loaded library; None while it is being compiled, and where it is not to be used."""
    return None if choice() == "numpy" else _loader.library
