"""`import vpps` is light: modules for compiling, saving or GPUs are imported on demand."""

from __future__ import annotations

import sys

import pytest

from tests.processes import run

pytestmark = pytest.mark.host

INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"


def imported_by(statement: str) -> set[str]:
    """Return the top-level modules that a new process has loaded after a statement."""
    names = run(f"import sys\n{statement}\nprint(*sys.modules)")
    return {name.split(".")[0] for name in names.split()}


def test_import_needs_nothing_but_numpy_and_the_standard_library() -> None:
    found, others = imported_by("import vpps"), imported_by(f"import numpy.random, {INTERPRETERS}")
    assert found - others - sys.stdlib_module_names == {"vpps"}


def test_import_starts_no_thread_and_reads_no_templates() -> None:
    out = run(
        """
        import sys, threading
        opened = []
        sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
        import vpps
        print(threading.active_count(), [name for name in opened if name.endswith((".j2", ".cuh", ".h", "cpuinfo"))])
        """
    )
    assert out == "1 []\n"


@pytest.mark.parametrize("before", ["pass", "import numpy", "import vpps; vpps.Graph().input([1.0])"])
def test_subinterpreters_are_refused_in_words(before: str) -> None:
    program = "try:\n import vpps\nexcept ImportError as error:\n print(error, flush=True)"
    found = run(
        f"import {INTERPRETERS} as i\n{before}\nother = i.create()\ni.run_string(other, {program!r})\ni.destroy(other)"
    )
    assert "vpps cannot be used in a subinterpreter" in found
