"""Taggers of Chinese characters: recurrent networks over lattices of characters and words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.data import GraphBatch
from vpps.nn import GRU, Linear
from vpps.nn.gates import gate_biases, glorot_per_gate
from vpps.record.cell import Cell
from vpps.zoo.classifier import Classifier

CHARACTER, WORD, JOINED = range(3)
"""Kinds of vertices: characters where no word ends, words, and characters where words end."""


class LatticeTagger(Classifier):
    """Tags every character. Subclasses declare parameters and cells.

    Attributes:
        state: lengths of the vectors that a vertex scatters.
    """

    state: int | tuple[int, int]
    character: Cell[Any]
    word: Cell[Any]

    def __init__(
        self,
        model: vpps.Model,
        n_characters: int,
        n_words: int,
        n_tags: int,
        *,
        embedding: int = 256,
        hidden: int = 256,
    ) -> None:
        vectors = vpps.init.uniform((3 / embedding) ** 0.5)  # vectors of length about 1
        self.characters = model.lookup("characters", (n_characters, embedding), init=vectors)
        self.words = model.lookup("words", (n_words, embedding), init=vectors)
        self.declare(model, embedding, hidden)
        self.output = Linear(model, hidden, n_tags, name="output")

    @abstractmethod
    def declare(self, model: vpps.Model, embedding: int, hidden: int) -> None:
        """Declare the parameters between embeddings and output."""

    @property
    def cells(self) -> Sequence[Cell[Any]]:
        """Vertex functions, one per kind of vertex."""
        return self.character, self.word

    def kinds_of(self, batch: GraphBatch) -> NDArray[np.int8] | None:
        """Return the kind of every vertex."""
        return batch.kind

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """Return the hidden state h of every character, in order.

        Args:
            batch: a batch of a set from `vpps.data.read_lattices`: kinds and columns character and word.
        """
        states: Any = graph.map(
            self.cells, **batch.structure | {"kind": self.kinds_of(batch)},
            inputs={"character": batch["character"], "word": batch["word"]}, state=self.state, distinct=True,
        )  # fmt: skip
        h: vpps.Rows = states[0] if isinstance(states, tuple) else states
        return h[characters_of(batch)]

    def labels(self, batch: GraphBatch) -> NDArray[np.int32]:
        """Return the tag of every character."""
        return batch["tag"][characters_of(batch)]


def characters_of(batch: GraphBatch) -> NDArray[np.intp]:
    """Return the vertices that are characters, not words, in a batch of lattices."""
    return np.flatnonzero(batch["character"] >= 0)


class LatticeLSTM(LatticeTagger):
    """Lattice LSTM for named entities (Zhang & Yang 2018, "Chinese NER using lattice LSTM", 3.3).

    A word's cell reads the state at the word's start and has no output gate (equation 13). Its memory enters the memory
    of the word's last character through a separate gate (14). That character's cell normalises all gates elementwise:

        [i f u]_w = [σ σ tanh](W_w x_w + U_w h + b_w)          c_w = f ⊙ c + i ⊙ u
        i_w       = σ(W_l x + U_l c_w + b_l)
        a, a_w    = exp(i), exp(i_w), each divided by the sum of all
        c'        = Σ_w a_w ⊙ c_w + a ⊙ u                      (15, 16)
        h'        = o ⊙ tanh(c')

    with the character's i, o and u as in an LSTM. A character where no word ends is a plain LSTM step.

    As in ED-Batch's lattices, a word reads the state before its first character (in the paper: after it). The network
    runs in one direction and chooses each tag independently, without a CRF.

    Args:
        model: the parameters go here.
        n_characters, n_words: rows of the embedding tables.
        n_tags: tags are 0 to n_tags - 1.
        embedding: length of the vectors of characters and words.
        hidden: length of h and c.
    """

    def declare(self, model: vpps.Model, embedding: int, hidden: int) -> None:
        H = hidden
        self.state = H, H
        with model.scope("character"):
            self.W = model.parameter("W", (3 * H, embedding), init=glorot_per_gate(3))  # i, o and u
            self.U = model.parameter("U", (3 * H, H), init=glorot_per_gate(3))
            self.b = model.parameter("b", (3 * H,), init="zeros")
            self.Wf = model.parameter("Wf", (H, embedding))
            self.Uf = model.parameter("Uf", (H, H))
            self.bf = model.parameter("bf", (H,), init=gate_biases(H, 1))
        with model.scope("word"):
            self.Ww = model.parameter("W", (3 * H, embedding), init=glorot_per_gate(3))  # i, f and u
            self.Uw = model.parameter("U", (3 * H, H), init=glorot_per_gate(3))
            self.bw = model.parameter("b", (3 * H,), init=gate_biases(H, 0, 1, 0))
        with model.scope("link"):
            self.Wl = model.parameter("W", (H, embedding))
            self.Ul = model.parameter("U", (H, H))
            self.bl = model.parameter("b", (H,), init="zeros")

    @vpps.cell
    def character(self, character: int) -> None:
        """Scatter h and c of a character where no word ends."""
        x = vpps.lookup(self.characters, character)
        h, c = vpps.gather(0)
        i, o, u = vpps.split(self.W @ x + self.U @ h + self.b, 3)
        f = self.Wf @ x + self.Uf @ h + self.bf
        c = vpps.sigmoid(f) * c + vpps.sigmoid(i) * vpps.tanh(u)
        vpps.scatter(vpps.sigmoid(o) * vpps.tanh(c), c)

    @vpps.cell
    def word(self, word: int) -> None:
        """Scatter U_l c_w, the contribution of a word's memory to its gate, and the memory c_w itself."""
        h, c = vpps.gather(0)
        i, f, u = vpps.split(self.Ww @ vpps.lookup(self.words, word) + self.Uw @ h + self.bw, 3)
        c = vpps.sigmoid(f) * c + vpps.sigmoid(i) * vpps.tanh(u)
        vpps.scatter(self.Ul @ c, c)

    @vpps.cell
    def joined(self, character: int) -> None:
        """Scatter h and c of a character where words end."""
        x = vpps.lookup(self.characters, character)
        h, _ = vpps.gather(0)
        links, memories = vpps.gather(start=1)
        i, o, u = vpps.split(self.W @ x + self.U @ h + self.b, 3)
        gate = self.Wl @ x + self.bl
        own = vpps.exp(vpps.sigmoid(i))
        weights = vpps.each(lambda link: vpps.exp(vpps.sigmoid(gate + link)), links)
        kept = vpps.sum(vpps.each(lambda weight, memory: weight * memory, weights, memories))
        c = (own * vpps.tanh(u) + kept) / (own + vpps.sum(weights))
        vpps.scatter(vpps.sigmoid(o) * vpps.tanh(c), c)

    @property
    def cells(self) -> Sequence[Cell[Any]]:
        return self.character, self.word, self.joined

    def kinds_of(self, batch: GraphBatch) -> NDArray[np.int8]:
        """Return CHARACTER, WORD or JOINED per vertex. A character where words end has more than one child."""
        assert batch.kind is not None
        offsets, _ = batch.children
        return np.where(np.diff(offsets) > 1, np.int8(JOINED), batch.kind)


