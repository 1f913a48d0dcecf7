"""Peer: the binary Tree-LSTM in DyNet, whose C++ core automatically batches operations across a mini-batch's trees.

The program uses DyNet as intended: expressions for one node at a time, and automatic batching. It is fast because:

- Matrices are split by gate and child, which avoids splitting and concatenating vectors and was 5 % faster. For
  mini-batches of one or two trees, one product with the whole matrix was 20 % faster.
- One product computes the losses of all nodes (`concatenate_to_batch`).
- Memory pools are sized for the largest mini-batch from the start: otherwise DyNet clears all of them, and it cannot
  enlarge them under automatic batching.
- Updates of the embedding are sparse (the default), gradients are not clipped (not the default).

DyNet computes on one thread, regardless of the other contenders.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from trees import Tree

STRATEGIES = {1: "agenda", 2: "depth"}  # values of --dynet-autobatch
MEGABYTE = 2**20


class Pools(NamedTuple):
    """Sizes of DyNet's memory pools in MB."""

    forward: int
    backward: int
    parameters: int
    scratch: int

    @classmethod
    def for_batches(
        cls, nodes: int, weights: Mapping[str, NDArray[np.float32]], optimizer: str, models: int = 1
    ) -> Pools:
        """Return pools for mini-batches of up to `nodes` nodes.

        Args:
            models: number of models trained in this process, one after the other: DyNet does not reuse their memory.
        """
        # In rows of `hidden` floats per node: results of the expressions, and copies that join arguments. 128 sentences
        # of the Stanford Sentiment Treebank take 21 rows forward and 16 backward. Matrices are also copied.
        row = nodes * weights["Wo"].shape[1] * 4
        graph_weights = sum(array.nbytes for name, array in weights.items() if name != "words")
        copies = 4 if optimizer == "adam" else 2  # values, gradients, moments
        stored = models * copies * sum(array.nbytes for array in weights.values())
        sizes = 24 * row + graph_weights, 18 * row + graph_weights, stored, 16 * MEGABYTE
        return cls(*(math.ceil(size / MEGABYTE) + 8 for size in sizes))


def import_dynet(pools: Pools, autobatch: int) -> Any:
    """Start DyNet with these settings, which apply to the whole process.

    Raises ImportError if it is not installed.
    """
    arguments, sys.argv = sys.argv, sys.argv[:1]  # hides our options from DyNet
    try:
        import dynet_config

        if dynet_config.get() is None:
            memory = ",".join(map(str, pools))
            dynet_config.set(mem=memory, random_seed=1, autobatch=autobatch)
        import dynet
    finally:
        sys.argv = arguments
    return dynet


