"""The name that `vpps.report` had."""

import warnings

from vpps.report import Drawing, Inspection, draw, inspect

warnings.warn("vpps.inspection is called vpps.report now", DeprecationWarning, stacklevel=2)

__all__ = ["Drawing", "Inspection", "draw", "inspect"]
