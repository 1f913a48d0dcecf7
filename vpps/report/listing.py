"""Text that people read by its lines: source, assembler, machine code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vpps.errors import KernelError
from vpps.kernel.complaints import numbered
from vpps.text import Report

CUDA_CPP = "cuda"
"""The language of kernels that are made for a model, as Pygments calls it."""


@dataclass(frozen=True, slots=True)
class Listing(Report):
    """Lines of a program.

    Attributes:
        what: it is: "source", "tails", "asm", "ptx", "sass".
        target: its name.
        arch: instruction set or architecture that it is for, "" of simt.
        language: for highlighting, as Pygments calls it: "cpp", "cuda", "gas", "ptx" ...
        source: the text; a part of it after `between`.
        first: number of its first line, as compile errors count.
    """

    what: str
    target: str
    arch: str
    language: str
    source: str
    first: int = 1

    @property
    def last(self) -> int:
        """Number of its last line."""
        return self.first + len(self.source.splitlines()) - 1

    def text(self) -> str:
        """The text itself: of a whole listing, what the compiler gets."""
        return self.source

    def numbered(self) -> str:
        """With the number of every line before it, as compile errors quote them."""
        return "\n".join([*numbered(enumerate(self.source.splitlines(), self.first)), ""])

    def between(self, first: int, last: int | None = None) -> Listing:
        """Some of the lines.

        Raises:
            KernelError: there are no such lines.
        """
        lines = self.source.splitlines()
        last = self.last if last is None else max(first, min(last, self.last))
        if not self.first <= first <= self.last:
            raise KernelError(f"there is no line {first}: the {self.what} has lines {self.first} to {self.last}")
        part = lines[first - self.first : last - self.first + 1]
        return replace(self, source="\n".join([*part, ""]), first=first)

    def as_json(self) -> dict[str, Any]:
        """What it is, and its lines."""
        kept = {name: getattr(self, name) for name in ("what", "target", "arch", "language", "first", "last")}
        return {**kept, "lines": self.source.splitlines()}
