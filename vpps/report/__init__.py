"""What a user can look at: kernels, plans, scripts, cells, graphs, where the time of a launch went."""

from __future__ import annotations

_FOUND_IN = {
    "Drawing": "graph.drawing",
    "Inspection": "report.inspection",
    "draw": "graph.drawing",
    "inspect": "report.inspection",
}


def __getattr__(name: str) -> object:
    """Modules of reports are imported when they are first used; what `explain` and timelines need is small."""
    if name in _FOUND_IN:
        from importlib import import_module

        return getattr(import_module(f"vpps.{_FOUND_IN[name]}"), name)
    raise AttributeError(f"module 'vpps.report' has no attribute {name!r}")


__all__ = ["Drawing", "Inspection", "draw", "inspect"]
