"""All tests of this folder run twice: graphs are recorded in Python, and by the compiled recorder."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
    """The compiled recorder, None where it is optional: no headers, another Python."""
    try:
        (headers,) = library.described().headers
    except CompileError:
        return None
    return library.load() if Path(headers, "Python.h").is_file() else None


@pytest.fixture
def use_recorder(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Switches between "python" and "compiled" until the end of the test. Skips it where there is no compiled one."""

    def switch(kind: str) -> None:
        monkeypatch.setattr(vertices, "new_tape", vertices.Tape)
        monkeypatch.setattr(ranges, "compiled", None)
        for owner, name in ((Cell, "__call__"), (vpps.Graph, "call"), (vpps.Graph, "lookup")):
            monkeypatch.setattr(owner, name, inspect.unwrap(getattr(owner, name)))
        if kind == "compiled":
            module = compiled_recorder()
            if module is None:
                pytest.skip("the compiled recorder needs Python's headers when vpps is installed")
            library.use(module)

    return switch


@pytest.fixture(autouse=True, params=["python", "compiled"])
def recorder(request: pytest.FixtureRequest, use_recorder: Callable[[str], None]) -> str:
    use_recorder(request.param)
    kind: str = request.param
    return kind
