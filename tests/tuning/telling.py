"""A job for a compiling process, which tells how much that process steps back."""

from __future__ import annotations

import os
from dataclasses import dataclass

from vpps.errors import CompileError
from vpps.kernel.resources import Resources


@dataclass(frozen=True, slots=True)
class TellPriority:
    """Compiles nothing."""

    def run(self) -> Resources | None:
        raise CompileError(f"nice {os.nice(0)}")
