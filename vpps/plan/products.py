"""Weight gradients of strategy "gemm": which vectors a product needs, and how they come to lie side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from vpps.model import Parameter
from vpps.plan.distribution import Distribution, Held
from vpps.plan.instr import ParameterGradient, whole_slab
from vpps.plan.memory import SlabMemory
from vpps.plan.rows import BlockPlan
from vpps.plan.templates import Gathered
from vpps.plan.writer import ScriptWriter
from vpps.script.instructions import HEAD_WORDS
from vpps.script.products import Product, Rows


@dataclass(slots=True)
class _Factors:
    """What a matrix met in a batch.

    Attributes:
        contributions: of every cell that uses it: (rows of the cell, gradient, its copies, number of vectors).
        sides: "dy" and "x", where they lie side by side.
        copied: those of the two that the script puts there.
    """

    contributions: list[tuple[BlockPlan, ParameterGradient, list[Gathered], int]] = field(default_factory=list)
    sides: dict[str, Rows] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)

    @property
    def n(self) -> int:
        """Vectors of all contributions."""
        return sum(n for *_, n in self.contributions)


class GradientProducts:
    """The products of one batch.

    Args:
        blocks: rows of all cells that run backward.
        held: gradients of earlier batches, to which those of this one are added.

    Attributes:
        parameters: whose gradients are made by products.
    """

    def __init__(
        self, writer: ScriptWriter, distribution: Distribution, blocks: Iterable[BlockPlan], held: Held
    ) -> None:
        self._writer = writer
        self._places = distribution.physical
        self._held = held
        self._factors: dict[Parameter, _Factors] = {}
        for b in blocks:
            for gradient, copies in b.cell.gathered:
                n = b.needed_rows(gradient.instr.domain)
                found = self._factors.setdefault(gradient.parameter, _Factors())
                found.contributions.append((b, gradient, copies, n))

    @property
    def parameters(self) -> Collection[Parameter]:
        return self._factors.keys()

    def take_memory(self, memory: SlabMemory) -> None:
        """Find room for the vectors; those that lie side by side already stay where they are."""
        for p, factors in self._factors.items():
            for side, width in zip(("dy", "x"), p.shape, strict=True):
                at = _in_place(factors, side)
                if at is None:
                    factors.copied.add(side)
                    at = Rows(memory.take_at_end(factors.n * width), width)
                factors.sides[side] = at

    def gather(self) -> None:
        """Write the instructions that copy vectors to where the product finds them."""
        for p, factors in self._factors.items():
            before = 0
            for block, _, copies, n in factors.contributions:
                for copy in copies:
                    if not n or copy.side not in factors.copied:
                        continue
                    to = factors.sides[copy.side]
                    words = copy.group.template.fill(block.bases[:1], *block.needed)[0]
                    words[HEAD_WORDS : HEAD_WORDS + 2] = to.address + before * to.stride + copy.column, to.stride
                    self._writer.section(words, block, copy.group, 0, f"vectors for the gradient of {p.name!r}")
                    self._writer.names.add("copy")
                before += n

    def products(self) -> tuple[Product, ...]:
        """What is to be multiplied once the launch has ended."""
        made = []
        for p, factors in self._factors.items():
            (rows, columns), sides = p.shape, factors.sides
            gradient, accumulate = self._places[p].gradient, p in self._held.dense
            made.append(Product(p.name, rows, columns, factors.n, sides["dy"], sides["x"], gradient, accumulate))
        return tuple(made)


def _in_place(factors: _Factors, side: str) -> Rows | None:
    """Where the vectors of one side are, if one slab has them all, row after row."""
    if len(factors.contributions) > 1:
        return None
    ((block, gradient, _, _),) = factors.contributions
    view = whole_slab(gradient, side)
    if view is None:
        return None
    return Rows(int(block.bases[0, view.slab]) + view.offset, block.cell.lowered.slabs[view.slab].width)
