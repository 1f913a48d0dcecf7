"""The library of the planner: compiled on first use, once per machine, in the background until a plan is asked for."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

from vpps.errors import CompileError
from vpps.kernel.cache import Label, load_library
from vpps.kernel.host_compiler import build_library, compiler
from vpps.kernel.processes import in_background
from vpps.kernel.shared_types import bind
from vpps.planner.native import interface, policy_table

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
    """Has the library compiled by a thread, once per process; after an error it begins anew when it is asked again."""

    def __init__(self) -> None:
        self.library: ctypes.CDLL | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._done = threading.Event()
        self._error: CompileError | None = None

    def start(self) -> None:
        """Begin to compile and load, unless that was begun before. Raises CompileError where there is no compiler."""
        if self.library is not None:
            return
        compiler()
        with self._lock:
            if self._thread is None:
                self._done.clear()
                with suppress(CompileError):  # no more threads: `load` compiles
                    self._thread = in_background(self._run, "vpps-planner-compiler")

    def load(self) -> ctypes.CDLL:
        """The library, as soon as it is there. Raises CompileError."""
        while self.library is None:
            self.start()
            if (thread := self._thread) is not None:
                self._done.wait()  # no join: one that Ctrl-C interrupts takes the thread for ended, in Python 3.11
            else:
                self._run()
            with self._lock:
                if self._thread is thread:
                    self._thread = None
                error, self._error = self._error, None
            if error is not None:
                raise error
        return self.library

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._lock, self._thread, self._done, self._error = threading.Lock(), None, threading.Event(), None

    def _run(self) -> None:
        try:
            self.library = _load(build())
        except CompileError as error:
            self._error = error
        finally:
            self._done.set()


_loader = _Loader()
os.register_at_fork(after_in_child=lambda: _loader.forget())


def prepare() -> None:
    """Begin to compile the planner, so that it is there when it is needed. Raises CompileError without a compiler."""
    _loader.start()


def library() -> ctypes.CDLL:
    """The planner, waited for where it is being compiled.

    Raises:
        CompileError: there is no compiler, or it rejects the source (the message shows its first diagnostics).
    """
    return _loader.load()
