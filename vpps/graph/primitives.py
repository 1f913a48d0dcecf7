"""Public functions that are derived from the op table; `primitives.pyi` lists them."""

from vpps.graph.derive import functions

_FUNCTIONS = functions(__name__)
__all__ = list(_FUNCTIONS)
globals().update(_FUNCTIONS)
