"""A pointer network (Vinyals et al. 2015): the decoder chooses elements of its input, here numbers to sort."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.nn import LSTM

HIDDEN = 32

Ints = NDArray[np.int64]


@vpps.cell
def cross_entropy(scores: list[vpps.Expression], right: vpps.Expression) -> vpps.Expression:
    """Return the loss of a list of scores; `right` is the score of the right answer."""
    total: vpps.Expression = vpps.logsumexp(scores)
    return total - right


class Pointer:
    """One LSTM reads the numbers. Another starts with its state and points at one number per step."""

    def __init__(self, model: vpps.Model) -> None:
        self.encoder = LSTM(model, 1, HIDDEN, name="encoder")
        self.decoder = LSTM(model, 1, HIDDEN, name="decoder")
        self.W = model.parameter("W", (HIDDEN, HIDDEN))
        self.U = model.parameter("U", (HIDDEN, HIDDEN))
        self.v = model.parameter("v", (HIDDEN,), init="normal")

    @vpps.cell
    def first(self, x: vpps.Expression, h_start: vpps.Expression, c_start: vpps.Expression) -> vpps.nn.State:
        """Make the first step of the decoder, whose state is an input."""
        return self.decoder.step(x, h_start, c_start)

    @vpps.cell
    def score(self, element: vpps.Expression, step: vpps.Expression) -> vpps.Expression:
        """Return the score of an element of the input at a step of the decoder."""
        return vpps.dot(self.v, vpps.tanh(self.W @ element + self.U @ step))

    def scores(self, graph: vpps.Graph, numbers: NDArray[np.float64], order: Ints) -> tuple[vpps.Rows, Ints]:
        """Return the scores of all numbers at each step of each example, and the first row of each step.

        Args:
            numbers: (examples, length).
            order: (examples, length), the position of each step's number.
        """
        examples, length = numbers.shape
        position = np.arange(examples * length) % length
        chains = {"kind": np.minimum(position, 1), "children": np.where(position > 0, np.arange(len(position)) - 1, -1)}
        read = graph.rows(numbers.reshape(-1, 1))
        h, c = graph.map([self.encoder.begin, self.encoder.step], **chains, inputs={"x": read})
        # The decoder reads the number before. Every step has a row of the encoder's last state; the first uses it.
        before = np.take_along_axis(numbers, order, axis=1)[:, :-1]
        given = graph.rows(np.pad(before, ((0, 0), (1, 0))).reshape(-1, 1))
        last = np.arange(examples).repeat(length) * length + length - 1
        inputs = {"x": given, "h_start": h[last], "c_start": c[last]}
        steps, _ = graph.map([self.first, self.decoder.step], **chains, inputs=inputs)
        # A row for each pair of a step and a number.
        elements = np.arange(examples * length).reshape(examples, 1, length).repeat(length, axis=1).reshape(-1)
        of_step = np.arange(examples * length).repeat(length)
        scores = graph.map(self.score, inputs={"element": h[elements], "step": steps[of_step]})
        return scores, np.arange(examples * length + 1) * length

    def loss(self, graph: vpps.Graph, numbers: NDArray[np.float64], order: Ints) -> vpps.Expression:
        """Return the mean cross entropy of a step."""
        scores, offsets = self.scores(graph, numbers, order)
        right = scores[offsets[:-1] + order.reshape(-1)]  # of rows, a pick is an index
        return vpps.mean(graph.map(cross_entropy, inputs={"scores": (offsets, scores), "right": right}))


def main() -> tuple[list[float], float]:
    """Return the losses, and the share of steps on new numbers that point at the right one."""
    rng = np.random.default_rng(1)

    def draw() -> tuple[NDArray[np.float64], Ints]:
        numbers = rng.uniform(size=(32, rng.integers(3, 6)))
        return numbers, numbers.argsort(axis=1)

    model = vpps.Model(seed=1)
    network = Pointer(model)
    losses = []
    with vpps.Handle(model, vpps.Adam(lr=0.01), clip_norm=1.0) as handle:
        for _ in range(200):
            graph = vpps.Graph()
            handle.fb(graph, network.loss(graph, *draw()))
            losses.append(handle.sync_get_latest_loss())
        graph, (numbers, order) = vpps.Graph(), draw()
        (scores,) = handle.forward(graph, [network.scores(graph, numbers, order)[0]])
    found = scores.reshape(*order.shape, -1).argmax(axis=2)
    right = float((found == order).mean())
    print(f"loss {losses[0]:.2f}, then {losses[-1]:.2f}; {right:.2f} of the steps point at the right number")
    return losses, right


if __name__ == "__main__":
    main()
