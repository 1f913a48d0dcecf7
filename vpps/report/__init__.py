"""Reports for users: kernels, plans, scripts, cells, graphs, and the time of launches.

`inspection.py` is the entry point of `handle.inspect` and `vpps-inspect`. `plan_report.py`, `script_report.py`,
`cells.py`, `kernel_report.py` and `listing.py` contain one report each.

Timelines come from a kernel generated from the same templates, which records every executed instruction. If recording
is off, it does not change the source by a single byte. On cuda, thread 0 of a block reads `clock64`, and at both ends
of a run `globaltimer`, too, so that the host can convert all times to its own clock (`runtime/stamps.py`). The copy
stream returns records from two buffers, one per launch parity. `trace.py` collects them. `critical.py` follows the
virtual processor that arrived last at each barrier. `summary.py` computes totals. `perfetto.py` writes files; a test
reads them with Perfetto's own importer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vpps.report.inspection import Inspection, inspect

__all__ = ["Inspection", "inspect"]
__dir__ = __all__.copy  # completion shows nothing else


def _import_late(name: str) -> object:
    """Import report modules on first use; `explain` and timelines need only small ones."""
    if name in __all__:
        return getattr(import_module("vpps.report.inspection"), name)
    raise AttributeError(f"module 'vpps.report' has no attribute {name!r}")


if not TYPE_CHECKING:
    __getattr__ = _import_late
