"""Generates C++ declarations of enums, structs, constants and functions that Python shares with compiled code.

C++ sources name the numeric types `i64`, `u64` and `double`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Mapping
from ctypes import Structure
from enum import IntEnum
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

S = TypeVar("S", bound=Structure)

# Integer types for fields of records.
I64 = Annotated[int, "i64"]
I32 = Annotated[int, "i32"]
U32 = Annotated[int, "u32"]
BOOL = Annotated[int, "bool"]

_SPELLED = {ctypes.c_int64: "i64", ctypes.c_uint64: "u64", ctypes.c_double: "double"}
_PROTOTYPE = re.compile(r"(?P<returns>\w+\*?) (?P<name>\w+)\((?P<takes>.*)\)")


def fields(ints: str = "", words: str = "", floats: str = "") -> Callable[[type[S]], type[S]]:
    """Class decorator that gives a struct its fields, eight bytes each. Array addresses are also numbers.

    Args:
        ints, words, floats: names of the signed ints, the unsigned ints and the doubles, which follow in this order.
    """

    def give(struct: type[S]) -> type[S]:
        kinds = ((ints, ctypes.c_int64), (words, ctypes.c_uint64), (floats, ctypes.c_double))
        struct._fields_ = [(name, kind) for names, kind in kinds for name in names.split()]
        return struct

    return give


def numbers(struct: Structure) -> list[int]:
    """The fields of a struct that holds only ints, in order."""
    return [getattr(struct, name) for name, *_ in struct._fields_]


def address(array: Any) -> int:
    """Address of the first element of a writable, contiguous array; seven times faster than NumPy."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


def enum(defined: type[IntEnum]) -> str:
    """A C++ enum with the same numbers."""
    members = ", ".join(f"{member.name} = {member.value}" for member in defined)
    return f"enum class {defined.__name__} : i64 {{ {members} }};\n"


def struct(defined: type[Structure]) -> str:
    """A C++ struct with the same fields; the compiler checks that offsets are the same as in Python."""
    name = defined.__name__
    members: list[tuple[str, Any]] = [member[:2] for member in defined._fields_]
    lines = [f"    {_SPELLED[kind]} {field};\n" for field, kind in members]
    checks = [
        f"static_assert(offsetof({name}, {field}) == {getattr(defined, field).offset});\n" for field, _ in members
    ]
    checks.append(f"static_assert(sizeof({name}) == {ctypes.sizeof(defined)});\n")
    return "".join((f"struct {name} {{\n", *lines, "};\n", *checks))


def record(defined: type) -> str:
    """A C++ struct for a NamedTuple, named without "Record". The constructor reads the value from a stream of ints
    (`taken`, in planner/native/numbers.h)."""
    name = defined.__name__.removesuffix("Record")
    members = {field: _spelled(hint) for field, hint in get_type_hints(defined, include_extras=True).items()}
    lines = [f"    {kind} {field};\n" for field, kind in members.items()]
    taken = ", ".join(f"{field}(taken<{kind}>(from))" for field, kind in members.items())
    return "".join((f"struct {name} {{\n", *lines, f"    explicit {name}(Numbers& from) : {taken} {{}}\n}};\n"))


def _spelled(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return str(get_args(hint)[1])
    if get_origin(hint) is list:
        return f"std::vector<{_spelled(get_args(hint)[0])}>"
    return str(hint.__name__).removesuffix("Record")


def constants(values: Mapping[str, int]) -> str:
    """C++ constants for named numbers."""
    return "".join(f"constexpr i64 {name} = {int(value)};\n" for name, value in values.items())


def declarations(prototypes: Iterable[str]) -> str:
    """C++ declarations of exported functions, so that a definition with different types is a compile error."""
    return "".join(f"EXPORT {prototype};\n" for prototype in prototypes)


def bind(library: ctypes.CDLL, prototypes: Iterable[str]) -> None:
    """Set the ctypes argument and result types of a library's functions."""
    for prototype in prototypes:
        found = _PROTOTYPE.fullmatch(prototype)
        assert found is not None, prototype
        function = getattr(library, found["name"])
        function.restype = _passed(found["returns"])
        function.argtypes = [_passed(taken) for taken in found["takes"].split(", ")]


def _passed(declared: str) -> Any:
    if "*" in declared:
        return ctypes.c_void_p
    return None if declared == "void" else ctypes.c_int64
