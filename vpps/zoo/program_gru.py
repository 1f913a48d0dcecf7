"""What a program does, by a message-passing GRU over its graph: a template for networks over any acyclic graphs."""

from __future__ import annotations

import vpps
from vpps.data import GraphBatch
from vpps.nn import GRU, Linear, attend
from vpps.zoo.classifier import Classifier


class ProgramGRU(Classifier):
    """Aggregate what the children give, update by a GRU: the scheme of D-VAE (Zhang et al. 2019, equations 3 to 5) and
    DAGNN (Thost & Chen 2021, section 2.1), in one direction and one layer, for vertices of any fan-in.

        x  = type + name                                    embeddings of the vertex
        m  = M [h_1; h_2; Σ_{k>2} α_k h_k]                  message of its children
        α  = softmax_k (Q x · h_k)
        h  = GRU(x, m)                                      m in the place of the previous state

    As in DAGNN attention pools the children. But their order matters in programs (a - b), so the first two have
    matrices of their own within M. A missing child is zeros. The state of the root is classified.

    Args:
        model: the parameters go here.
        n_types, n_names: rows of the embedding tables.
        n_classes: labels are 0 to n_classes - 1.
        embedding: length of an embedding.
        hidden: length of a state.
    """

    def __init__(
        self, model: vpps.Model, n_types: int, n_names: int, n_classes: int, *, embedding: int = 256, hidden: int = 256
    ) -> None:
        vectors = vpps.init.uniform((3 / embedding) ** 0.5)  # of length 1, more or less
        self.types = model.lookup("types", (n_types, embedding), init=vectors)
        self.names = model.lookup("names", (n_names, embedding), init=vectors)
        self.query = Linear(model, embedding, hidden, bias=False, name="query")
        self.message = Linear(model, 3 * hidden, hidden, bias=False, name="message")
        self.gru = GRU(model, embedding, hidden)
        self.output = Linear(model, hidden, n_classes, name="output")

    def embedded(self, type: int, name: int) -> vpps.Expression:
        """What a vertex is, without its children."""
        return vpps.lookup(self.types, type) + vpps.lookup(self.names, name)

    @vpps.cell
    def leaf(self, type: int, name: int) -> None:
        """Scatters the state of a vertex without children."""
        vpps.scatter(self.gru.first(self.embedded(type, name)))

    @vpps.cell
    def inner(self, type: int, name: int) -> None:
        """Scatters the state of a vertex with children."""
        x = self.embedded(type, name)
        others = vpps.gather(start=2)
        pooled = attend(self.query(x), others, others)
        message = self.message(vpps.concat([vpps.gather(0), vpps.gather(1), pooled]))
        vpps.scatter(self.gru.step(x, message))

    def states(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The state of every vertex.

        Args:
            batch: graphs with kinds leaf and inner, columns type and name, children as lists: such as
                `vpps.data.read_programs` makes.
        """
        inputs = {"type": batch["type"], "name": batch["name"]}
        h: vpps.Rows = graph.map([self.leaf, self.inner], **batch.structure, inputs=inputs, distinct=True)
        return h

    def classified(self, graph: vpps.Graph, batch: GraphBatch) -> vpps.Rows:
        """The state of the root of every graph."""
        roots: vpps.Rows = self.states(graph, batch)[batch.roots]
        return roots
