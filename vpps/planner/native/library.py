"""Shared library of the planner, which is compiled when vpps is installed."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path

from vpps.kernel.cache import Label, load_library
from vpps.kernel.prebuilt import HostLibrary, installed
from vpps.kernel.shared_types import bind
from vpps.planner.native import interface, policy_table

# Contraction is off so that learning gives the same automata on all machines (learning.h). RTTI is off because it needs
# a library that is not linked everywhere (kernel/ziglang.py).
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
    """Return the planner's source as one text, with every header inlined at its first include."""
    included: set[str] = set()

    def text_of(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        text = _RENDERED[name]() if name in _RENDERED else (_FOLDER / name).read_text(encoding="utf-8")
        text = text.replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda found: text_of(found[1]), text)

    return text_of("planner.cpp")


def described(target: str = "") -> HostLibrary:
    """Return the description of the planner's library for a target (see `HostLibrary`)."""
    return HostLibrary("planner", "the planner", source(), FLAGS, Label("planner"), target=target)


@cache
def library() -> ctypes.CDLL:
    """Return the planner. Raises CompileError if it was not compiled when vpps was installed, or cannot be loaded."""
    lib = load_library(installed(described()))
    bind(lib, interface.FUNCTIONS)
    return lib
