"""Shared parts of all DyNet programs: equal weights, fast forms of products, a step that benches can time.

A program writes expressions for one vertex at a time; DyNet batches a mini-batch's operations automatically. These
choices make it fast (see also `peers/dynet_treelstm.py`):

- Matrices that vpps stacks by gate or by child are split for mini-batches of more than two graphs: DyNet then needs no
  copies to split and concatenate vectors. For fewer, one product with the whole matrix is faster. `Gates` has both.
- The bias of `affine_transform` is a parameter. DyNet batches it only if bias and matrices are the same nodes, so an
  affine_transform whose bias is a vertex's own vector is not batched (`U * h + a` is not).
- Ops common to all units (classifiers, losses) are computed once, on the `concatenate_to_batch` of all units.
- Gradients of embeddings are sparse (the default), none are clipped (not the default).
- Memory pools are sized for the largest mini-batch from the start.

DyNet computes on one thread. Nothing here needs vpps except the copied task.
"""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from peers.children import joined
from peers.dynet_treelstm import Pools, import_dynet

STRATEGIES = {"agenda": 1, "depth": 2}  # values of --dynet-autobatch
POOLS = Pools(forward=1024, backward=1024, parameters=256, scratch=64)  # the third grows by itself
WHOLE_UP_TO = 2  # most graphs per mini-batch


def start(pools: Pools = POOLS) -> Any:
    """Start DyNet with automatic batching; the pools set by the first call apply to the whole process."""
    return import_dynet(pools, autobatch=STRATEGIES["agenda"])


