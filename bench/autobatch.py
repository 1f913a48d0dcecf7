"""Which operations DyNet launches together: its two batching strategies, from their published description.

An operation node may run together with every node of the same *signature*: the kind of operation, the sizes of its
operands, and the matrices it multiplies by. Two strategies choose what to launch next (Neubig, Goldberg and Dyer,
"On-the-fly Operation Batching in Dynamic Computation Graphs", NIPS 2017, section 3):

- depth: nodes of one signature and one depth (longest distance from an input) form a batch;
- agenda: of all signatures that have a node whose inputs are ready, take the one whose nodes have the lowest average
  depth in the whole graph, and launch all of its ready nodes. Ties go to elementwise operations: a product that is put
  off may find company.

`tree_lstm` is the graph of operations of `peers/dynet_treelstm.py`. `tests/bench/test_autobatch.py` compares its
batches with those that DyNet itself reports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from trees import Tree

Batch = list[int]  # node numbers


@dataclass
class Graph:
    """Operation nodes in the order of recording, inputs first.

    Attributes:
        signatures: of each node; None: it never shares a launch.
        inputs: nodes that each node reads.
        matrices: names of the matrices that a node of each signature multiplies by.
    """

    signatures: list[str | None] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    matrices: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, signature: str | None, *inputs: int) -> int:
        """Record a node; returns its number."""
        self.signatures.append(signature)
        self.inputs.append(inputs)
        return len(self.inputs) - 1

    def product(self, matrices: Sequence[str], *inputs: int) -> int:
        """Record the sum of products of matrices with one input each, and a bias."""
        signature = " + ".join(matrices)
        self.matrices[signature] = tuple(matrices)
        return self.add(signature, *inputs)

    def depths(self) -> list[int]:
        """Longest distance of each node from an input, which has depth 0. Products also read parameters: at least 1."""
        depths: list[int] = []
        for signature, inputs in zip(self.signatures, self.inputs, strict=True):
            own = max((depths[i] + 1 for i in inputs), default=0)
            depths.append(max(own, 1) if signature in self.matrices else own)
        return depths


def by_depth(graph: Graph) -> list[Batch]:
    """Batches of the depth strategy, in an order in which they can run."""
    batches: dict[tuple[int, str], Batch] = defaultdict(list)
    alone: list[tuple[int, Batch]] = []
    for node, (depth, signature) in enumerate(zip(graph.depths(), graph.signatures, strict=True)):
        if signature is None:
            alone.append((depth, [node]))
        else:
            batches[depth, signature].append(node)
    by_level = [(depth, batch) for (depth, _), batch in batches.items()] + alone
    return [batch for _, batch in sorted(by_level, key=lambda entry: entry[0])]


def by_agenda(graph: Graph) -> list[Batch]:
    """Batches of the agenda strategy, in the order in which they run."""
    readers: list[list[int]] = [[] for _ in graph.inputs]
    missing = [len(inputs) for inputs in graph.inputs]
    for node, inputs in enumerate(graph.inputs):
        for i in inputs:
            readers[i].append(node)
    depth_of: dict[str, list[int]] = {}  # in the order in which the signatures first occur
    for depth, signature in zip(graph.depths(), graph.signatures, strict=True):
        if signature is not None:
            depth_of.setdefault(signature, []).append(depth)
    # Lower is earlier; among equal averages elementwise operations come first.
    rank = {s: (sum(depths) / len(depths), s in graph.matrices) for s, depths in depth_of.items()}
    ready: dict[str, Batch] = defaultdict(list)
    alone: Batch = []  # ready, and never in company

    def arrived(node: int) -> None:
        signature = graph.signatures[node]
        (alone if signature is None else ready[signature]).append(node)

    for node, count in enumerate(missing):
        if not count:
            arrived(node)
    batches = []
    while alone or ready:
        batch = [alone.pop(0)] if alone else ready.pop(min(ready, key=rank.__getitem__))
        batches.append(batch)
        for node in batch:
            for reader in readers[node]:
                missing[reader] -= 1
                if not missing[reader]:
                    arrived(reader)
    return batches


STRATEGIES = {"depth": by_depth, "agenda": by_agenda}


def tree_lstm(batch: Sequence[Tree]) -> Graph:
    """Operations of the binary Tree-LSTM with a loss at every node, as the DyNet peer records them.

    (With whole matrices it reads as many bytes: the gates of a level, and both children, are launched together or not.)
    """
    graph = Graph()
    hs = []
    for tree in batch:
        states: list[tuple[int, int]] = []
        for left, right in zip(tree.left, tree.right, strict=True):
            if left < 0:
                e = graph.add("lookup")
                i = graph.add("sigmoid", graph.product(["Wi"], e))
                u = graph.add("tanh", graph.product(["Wu"], e))
                c = graph.add("multiply", i, u)
                o = graph.add("sigmoid", graph.product(["Wo"], e))
            else:
                (c_left, x), (c_right, y) = states[left], states[right]
                kept = []
                for gate, other in (("i", None), ("l", c_left), ("r", c_right)):
                    opened = graph.add("sigmoid", graph.product([f"L{gate}", f"R{gate}"], x, y))
                    if other is None:
                        other = graph.add("tanh", graph.product(["Lu", "Ru"], x, y))
                    kept.append(graph.add("multiply", opened, other))
                c = graph.add("sum", *kept)
                o = graph.add("sigmoid", graph.product(["Lo", "Ro"], x, y))
            h = graph.add("multiply", o, graph.add("tanh", c))
            states.append((c, h))
            hs.append(h)
    graph.product(["output"], graph.add(None, *hs))
    return graph


def matrix_reads(graph: Graph, batches: Sequence[Batch]) -> dict[str, int]:
    """How often a training step reads each matrix.

    Every launch of a product reads its matrices once forward, for the result, and once backward, for the gradient of
    what they were multiplied by. The gradient of a matrix does not read the matrix.
    """
    reads: dict[str, int] = defaultdict(int)
    for batch in batches:
        for matrix in graph.matrices.get(graph.signatures[batch[0]] or "", ()):
            reads[matrix] += 2
    return dict(reads)