class LatticeGRU(LatticeTagger):
    """Deep word-lattice GRU with gates (DWL-GRU + GO; Su et al. 2017, "Lattice-based recurrent neural network
    encoders").

    Every edge of the lattice, character or word, is a step of one shared GRU from the state at the edge's start. The
    paper's gating operation, with one scalar per edge, combines the edges that end at a position:

        h_k = GRU(x_k, state at the start of edge k)
        h   = Σ_k σ(u · h_k + b) h_k / Σ_k σ(u · h_k + b)

    The paper encodes sentences for translation; here a softmax tags the characters, as in ED-Batch's LatticeGRU.

    Args:
        model, n_characters, n_words, n_tags, embedding: as in `LatticeLSTM`.
        hidden: length of a state.
    """

    def declare(self, model: vpps.Model, embedding: int, hidden: int) -> None:
        self.state = hidden
        self.gru = GRU(model, embedding, hidden)
        with model.scope("gate"):
            self.u = model.parameter("u", (hidden,), init=vpps.init.normal(1.0))  # large: early states differ little
            self.b = model.parameter("b", (), init="zeros")

    @vpps.cell
    def word(self, word: int) -> None:
        """Scatter the state after a word."""
        vpps.scatter(self.gru.step(vpps.lookup(self.words, word), vpps.gather(0)))

    @vpps.cell
    def character(self, character: int) -> None:
        """Scatter the combined state of a character and of the words that end there."""
        own = self.gru.step(vpps.lookup(self.characters, character), vpps.gather(0))
        words = vpps.gather(start=1)
        weight = self.weight(own)
        weights = vpps.each(self.weight, words)
        mixed = weight * own + vpps.sum(vpps.each(lambda w, h: w * h, weights, words))
        vpps.scatter(mixed / (weight + vpps.sum(weights)))

    def weight(self, h: vpps.Expression) -> vpps.Expression:
        """Return a state's weight among the states that end at a position, a scalar."""
        return vpps.sigmoid(vpps.dot(self.u, h) + self.b)