def _strategy_flag() -> ctypes.c_int:
    """Return DyNet's strategy variable. DyNet reads it before every forward pass, so one process can compare both."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    library = next(line.split(maxsplit=5)[5] for line in maps if "libdynet" in line)
    return ctypes.c_int.in_dll(ctypes.CDLL(library), "_ZN5dynet14autobatch_flagE")


@dataclass(frozen=True, slots=True)
class Graphs:
    """A `vpps.data.GraphBatch` as Python lists, the fastest form for loops over vertices.

    Attributes:
        size: number of graphs.
        order: all vertices, children before parents.
        children: present children per vertex.
        kind: kind per vertex.
        columns: by name, per vertex or per graph.
        roots: vertices without parents.
        offsets: graph k consists of the vertices from offsets[k] to offsets[k + 1].
    """

    size: int
    order: list[int]
    children: list[list[int]]
    kind: list[int]
    columns: dict[str, list[Any]]
    roots: list[int]
    offsets: list[int]

    @classmethod
    def of(cls, batch: Any, columns: Sequence[str]) -> Graphs:
        """Convert a GraphBatch to lists."""
        if isinstance(batch.children, tuple):
            offsets, indices = (array.tolist() for array in batch.children)
            children = [indices[a:b] for a, b in pairwise(offsets)]
        else:
            children = [[child for child in row if child >= 0] for row in batch.children.tolist()]
        kind = [0] * batch.n_vertices if batch.kind is None else batch.kind.tolist()
        return cls(
            len(batch), batch.order.tolist(), children, kind, {name: batch[name].tolist() for name in columns},
            batch.roots.tolist(), batch.offsets.tolist(),
        )  # fmt: skip

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]


class DynetProgram(ABC):
    """A network of vpps.zoo in DyNet; starts from the weights of a task.

    Attributes:
        dynet: the module.
        weights: copies of the task's weights, by name.
        model: DyNet's collection; a program's `__init__` adds parameters to it.
        whole: True if whole matrices are faster.
    """

    columns: ClassVar[Sequence[str]] = ()
    """Columns that `prepare` takes from a batch."""

    def __init__(self, task: Any, batch_size: int = 64, strategy: str = "agenda", pools: Pools = POOLS) -> None:
        """Copy the weights of a `vpps.zoo` task.

        Args:
            batch_size: graphs per mini-batch, which decides between forms of the program.
            strategy: DyNet's batching strategy, from STRATEGIES.
        """
        self.dynet = start(pools)
        self.task = task
        self.settings = task.settings
        self.whole = batch_size <= WHOLE_UP_TO
        self.weights = joined({p.name: p.numpy() for p in task.model})
        fixed = {p.name for p in task.model if not p.trainable}
        self._trainable = {name: name not in fixed for name in self.weights}
        self._strategy = STRATEGIES[strategy]
        self._flag = _strategy_flag()
        self.model = self.dynet.ParameterCollection()
        self.trainer: Any = None
        self._loss = math.nan
        self.declare()

    @abstractmethod
    def declare(self) -> None:
        """Declare the parameters that the program uses: `lookup`, `parameter`, `blocks`, `Gates`."""

    @abstractmethod
    def loss(self, batch: Any) -> Any:
        """Return the result of `task.loss` for a prepared batch: an expression, summed over units."""

    @abstractmethod
    def outputs(self, batch: Any) -> Any:
        """Return the results of `task.outputs`: one expression, whose batch elements are the units."""

    def prepare(self, batch: Any) -> Any:
        """Convert a batch of the task's data for the loops here. Outside the timing, like a data loader's work.

        The length of the result is the number of examples.
        """
        return Graphs.of(batch, self.columns)

    def train_with(self, optimizer: str, lr: float) -> None:
        """Choose the update rule: "sgd" or "adam". Table rows that a batch does not use are not updated."""
        rule = self.dynet.SimpleSGDTrainer if optimizer == "sgd" else self.dynet.AdamTrainer
        self.trainer = rule(self.model, lr)
        self.trainer.set_clip_threshold(0)

    def step(self, batch: Any) -> None:
        """Train on a prepared mini-batch."""
        self.renew()
        loss = self.loss(batch) * (1.0 / len(batch))
        self._loss = loss.scalar_value()
        loss.backward()
        self.trainer.update()

    def last_loss(self) -> float:
        """Return the loss of the latest step, before its update."""
        return self._loss

    def infer(self, batch: Any) -> NDArray[np.float32]:
        """Return the outputs of a prepared mini-batch, (units, width)."""
        self.renew()
        values: NDArray[np.float32] = self.outputs(batch).npvalue()  # the last axis is units
        return np.atleast_2d(values.T)

    def renew(self) -> None:
        """Begin a new graph."""
        self._flag.value = self._strategy
        self.dynet.renew_cg()

    # Parameters.

    def derive(self, name: str, source: str, array: NDArray[np.float32]) -> None:
        """Make part of a parameter a separate parameter; together, the parts replace the whole."""
        self.weights[name], self._trainable[name] = array, self._trainable[source]

    def lookup(self, name: str) -> Any:
        """Return an embedding table; `table[row]` is a vector, or a matrix."""
        array = self.weights[name]
        if array.ndim == 3:  # DyNet stores its matrices by column
            array = np.ascontiguousarray(array.swapaxes(1, 2))
        table = self.model.lookup_parameters_from_numpy(array)
        table.set_updated(self._trainable[name])
        return table

    def parameter(self, name: str) -> Any:
        """Return a parameter of the vpps model."""
        return self._part(name, self.weights[name])

    def rows(self, name: str, n: int) -> list[Any]:
        """Return a matrix or vector, split into n parts with equally many rows, such as one per gate."""
        return [self._part(name, part) for part in np.split(self.weights[name], n)]

    def blocks(self, name: str, rows: int, columns: int) -> list[list[Any]]:
        """Return a matrix, split into rows x columns parts of equal size."""
        return [
            [self._part(name, part) for part in np.split(row, columns, axis=1)]
            for row in np.split(self.weights[name], rows)
        ]

    def _part(self, name: str, array: NDArray[np.float32]) -> Any:
        parameter = self.model.parameters_from_numpy(np.ascontiguousarray(array))
        parameter.set_updated(self._trainable[name])
        return parameter

    # Expressions.

    def cut(self, x: Any, n: int) -> list[Any]:
        """Split a vector into n parts of equal length."""
        length = x.dim()[0][0] // n
        return [self.dynet.pick_range(x, k * length, (k + 1) * length) for k in range(n)]

    def linear(self, layer: tuple[Any, Any], x: Any) -> Any:
        """Return W x + b, with layer (W, b) from `layer()`."""
        W, b = layer
        return self.dynet.affine_transform([b, W, x])

    def layer(self, name: str) -> tuple[Any, Any]:
        """Return the parameters (W, b) of the `vpps.nn.Linear` with that name."""
        return self.parameter(f"{name}/W"), self.parameter(f"{name}/b")

    def cross_entropy(self, logits: Any, labels: list[int]) -> Any:
        """Return the sum over the batch elements of `logits`."""
        return self.dynet.sum_batches(self.dynet.pickneglogsoftmax_batch(logits, labels))


class Gates:
    """n gates of W_1 x_1 + W_2 x_2 + ... + b, before their nonlinearities, by products with whole matrices or parts.

        self.inner = Gates(self, 5, "tree_lstm/b", ("tree_lstm/U", 2))        # U times two children, concatenated
        i, o, u, f_left, f_right = self.inner(h_left, h_right)

    Args:
        n: number of gates; their rows are stacked in bias and matrices.
        bias: name of the bias, or None.
        terms: (name, k): a matrix that multiplies k inputs of equal length, concatenated.
    """

    def __init__(self, program: DynetProgram, n: int, bias: str | None, *terms: tuple[str, int]) -> None:
        self.program, self.n = program, n
        self.inputs = [k for _, k in terms]
        parts = 1 if program.whole else n
        biases = [None] * parts if bias is None else program.rows(bias, parts)
        self.parts: list[tuple[Any, list[Any]]] = [(b, []) for b in biases]
        for name, k in terms:
            for (_, matrices), row in zip(
                self.parts, program.blocks(name, parts, 1 if program.whole else k), strict=True
            ):
                matrices.extend(row)

    def __call__(self, *xs: Any) -> list[Any]:
        """Return the gates, in order, from the inputs of all terms, in order."""
        if self.program.whole:
            rest = iter(xs)
            xs = tuple(self._joined([next(rest) for _ in range(k)]) for k in self.inputs)
        gates = [self._sum(b, matrices, xs) for b, matrices in self.parts]
        return self.program.cut(gates[0], self.n) if self.program.whole and self.n > 1 else gates

    def _joined(self, xs: list[Any]) -> Any:
        return xs[0] if len(xs) == 1 else self.program.dynet.concatenate(xs)

    def _sum(self, b: Any, matrices: list[Any], xs: Sequence[Any]) -> Any:
        if b is None:
            products = [W * x for W, x in zip(matrices, xs, strict=True)]
            return products[0] if len(products) == 1 else self.program.dynet.esum(products)
        arguments = [b]
        for W, x in zip(matrices, xs, strict=True):
            arguments += W, x
        return self.program.dynet.affine_transform(arguments)
