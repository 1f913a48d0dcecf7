"""Networks over character-word lattices in DyNet with its automatic batching."""

from __future__ import annotations

from abc import abstractmethod
from itertools import pairwise
from typing import Any

from peers.dynet_zoo.program import DynetProgram, Gates, Graphs

CHARACTER = 0


class LatticeProgram(DynetProgram):
    """States of characters, and a linear classifier on them."""

    columns = ("character", "word", "tag")

    def prepare(self, batch: Any) -> Graphs:
        """Return the graphs with missing children included: a child's position tells its role."""
        graphs = Graphs.of(batch, self.columns)
        offsets, indices = (array.tolist() for array in batch.children)
        graphs.children[:] = [indices[a:b] for a, b in pairwise(offsets)]
        return graphs

    @abstractmethod
    def states(self, batch: Graphs) -> list[Any]:
        """Return the state of every vertex."""

    def tagged(self, batch: Graphs) -> Any:
        """Return the logits of all characters, as batch elements."""
        states = self.states(batch)
        characters = [states[v] for v, kind in enumerate(batch.kind) if kind == CHARACTER]
        return self.linear(self.output, self.dynet.concatenate_to_batch(characters))

    def loss(self, batch: Graphs) -> Any:
        return self.cross_entropy(self.tagged(batch), [tag for tag in batch["tag"] if tag >= 0])

    def outputs(self, batch: Graphs) -> Any:
        return self.tagged(batch)


class LatticeLstm(LatticeProgram):
    """DyNet program of `vpps.zoo.LatticeLSTM`."""

    def declare(self) -> None:
        self.characters, self.words = self.lookup("characters"), self.lookup("words")
        self.character = Gates(self, 3, "character/b", ("character/W", 1), ("character/U", 1))
        self.forget = Gates(self, 1, "character/bf", ("character/Wf", 1), ("character/Uf", 1))
        self.word = Gates(self, 3, "word/b", ("word/W", 1), ("word/U", 1))
        self.link = self.layer("link")
        self.link_of_word = self.parameter("link/U")
        self.output = self.layer("output")

    def states(self, batch: Graphs) -> list[Any]:
        d = self.dynet
        logistic, tanh, product, total = d.logistic, d.tanh, d.cmult, d.esum
        nothing = d.zeros(self.settings.hidden)
        hs: list[Any] = [None] * len(batch.kind)  # U_l c of each word
        cs: list[Any] = [None] * len(batch.kind)
        for v in batch.order:
            before, *words = batch.children[v]
            h, c = (nothing, nothing) if before < 0 else (hs[before], cs[before])
            if batch.kind[v] != CHARACTER:
                i, f, u = self.word(self.words[batch["word"][v]], h)
                cs[v] = total([product(logistic(f), c), product(logistic(i), tanh(u))])
                hs[v] = self.link_of_word * cs[v]
                continue
            x = self.characters[batch["character"][v]]
            i, o, u = self.character(x, h)
            if words:
                gate = self.linear(self.link, x)
                weights = [d.exp(logistic(i)), *(d.exp(logistic(gate + hs[w])) for w in words)]
                memories = [tanh(u), *(cs[w] for w in words)]
                kept = total([product(a, m) for a, m in zip(weights, memories, strict=True)])
                cs[v] = d.cdiv(kept, total(weights))
            else:
                (f,) = self.forget(x, h)
                cs[v] = total([product(logistic(f), c), product(logistic(i), tanh(u))])
            hs[v] = product(logistic(o), tanh(cs[v]))
        return hs


class LatticeGru(LatticeProgram):
    """DyNet program of `vpps.zoo.LatticeGRU`."""

    def declare(self) -> None:
        self.characters, self.words = self.lookup("characters"), self.lookup("words")
        self.cell = GruCell(self)
        self.gate_u, self.gate_b = self.parameter("gate/u"), self.parameter("gate/b")
        self.output = self.layer("output")

    def states(self, batch: Graphs) -> list[Any]:
        d = self.dynet
        nothing = d.zeros(self.settings.hidden)
        hs: list[Any] = [None] * len(batch.kind)
        for v in batch.order:
            before, *words = batch.children[v]
            h = nothing if before < 0 else hs[before]
            if batch.kind[v] != CHARACTER:
                hs[v] = self.cell(self.words[batch["word"][v]], h)
                continue
            own = self.cell(self.characters[batch["character"][v]], h)
            if words:  # without words, the character's state has all the weight
                states = [own, *(hs[w] for w in words)]
                weights = [d.logistic(d.dot_product(self.gate_u, h) + self.gate_b) for h in states]
                mixed = d.esum([h * weight for h, weight in zip(states, weights, strict=True)])
                own = d.cdiv(mixed, d.esum(weights))
            hs[v] = own
        return hs


class GruCell:
    """DyNet program of `vpps.nn.GRU`."""

    def __init__(self, program: DynetProgram, name: str = "gru") -> None:
        self.dynet = program.dynet
        self.input = Gates(program, 3, f"{name}/b", (f"{name}/W", 1))
        self.state = Gates(program, 2, None, (f"{name}/U", 1))
        self.V = program.parameter(f"{name}/V")

    def __call__(self, x: Any, h: Any) -> Any:
        d = self.dynet
        xr, xz, xn = self.input(x)
        ur, uz = self.state(h)
        r, z = d.logistic(xr + ur), d.logistic(xz + uz)
        n = d.tanh(xn + self.V * d.cmult(r, h))
        return n + d.cmult(z, h - n)  # the wheel has no 1 - z
