"""Declarations for compiled code match Python, and the compiler checks them."""

from __future__ import annotations

import ctypes
from ctypes import Structure
from enum import IntEnum
from pathlib import Path

import pytest

from vpps.errors import CompileError
from vpps.kernel import shared_types
from vpps.kernel.cache import Label, load_library
from vpps.kernel.host_compiler import build_library
from vpps.kernel.prebuilt import HostLibrary
from vpps.kernel.shared_types import fields

pytestmark = pytest.mark.cpu

FLAGS = ("-std=c++17", "-shared", "-fPIC", "-Wall")
TYPES = """#include <cstddef>
#include <cstdint>
using i64 = std::int64_t;
using u64 = std::uint64_t;
#define EXPORT extern "C"
"""
PROTOTYPE = "double* total(const Given* given, Colour colour)"
BODY = """EXPORT double* total(const Given* given, Colour colour)
{
    static double found;
    found = given->weight * static_cast<double>(given->n + static_cast<i64>(given->seed >> 63));
    if (colour == Colour::BLUE) found = -found - HALF;
    return &found;
}
"""


class Colour(IntEnum):
    RED = 3
    BLUE = 7


@fields(ints="n unused", words="seed", floats="weight")
class Given(Structure):
    """Fields of every kind."""


def declared() -> str:
    constants = shared_types.constants({"HALF": 2})
    of_functions = shared_types.declarations([PROTOTYPE])
    return TYPES + constants + shared_types.enum(Colour) + shared_types.struct(Given) + of_functions


def compiled(source: str) -> Path:
    return build_library(HostLibrary("test", "a test's source", source, FLAGS, Label("shared types")))


def test_both_sides_mean_the_same() -> None:
    library = load_library(compiled(declared() + BODY))
    shared_types.bind(library, [PROTOTYPE])
    given = Given(n=20, seed=1 << 63, weight=0.5)
    found = ctypes.cast(library.total(ctypes.byref(given), Colour.BLUE), ctypes.POINTER(ctypes.c_double))
    assert found[0] == -12.5


@pytest.mark.parametrize(
    "before, after",
    [
        ("i64 unused;", ""),
        ("i64 n;\n    i64 unused;", "i64 unused;\n    i64 n;"),
        ("total(const Given* given, Colour colour)\n", "total(Given* given, Colour colour)\n"),
        ("Colour::BLUE", "Colour::GREEN"),
    ],
    ids=["size", "order", "function", "name"],
)
def test_the_compiler_refuses_what_differs(before: str, after: str) -> None:
    source = declared() + BODY
    assert before in source
    with pytest.raises(CompileError):
        compiled(source.replace(before, after))
