"""Where DyNet's time goes: its own profile of operations, and the copies that bring the arguments of a batch together.

DyNet's profile (`--dynet-profiling 1`) has a time per kind of operation, forward and backward; copies for batching
are inside those times. `dynet_profile.cpp` takes the place of the two functions that copy and times them. What
neither tells apart from computation: DyNet's looking whether arguments lie side by side already, which needs no copy
then.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COPIES = ("combine_tensors", "accumulate_tensors")
# Operations that compute nothing, by the names that DyNet's profile has for them (after "FWD " or "BWD ").
MOVING = ("lookup_parameters", "concat", "concat_batch_elems", "slice", "reshape")


def _extension() -> str:
    """Path of DyNet's extension module. Raises ImportError where it is not installed."""
    spec = importlib.util.find_spec("_dynet")
    if spec is None or spec.origin is None:
        raise ImportError("no module named '_dynet'")
    return spec.origin


class DynetProfile:
    """Make it before DyNet is imported, `attach` it afterwards."""

    def __init__(self) -> None:
        """Compile and load. Raises CalledProcessError where there is no C++ compiler."""
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "dynet_profile.so")
            source = Path(__file__).with_name("dynet_profile.cpp")
            exports = Path(folder, "exports")
            exports.write_text("{ global: _ZN5dynet22Batched*; profile_*; local: *; };", encoding="utf-8")
            # The wheel is compiled for the strings of C++98, which its map of times holds.
            new_strings = b"__cxx11" in Path(_extension()).read_bytes()
            flags = [
                f"-D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}",
                "-O2",
                "-std=c++17",
                "-shared",
                "-fPIC",
                f"-Wl,--version-script={exports}",
            ]
            subprocess.run([os.environ.get("CXX", "g++"), *flags, source, "-o", library], check=True)
            self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._library.profile_attach.argtypes = [ctypes.c_char_p]
        self._library.profile_take.restype = ctypes.c_char_p

    def attach(self, dynet: Any) -> None:
        """Find DyNet's functions. Exits where this DyNet has none, or does not call them through the linker."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        path = next((line.split(maxsplit=5)[5] for line in maps if "libdynet" in line), "")
        if not self._library.profile_attach(path.encode()):
            sys.exit(f"no DyNet of version 2 is loaded, or one without timers ({path or 'no libdynet'})")
        self.take()
        dynet.renew_cg()
        table = dynet.ParameterCollection().add_lookup_parameters((4, 8))
        rows = [table[k] for k in range(4)]
        total = dynet.esum([f(rows[k]) for k in (0, 2) for f in (dynet.tanh, dynet.exp)])  # rows that are apart
        dynet.sum_elems(total).forward()
        if self.take()["combine_tensors"] == 0:
            sys.exit(
                f"the copies of this DyNet ({path}) cannot be timed, because its compiler resolved the calls; take the "
                "wheel, or compile it anew with peers/build_dynet"
            )

    def take(self) -> dict[str, float]:
        """Seconds since the last call: COPIES, and "FWD ..." and "BWD ..." of every kind of operation."""
        found: dict[str, float] = {}
        for line in self._library.profile_take().decode().splitlines():
            seconds, name = line.split("\t", 1)
            kind = name.partition("(")[0]  # what follows are its arguments
            found[kind] = found.get(kind, 0.0) + float(seconds)
        return found
