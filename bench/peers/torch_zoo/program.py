"""Shared parts of all PyTorch programs: equal weights, and a step that benches can time in parts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peers.children import joined, parted


class SparseAdam(torch.optim.SparseAdam):
    """Adam by Kingma & Ba 2015: PyTorch's Adam adds eps to a second moment before its bias correction.

    The two differ if gradients are tiny, for example for words at the bottom of a high pyramid.
    """

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["eps"] = 1e-8 * math.sqrt(1 - group["betas"][1] ** group["steps"])
        return super().step(closure)


class TorchProgram(ABC):
    """A network of vpps.zoo in PyTorch, batched manually; its parameters are named as in the vpps model.

    Attributes:
        weights: weights by name; `vpps.Model`'s "words" is `self.weights["words"]`.
        per_node: compute one vertex at a time, without batching, as an engineer would begin.
    """

    sparse: ClassVar[tuple[str, ...]] = ("words",)
    """Names of embedding tables, whose gradients are sparse in training."""

    def __init__(self, task: Any, per_node: bool = False) -> None:
        """Copy the weights of a `vpps.zoo` task. Sizes come from `task.settings`, `task.network` and `task.train`."""
        self.task = task
        self.settings = task.settings
        self.per_node = per_node
        arrays = joined({p.name: p.numpy() for p in task.model})
        fixed = {p.name for p in task.model if not p.trainable}
        self.weights = {name: torch.tensor(a, requires_grad=name not in fixed) for name, a in arrays.items()}
        self.optimizers: list[torch.optim.Optimizer] = []
        self.clip_norm: float | None = None
        self._loss: Tensor | None = None

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """Return the result of `task.loss`: a scalar, summed over units."""

    @abstractmethod
    def outputs(self, batch: Any) -> Tensor:
        """Return the results of `task.outputs`, one row per unit."""

    def gradients(self, batch: Any) -> tuple[float, dict[str, NDArray[Any]]]:
        """Return the loss, and dense gradients by name."""
        for weight in self.weights.values():
            weight.grad = None
        loss = self.loss(batch)
        loss.backward()
        found = {
            name: (torch.zeros_like(w) if w.grad is None else w.grad.to_dense()).numpy()
            for name, w in self.weights.items()
        }
        return loss.item(), parted(found, [p.name for p in self.task.model])

    def train_with(self, optimizer: str, lr: float, clip_norm: float | None = None) -> None:
        """Choose the update rule: "sgd" or "adam". Table rows that a batch does not use are not updated.

        Args:
            clip_norm: bound on the norm of all gradients together.
        """
        self.clip_norm = clip_norm
        dense = [w for name, w in self.weights.items() if name not in self.sparse and w.requires_grad]
        tables = [w for name, w in self.weights.items() if name in self.sparse and w.requires_grad]
        if optimizer == "sgd":
            self.optimizers = [torch.optim.SGD(dense + tables, lr=lr)]
        else:
            self.optimizers = [torch.optim.Adam(dense, lr=lr, fused=True)]
            if tables:
                self.optimizers.append(SparseAdam(tables, lr=lr))

    def step(self, batch: Any) -> None:
        """Train on one mini-batch."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch) * (1.0 / len(batch))
        loss.backward()
        if self.clip_norm is not None:
            self._clip(self.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        self._loss = loss.detach()

    def _clip(self, bound: float) -> None:
        """Clip like `torch.nn.utils.clip_grad_norm_`, but with sparse gradients, which that function rejects."""
        for name in self.sparse:
            if (grad := self.weights[name].grad) is not None:
                self.weights[name].grad = grad.coalesce()  # otherwise the norm counts repeated rows separately
        grads = [w.grad for w in self.weights.values() if w.grad is not None]
        values = [grad.values() if grad.is_sparse else grad for grad in grads]
        scale = bound / (torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values))) + 1e-6)
        torch._foreach_mul_(values, scale.clamp(max=1.0))

    def last_loss(self) -> float:
        """Return the loss of the latest step, before its update."""
        assert self._loss is not None
        return self._loss.item()

    @torch.inference_mode()
    def infer(self, batch: Any) -> Tensor:
        """Return the outputs, without gradients."""
        return self.outputs(batch)

    def lookup(self, table: str, rows: Tensor) -> Tensor:
        """Return rows of an embedding table; the gradient is sparse."""
        return torch.nn.functional.embedding(rows, self.weights[table], sparse=True)

    @staticmethod
    def column(array: NDArray[Any]) -> Tensor:
        """Copy ints of a batch into an index tensor: batches are read-only."""
        return torch.from_numpy(array.astype(np.int64))

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return the result of the `vpps.nn.Linear` with that name for x."""
        return torch.nn.functional.linear(x, self.weights[f"{name}/W"], self.weights.get(f"{name}/b"))
