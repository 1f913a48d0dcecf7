"""Where backward begins: behind the scalar arithmetic that makes the loss of what vertices compute.

A sum of losses, its scale, a mean over a mini-batch are vertices of their own. Their gradients are constants: of
`0.5 * sum(losses)` that of every loss is 0.5. So they are folded while planning, in float32 and in the order in which
kernels would compute them, and backward begins with what the chain reads. No backward depends on the forward of the
chain then, which may run late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from vpps.graph.arrays import Ints
from vpps.plan.linear import LINEAR, NUMBER, Linear, linear_kind
from vpps.plan.topology import Topology


@dataclass(frozen=True, slots=True)
class LossChain:
    """The scalar arithmetic that ends in the loss.

    Attributes:
        blocks: numbers of the blocks whose vertices are all part of it, or lead nowhere.
        values: ids of the values that it reads, once for every time; the loss itself where there is no chain.
        gradients: of the loss with respect to each, float32.
    """

    blocks: frozenset[int]
    values: Ints
    gradients: NDArray[np.float32]


def loss_chain(topology: Topology, loss: int) -> LossChain:
    """The chain that ends in a value."""
    kinds = [linear_kind(b.cell) for b in topology.blocks]
    factors = [_factor(topology, number, kinds) for number in range(len(kinds))]
    found = {n for n, kind in enumerate(kinds) if 0 <= kind < NUMBER and factors[n] is not None}
    reads = topology.recurrence.reads
    while outside := {s for n, sources in enumerate(reads) if n not in found for s in sources & found}:
        found -= outside
    alone = LossChain(frozenset(), np.array([loss]), np.ones(1, np.float32))
    if topology.outputs[int(topology.value_output[loss])][0] not in found:
        return alone
    return _Folding(topology, frozenset(found), kinds, factors).fold(loss) or alone


def _factor(topology: Topology, number: int, kinds: Sequence[int]) -> int | None:
    """Of a block of products, which operand is always a number; 0 of other blocks, None where neither is."""
    if kinds[number] != Linear.MUL:
        return 0
    args = topology.value_output[topology.blocks[number].args]
    are_numbers = [
        all(kinds[topology.outputs[v][0]] == NUMBER for v in np.unique(args[:, k]).tolist()) for k in range(2)
    ]
    return are_numbers.index(True) if sum(are_numbers) == 1 else None


class _Folding:
    """Folds the gradients of a chain, vertex by vertex, from the loss back."""

    def __init__(
        self, topology: Topology, chain: frozenset[int], kinds: Sequence[int], factors: Sequence[int | None]
    ) -> None:
        self.topology, self.chain, self.kinds, self.factors = topology, chain, kinds, factors
        self.row_of: Ints = np.zeros(topology.n_values, np.int64)
        for b in topology.blocks:
            self.row_of[b.values[0]] = np.arange(len(b.calls))
        self.block_of = topology.value_block
        self.pending: dict[int, np.float32] = {}  # gradients of the values of the chain, as far as they are known
        self.order: list[int] = []  # a heap of minus their ids: readers have larger ones
        self.values: list[int] = []
        self.gradients: list[np.float32] = []

    def fold(self, loss: int) -> LossChain | None:
        """The chain; None where some vertex was recorded before what it reads, and so may come too early here."""
        self.add(loss, np.float32(1))
        with np.errstate(all="ignore"):
            while self.order:
                value = -heappop(self.order)
                for operand, gradient in self.operands(value, self.pending.pop(value)):
                    if operand >= value:
                        return None
                    self.add(operand, gradient)
        return LossChain(self.chain, np.array(self.values), np.array(self.gradients, np.float32))

    def add(self, value: int, gradient: np.float32) -> None:
        """One more gradient of a value."""
        if int(self.block_of[value]) not in self.chain:
            self.values.append(value)
            self.gradients.append(gradient)
        elif value in self.pending:
            self.pending[value] = self.pending[value] + gradient
        else:
            self.pending[value] = gradient
            heappush(self.order, -value)

    def operands(self, value: int, gradient: np.float32) -> Iterator[tuple[int, np.float32]]:
        """What the vertex that makes a value of the chain reads, and the gradients of that."""
        number, row = int(self.block_of[value]), int(self.row_of[value])
        b, name = self.topology.blocks[number], LINEAR[self.kinds[number]]
        if b.lists:
            (xs,) = b.lists
            elements = xs.elements[xs.ends[row] : xs.ends[row + 1]].tolist()
            if name == "list_mean" and elements:
                gradient = gradient * (np.float32(1) / np.float32(len(elements)))
            for operand in elements:
                yield operand, gradient
            return
        args = b.args[row].tolist()
        if name == "mul":
            k = self.factors[number]
            assert k is not None
            made_by = self.topology.blocks[int(self.block_of[args[k]])]
            yield args[1 - k], gradient * made_by.data[self.row_of[args[k]]].reshape(-1)[0]
            return
        signs = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}[name]
        for operand, sign in zip(args, signs, strict=True):
            yield operand, gradient if sign > 0 else -gradient
