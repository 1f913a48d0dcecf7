"""What a model consists of, as a table."""

from __future__ import annotations

from dataclasses import dataclass

from vpps.ops import Shape
from vpps.ops.element import WORD_BYTES
from vpps.text import Report, counted, in_bytes, table


@dataclass(frozen=True, slots=True)
class ParameterSummary:
    """A line of the table.

    Attributes:
        name, shape: of the parameter.
        weights: how many it has.
        trainable: whether updates touch it.
        place: where the latest handle has its weights during a launch - "cpu memory"; on a GPU "registers", "shared",
            "L2" or "GPU memory", as `handle.explain()` says in full - or None before its first launch.
    """

    name: str
    shape: Shape
    weights: int
    trainable: bool
    place: str | None


@dataclass(frozen=True, slots=True, repr=False)
class ModelSummary(Report):
    """A table of a model's parameters; made by `Model.summary`.

    Attributes:
        parameters: in the order of their declaration.
        step: updates made so far.
    """

    parameters: tuple[ParameterSummary, ...]
    step: int

    def text(self) -> str:
        """The table, and totals below it."""
        rows = [(p.name, str(p.shape), p.weights, "yes" if p.trainable else "no", p.place) for p in self.parameters]
        total = sum(p.weights for p in self.parameters)
        trainable = sum(p.weights for p in self.parameters if p.trainable)
        lines = table(("parameter", "shape", "weights", "trainable", "where"), rows, text_columns=(0, 1, 3, 4))
        return "\n".join(
            [
                *lines,
                f"{counted(len(rows), 'parameter')}, {counted(total, 'weight')} ({trainable:,} trainable), "
                f"{in_bytes(WORD_BYTES * total)}; {counted(self.step, 'step')} trained\n",
            ]
        )

    __repr__ = Report.__str__  # what an interactive session shows
