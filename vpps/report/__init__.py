"""What a user can look at: kernels, plans, scripts, cells, graphs, where the time of a launch went.

`inspection.py` is where `handle.inspect` and `vpps-inspect` begin; `plan_report.py`, `script_report.py`, `cells.py`,
`kernel_report.py` and `listing.py` have a report each.

Timelines: a kernel of the same templates records every executed instruction; without it the source is the same to the
byte. On cuda thread 0 of a block stamps `clock64`; pairs with `globaltimer` at both ends of a run let the host put all
blocks on its own clock (`runtime/stamps.py`). Records come back by launch parity, on the copy stream. `trace.py`
collects them, `critical.py` follows the virtual processor that arrived last at each barrier, `summary.py` adds up.
`perfetto.py` writes files, which Perfetto's own importer reads in a test.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vpps.report.inspection import Inspection, inspect

__all__ = ["Inspection", "inspect"]
__dir__ = __all__.copy  # completion shows nothing else


def _import_late(name: str) -> object:
    """Modules of reports are imported when they are first used; what `explain` and timelines need is small."""
    if name in __all__:
        return getattr(import_module("vpps.report.inspection"), name)
    raise AttributeError(f"module 'vpps.report' has no attribute {name!r}")


if not TYPE_CHECKING:
    __getattr__ = _import_late
