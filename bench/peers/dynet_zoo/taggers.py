"""Networks in DyNet that tag words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from peers.dynet_zoo.program import DynetProgram, Graphs


class Lstm:
    """The layer `vpps.nn.LSTM` with some name, over chains.

    W x is computed inside the recurrence. Computing it for all inputs at once would add vertices and copies. They cost
    DyNet more than the larger product saves: a half to a third of the speed, and less for larger batches.
    """

    def __init__(self, program: DynetProgram, name: str) -> None:
        self.dynet = program.dynet
        self.cut = program.cut
        parts = 1 if program.whole else 4
        self.W, self.U, self.b = (program.rows(f"{name}/{part}", parts) for part in "WUb")

    def __call__(self, xs: Sequence[Any]) -> list[Any]:
        """Return the state h after each input."""
        return self.run(xs)[0]

    def run(self, xs: Sequence[Any], begin: tuple[Any, Any] | None = None) -> tuple[list[Any], tuple[Any, Any]]:
        """Return the state h after each input, and the last (h, c). `begin`: the first (h, c); default: zeros."""
        affine, logistic, tanh, product = (
            self.dynet.affine_transform, self.dynet.logistic, self.dynet.tanh, self.dynet.cmult
        )  # fmt: skip
        states: list[Any] = []
        h, c = begin or (None, None)
        for x in xs:
            terms = zip(self.b, self.W, self.U, strict=True)
            gates = [affine([b, W, x] if h is None else [b, W, x, U, h]) for b, W, U in terms]
            i, f, o, u = gates if len(gates) == 4 else self.cut(gates[0], 4)
            new = product(logistic(i), tanh(u))
            c = new if c is None else new + product(logistic(f), c)
            h = product(logistic(o), tanh(c))
            states.append(h)
        return states, (h, c)


class BiLstm:
    """The layer `vpps.nn.BiLSTM` with some name."""

    def __init__(self, program: DynetProgram, name: str) -> None:
        self.forward, self.backward = Lstm(program, f"{name}/forward"), Lstm(program, f"{name}/backward")

    def __call__(self, xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the states of one chain in each direction, in chain order."""
        return self.forward(xs), self.backward(xs[::-1])[::-1]


class BiLstmTagger(DynetProgram):
    """DyNet program of `vpps.zoo.BiLSTMTagger`."""

    columns = ("word", "tag")

    def declare(self) -> None:
        self.words = self.lookup("words")
        self.bilstm = BiLstm(self, "bilstm")
        self.hidden, self.output = self.layer("mlp/hidden"), self.layer("mlp/output")

    def inputs(self, batch: Any) -> list[Any]:
        """Return the vector of every word."""
        return [self.words[word] for word in batch["word"]]

    def outputs(self, batch: Any) -> Any:
        xs = self.inputs(batch)
        forward: list[Any] = []
        backward: list[Any] = []
        for first, end in pairwise(batch.offsets):
            for all_states, states in zip((forward, backward), self.bilstm(xs[first:end]), strict=True):
                all_states += states
        together = self.dynet.concatenate_to_batch
        states = self.dynet.concatenate([together(forward), together(backward)])
        return self.linear(self.output, self.dynet.tanh(self.linear(self.hidden, states)))

    def loss(self, batch: Any) -> Any:
        return self.cross_entropy(self.outputs(batch), batch["tag"])


@dataclass(frozen=True, slots=True)
class Spelled:
    """A `vpps.data.SpelledBatch` as Python lists.

    Attributes:
        spellings: each distinct rare word's characters.
        spelling: index into `spellings` per word; None for words of the vocabulary.
    """

    sentences: Graphs
    spellings: list[list[int]]
    spelling: list[int | None]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, column: str) -> list[Any]:
        return self.sentences[column]

    @property
    def offsets(self) -> list[int]:
        """Return the offsets of the sentences."""
        return self.sentences.offsets


class BiLstmCharTagger(BiLstmTagger):
    """DyNet program of `vpps.zoo.BiLSTMCharTagger`. Reads every distinct rare word of a mini-batch once."""

    def declare(self) -> None:
        super().declare()
        self.characters = self.lookup("characters")
        self.spelling = BiLstm(self, "spelling")

    def prepare(self, batch: Any) -> Spelled:
        characters = batch.spellings["character"].tolist() if len(batch.spellings) else []
        spelling = [k if rare else None for k, rare in zip(batch.spelling.tolist(), batch.rare.tolist(), strict=True)]
        return Spelled(
            Graphs.of(batch.sentences, self.columns),
            [characters[first:end] for first, end in pairwise(batch.spellings.offsets.tolist())],
            spelling,
        )

    def inputs(self, batch: Spelled) -> list[Any]:
        spelled = []
        for spelling in batch.spellings:
            forward, backward = self.spelling([self.characters[k] for k in spelling])
            spelled.append(self.dynet.concatenate([forward[-1], backward[0]]))
        return [
            self.words[word] if k is None else spelled[k] for word, k in zip(batch["word"], batch.spelling, strict=True)
        ]
