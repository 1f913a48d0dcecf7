"""Messages along typed edges: a matrix per type, on graphs that may have cycles (R-GCN, Schlichtkrull et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import vpps
from vpps.nn import Linear

HIDDEN, ROUNDS = 32, 2
FRIEND, FOE = 0, 1

Ints = NDArray[np.int64]


@dataclass
class People:
    """n people and messages between them: a mini-batch of graphs, side by side.

    Attributes:
        opinion: (n,) 0 or 1, at first.
        label: (n,) after so many rounds of listening.
        source: (edges,) who speaks.
        offsets: (n + 1,) edges `offsets[k]:offsets[k + 1]` are those to person k.
        type: (edges,) what the speaker is to the listener.
    """

    opinion: Ints
    label: Ints
    source: Ints
    offsets: Ints
    type: Ints


class Relation:
    """One type of edges."""

    def __init__(self, model: vpps.Model, name: str) -> None:
        self.name = name
        self.W = model.parameter(f"{name}/W", (HIDDEN, HIDDEN))

    @vpps.cell
    def message(self, h: vpps.Expression) -> vpps.Expression:
        """Return the message of an edge, from the state of its source."""
        return self.W @ h


class RelationalNetwork:
    """Repeats h = tanh(W_0 h + Σ W_type h_source + b) over all edges that end at a vertex."""

    def __init__(self, model: vpps.Model, types: list[str]) -> None:
        self.opinions = model.lookup("opinions", (2, HIDDEN))
        self.relations = [Relation(model, name) for name in types]
        self.own = Linear(model, HIDDEN, HIDDEN, name="own")
        self.output = Linear(model, HIDDEN, 2, name="output")

    @vpps.cell
    def update(self, h: vpps.Expression, messages: list[vpps.Expression]) -> vpps.Expression:
        """Return the next state of a vertex."""
        return vpps.tanh(self.own(h) + vpps.sum(messages))

    def logits(self, graph: vpps.Graph, people: People) -> vpps.Rows:
        """Return the logits of every vertex's label."""
        h: vpps.Rows = graph.lookup(self.opinions, people.opinion)
        cells = [relation.message for relation in self.relations]
        for _ in range(ROUNDS):
            messages = graph.map(cells, kind=people.type, inputs={"h": h[people.source]})  # a row per edge
            h = graph.map(self.update, inputs={"h": h, "messages": (people.offsets, messages)})  # a row per vertex
        return self.output(h)


def draw(rng: np.random.Generator, graphs: int, size: int = 10) -> People:
    """Draw graphs in which everybody listens to 2 or 4 others, agrees with friends and contradicts foes."""
    n = graphs * size
    degree = rng.choice((2, 4), n)  # even: with one's own opinion there is always a majority
    target = np.arange(n).repeat(degree)
    source = target // size * size + rng.integers(size, size=len(target))
    kind = rng.choice((FRIEND, FOE), len(target))
    first = rng.choice((-1, 1), n)
    said = first
    for _ in range(ROUNDS):
        heard = np.where(kind == FRIEND, said[source], -said[source])
        said = np.sign(said + np.bincount(target, heard, n)).astype(np.int64)
    return People((first + 1) // 2, (said + 1) // 2, source, np.concatenate([[0], degree.cumsum()]), kind)


def accuracy(handle: vpps.Handle, network: RelationalNetwork, people: People) -> float:
    """Return the share of right labels."""
    graph = vpps.Graph()
    (logits,) = handle.forward(graph, [network.logits(graph, people)])
    return float((logits.argmax(axis=1) == people.label).mean())


def train(types: list[str]) -> float:
    """Return the accuracy on new graphs with these types of edges. A single type makes all edges equal."""
    rng = np.random.default_rng(1)
    model = vpps.Model(seed=1)
    network = RelationalNetwork(model, types)

    def batch() -> People:
        people = draw(rng, graphs=20)
        return people if len(types) > 1 else People(**vars(people) | {"type": np.zeros_like(people.type)})

    with vpps.Handle(model, vpps.Adam(lr=0.01)) as handle:
        for _ in range(150):
            people, graph = batch(), vpps.Graph()
            losses = vpps.cross_entropy(network.logits(graph, people), people.label)
            handle.fb(graph, vpps.sum(losses) * (1 / len(people.label)))
        return accuracy(handle, network, batch())


def main() -> tuple[float, float]:
    """Return the accuracy with types and without."""
    typed, untyped = train(["friend", "foe"]), train(["edge"])
    print(f"accuracy on new graphs: {typed:.2f} with a matrix per type, {untyped:.2f} with one for all edges")
    return typed, untyped


if __name__ == "__main__":
    main()
