"""Linear-chain conditional random field: the forward algorithm as a graph, and Viterbi's algorithm in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

import vpps
from vpps.data import GraphBatch
from vpps.errors import ShapeError
from vpps.nn.layer import Layer
from vpps.nn.recurrent import chain_ends, check_rows
from vpps.values import as_float32


class CRF(Layer):
    """Linear-chain conditional random field (Lafferty et al. 2001). It scores whole sequences of tags y_1 ... y_n:

        score = start[y_1] + Σ_t emission_t[y_t] + Σ_t transitions[y_t, y_t+1] + end[y_n]

    Names and layout of the weights are those of pytorch-crf: start_transitions, end_transitions, and transitions[i, j]
    from tag i to tag j. `load` and `state_dict` exchange them. All begin with zeros.
    """

    _in_torch = tuple((name, name) for name in ("start_transitions", "end_transitions", "transitions"))

    def __init__(self, model: vpps.Model, n_tags: int, *, name: str = "crf") -> None:
        self.name = name
        self.n_tags = n_tags
        with model.scope(name):
            self.start_transitions = model.parameter("start_transitions", (n_tags,))
            self.end_transitions = model.parameter("end_transitions", (n_tags,))
            self.transitions = model.lookup("transitions", (n_tags, n_tags), init="zeros")  # cells read rows, by tag

    def _sizes(self) -> tuple[int, int]:
        return self.n_tags, self.n_tags

    @vpps.cell
    def _begin(self, emission: vpps.Expression) -> vpps.Expression:
        """Return α of the first vertex."""
        return emission + self.start_transitions

    @vpps.cell
    def _step(self, emission: vpps.Expression, alpha: vpps.Expression) -> vpps.Expression:
        """Return α of any later vertex: α_j = emission_j + log Σ_i exp(α'_i + transitions_ij)."""
        paths = [vpps.pick(alpha, tag) + vpps.lookup(self.transitions, tag) for tag in range(self.n_tags)]
        return emission + vpps.logsumexp(paths)  # type: ignore[no-any-return]

    @vpps.cell
    def _end(self, alpha: vpps.Expression, first: int, last: int) -> vpps.Expression:
        """Return log Z, from α of the last vertex, minus the scores of the right path's first and last tag."""
        right = vpps.pick(self.start_transitions, first) + vpps.pick(self.end_transitions, last)
        return vpps.logsumexp(alpha + self.end_transitions) - right

    @vpps.cell
    def _next_score(self, emission: vpps.Expression, tag: int, before: int) -> vpps.Expression:
        """Return the share of any later tag in the score of the right path."""
        return vpps.pick(emission, tag) + vpps.pick(vpps.lookup(self.transitions, before), tag)

    def loss(
        self, graph: vpps.Graph, chains: GraphBatch, emissions: vpps.Rows, tags: NDArray[np.integer]
    ) -> vpps.Expression:
        """Return minus the log-likelihood of the tags, summed over the chains, a scalar.

        Args:
            chains: graphs in which a vertex has at most one child, the previous vertex; see `vpps.data.read_tagged`.
            emissions: score of each tag at every vertex, of shape (n_tags,).
            tags: (vertices,) the right tag of every vertex.

        Raises:
            DataError: a graph is not a single chain.
            ShapeError: emissions or tags do not fit the chains.
            IndexRangeError: there is no such tag.
        """
        before, first, last = chain_ends(chains)
        check_rows(f"{self.name}.loss: emissions", emissions, len(before), self.n_tags, "vertex")
        tag = np.asarray(tags)
        if tag.shape != before.shape:
            raise ShapeError(f"{self.name}.loss: tags of shape {tag.shape}; expected {before.shape}, one per vertex")
        others = np.flatnonzero(before >= 0)
        structure = chains.structure | {"kind": (before >= 0).view(np.int8)}
        alpha = graph.map([self._begin, self._step], **structure, inputs={"emission": emissions})
        scores = self._next_score(emissions[others], tag[others], tag[before[others]])
        gold = vpps.sum(vpps.pick(emissions[first], tag[first])) + vpps.sum(scores)
        return vpps.sum(self._end(alpha[last], tag[first], tag[last])) - gold

    def decode(self, chains: GraphBatch, emissions: ArrayLike) -> NDArray[np.int64]:
        """Return the tag of every vertex on the best path through its chain (Viterbi 1967).

        Args:
            emissions: (vertices, n_tags) from `handle.forward(graph, [emissions])`.

        Raises:
            DataError, ShapeError: as for `loss`.
        """
        before, first, last = chain_ends(chains)
        score = as_float32(emissions, f"{self.name}.decode: emissions").astype(np.float64)
        if score.shape != (len(before), self.n_tags):
            raise ShapeError(f"{self.name}.decode: emissions of shape {score.shape}; expected {self.n_tags} per vertex")
        transitions = self.transitions.numpy()
        score[first] += self.start_transitions.numpy()
        came_from = np.zeros(score.shape, np.int64)
        ends = np.cumsum(np.bincount(chains.levels))[:-1]
        _, *steps = np.split(np.argsort(chains.levels, kind="stable"), ends)
        for step in steps:  # the vertices of all chains at the same distance from the first one
            paths = score[before[step]][:, :, None] + transitions  # (chain, from, to)
            came_from[step] = paths.argmax(axis=1)
            score[step] += paths.max(axis=1)
        tags = np.zeros(len(score), np.int64)
        tags[last] = (score[last] + self.end_transitions.numpy()).argmax(axis=1)
        for step in reversed(steps):
            tags[before[step]] = came_from[step, tags[step]]
        return tags
