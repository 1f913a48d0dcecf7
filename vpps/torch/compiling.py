"""torch.compile leaves vpps alone, and compiles what is around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

REASON = "vpps runs graphs that differ from call to call; torch.compile compiles what is around them"


def not_compiled(function: Callable[..., Any]) -> Any:
    """Have a method run as it is: where it is called there is a graph break."""
    try:
        return torch.compiler.disable(function, reason=REASON)
    except TypeError:  # before PyTorch 2.7
        return torch.compiler.disable(function)


def leave_recording() -> None:
    """Have graphs recorded by Python, too, where that is within what is compiled: tensors are copied there."""
    rules: Any = getattr(getattr(torch, "_dynamo", None), "trace_rules", None)
    if hasattr(rules, "add"):
        rules.add("vpps")
