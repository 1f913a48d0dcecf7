"""Graphs are recorded in Python or by compiled code; tests compare the two."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import vpps
from vpps.errors import CompileError
from vpps.graph import recorder as library
from vpps.record import ranges, vertices
from vpps.record.cell import Cell


@cache
def compiled_recorder() -> ModuleType | None:
    """Return the compiled recorder; None where it is optional: no headers, or a different Python."""
    try:
        (headers,) = library.described().headers
    except CompileError:
        return None
    return library.load() if Path(headers, "Python.h").is_file() else None


def use(kind: str, patch: pytest.MonkeyPatch) -> None:
    """Switch to "python" or "compiled"; skips the test without a compiled one."""
    patch.setattr(vertices, "new_tape", vertices.Tape)
    patch.setattr(ranges, "compiled", None)
    for owner, name in ((Cell, "__call__"), (vpps.Graph, "call"), (vpps.Graph, "lookup")):
        patch.setattr(owner, name, inspect.unwrap(getattr(owner, name)))
    if kind == "compiled":
        module = compiled_recorder()
        if module is None:
            pytest.skip("the compiled recorder needs Python's headers when vpps is installed")
        library.use(module)