class DynetTrees(ABC):
    """Base class of the programs for trees: the parts of a step that the benches time."""

    def __init__(self, dynet: Any, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Copy the embeddings. dynet: from `import_dynet`."""
        self.dynet = dynet
        self.model = dynet.ParameterCollection()
        self.words = self.model.lookup_parameters_from_numpy(weights["words"])
        self.hidden = weights["Wo"].shape[1]
        self._loss = math.nan

    def _parameter(self, array: NDArray[np.float32]) -> Any:
        return self.model.parameters_from_numpy(np.ascontiguousarray(array))

    def _train_with(self, optimizer: str, lr: float) -> None:
        trainer = self.dynet.SimpleSGDTrainer if optimizer == "sgd" else self.dynet.AdamTrainer
        self.trainer = trainer(self.model, lr)
        self.trainer.set_clip_threshold(0)

    @abstractmethod
    def graph(self, batch: Sequence[Any]) -> Any:
        """Return the expression of the loss; DyNet calls this constructing the graph."""

    def step(self, batch: Sequence[Any]) -> None:
        """Train on one mini-batch."""
        self.run(self.graph(batch))

    def run(self, loss: Any) -> None:
        """Run the rest of a step, including DyNet's batching."""
        self._loss = loss.scalar_value()
        loss.backward()
        self.trainer.update()

    def loss(self) -> float:
        """Return the loss of the latest step, before its update."""
        return self._loss

    def close(self) -> None:
        """Release the latest graph."""
        self.dynet.renew_cg()


class DynetTreeLstm(DynetTrees):
    """Trains the Tree-LSTM whose equations and weights are in `treelstm.py`."""

    def __init__(
        self, dynet: Any, weights: Mapping[str, NDArray[np.float32]], optimizer: str, lr: float, whole: bool
    ) -> None:
        """Copy the weights.

        Args:
            dynet: from `import_dynet`.
            optimizer: "sgd" or "adam".
            whole: True to multiply by whole matrices instead of their parts for each gate and child.
        """
        super().__init__(dynet, weights)
        children = (slice(None),) if whole else (slice(None, self.hidden), slice(self.hidden, None))
        self.leaf = [
            (self._parameter(weights["b"][gate]), self._parameter(weights["W"][gate])) for gate in self._gates(3, whole)
        ]
        self.inner = [
            (self._parameter(weights["bU"][gate]), *(self._parameter(weights["U"][gate, child]) for child in children))
            for gate in self._gates(5, whole)
        ]
        self.whole = whole
        self.bo, self.Wo = self._parameter(weights["bo"]), self._parameter(weights["Wo"])
        self._train_with(optimizer, lr)

    def _gates(self, n: int, whole: bool) -> list[slice]:
        """Return the rows that are multiplied together: the rows of each of n gates, or all rows."""
        return [slice(None)] if whole else [slice(k * self.hidden, (k + 1) * self.hidden) for k in range(n)]

    @staticmethod
    def prepare(tree: Tree) -> list[tuple[int, int, int, int]]:
        """Convert a tree for the loop below. Done once per tree, as in a data loader, outside the timing."""
        return list(zip(tree.words, tree.left, tree.right, tree.labels, strict=True))

    def graph(self, batch: Sequence[list[tuple[int, int, int, int]]]) -> Any:
        """Return the expression of the loss; DyNet calls this constructing the graph."""
        dynet = self.dynet
        affine, logistic, tanh, product, total = (
            dynet.affine_transform, dynet.logistic, dynet.tanh, dynet.cmult, dynet.esum,
        )  # fmt: skip
        dynet.renew_cg()
        leaf_gates, inner_gates = (self._whole_leaf, self._whole_inner) if self.whole else (self._leaf, self._inner)
        hs, labels = [], []
        for tree in batch:
            states = []
            for word, left, right, label in tree:
                if left < 0:
                    i, o, u = leaf_gates(self.words[word])
                    c = product(logistic(i), tanh(u))
                else:
                    (c_left, h_left), (c_right, h_right) = states[left], states[right]
                    i, f_left, f_right, o, u = inner_gates(h_left, h_right)
                    written = product(logistic(i), tanh(u))
                    c = total([written, product(logistic(f_left), c_left), product(logistic(f_right), c_right)])
                h = product(logistic(o), tanh(c))
                states.append((c, h))
                hs.append(h)
                labels.append(label)
        logits = affine([self.bo, self.Wo, dynet.concatenate_to_batch(hs)])
        return dynet.sum_batches(dynet.pickneglogsoftmax_batch(logits, labels)) * (1.0 / len(batch))

    def _leaf(self, e: Any) -> list[Any]:
        affine = self.dynet.affine_transform
        return [affine([b, W, e]) for b, W in self.leaf]

    def _inner(self, x: Any, y: Any) -> list[Any]:
        affine = self.dynet.affine_transform
        return [affine([b, L, x, R, y]) for b, L, R in self.inner]

    def _whole_leaf(self, e: Any) -> list[Any]:
        ((b, W),) = self.leaf
        return self._cut(self.dynet.affine_transform([b, W, e]), 3)

    def _whole_inner(self, x: Any, y: Any) -> list[Any]:
        ((b, U),) = self.inner
        return self._cut(self.dynet.affine_transform([b, U, self.dynet.concatenate([x, y])]), 5)

    def _cut(self, gates: Any, n: int) -> list[Any]:
        cut, hidden = self.dynet.pick_range, self.hidden
        return [cut(gates, k * hidden, (k + 1) * hidden) for k in range(n)]
