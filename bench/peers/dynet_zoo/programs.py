"""The network over programs in DyNet, which batches its operations by itself."""

from __future__ import annotations

from typing import Any

from peers.dynet_zoo.lattices import GruCell
from peers.dynet_zoo.program import DynetProgram, Graphs


class ProgramGru(DynetProgram):
    """`vpps.zoo.ProgramGRU`."""

    columns = ("type", "name", "label")

    def declare(self) -> None:
        self.types, self.names = self.lookup("types"), self.lookup("names")
        self.query = self.parameter("query/W")
        (self.message,) = self.blocks("message/W", 1, 3)
        self.cell = GruCell(self)
        self.output = self.layer("output")

    def roots(self, batch: Graphs) -> Any:
        """The states of all roots, as batch elements."""
        d = self.dynet
        first, second, others = self.message
        scale = self.settings.hidden**-0.5
        hs: list[Any] = [None] * len(batch.kind)
        for v in batch.order:
            x = self.types[batch["type"][v]] + self.names[batch["name"][v]]
            states = [hs[k] for k in batch.children[v]]
            if not states:
                _, z, n = self.cell.input(x)
                hs[v] = d.cmult(d.logistic(-z), d.tanh(n))
                continue
            parts = [first * states[0]]
            if len(states) > 1:
                parts.append(second * states[1])
            if len(states) > 2:
                rest = d.concatenate_cols(states[2:])
                weights = d.softmax(d.transpose(rest) * (self.query * x) * scale)
                parts.append(others * (rest * weights))
            hs[v] = self.cell(x, d.esum(parts))
        return d.concatenate_to_batch([hs[v] for v in batch.roots])

    def loss(self, batch: Graphs) -> Any:
        return self.cross_entropy(self.outputs(batch), batch["label"])

    def outputs(self, batch: Graphs) -> Any:
        return self.linear(self.output, self.roots(batch))
