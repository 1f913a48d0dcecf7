"""Peer: Tree-FC in DyNet with its automatic batching; equations and weights are in `tree_fc.py`.

The matrix is split by child, so that no vectors are concatenated; one product computes the losses of all roots. Pools
fit the largest mini-batch from the start, as in `dynet_treelstm.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from trees import Tree

from peers.dynet_treelstm import MEGABYTE, DynetTrees, Pools


def pools_for(nodes: int, weights: Mapping[str, NDArray[np.float32]], models: int) -> Pools:
    """Return pools for mini-batches of up to `nodes` nodes; this process trains `models` models in sequence."""
    # In rows of `hidden` floats per node: half a row each for embeddings, products and h, and as much for copies that
    # join the two children of many nodes; the same amount for backward.
    row = nodes * weights["Wo"].shape[1] * 4
    graph_weights = sum(array.nbytes for name, array in weights.items() if name != "words")
    stored = models * 2 * sum(array.nbytes for array in weights.values())
    sizes = 4 * row + 2 * graph_weights, 4 * row + 2 * graph_weights, stored, 16 * MEGABYTE
    return Pools(*(math.ceil(size / MEGABYTE) + 8 for size in sizes))


class DynetTreeFc(DynetTrees):
    """Trains Tree-FC by SGD."""

    def __init__(self, dynet: Any, weights: Mapping[str, NDArray[np.float32]], lr: float) -> None:
        """Copy the weights. dynet: from `peers.dynet_treelstm.import_dynet`."""
        super().__init__(dynet, weights)
        W, hidden = weights["W"], self.hidden
        self.b, self.L, self.R, self.bo, self.Wo = map(
            self._parameter, (weights["b"], W[:, :hidden], W[:, hidden:], weights["bo"], weights["Wo"])
        )
        self._train_with("sgd", lr)

    @staticmethod
    def prepare(tree: Tree) -> tuple[list[tuple[int, int, int]], int]:
        """Convert nodes and the root's label for the loop below, outside the timing."""
        return list(zip(tree.words, tree.left, tree.right, strict=True)), tree.labels[-1]

    def graph(self, batch: Sequence[tuple[list[tuple[int, int, int]], int]]) -> Any:
        """Return the expression of the loss; DyNet calls this constructing the graph."""
        dynet = self.dynet
        affine, tanh, words = dynet.affine_transform, dynet.tanh, self.words
        b, L, R = self.b, self.L, self.R
        dynet.renew_cg()
        roots, labels = [], []
        for nodes, label in batch:
            h = []
            for word, left, right in nodes:
                h.append(words[word] if left < 0 else tanh(affine([b, L, h[left], R, h[right]])))
            roots.append(h[-1])
            labels.append(label)
        logits = affine([self.bo, self.Wo, dynet.concatenate_to_batch(roots)])
        return dynet.sum_batches(dynet.pickneglogsoftmax_batch(logits, labels)) * (1.0 / len(batch))
