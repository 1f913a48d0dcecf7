"""Finds the NVRTC library and calls it through ctypes.

The version comes from the loaded library, never from package metadata, which may describe another copy. Loading takes
6 ms (the package `cuda.bindings` would take 60 more), which is acceptable even for a cache hit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

from vpps.errors import CompileError
from vpps.kernel.programs import package_folders

HOW_TO_GET_IT = (
    "pip install 'vpps[cuda13]' (drivers from 580 on), or 'vpps[cuda12]' for older drivers and for sm_70; "
    "neither a driver nor a toolkit is needed to compile"
)

# Paths in the wheels of CUDA 13 and 12, relative to a package folder.
_IN_WHEELS = ("nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
_SYSTEM = ("libnvrtc.so.13", "libnvrtc.so.12")  # found by the loader: LD_LIBRARY_PATH, /etc/ld.so.conf

Form = Literal["CUBIN", "PTX"]


@dataclass(frozen=True, slots=True)
class CompileOutcome:
    """Result of a compilation.

    Attributes:
        error: NVRTC's name of the error, such as "NVRTC_ERROR_COMPILATION"; "" if there is none.
        image: the code; empty after an error.
        log: log of the compiler and, with --ptxas-options=-v, of the assembler.
    """

    error: str
    image: bytes
    log: str


class Library:
    """The loaded NVRTC library.

    Attributes:
        path: path of its file.
        version: version that it reports, such as "13.0".
    """

    def __init__(self, path: str) -> None:
        """Load the library. Raises OSError if it cannot be loaded, CompileError if it is not NVRTC."""
        self.path = path
        self._library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    @property
    def identity(self) -> str:
        """Version and file size. The size distinguishes patch releases, because NVRTC does not report the third
        number of its version."""
        file = Path(self.path)
        return f"NVRTC {self.version}, {file.stat().st_size if file.is_file() else 0} bytes"

    def archs(self) -> tuple[int, ...]:
        """Supported compute capabilities times ten, lowest first."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(sorted(found))

    def compile(self, source: str, file: str, options: tuple[str, ...], form: Form) -> CompileOutcome:
        """Compile CUDA C++ to machine code or PTX.

        Args:
            source: the text.
            file: its name in messages.
            options: compiler options.
            form: format of the code.

        Raises:
            CompileError: a call fails for a reason other than the source.
        """
        self._find_builtins()
        # NVRTC 12.9 and newer use the driver's cache on machines with a GPU. A hit in that cache returns no log, so
        # registers and spills would be unknown.
        if tuple(map(int, self.version.split("."))) >= (12, 9):
            options = (*options, "--no-cache")
        program = ctypes.c_void_p()
        text = source.encode(), file.encode()
        self._call("nvrtcCreateProgram", ctypes.byref(program), *text, 0, None, None)
        try:
            listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), listed)
            log = self._fetch("ProgramLog", program).rstrip(b"\0 \n").decode(errors="replace")
            if status:
                return CompileOutcome(self._name(status), b"", log)
            return CompileOutcome("", self._fetch(form, program), log)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _find_builtins(self) -> None:
        """Load the builtins library, because NVRTC 13.0 from the wheel does not find it in its own folder."""
        beside = Path(self.path).resolve().with_name(f"libnvrtc-builtins.so.{self.version}")
        if beside.is_file():
            ctypes.CDLL(str(beside))

    def _fetch(self, what: str, program: ctypes.c_void_p) -> bytes:
        """Contents returned by a pair of calls (size, contents)."""
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        contents = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, contents)
        return contents.raw

    def _call(self, name: str, *arguments: object) -> None:
        try:
            status = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise CompileError(f"{self.path} has no function {name}: {HOW_TO_GET_IT}") from None
        if status:
            raise CompileError(f"{name} failed: {self._name(status)}")

    def _name(self, status: int) -> str:
        describe = self._library.nvrtcGetErrorString
        describe.restype = ctypes.c_char_p
        found: bytes = describe(status)
        return found.decode()


@lru_cache(maxsize=1)
def library() -> Library:
    """The NVRTC of this process: from the first package folder with one of the wheels, else the library that
    `cuda.pathfinder` or the system's loader finds (from a toolkit or conda).

    Raises:
        CompileError: there is no NVRTC; the message says how to get it.
    """
    for folder in package_folders():
        for name in _IN_WHEELS:
            path = Path(folder, name).absolute()
            if path.is_file():
                return _loaded(partial(str, path))
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # comes with cuda.bindings
    except ImportError:
        for name in _SYSTEM:
            with suppress(OSError):
                return Library(name)
        raise CompileError(f"there is no NVRTC: {HOW_TO_GET_IT}") from None
    return _loaded(lambda: str(load_nvidia_dynamic_lib("nvrtc").abs_path))


def _loaded(find: Callable[[], str]) -> Library:
    try:
        return Library(find())
    except (RuntimeError, OSError) as error:  # `cuda.pathfinder` raises RuntimeError if it finds nothing
        what = str(error).strip().partition("\n")[0] or repr(error)
        raise CompileError(f"the NVRTC library cannot be loaded ({what}): {HOW_TO_GET_IT}") from error
